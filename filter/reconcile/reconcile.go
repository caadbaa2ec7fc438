// Package reconcile lets parties that hold sets learn about each other's by
// exchanging Bloom filters: the approximate difference and intersection of two
// sets, and summary caches, which keep a copy of a changing filter up to date.
//
// Sections refer to Broder and Mitzenmacher, Network Applications of Bloom
// Filters: A Survey (Internet Mathematics 1, 2004).
package reconcile

import (
	"iter"

	"weir/filter/bloom"
)

// Difference is the elements of set that are missing from the set of which
// theirs is the filter: what A, which holds set, sends B, which sent its filter
// (section 5.2, after Byers, Considine, Mitzenmacher and Rost). All of them are
// indeed missing there; of those that are missing, a fraction equal to the
// filter's false-positive rate is left out.
func Difference(set iter.Seq[[]byte], theirs *bloom.Filter) iter.Seq[[]byte] {
	return where(set, theirs, false)
}

// Intersection is the elements of set that may be in the set of which theirs is
// the filter: what A, which holds set, sends B, which sent its filter (section
// 5.3, after Reynolds and Vahdat). None that is in both sets is left out; of
// those that are in set alone, a fraction equal to the filter's false-positive
// rate is among them, which B can find and drop.
func Intersection(set iter.Seq[[]byte], theirs *bloom.Filter) iter.Seq[[]byte] {
	return where(set, theirs, true)
}

func where(set iter.Seq[[]byte], f *bloom.Filter, contained bool) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for b := range set {
			if f.Contains(b) == contained && !yield(b) {
				return
			}
		}
	}
}
