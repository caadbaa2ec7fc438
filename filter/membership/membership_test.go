package membership

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"weir/filter/hash"
	"weir/filter/key"
	"weir/tests/seed"
)

// random generates keys and packets. A failure can be reproduced with the seed
// that it logs.
type random struct{ *rand.Rand }

func newRandom(t testing.TB) random {
	t.Helper()
	return random{seed.Secrets(t)}
}

// fixed uses the same seed in each run: for rates, which fail by chance now and
// then whatever the number of trials.
func fixed(seed uint64) random { return random{rand.New(rand.NewPCG(seed, 0))} }

// shapes has some of each kind, with every gate and with lengths on both sides
// of those of the markers.
var shapes = []key.Shape{
	{SrcBits: 32}, {SrcBits: 24}, {SrcBits: 20}, {SrcBits: 31}, {DstBits: 32}, {DstBits: 18}, {},
	{SrcBits: 32, DstBits: 32, Fields: key.FieldSrcPort | key.FieldDstPort | key.FieldProto},
	{SrcBits: 24, Fields: key.FieldDstPort | key.FieldProto},
	{DstBits: 28, Fields: key.FieldProto},
	{SrcBits: 8, DstBits: 8},
	{Fields: key.FieldSrcPort},
	{Fields: key.FieldV6, SrcBits: 128}, {Fields: key.FieldV6, SrcBits: 48}, {Fields: key.FieldV6, SrcBits: 64},
	{Fields: key.FieldV6, SrcBits: 32}, {Fields: key.FieldV6, DstBits: 128}, {Fields: key.FieldV6, DstBits: 64},
	{Fields: key.FieldV6 | key.FieldSrcPort | key.FieldDstPort | key.FieldProto, SrcBits: 128, DstBits: 128},
	{Fields: key.FieldV6 | key.FieldDstPort, SrcBits: 56},
	{Fields: key.FieldV6 | key.FieldProto, DstBits: 48},
	{Fields: key.FieldV6 | key.FieldProto},
}

// tuple returns a packet of a small world, in which packets and keys match
// often.
func (r random) tuple() key.Tuple {
	t := key.Tuple{Proto: [...]uint8{1, 6, 17}[r.IntN(3)]}
	if t.HasPorts = t.Proto != 1 && r.IntN(8) > 0; t.HasPorts {
		t.SrcPort, t.DstPort = uint16(r.IntN(4)), uint16(r.IntN(4))
	}
	if r.IntN(2) == 0 {
		t.Src, t.Dst = r.address4(), r.address4()
	} else {
		t.Src, t.Dst = r.address6(), r.address6()
	}
	return t
}

func (r random) address4() netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(r.IntN(3)), byte(r.IntN(8) << 5), byte(r.IntN(64))})
}

func (r random) address6() netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 3: byte(r.IntN(2)), 5: byte(r.IntN(4)), 6: byte(r.IntN(2)), 7: byte(r.IntN(4)), 15: byte(r.IntN(16))})
}

// key returns a key that packets of the small world may match. Shapes that
// nearly every packet would match are rare.
func (r random) key() key.Key {
	for {
		t := r.tuple()
		t.HasPorts = true
		s := shapes[r.IntN(len(shapes))]
		if int(s.SrcBits)+int(s.DstBits) < 24 && r.IntN(64) > 0 {
			continue
		}
		if k, ok := s.Of(t); ok {
			return k
		}
	}
}

// census counts keys as the callers of PlanLayout do.
func census(keys map[key.Key]uint16) Census {
	c := Census{Keys: make(map[key.Shape]int), Highest: 7}
	src, dst := NewMarks4(), NewMarks4()
	for _, col := range columns(keys) {
		c.Keys[col.Shape] = len(col.Lists)
		col.Touch4(src, dst)
	}
	c.MarkedSrc24, c.MarkedDst24 = src.Count(), dst.Count()
	return c
}

func columns(keys map[key.Key]uint16) []Column {
	byShape := make(map[key.Shape]*Column)
	for k, list := range keys {
		c := byShape[k.Shape]
		if c == nil {
			c = &Column{Shape: k.Shape}
			byShape[k.Shape] = c
		}
		c.Keys, c.Lists = k.Append(c.Keys), append(c.Lists, list)
	}
	var all []Column
	for _, c := range byShape {
		all = append(all, *c)
	}
	return all
}

// newSet returns an empty set for a census.
func newSet(t testing.TB, c Census, mode Mode, bitsPerKey float64, seed uint64) *Set {
	t.Helper()
	l, err := PlanLayout(c, mode, bitsPerKey, secretOf(seed))
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSet(l, l.Alloc())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// numbered returns a column of n distinct keys of a shape without a pattern,
// different from those of another range of numbers.
func numbered(s key.Shape, from, n int, salt uint64) Column {
	c := Column{Shape: s, Keys: make([]byte, 0, n*s.KeyLen()), Lists: make([]uint16, n)}
	for i := from; i < from+n; i++ {
		c.Keys = append(c.Keys, byte(s.Fields), s.SrcBits, s.DstBits, 0)
		at := len(c.Keys)
		c.Keys = append(c.Keys, make([]byte, s.KeyLen()-4)...)
		// Multiplication by an odd number and addition map 0 … 2^32-1 onto itself.
		binary.BigEndian.PutUint32(c.Keys[at:], uint32(i)*0x9e3779b1+uint32(salt))
		c.Lists[i-from] = uint16(i%3 + 1)
	}
	return c
}

// hashes returns the hash of each key of a column.
func (c Column) hashes(secret *hash.Secret) []uint64 {
	h := make([]uint64, len(c.Lists))
	s := Set{Layout: Layout{Secret: secret}}
	s.sum(h, c)
	return h
}

func BenchmarkFill(b *testing.B) {
	const n = 10_000_000
	c := numbered(key.Shape{SrcBits: 32}, 0, n, 0)
	l, err := PlanLayout(Census{Keys: map[key.Shape]int{c.Shape: n}}, Exact, 0, hash.NewSecret(hash.Seed{1}))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s, err := NewSet(l, l.Alloc())
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Fill([]Column{c}); err != nil {
			b.Fatal(err)
		}
	}
}

// secretOf returns the secret of a number.
func secretOf(n uint64) *hash.Secret {
	var seed hash.Seed
	binary.LittleEndian.PutUint64(seed[:], n)
	return hash.NewSecret(seed)
}
