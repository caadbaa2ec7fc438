package membership

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"

	"weir/filter/hash"
	"weir/filter/key"
)

// addresses gives distinct IPv4 source keys, a bijection of their number.
func address(i uint32) key.Key {
	i = (i ^ i>>16) * 0x85ebca6b
	i = (i ^ i>>13) * 0xc2b2ae35
	i ^= i >> 16
	return key.Source(netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)}), 32))
}

func column(n int) Column {
	c := Column{Shape: address(0).Shape}
	for i := range n {
		c.Keys = address(uint32(i)).Append(c.Keys)
		c.Lists = append(c.Lists, uint16(i%3+1))
	}
	return c
}

func build(t testing.TB, n int, mode Mode, bitsPerKey float64) *Set {
	t.Helper()
	l, err := PlanLayout(Census{Keys: map[key.Shape]int{address(0).Shape: n}}, mode, bitsPerKey, rand.Uint64())
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSet(l, l.Alloc())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Fill([]Column{column(n)}); err != nil {
		t.Fatal(err)
	}
	return s
}

func BenchmarkFill(b *testing.B) {
	const n = 10_000_000
	c := column(n)
	l, err := PlanLayout(Census{Keys: map[key.Shape]int{c.Shape: n}}, Exact, 0, 1)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s, _ := NewSet(l, l.Alloc())
		if err := s.Fill([]Column{c}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestFillTable(t *testing.T) {
	s := build(t, 1_000_000, Exact, 0)
	moved := 0
	for i := range s.table.slots {
		if s.table.isMoved(i) {
			moved++
		}
	}
	for i := range 1_000_000 {
		if l, ok := s.Lookup(address(uint32(i)).Hash(s.Seed)); !ok || l != i%3+1 {
			t.Fatal(i, l, ok)
		}
	}
	n := 0
	for {
		if err := s.table.Insert(rand.Uint64(), 1); err != nil {
			if !errors.Is(err, ErrFull) {
				t.Fatal(err)
			}
			break
		}
		n++
	}
	t.Logf("moved %.3f fill %.4f max %.4f", float64(moved)/1e6, 1e6/float64(s.table.Cap()), float64(s.table.Len())/float64(s.table.Cap()))
	_ = hash.Nth
}
