// Package recent remembers the items of the recent past of an endless stream.
//
// A [Filter] has two generations of a Bloom filter, as in Chang, Feng and Li,
// "Approximate caches for packet classification", 2004, each with one cache line an item.
// The caller turns them: an item that occurs in each generation is remembered, whatever
// its age. Unlike the filters of package stable it forgets no item before its time, and
// takes fewer new items for known ones in the same memory, but it does not distinguish
// items by their importance.
//
// [Cells] are filters of package stable in the form that the kernel has.
// bpf/first.h has the twins.
package recent

import (
	"math"

	"weir/filter/blocked"
)

// Filter remembers the items of the last one to two generations of a stream. bpf/first.h
// is its twin.
type Filter struct {
	filters [2]*blocked.Filter
	present int
}

// Bits is the number of bits that an item sets in its line.
const Bits = 4

// Full is the number of items a line from which on a generation is to be
// turned: 8 % of the new items are taken for known ones then, on the average of a whole
// generation.
const Full = 88

// New returns two empty generations of this many lines of 64 bytes each.
func New(lines uint32) *Filter {
	f := &Filter{}
	for i := range f.filters {
		f.filters[i] = blocked.New(blocked.Geometry{Lines: lines, Bits: Bits})
	}
	return f
}

// Observe remembers the item with hash h. It reports whether it was remembered before, and
// whether it has entered the present generation now: if not, it had been there.
// The level makes no difference.
func (f *Filter) Observe(h uint64, _ int) (known, entered bool) {
	if f.filters[f.present].Observe(h) {
		return true, false
	}
	return f.filters[1-f.present].Contains(h), true
}

// Turn forgets the former generation, and begins another.
func (f *Filter) Turn() {
	f.present = 1 - f.present
	f.filters[f.present].Clear()
}

// Words returns the words of the two filters, the first of which holds generations 0, 2,
// 4 and so on. The caller must not change them.
func (f *Filter) Words() [2][]uint64 {
	return [2][]uint64{f.filters[0].Words(), f.filters[1].Words()}
}

// FalsePositive returns the probability that a new item is taken for a known
// one where the present generation has some items and the former has others.
func FalsePositive(lines uint32, present, former int) float64 {
	g := blocked.Geometry{Lines: lines, Bits: Bits}
	return 1 - (1-g.FalsePositiveRate(present))*(1-g.FalsePositiveRate(former))
}

// MeanFalsePositive returns the mean of that probability over a generation that begins
// empty and ends with n items, as the former one did.
func MeanFalsePositive(lines uint32, n int) float64 {
	const steps = 16 // by Simpson's rule
	var sum float64
	for i := range steps + 1 {
		weight := 2.0
		switch {
		case i == 0 || i == steps:
			weight = 1
		case i%2 == 1:
			weight = 4
		}
		sum += weight * FalsePositive(lines, int(math.Round(float64(n)*float64(i)/steps)), n)
	}
	return sum / (3 * steps)
}
