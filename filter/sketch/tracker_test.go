package sketch

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"weir/filter/hash"
	"weir/filter/key"
)

const anyFlow = key.FieldSrcPort | key.FieldDstPort | key.FieldProto

var (
	sources = Tracker{
		V4:     key.Shape{SrcBits: 32},
		V6:     key.Shape{Fields: key.FieldV6, SrcBits: 128},
		Secret: hash.NewSecret(hash.Seed{1}),
	}
	flows = Tracker{
		V4:     key.Shape{Fields: anyFlow, SrcBits: 32, DstBits: 32},
		V6:     key.Shape{Fields: anyFlow | key.FieldV6, SrcBits: 128, DstBits: 128},
		Secret: hash.NewSecret(hash.Seed{1}),
	}
)

// of returns the tracker with another unit and size.
func (t Tracker) of(u Unit, lines, buckets uint32) Tracker {
	t.Unit, t.Geometry = u, Geometry{Lines: lines, Buckets: buckets}
	return t
}

// source returns the key of the n-th flow of a test.
func source(n uint32) key.Key {
	a := netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	return key.Key{Shape: sources.V4, Src: a, Dst: netip.IPv4Unspecified()}
}

// packet returns a random packet of few flows, of both families, some without
// ports.
func packet(r *rand.Rand) (p key.Tuple, length uint64) {
	addr := func() netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(16))}) }
	if r.IntN(2) == 0 {
		addr = func() netip.Addr { return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: byte(r.IntN(16))}) }
	}
	p = key.Tuple{Src: addr(), Dst: addr(), Proto: []uint8{1, 6, 17}[r.IntN(3)]}
	if p.Proto != 1 && r.IntN(8) > 0 {
		p.HasPorts, p.SrcPort, p.DstPort = true, uint16(r.IntN(2)), uint16(r.IntN(2))
	}
	return p, 64 + r.Uint64N(1437)
}

// TestTrackerKey checks that every packet has a key.
func TestTrackerKey(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, c := range []struct {
		name    string
		tracker Tracker
		packet  key.Tuple
		want    string
	}{
		{"source", sources, key.Tuple{Src: v4, Dst: v4, Proto: 6}, "192.0.2.1"},
		{"IPv6 source", sources, key.Tuple{Src: v6, Dst: v6, Proto: 6}, "2001:db8::1"},
		{"flow", flows, key.Tuple{Src: v4, Dst: v4, Proto: 6, HasPorts: true, SrcPort: 1, DstPort: 2}, "tcp 192.0.2.1:1 > 192.0.2.1:2"},
		{"ICMP", flows, key.Tuple{Src: v6, Dst: v6, Proto: 58}, "icmp6 [2001:db8::1]:0 > [2001:db8::1]:0"},
		{"later fragment", flows, key.Tuple{Src: v4, Dst: v4, Proto: 17, SrcPort: 7, DstPort: 9}, "udp 192.0.2.1:0 > 192.0.2.1:0"},
	} {
		k := c.tracker.Key(c.packet)
		if k.String() != c.want {
			t.Errorf("%s: counted under %q, want %q", c.name, k, c.want)
		}
		if got, want := c.tracker.Hash(k), c.tracker.Secret.Sum(k.Append(nil)); got != want {
			t.Errorf("%s: hash %#x, want %#x", c.name, got, want)
		}
	}
}

func TestPlanGeometry(t *testing.T) {
	for _, size := range []int{1 << 12, 64 << 10, 256 << 10, 1 << 20, 1<<20 + 77} {
		g := PlanGeometry(size)
		if got := g.Size(); got > size || got <= size-2*lineBytes || g.Lines%2 != 0 {
			t.Errorf("%d bytes become %+v of %d bytes", size, g, got)
		}
		if share := float64(g.FlowWords()*8) / float64(size); share < 0.4 || share > 0.5 {
			t.Errorf("%d bytes: %g of them for flows", size, share)
		}
	}
	for size, cold := range map[int]uint32{64 << 10: 0, 128 << 10: 512, 256 << 10: 1024, 1 << 20: 1024} {
		g := PlanGeometry(size)
		if with := g.WithCold(); with.Cold != cold || with.Size() != g.Size() || with.Lines%2 != 0 {
			t.Errorf("%d bytes become %+v with a cold filter, want one of %d lines", size, with, cold)
		}
	}
	if g := PlanGeometry(0); g != (Geometry{Lines: 2, Buckets: 1}) {
		t.Errorf("no memory becomes %+v, want the minimum", g)
	}
}
