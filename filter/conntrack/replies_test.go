package conntrack

import (
	"net/netip"
	"testing"
	"time"

	"weir/filter/key"
	"weir/filter/packet"
)

// Whatever somebody sends to a connection that this host has closed, or has forgotten, the
// host answers by RSTs, which prolong nothing.
func TestResetsProlongNothing(t *testing.T) {
	now := time.Duration(0)
	r := &Replies{Opening: 2 * time.Minute, Established: time.Hour, Now: func() time.Duration { return now }}
	out := key.Tuple{
		Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("198.51.100.1"), Proto: 6, HasPorts: true, SrcPort: 40000, DstPort: 443,
	}
	in := out
	in.Src, in.Dst, in.SrcPort, in.DstPort = out.Dst, out.Src, out.DstPort, out.SrcPort
	send := func(at time.Duration, flags byte) {
		now = at
		f := packet.Frame(out)
		f[14+20+tcpFlags] = flags
		p, _ := packet.Parse(f)
		r.Remember(f, p, nil)
	}
	answered := func(at time.Duration) bool {
		now = at
		f := packet.Frame(in)
		f[14+20+tcpFlags] = tcpACK
		p, _ := packet.Parse(f)
		return r.IsReply(f, p)
	}
	const minute = time.Minute
	send(0, tcpSYN)
	send(minute, tcpRST|tcpACK)
	if answered(2 * minute) {
		t.Error("refused, and prolonged by that")
	}
	send(10*minute, tcpSYN)
	send(10*minute, tcpACK)
	if !answered(60 * minute) {
		t.Error("an established connection has expired")
	}
	for at := 60 * minute; at < 64*minute; at += minute {
		send(at, tcpRST)
	}
	if !answered(61*minute) || answered(62*minute) {
		t.Error("does not expire two minutes after the first RST")
	}
	send(70*minute, tcpSYN)
	send(70*minute, tcpFIN|tcpACK)
	send(71*minute, tcpACK) // a packet after its end
	if !answered(72*minute) || answered(73*minute) {
		t.Error("does not last for two minutes after the last ACK")
	}
}

// UDP from an ephemeral port is answered for as long as a socket is known to wait: nothing that
// it sends before then prolongs that, or opens it again within as long afterwards.
func TestUDPExpires(t *testing.T) {
	const minute = time.Minute
	now := time.Duration(0)
	r := &Replies{UDP: minute, Ephemeral: 32768, Now: func() time.Duration { return now }}
	packetOf := func(from, to string, fromPort, toPort uint16) ([]byte, packet.Packet) {
		f := packet.Frame(key.Tuple{
			Src: netip.MustParseAddr(from), Dst: netip.MustParseAddr(to), Proto: 17, HasPorts: true, SrcPort: fromPort, DstPort: toPort,
		})
		p, _ := packet.Parse(f)
		return f, p
	}
	send := func(at time.Duration, port uint16) {
		now = at
		f, p := packetOf("192.0.2.1", "198.51.100.1", port, 53)
		r.Remember(f, p, nil)
	}
	answered := func(at time.Duration, port uint16) bool {
		now = at
		f, p := packetOf("198.51.100.1", "192.0.2.1", 53, port)
		return r.IsReply(f, p)
	}
	send(0, 32767)
	if answered(0, 32767) {
		t.Error("a port that is not ephemeral opens")
	}
	send(0, 32768)
	send(minute-1, 32768)
	if !answered(minute-1, 32768) || answered(minute, 32768) {
		t.Error("does not last for a minute after the first packet")
	}
	send(2*minute-1, 32768)
	if answered(2*minute-1, 32768) {
		t.Error("opened again too early")
	}
	send(2*minute, 32768)
	if !answered(3*minute-1, 32768) || answered(3*minute, 32768) {
		t.Error("not opened again for a minute")
	}
}
