package netns

import (
	"bytes"
	"errors"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"weir/control/engine"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/loader/hooks"
	"weir/tests/lab"
	"weir/tests/pins"
)

// The kernel removes any number of priority tags and passes the rest to
// sockets: no packet of a listed sender passes.
func TestPriorityTags(t *testing.T) {
	from, to := lab.Join(t, 7, 1500, lab.NewHost(t, "a"), "veth0", lab.NewHost(t, "b"), "veth0")
	var socket net.PacketConn
	var err error
	to.In(t, func() { socket, err = net.ListenPacket("udp4", to.IPv4.String()+":5353") })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	tx := from.Sender(t)
	datagram := frameOf(udp(from.IPv4.String(), to.IPv4.String(), 5353))
	datagram[38], datagram[39] = 0, byte(len(datagram)-34) // UDP's length
	datagram[24], datagram[25] = checksum(datagram[14:34])
	// received returns the numbers of tags that pass.
	received := func() (through []int) {
		for tags := range packet.MaxVLANTags + 3 {
			f := slices.Concat(to.MAC, from.MAC, bytes.Repeat([]byte{0x81, 0, 0, 0}, tags), datagram[12:])
			f[len(f)-1] = byte(tags)
			if err := tx.Send(f); err != nil {
				t.Fatal(err)
			}
		}
		for {
			if err := socket.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 100)
			n, _, err := socket.ReadFrom(b)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return through
			}
			if err != nil {
				t.Fatal(err)
			}
			through = append(through, int(b[n-1]))
		}
	}
	// Some kernels take any number, later ones, as 6.18.44, eight.
	if got := received(); len(got) <= packet.MaxVLANTags {
		t.Fatalf("without a filter, those with %v tags come through", got)
	}
	listed := lists([]key.Key{source(from.IPv4.String() + "/32")}, nil)
	for _, mode := range []hooks.Hook{hooks.Native, hooks.Generic, hooks.TC} {
		a, err := pins.Attach(pins.New(t), target(to), mode, nil, build(t, listed, engine.Config{TC: true}).Load)
		if err != nil {
			t.Fatal(err)
		}
		if got := received(); len(got) != 0 {
			t.Errorf("%v: from a listed source, those with %v tags come through", mode, got)
		}
		if err := errors.Join(a.Detach(), a.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// checksum returns the checksum of an IPv4 header, in which it is 0.
func checksum(header []byte) (high, low byte) {
	sum := uint32(0)
	for i := 0; i < len(header); i += 2 {
		sum += uint32(header[i])<<8 | uint32(header[i+1])
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	return byte(^sum >> 8), byte(^sum)
}
