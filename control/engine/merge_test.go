package engine

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
)

// naiveMerge is mergeShapes as it reads: it looks at all pairs before each merge.
func naiveMerge(counts map[key.Shape]int) (stored map[key.Shape]key.Shape, ok bool) {
	stored = make(map[key.Shape]key.Shape, len(counts))
	n, grown := 0, 0
	for s, c := range counts {
		stored[s] = s
		n += c
	}
	sizes := maps.Clone(counts)
	for len(sizes) > membership.MaxShapes {
		var a, b key.Shape
		least := math.MaxInt
		shapes := slices.SortedFunc(maps.Keys(sizes), key.Shape.Compare)
		for i, s := range shapes {
			for _, t := range shapes[i+1:] {
				if both := joint(s, t); s.Fields == t.Fields {
					if cost := growth(sizes[s], s, both) + growth(sizes[t], t, both); cost < least {
						a, b, least = s, t, cost
					}
				}
			}
		}
		if grown += least; least == math.MaxInt || grown > max(maxFlowGrowth, n/2) {
			return nil, false
		}
		both, size := joint(a, b), sizes[a]+sizes[b]+least
		delete(sizes, a)
		delete(sizes, b)
		sizes[both] += size
		for s, at := range stored {
			if at == a || at == b {
				stored[s] = both
			}
		}
	}
	return stored, true
}

// randomShapes returns n shapes with a number of flows each.
func randomShapes(rng *rand.Rand, n, fields, bits int) map[key.Shape]int {
	counts := make(map[key.Shape]int)
	for len(counts) < n {
		s := key.Shape{Fields: key.Fields(rng.IntN(fields)<<1) | key.FieldProto, SrcBits: uint8(rng.IntN(bits)), DstBits: uint8(rng.IntN(bits))}
		counts[s] = 1 + rng.IntN(1+rng.IntN(1000))
	}
	return counts
}

func TestMergeShapes(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	merged := 0
	for range 60 {
		counts := randomShapes(rng, 20+rng.IntN(60), 1+rng.IntN(7), 12+rng.IntN(21))
		want, wantOK := naiveMerge(counts)
		got, ok := mergeShapes(counts)
		if ok != wantOK || !maps.Equal(got, want) {
			t.Fatalf("%v: %t, want %t\n%v\nwant\n%v", counts, ok, wantOK, got, want)
		}
		if again, ok := plans.of(counts); ok != wantOK || !maps.Equal(again, want) {
			t.Fatalf("remembered: %v, %t", again, ok)
		}
		if ok && len(counts) > membership.MaxShapes {
			merged++
		}
	}
	if merged == 0 {
		t.Error("nothing was merged")
	}
}

func BenchmarkMergeShapes(b *testing.B) {
	counts := make(map[key.Shape]int)
	for src := range uint8(16) {
		for dst := range uint8(16) {
			counts[key.Shape{Fields: key.FieldProto, SrcBits: 16 + src, DstBits: 16 + dst}] = 1
		}
	}
	for b.Loop() {
		mergeShapes(counts)
	}
}

// One list of many shapes costs the others nothing.
func TestSpareOfMany(t *testing.T) {
	lists := []List{ofKeys(List{Name: "shapes"}, manyShapes()...)}
	for i := range 180 {
		lists = append(lists, ofKeys(List{Name: fmt.Sprint(i)}, key.Source(netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 32))))
	}
	for round := range 2 {
		began := time.Now()
		c := NewCensus(lists)
		for n := range lists {
			if spare := c.Spare(uint16(n + 1)); len(spare) > 0 != (n == 0) {
				t.Errorf("of list %d, %d flows are spared", n+1, len(spare))
			}
		}
		_ = c.Fits()
		t.Logf("round %d: %v", round, time.Since(began))
	}
	made := plans.made
	for n := range lists {
		NewCensus(lists).Spare(uint16(n + 1))
	}
	if made == 0 || plans.made != made {
		t.Errorf("%d plans, and %d more for what was planned before", made, plans.made-made)
	}
}

// manyShapes returns flows of 648 shapes, in both families.
func manyShapes() (all []key.Key) {
	for n, from := range map[int]string{16: "10.1.2.3", 112: "2001:db8::1:2:3"} {
		a := netip.MustParseAddr(from)
		for src := range 18 {
			for dst := range 18 {
				s := key.Shape{Fields: key.FieldProto | key.FieldDstPort, SrcBits: uint8(n - 1 + src), DstBits: uint8(n - 1 + dst)}
				if a.Is6() {
					s.Fields |= key.FieldV6
				}
				s.SrcBits, s.DstBits = min(s.SrcBits, uint8(a.BitLen())), min(s.DstBits, uint8(a.BitLen()))
				k, _ := s.Of(key.Tuple{Src: a, Dst: a, HasPorts: true, Proto: 6, DstPort: 80})
				all = append(all, k)
			}
		}
	}
	return all
}

// The census decides as the index of a build does.
func TestCensus(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	fits := 0
	for range 40 {
		var lists []List
		for i := range 1 + rng.IntN(4) {
			l := List{Name: fmt.Sprint(i), Allow: rng.IntN(2) == 0, Direction: Direction(rng.IntN(4))}
			var keys []key.Key
			for s := range randomShapes(rng, rng.IntN(300), 5, 33) {
				k, _ := s.Of(key.Tuple{Src: netip.MustParseAddr("10.1.2.3"), Dst: netip.MustParseAddr("10.3.2.1"), HasPorts: true, Proto: 6})
				keys = append(keys, k)
			}
			for range rng.IntN(40) {
				keys = append(keys, key.Source(netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(rng.IntN(256)), 0, 0}), 8+rng.IntN(25)).Masked()))
			}
			l.Contents = list.SetOf(keys...)
			lists = append(lists, l)
		}
		var want error
		for _, out := range []bool{false, true} {
			if err := newIndex(lists, out).plan(); err != nil && want == nil {
				want = err
			}
		}
		c := NewCensus(make([]List, len(lists)))
		for i, l := range lists {
			c.lists[i] = l
			c.lists[i].Contents = nil
			c.Set(uint16(i+1), l.Contents)
		}
		if got := c.Fits(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%v, want %v", got, want)
		}
		if want == nil {
			fits++
		}
	}
	if fits == 0 || fits == 40 {
		t.Errorf("%d fit: the test tests little", fits)
	}
}
