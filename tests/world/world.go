// Package world draws entries and packets from a small world, in which they meet often, and prefixes
// cover each other.
package world

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"weir/filter/key"
	"weir/tests/seed"
)

// Random draws from the world.
type Random struct{ *rand.Rand }

// New returns the draws of a test.
func New(t testing.TB) Random {
	t.Helper()
	return Random{seed.Secrets(t)}
}

// Addr returns an address.
func (r Random) Addr(v6 bool) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 5: byte(r.IntN(4)), 7: byte(r.IntN(2)), 15: byte(r.IntN(64))})
	}
	return netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(8)), byte(r.IntN(256))})
}

// Prefix returns a prefix, often that of one address.
func (r Random) Prefix() netip.Prefix {
	v6 := r.IntN(3) == 0
	lengths := []int{22, 24, 24, 27, 28, 30, 31, 32, 32, 32, 32}
	if v6 {
		lengths = []int{48, 64, 122, 126, 127, 128, 128, 128}
	}
	return netip.PrefixFrom(r.Addr(v6), lengths[r.IntN(len(lengths))]).Masked()
}

// Tuple returns the fields of a packet.
func (r Random) Tuple() key.Tuple {
	v6 := r.IntN(3) == 0
	t := key.Tuple{Src: r.Addr(v6), Dst: r.Addr(v6), Proto: []uint8{1, 6, 17}[r.IntN(3)]}
	if t.HasPorts = t.Proto != 1; t.HasPorts {
		t.SrcPort, t.DstPort = uint16(r.IntN(2)), uint16(r.IntN(3))
	}
	return t
}

// Flow returns an entry of one of a few shapes.
func (r Random) Flow() key.Key {
	t := r.Tuple()
	t.HasPorts = true
	shapes := []key.Shape{
		{SrcBits: 32, DstBits: 32, Fields: key.FieldProto | key.FieldDstPort},
		{DstBits: 24, Fields: key.FieldDstPort}, {SrcBits: 28, DstBits: 28},
	}
	if t.Src.Is6() {
		shapes = []key.Shape{
			{SrcBits: 128, DstBits: 128, Fields: key.FieldV6 | key.FieldProto | key.FieldDstPort},
			{SrcBits: 64, DstBits: 64, Fields: key.FieldV6 | key.FieldDstPort},
		}
	}
	k, _ := shapes[r.IntN(len(shapes))].Of(t)
	return k
}
