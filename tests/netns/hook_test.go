package netns

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir/control/engine"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/hooks"
	"weir/loader/kernelerr"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/pins"
	"weir/tests/wait"
)

// datagram is a UDP packet as a tunnel carries it, whose last byte is its number.
func datagram(src, dst string, port uint16, number byte) []byte {
	f := packet.Frame(key.Tuple{
		Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), Proto: unix.IPPROTO_UDP, HasPorts: true, SrcPort: 9, DstPort: port,
	})[14:]
	f = append(f, number)
	udp := f[20:]
	if f[0]>>4 == 6 {
		udp = f[40:]
		binary.BigEndian.PutUint16(f[4:], uint16(len(udp)))
	} else {
		binary.BigEndian.PutUint16(f[2:], uint16(len(f)))
		f[10], f[11] = 0, 0
		f[10], f[11] = checksum(f[:20])
	}
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	if f[0]>>4 == 6 {
		binary.BigEndian.PutUint16(udp[6:], 0)
		binary.BigEndian.PutUint16(udp[6:], udpChecksum(f[8:40], udp))
	}
	return f
}

// udpChecksum returns the checksum of a datagram in IPv6.
func udpChecksum(addresses, udp []byte) uint16 {
	pseudo := append([]byte(nil), addresses...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(udp)))
	pseudo = append(append(pseudo, 0, 0, 0, unix.IPPROTO_UDP), udp...)
	if len(pseudo)%2 == 1 {
		pseudo = append(pseudo, 0)
	}
	high, low := checksum(pseudo)
	return uint16(high)<<8 | uint16(low)
}

// eachTC runs a test with the ways in which TC has programs: tcx, and a filter of clsact.
func eachTC(t *testing.T, test func(t *testing.T)) {
	t.Run("tcx", test)
	t.Run("clsact", func(t *testing.T) {
		t.Setenv("WEIR_TEST_CLSACT", "1")
		test(t)
	})
}

// A tunnel's packets have no Ethernet header. At XDP that is refused, with what to do instead;
// at TC they are matched in both directions, and their events have a header for readers.
func TestTunnel(t *testing.T) {
	long.Seconds(t)
	l := lab.New(t)
	for _, kind := range []struct {
		name, iface string
		open        func(t *testing.T) carrier
	}{
		{"TUN", "tun7", func(t *testing.T) carrier { return tun(t, l.B, "tun7", unix.IFF_NO_PI) }},
		{"PPP", "ppp7", func(t *testing.T) carrier { return ppp(t, l.B, 7, "ppp7") }},
	} {
		for _, version := range []struct{ name, local, remote, listed string }{
			{"IPv4", "192.0.2.1", "192.0.2.2", "192.0.2.66"},
			{"IPv6", "2001:db8::1", "2001:db8::2", "2001:db8::66"},
		} {
			t.Run(kind.name+"/"+version.name, func(t *testing.T) {
				eachTC(t, func(t *testing.T) {
					device := kind.open(t)
					t.Cleanup(func() { device.Close() })
					testTunnel(t, l.B, device, kind.iface, version.local, version.remote, version.listed)
				})
			})
		}
	}
}

// Without an Ethernet header, too, Linux takes off VLAN tags of VID 0, however many: the
// first before TC. A listed sender cannot hide behind them.
func TestTagsInTunnel(t *testing.T) {
	const local, remote, listed, port = "192.0.2.1", "192.0.2.2", "192.0.2.66", 7777
	l := lab.New(t)
	device := tun(t, l.B, "tun7", 0)
	t.Cleanup(func() { device.Close() })
	addTo(t, l.B, "tun7", local)
	var socket net.PacketConn
	var err error
	l.B.In(t, func() { socket, err = net.ListenPacket("udp", net.JoinHostPort(local, "7777")) })
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	eachTC(t, func(t *testing.T) {
		g := build(t, lists([]key.Key{source(listed + "/32")}, nil), engine.Config{TC: true})
		a := untilEnd(t, netif.Target{Netns: l.B.Netns, Iface: "tun7"}, hooks.TC, g.Load)
		const most = packet.MaxVLANTags
		for tags := range byte(most + 1) {
			for _, src := range []string{listed, remote} {
				frame := []byte{0, 0} // the flags
				for range tags {
					frame = append(frame, 0x88, 0xa8, 0, 0)
				}
				frame = append(append(frame, 8, 0), datagram(src, local, port, tags)...)
				if _, err := device.Write(frame); err != nil {
					t.Fatal(err)
				}
			}
			b := make([]byte, 2000)
			if err := socket.SetReadDeadline(wait.Deadline()); err != nil {
				t.Fatal(err)
			}
			n, from, err := socket.ReadFrom(b)
			if err != nil || b[n-1] != tags || !strings.HasPrefix(from.String(), remote+":") {
				t.Fatalf("%d tags: number %d from %v, %v", tags, b[max(n-1, 0)], from, err)
			}
		}
		if c := a.Stats().Reasons(nil)[verdict.Blocked]; c.Packets != most+1 {
			t.Errorf("blocked %d packets, want %d", c.Packets, most+1)
		}
	})
}

// carrier is the far end of a device that carries IP packets.
type carrier interface {
	io.ReadWriteCloser
	SetReadDeadline(time.Time) error
}

// addTo adds an address to an interface, in a network of the usual size.
func addTo(t *testing.T, at lab.End, iface, local string) {
	t.Helper()
	bits := "/24"
	if strings.Contains(local, ":") {
		bits = "/64"
	}
	address, err := netlink.ParseAddr(local + bits)
	if err != nil {
		t.Fatal(err)
	}
	address.Flags = unix.IFA_F_NODAD
	at.In(t, func() {
		var on netlink.Link
		if on, err = netlink.LinkByName(iface); err == nil {
			err = netlink.AddrAdd(on, address)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

func testTunnel(t *testing.T, at lab.End, device carrier, iface, local, remote, listed string) {
	addTo(t, at, iface, local)
	const port = 7777
	var socket net.PacketConn
	var err error
	at.In(t, func() { socket, err = net.ListenPacket("udp", net.JoinHostPort(local, "7777")) })
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	to := netif.Target{Netns: at.Netns, Iface: iface}

	all := lists([]key.Key{source(listed + map[bool]string{true: "/32", false: "/128"}[strings.Contains(listed, ".")])}, nil)
	out := lists([]key.Key{key.Destination(netip.PrefixFrom(netip.MustParseAddr(listed), netip.MustParseAddr(listed).BitLen()))}, nil)
	out[0].Direction, out[0].Name = engine.Out, "out"
	g := build(t, append(all, out[0]), engine.Config{TC: true, Outgoing: true})
	if _, err := pins.Attach(pins.New(t), to, hooks.Generic, nil, g.Load); !errors.Is(err, kernelerr.ErrUnsupported) || !strings.Contains(err.Error(), "hook: tc") {
		t.Errorf("at XDP: %v", err)
	}
	in, err := pins.Attach(pins.New(t), to, hooks.TC, nil, g.Load)
	if err != nil {
		t.Fatal(err)
	}
	to.Out = true
	o, err := pins.Attach(pins.New(t), to, hooks.TC, nil, g.Out().Load)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		for _, a := range []*loader.Attachment{in, o} {
			if err := errors.Join(a.Detach(), a.Close()); err != nil {
				t.Error(err)
			}
		}
	}()
	now := loader.Sampling{Frames: true, Until: loader.Monotonic() + time.Minute}
	now.OneIn[verdict.Blocked] = 1
	in.Stats().Sample(now)

	for _, p := range [][]byte{datagram(listed, local, port, 1), datagram(remote, local, port, 2)} {
		if _, err := device.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	b := make([]byte, 2000)
	if err := socket.SetReadDeadline(wait.Deadline()); err != nil {
		t.Fatal(err)
	}
	if n, from, err := socket.ReadFrom(b); err != nil || b[n-1] != 2 {
		t.Errorf("number %d from %v, %v", b[max(n-1, 0)], from, err)
	}
	size := len(datagram(listed, local, port, 1))
	if c := in.Stats().Reasons(nil)[verdict.Blocked]; c.Packets != 1 || c.Bytes != uint64(size) {
		t.Errorf("incoming: blocked %+v, want one packet of %d bytes", c, size)
	}
	events := 0
	if err := in.Stats().Events(func(e *loader.Event) {
		events++
		p, _ := packet.Parse(e.Frame)
		if p.Src.String() != listed || p.Network != 14 || e.Packet.Network != 14 || len(e.Frame) != size+14 || int(e.Packet.Len) != size+14 {
			t.Errorf("event %+v", e)
		}
	}); err != nil || events != 1 {
		t.Errorf("%d events, %v", events, err)
	}

	// What leaves, read from the device: to the remote, and not to who is listed.
	for _, host := range []string{listed, remote} {
		addr := &net.UDPAddr{IP: net.ParseIP(host), Port: 9}
		if _, err := socket.WriteTo([]byte{3}, addr); err != nil && !errors.Is(err, unix.ENOBUFS) {
			t.Fatal(err)
		}
	}
	if err := device.SetReadDeadline(wait.Deadline()); err != nil {
		t.Fatal(err)
	}
	for {
		n, err := device.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		if p, _ := packet.Parse(append(make([]byte, 12), etherHeader(b[:n])...)); p.Proto == unix.IPPROTO_UDP && p.DstPort == 9 {
			if p.Dst.String() != remote {
				t.Errorf("to %v", p.Dst)
			}
			break
		}
	}
	if c := o.Stats().Reasons(nil)[verdict.Blocked]; c.Packets != 1 {
		t.Errorf("outgoing: blocked %+v", c)
	}
}

// etherHeader returns a packet behind its EtherType.
func etherHeader(p []byte) []byte {
	if p[0]>>4 == 6 {
		return append([]byte{0x86, 0xdd}, p...)
	}
	return append([]byte{8, 0}, p...)
}
