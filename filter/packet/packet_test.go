package packet_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/cases"
	"weir/tests/seed"
)

func TestParse(t *testing.T) {
	for _, c := range cases.OfParser() {
		before := bytes.Clone(c.Frame)
		p, result := packet.Parse(c.Frame)
		if p.HasAddresses != c.Tuple.Src.IsValid() || p.Tuple != c.Tuple || result != c.Result || p.ND {
			t.Errorf("%s: result %d of %+v, want %d of %+v", c.Name, result, p, c.Result, c.Tuple)
		}
		if !bytes.Equal(c.Frame, before) {
			t.Errorf("%s: the frame has been changed", c.Name)
		}
	}
}

// Neighbour discovery has to be what receivers accept as such: RFC 4861, and RFC 6980.
func TestNeighbourDiscovery(t *testing.T) {
	least := map[int]int{133: 8, 134: 16, 135: 24, 136: 24, 137: 40} // bytes
	for kind := range 256 {
		for length := range 41 {
			n, ok := least[kind]
			if p, _ := packet.Parse(cases.Message(byte(kind), length)); p.ND != (ok && length >= n) {
				t.Errorf("type %d, %d bytes: %t", kind, length, p.ND)
			}
		}
	}
	for _, c := range cases.OfNeighbours() {
		if p, _ := packet.Parse(c.Frame); p.ND != c.ND {
			t.Errorf("%s: %t", c.Name, p.ND)
		}
	}
}

// Frame and Parse are inverses.
func TestFrame(t *testing.T) {
	r := seed.New(t)
	for range 10_000 {
		var a, b [16]byte
		for i := range a {
			a[i], b[i] = byte(r.Uint32()), byte(r.Uint32())
		}
		want := key.Tuple{Src: netip.AddrFrom16(a), Dst: netip.AddrFrom16(b), Proto: uint8(r.IntN(256))}
		if r.IntN(2) == 0 {
			want.Src, want.Dst = netip.AddrFrom4([4]byte(a[:])), netip.AddrFrom4([4]byte(b[:]))
		} else if packet.IsExtension(want.Proto) {
			continue
		}
		if p := want.Proto; key.HasPorts(p) && r.IntN(2) == 0 {
			want.HasPorts, want.SrcPort, want.DstPort = true, uint16(r.Uint32()), uint16(r.Uint32())
		}
		p, result := packet.Parse(packet.Frame(want))
		if result != packet.OK || p.Tuple != want || !p.HasAddresses {
			t.Fatalf("%+v becomes %+v, result %d", want, p, result)
		}
	}
}

func TestInner(t *testing.T) {
	for _, c := range cases.OfTunnels() {
		p, result := packet.Parse(c.Frame)
		if result != packet.OK {
			t.Errorf("%s: result %d", c.Name, result)
		}
		depth := 0
		for inner, _ := p.Inner(c.Frame); inner.HasAddresses; inner, _ = p.Inner(c.Frame) {
			p = inner
			depth++
		}
		if depth != c.Depth || depth > 0 && p.Tuple != c.Tuple {
			t.Errorf("%s: %+v at depth %d, want %+v at depth %d", c.Name, p.Tuple, depth, c.Tuple, c.Depth)
		}
	}
}

// What hides a header in a tunnel is reported as outside a tunnel: also where padding of the
// frame, or of the packet around it, looks like the rest of it.
func TestHiddenInner(t *testing.T) {
	for _, c := range cases.OfHidden() {
		p, result := packet.Parse(c.Frame)
		for depth := 0; depth < c.Depth; depth++ {
			if result != packet.OK {
				t.Errorf("%s: result %d at depth %d", c.Name, result, depth)
			}
			p, result = p.Inner(c.Frame)
		}
		if result != c.Result || p.Tuple != c.Tuple {
			t.Errorf("%s: result %d with %+v, want %d with %+v", c.Name, result, p, c.Result, c.Tuple)
		}
	}
}

// No frame makes the parser panic or return an inconsistent result, in tunnels either.
func FuzzParse(f *testing.F) {
	for _, c := range cases.OfParser() {
		f.Add(c.Frame)
	}
	for _, c := range cases.OfTunnels() {
		f.Add(c.Frame)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		p, result := packet.Parse(frame)
		if err := impossible(p, result); err != nil {
			t.Errorf("% x: %v", frame, err)
		}
		// What follows the packet must not matter.
		if longer, r := packet.Parse(append(bytes.Clone(frame), 0xff)); result == packet.OK && (r != packet.OK || longer != p) {
			t.Errorf("% x: %+v, with a byte more %+v and result %d", frame, p, longer, r)
		}
		for inner, _ := p.Inner(frame); inner.HasAddresses; inner, _ = p.Inner(frame) {
			if inner.Src.Is4() != inner.Dst.Is4() || inner.Network < p.Payload || inner.Network > packet.MaxInnerOffset ||
				inner.HasPorts && !key.HasPorts(inner.Proto) {
				t.Fatalf("% x: %+v in %+v", frame, inner, p)
			}
			p = inner
		}
	})
}

func impossible(p packet.Packet, r packet.Result) error {
	switch {
	case !p.HasAddresses && p != packet.Packet{Network: p.Network, EtherType: p.EtherType, Encapsulated: p.Encapsulated}:
		return fmt.Errorf("%+v without addresses", p)
	case p.HasAddresses && p.Src.Is4() != p.Dst.Is4():
		return fmt.Errorf("%+v has addresses of two families", p)
	case p.HasAddresses && (r == packet.NotIP || r == packet.ARP || r == packet.Link), !p.HasAddresses && r == packet.OK:
		return fmt.Errorf("%+v with result %d", p, r)
	case p.HasPorts && (r != packet.OK || !key.HasPorts(p.Proto)):
		return fmt.Errorf("%+v has ports with result %d", p, r)
	case !p.HasPorts && (p.SrcPort != 0 || p.DstPort != 0):
		return fmt.Errorf("%+v has port numbers, but HasPorts is false", p)
	case p.ND && (r != packet.OK || p.Proto != 58 || p.Src.Is4()):
		return fmt.Errorf("%+v is neighbour discovery with result %d", p, r)
	}
	return nil
}
