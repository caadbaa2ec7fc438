// Package reconcile synchronises sets between parties that exchange Bloom
// filters: the approximate difference and intersection of two sets, joins of relations,
// and summary caches, which replicate a changing filter; and differential files.
//
// Sections refer to Broder and Mitzenmacher, Network Applications of Bloom
// Filters: A Survey (Internet Mathematics 1, 2004).
//
// Differences are after Byers, Considine, Mitzenmacher and Rost, "Informed content delivery
// across adaptive overlay networks", 2002, and Byers, Considine and Mitzenmacher, "Fast
// approximate reconciliation of set differences", 2002; summary caches after Fan and others,
// "Summary cache", 2000; joins after Mullin, "Optimal semijoins for distributed database
// systems", 1990; differential files after Gremillion, "Designing a Bloom filter for
// differential file access", 1982.
package reconcile

import (
	"iter"

	"weir/filter/bloom"
)

// Difference yields the elements of set that are missing from the set of which
// theirs is the filter: what A, which has set, sends B, which sent its filter
// (section 5.2, after Byers, Considine, Mitzenmacher and Rost). All of them are
// indeed missing there; a fraction of the missing ones equal to the filter's
// false-positive rate is left out.
func Difference(set iter.Seq[[]byte], theirs *bloom.Filter) iter.Seq[[]byte] {
	return where(set, theirs, false)
}

// Intersection yields the elements of set that may be in the set of which
// theirs is the filter: what A, which has set, sends B, which sent its filter
// (section 5.3, after Reynolds and Vahdat). It contains all common elements
// and, of those in set alone, a fraction equal to the filter's false-positive
// rate, which B can detect and drop.
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
