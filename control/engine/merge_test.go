package engine

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

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
	merged, known := 0, false
	for range 60 {
		counts := randomShapes(rng, 20+rng.IntN(60), 1+rng.IntN(7), 12+rng.IntN(21))
		want, wantOK := naiveMerge(counts)
		got, ok := mergeShapes(counts)
		if ok != wantOK || !maps.Equal(got, want) {
			t.Fatalf("%v: %t, want %t\n%v\nwant\n%v", counts, ok, wantOK, got, want)
		}
		for range 2 {
			made := plans.made
			if again, ok := plans.of(counts); ok != wantOK || !maps.Equal(again, want) {
				t.Fatalf("remembered: %v, %t", again, ok)
			}
			known = known || len(counts) > membership.MaxShapes && plans.made == made
		}
		if ok && len(counts) > membership.MaxShapes {
			merged++
		}
	}
	if merged == 0 {
		t.Error("nothing was merged")
	}
	if !known {
		t.Error("no plan is remembered")
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
