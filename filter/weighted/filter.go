package weighted

import (
	"fmt"

	"weir/filter/hash"
)

// Weights gives the number k_e of hash functions of the element with the
// 64-bit hash h. For one element it must not rise between AddHash and
// ContainsHash; see [Filter.AddWeighted].
type Weights func(h uint64) int

// Filter is a weighted Bloom filter: a set of elements that answers membership
// queries without false negatives, and with false positives at the rate of
// equation 4 (section III). Elements are byte strings or their 64-bit hashes.
// It is safe for concurrent queries, not for changes beside them.
type Filter struct {
	m       uint32
	seed    uint64
	weights Weights
	words   []uint64 // bit b is bit b%64 of word b/64
}

// New makes an empty filter of m bits. The seed selects its hash functions. It
// fails if m is 0.
func New(m uint32, seed uint64, weights Weights) (*Filter, error) {
	if m == 0 {
		return nil, fmt.Errorf("weighted: filter of 0 bits")
	}
	return &Filter{m: m, seed: seed, weights: weights, words: make([]uint64, (uint64(m)+63)/64)}, nil
}

// Add puts the element b into the set.
func (f *Filter) Add(b []byte) { f.AddHash(hash.Sum(f.seed, b)) }

// AddHash puts the element with the 64-bit hash h into the set.
func (f *Filter) AddHash(h uint64) { f.AddWeighted(h, f.weights(h)) }

// AddWeighted puts the element with the 64-bit hash h into the set with k
// bits. It is how the k_e of a member rises without a moment in which the
// member tests negative: first its bits, then the weight. A k_e may fall at
// any time; the bits that are no longer tested stay.
func (f *Filter) AddWeighted(h uint64, k int) {
	for i := range k {
		b := f.position(h, i)
		f.words[b/64] |= 1 << (b % 64)
	}
}

// Contains reports whether the element b may be in the set.
func (f *Filter) Contains(b []byte) bool { return f.ContainsHash(hash.Sum(f.seed, b)) }

// ContainsHash reports whether the element with the 64-bit hash h may be in
// the set. An element whose k_e is 0 always may.
func (f *Filter) ContainsHash(h uint64) bool {
	for i := range f.weights(h) {
		b := f.position(h, i)
		if f.words[b/64]>>(b%64)&1 == 0 {
			return false
		}
	}
	return true
}

func (f *Filter) position(h uint64, i int) uint32 { return hash.Reduce(hash.Nth(h, uint64(i)), f.m) }

// Hot holds the k_e of single hot elements; all others, the cold class, share
// one. A random class of elements averages too many of them to set the hot
// ones apart, so that weights follow single elements. The zero Hot gives every
// element no bits.
type Hot struct {
	Cold int            // k_e of all elements that are not in K
	K    map[uint64]int // k_e by the element's 64-bit hash
}

// Weight is the [Weights] of a filter.
func (t *Hot) Weight(h uint64) int {
	if k, ok := t.K[h]; ok {
		return k
	}
	return t.Cold
}
