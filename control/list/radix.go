package list

import (
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

const (
	digitBits = 8
	digits    = 1 << digitBits

	// scratchLen is the length up to which a part is sorted with memory beside it:
	// both fit into the near cache.
	scratchLen = 1 << 15
	// fewPrefixes are sorted faster by comparisons.
	fewPrefixes = 1 << 7
)

// sortV4 is a radix sort on all CPUs that needs little memory beside that of the
// prefixes. It sorts ten million of them in the time that a comparison sort takes for
// one.
func sortV4(all []V4Prefix) {
	if slices.IsSorted(all) {
		return
	}
	if len(all) <= scratchLen {
		new(radix).sort(all)
		return
	}
	ends, _ := divide(all)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			var r radix
			for {
				i := int(next.Add(1)) - 1
				if i >= digits {
					return
				}
				start := 0
				if i > 0 {
					start = ends[i-1]
				}
				r.sort(all[start:ends[i]])
			}
		})
	}
	workers.Wait()
}

// radix sorts with memory that it keeps from one part to the next.
type radix struct{ scratch []V4Prefix }

func (r *radix) sort(all []V4Prefix) {
	if len(all) <= scratchLen {
		r.sortFew(all)
		return
	}
	ends, several := divide(all)
	if !several {
		return
	}
	start := 0
	for _, end := range ends {
		r.sort(all[start:end])
		start = end
	}
}

// differing returns the bits that are not the same in all prefixes.
func differing(all []V4Prefix) (differ V4Prefix) {
	for _, p := range all {
		differ |= p ^ all[0]
	}
	return differ
}

// divide sorts prefixes by the highest bits in which they differ, in place, and returns
// where the part of each digit ends. It reports whether there are several.
func divide(all []V4Prefix) (ends [digits]int, several bool) {
	shift := max(bits.Len64(uint64(differing(all)))-digitBits, 0)
	var next [digits]int
	for _, p := range all {
		ends[byte(p>>shift)]++
	}
	sum := 0
	for d, n := range ends {
		next[d] = sum
		sum += n
		ends[d] = sum
		several = several || n > 0 && sum < len(all)
	}
	// Each step takes a prefix to its part, and from there the one that was in its
	// place: McIlroy, Bostic and McIlroy, "Engineering radix sort", 1993.
	for d := range digits {
		for next[d] < ends[d] {
			p := all[next[d]]
			for to := byte(p >> shift); int(to) != d; to = byte(p >> shift) {
				p, all[next[to]] = all[next[to]], p
				next[to]++
			}
			all[next[d]] = p
			next[d]++
		}
	}
	return ends, several
}

// sortFew sorts by the lowest digit first, which moves each prefix less often than
// dividing does.
func (r *radix) sortFew(all []V4Prefix) {
	if len(all) <= fewPrefixes {
		slices.Sort(all)
		return
	}
	if r.scratch == nil {
		r.scratch = make([]V4Prefix, scratchLen)
	}
	from, to := all, r.scratch[:len(all)]
	differ := differing(all)
	for shift := bits.TrailingZeros64(uint64(differ)); differ>>shift != 0; shift += digitBits {
		if byte(differ>>shift) == 0 {
			continue
		}
		var next [digits]int
		for _, p := range from {
			next[byte(p>>shift)]++
		}
		sum := 0
		for d, n := range next {
			next[d], sum = sum, sum+n
		}
		for _, p := range from {
			d := byte(p >> shift)
			to[next[d]] = p
			next[d]++
		}
		from, to = to, from
	}
	if &from[0] != &all[0] {
		copy(all, from)
	}
}
