// Package counting has the Bloom filters whose cells are counters: the
// counting filter, from which elements can be deleted, and the spectral
// filter, which estimates how often an element was inserted.
//
// Sections refer to Broder and Mitzenmacher, Network Applications of Bloom
// Filters: A Survey (Internet Mathematics 1, 2004).
package counting

import (
	"errors"
	"math"

	"gonum.org/v1/gonum/mathext"

	"weir/filter/bloom"
	"weir/filter/hash"
)

// ErrAbsent says that an element to be deleted is not in the set.
var ErrAbsent = errors.New("counting: element is not in the filter")

// Filter is a counting Bloom filter of Fan, Cao, Almeida and Broder: m 4-bit
// counters in the place of bits, so that elements can be deleted (section
// 2.5). It is safe for concurrent queries, not for changes beside them.
type Filter struct {
	bloom.Geometry
	seed     uint64
	counters *Nibbles
}

// New makes an empty filter of g.M() counters. The seed selects its hash
// functions.
func New(g bloom.Geometry, seed uint64) *Filter {
	return &Filter{Geometry: g, seed: seed, counters: NewNibbles(uint64(g.M()))}
}

// Seed is the seed under which byte strings are hashed.
func (f *Filter) Seed() uint64 { return f.seed }

// Saturated is the number of counters that have reached Max and never come
// down again.
func (f *Filter) Saturated() uint64 { return f.counters.Saturated() }

// FillRatio is the fraction of counters that are not zero.
func (f *Filter) FillRatio() float64 { return float64(f.counters.Nonzero()) / float64(f.M()) }

// Insert puts the element b into the set. An element inserted twice must be
// deleted twice.
func (f *Filter) Insert(b []byte) { f.InsertHash(hash.Sum(f.seed, b)) }

// InsertHash puts the element with the 64-bit hash h into the set.
func (f *Filter) InsertHash(h uint64) {
	for i := range f.K() {
		f.counters.Inc(uint64(f.Position(h, i)))
	}
}

// Delete takes the element b out of the set. It fails with ErrAbsent, changing
// nothing, where the counters show that b is not in the set. Deleting an
// element that was never inserted and yet is found, a false positive, can make
// others be missed.
func (f *Filter) Delete(b []byte) error { return f.DeleteHash(hash.Sum(f.seed, b)) }

// DeleteHash takes the element with the 64-bit hash h out of the set, as
// Delete does.
func (f *Filter) DeleteHash(h uint64) error {
	if !f.ContainsHash(h) {
		return ErrAbsent
	}
	for i := range f.K() {
		f.counters.Dec(uint64(f.Position(h, i)))
	}
	return nil
}

// Contains reports whether the element b may be in the set.
func (f *Filter) Contains(b []byte) bool { return f.ContainsHash(hash.Sum(f.seed, b)) }

// ContainsHash reports whether the element with the 64-bit hash h may be in
// the set.
func (f *Filter) ContainsHash(h uint64) bool {
	for i := range f.K() {
		if f.counters.Get(uint64(f.Position(h, i))) == 0 {
			return false
		}
	}
	return true
}

// Bits is the standard 0-1 filter of the set, to be sent to others: a bit is
// set where the counter is not zero (section 4).
func (f *Filter) Bits() *bloom.Filter {
	words := make([]uint64, (f.M()+63)/64)
	for i, w := range f.counters.words {
		words[i/4] |= gather(w) << (i % 4 * 16)
	}
	bits, err := bloom.FromWords(f.Geometry, f.seed, words)
	if err != nil {
		panic(err) // the counters beyond M are zero, so the words fit
	}
	return bits
}

// gather packs into the lowest 16 bits which of a word's counters are not
// zero.
func gather(w uint64) uint64 {
	w = (w | w>>1 | w>>2 | w>>3) & low
	w = (w | w>>3) & 0x0303030303030303
	w = (w | w>>6) & 0x000f000f000f000f
	w = (w | w>>12) & 0x000000ff000000ff
	return (w | w>>24) & 0x000000000000ffff
}

// OverflowBound bounds the probability that any of m 4-bit counters overflows,
// which is to be incremented 16 times, for any number of elements n and hash
// functions k ≤ (m/n) ln 2: m (e ln 2 / 16)¹⁶ ≈ 1.37·10⁻¹⁵ m (section 2.5). A
// filter that held t different sets overflows with t times that at most.
func OverflowBound(m uint64) float64 { return MaxBound(m, Max+1) }

// MaxBound bounds the probability that any of m counters is incremented j ≥ 1
// times or more where k ≤ (m/n) ln 2: m (e ln 2 / j)^j (section 2.5).
func MaxBound(m uint64, j int) float64 {
	return min(1, float64(m)*math.Pow(math.E*math.Ln2/float64(j), float64(j)))
}

// TailBound bounds the probability that any counter of a filter of n elements
// is incremented j ≥ 1 times or more, by the sum over all counters of the tail
// of the binomial distribution: m·P(c(i) ≥ j), with nk trials of probability
// 1/m, or n of k/m where the filter is partitioned (section 2.5).
func TailBound(g bloom.Geometry, n uint64, j int) float64 {
	trials, p := float64(n)*float64(g.K()), 1/float64(g.M())
	if g.Partitioned() {
		trials, p = float64(n), float64(g.K())*p
	}
	if float64(j) > trials {
		return 0
	}
	// The regularised incomplete beta function is the binomial tail itself;
	// one minus the distribution function would be lost to rounding.
	return min(1, float64(g.M())*mathext.RegIncBeta(float64(j), trials-float64(j)+1, p))
}
