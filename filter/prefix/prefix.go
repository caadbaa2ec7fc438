// Package prefix chooses the prefix lengths at which a set of CIDR entries is
// stored.
//
// A filter of exact matches costs one probe for each prefix length in use. The
// planner therefore expands entries of rare lengths to the next longer length
// that is kept, each entry of length l becoming 2^(L−l) entries of length L.
// This is the controlled prefix expansion of Srinivasan and Varghese ("Fast
// address lookups using controlled prefix expansion", 1999), with their dynamic
// programme.
package prefix

import (
	"math"
	"slices"
)

// Histogram is the number of entries of each prefix length, 0…128.
type Histogram [129]int

// Total returns the number of entries.
func (h *Histogram) Total() int {
	n := 0
	for _, c := range h {
		n += c
	}
	return n
}

// Levels are the stored prefix lengths, ascending.
type Levels []int

// Of returns the level at which an entry of the given length is stored: the
// shortest one that is at least as long. It reports false if there is none.
func (l Levels) Of(bits int) (int, bool) {
	i, _ := slices.BinarySearch(l, bits)
	if i == len(l) {
		return 0, false
	}
	return l[i], true
}

// Expanded returns the number of entries after expansion to the levels, or
// math.MaxInt if it overflows or an entry has no level. Entries that coincide
// after expansion are counted separately.
func (l Levels) Expanded(h *Histogram) int {
	n := 0
	for bits, c := range h {
		if c == 0 {
			continue
		}
		level, ok := l.Of(bits)
		if !ok {
			return math.MaxInt
		}
		n = add(n, expand(c, level-bits))
	}
	return n
}

// Plan returns the fewest levels for which the expanded entries fit the budget,
// and among those the ones with the fewest entries. If no choice of at most
// `most` levels fits the budget, it returns the one with the fewest entries.
func Plan(h *Histogram, budget, most int) Levels {
	var used []int
	for bits, c := range h {
		if c > 0 {
			used = append(used, bits)
		}
	}
	if len(used) == 0 {
		return nil
	}
	// cost(i, j): entries of lengths used[i … j], all expanded to used[j].
	cost := func(i, j int) int {
		n := 0
		for ; i <= j; i++ {
			n = add(n, expand(h[used[i]], used[j]-used[i]))
		}
		return n
	}
	// best[j] is the fewest entries for used[0 … j] with k levels, the last of
	// them used[j]; from[k][j] is where its last level's range begins.
	best := make([]int, len(used))
	for j := range used {
		best[j] = cost(0, j)
	}
	from := [][]int{make([]int, len(used))}
	last := len(used) - 1
	for best[last] > budget && len(from) < min(len(used), most) {
		next, begin := slices.Clone(best), make([]int, len(used))
		for j := range used {
			next[j] = math.MaxInt
			for i := 1; i <= j; i++ {
				if n := add(best[i-1], cost(i, j)); n < next[j] {
					next[j], begin[j] = n, i
				}
			}
		}
		best, from = next, append(from, begin)
	}
	var levels Levels
	for k, j := len(from)-1, last; k >= 0; k-- {
		levels = append(levels, used[j])
		j = from[k][j] - 1
	}
	slices.Reverse(levels)
	return levels
}

// expand returns n·2^bits and add returns a+b, both at most math.MaxInt.
func expand(n, bits int) int {
	if n == 0 {
		return 0
	}
	if bits > 62 || n > math.MaxInt>>bits {
		return math.MaxInt
	}
	return n << bits
}

func add(a, b int) int {
	if a > math.MaxInt-b {
		return math.MaxInt
	}
	return a + b
}
