package list

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Prefixes are sorted whatever bits they differ in, and however many parts they are in.
func TestSortV4(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for name, draw := range map[string]func(i int) V4Prefix{
		"addresses":         func(int) V4Prefix { return V4(r.Uint32(), 32) },
		"few addresses":     func(int) V4Prefix { return V4(r.Uint32N(1000), 32) },
		"of one network":    func(int) V4Prefix { return V4(10<<24|r.Uint32N(1<<18), 32) },
		"mixed":             func(int) V4Prefix { n := r.IntN(33); return V4(r.Uint32(), 32).Cut(n) },
		"descending":        func(i int) V4Prefix { return V4(^uint32(i), 32) },
		"lengths only":      func(int) V4Prefix { return V4(0, r.IntN(33)) },
		"two values":        func(i int) V4Prefix { return V4(uint32(i%2)<<31, 32) },
		"one beside others": func(i int) V4Prefix { return V4(uint32(min(i, 1))<<31|r.Uint32N(1<<20), 32) },
	} {
		for _, n := range []int{0, 1, 2, fewPrefixes, fewPrefixes + 1, scratchLen, scratchLen + 1, 20 * scratchLen} {
			all := make([]V4Prefix, n)
			for i := range all {
				all[i] = draw(i)
			}
			want := slices.Clone(all)
			slices.Sort(want)
			if sortV4(all); !slices.Equal(all, want) {
				t.Errorf("%s: %d prefixes are not sorted as by comparisons", name, n)
			}
		}
	}
}

func BenchmarkSortV4(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	all := make([]V4Prefix, 10_000_000)
	for b.Loop() {
		b.StopTimer()
		for i := range all {
			all[i] = V4(r.Uint32(), 32)
		}
		b.StartTimer()
		sortV4(all)
	}
}
