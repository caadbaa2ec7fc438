package weighted

import (
	"fmt"

	"weir/filter/hash"
)

// Weights returns the number k_e of hash functions of the element with the
// 64-bit hash h. For one element it must not rise between AddHash and
// ContainsHash; see [Filter.AddWeighted].
type Weights func(h uint64) int

// Filter is a weighted Bloom filter: a set of elements that answers membership
// queries without false negatives, and with false positives at the rate of
// equation 4 (section III). Elements are byte strings or their 64-bit hashes.
// Concurrent queries are safe; a change must not run concurrently with anything
// else.
type Filter struct {
	m       uint32
	seed    uint64
	weights Weights
	words   []uint64 // bit b is bit b%64 of word b/64
}

// New returns an empty filter of m bits. The seed selects its hash functions.
// It fails if m is 0.
func New(m uint32, seed uint64, weights Weights) (*Filter, error) {
	if m == 0 {
		return nil, fmt.Errorf("weighted: filter of 0 bits")
	}
	return &Filter{m: m, seed: seed, weights: weights, words: make([]uint64, (uint64(m)+63)/64)}, nil
}

// Add adds the element b to the set.
func (f *Filter) Add(b []byte) { f.AddHash(hash.Sum(f.seed, b)) }

// AddHash adds the element with the 64-bit hash h to the set.
func (f *Filter) AddHash(h uint64) { f.AddWeighted(h, f.weights(h)) }

// AddWeighted adds the element with the 64-bit hash h to the set with k bits.
// To raise the k_e of a member without a moment in which it tests negative,
// first add its bits, then change the weight. A k_e may fall at any time; the
// bits that are no longer tested stay.
func (f *Filter) AddWeighted(h uint64, k int) {
	for i := range k {
		b := f.position(h, i)
		f.words[b/64] |= 1 << (b % 64)
	}
}

// Contains reports whether the element b may be in the set.
func (f *Filter) Contains(b []byte) bool { return f.ContainsHash(hash.Sum(f.seed, b)) }

// ContainsHash reports whether the element with the 64-bit hash h may be in the
// set. It is always true for an element whose k_e is 0.
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

// Hot assigns a k_e to single hot elements; all others, the cold class, share
// one. Random classes would average over too many elements to separate the hot
// ones, so weights apply to single elements. The zero Hot assigns no bits to
// any element.
type Hot struct {
	Cold int            // k_e of all elements that are not in K
	K    map[uint64]int // k_e by the element's 64-bit hash
}

// Weight implements [Weights].
func (t *Hot) Weight(h uint64) int {
	if k, ok := t.K[h]; ok {
		return k
	}
	return t.Cold
}
