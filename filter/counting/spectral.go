package counting

import (
	"math"

	"weir/filter/bloom"
	"weir/filter/hash"
)

// spectrum is m 32-bit counters that saturate: the array of a spectral Bloom
// filter. Of an element's k counters the least is its estimate, being the one
// to which others added least.
type spectrum struct {
	bloom.Geometry
	seed     uint64
	counters []uint32
}

func newSpectrum(g bloom.Geometry, seed uint64) spectrum {
	return spectrum{Geometry: g, seed: seed, counters: make([]uint32, g.M())}
}

// Seed is the seed under which byte strings are hashed.
func (s *spectrum) Seed() uint64 { return s.seed }

// Count estimates how often the element b is in the multiset.
func (s *spectrum) Count(b []byte) uint32 { return s.CountHash(hash.Sum(s.seed, b)) }

// CountHash estimates how often the element with the 64-bit hash h is in the
// multiset.
func (s *spectrum) CountHash(h uint64) uint32 {
	least := uint32(math.MaxUint32)
	for i := range s.K() {
		least = min(least, s.counters[s.Position(h, i)])
	}
	return least
}

func saturatingAdd(a, b uint32) uint32 {
	if a > math.MaxUint32-b {
		return math.MaxUint32
	}
	return a + b
}

// MinimumSelection is the spectral Bloom filter of Cohen and Matias (Spectral
// Bloom Filters, SIGMOD 2003; section 9 of the survey): a multiset that
// estimates how often an element is in it by the least of the element's
// counters. An estimate is never too small, and in a filter of n distinct
// elements too large with the probability FalsePositiveRate(n). A counter
// saturates at 2³²−1 and then stays. It is safe for concurrent queries, not
// for changes beside them.
type MinimumSelection struct{ spectrum }

// NewMinimumSelection makes an empty filter of g.M() counters. The seed
// selects its hash functions.
func NewMinimumSelection(g bloom.Geometry, seed uint64) *MinimumSelection {
	return &MinimumSelection{newSpectrum(g, seed)}
}

// Insert puts the element b into the multiset.
func (s *MinimumSelection) Insert(b []byte) { s.InsertHash(hash.Sum(s.seed, b), 1) }

// InsertHash puts the element with the 64-bit hash h into the multiset, times
// times.
func (s *MinimumSelection) InsertHash(h uint64, times uint32) {
	for i := range s.K() {
		c := &s.counters[s.Position(h, i)]
		*c = saturatingAdd(*c, times)
	}
}

// Delete takes the element b out of the multiset once. It fails with
// ErrAbsent, changing nothing, where the counters show that b is not in it.
func (s *MinimumSelection) Delete(b []byte) error { return s.DeleteHash(hash.Sum(s.seed, b), 1) }

// DeleteHash takes the element with the 64-bit hash h out of the multiset,
// times times. It fails with ErrAbsent, changing nothing, where the counters
// show that it is not in it as often.
func (s *MinimumSelection) DeleteHash(h uint64, times uint32) error {
	if s.CountHash(h) < times {
		return ErrAbsent
	}
	for i := range s.K() {
		if c := &s.counters[s.Position(h, i)]; *c != math.MaxUint32 {
			*c -= min(*c, times) // less where two of the hashes coincide
		}
	}
	return nil
}

// MinimalIncrease is the spectral Bloom filter that raises only those of an
// element's counters that are below its new estimate (Cohen and Matias). Its
// estimates are never too small, and never larger than those of
// MinimumSelection; but elements cannot be deleted. It is safe for concurrent
// queries, not for changes beside them.
type MinimalIncrease struct{ spectrum }

// NewMinimalIncrease makes an empty filter of g.M() counters. The seed selects
// its hash functions.
func NewMinimalIncrease(g bloom.Geometry, seed uint64) *MinimalIncrease {
	return &MinimalIncrease{newSpectrum(g, seed)}
}

// Insert puts the element b into the multiset.
func (s *MinimalIncrease) Insert(b []byte) { s.InsertHash(hash.Sum(s.seed, b), 1) }

// InsertHash puts the element with the 64-bit hash h into the multiset, times
// times.
func (s *MinimalIncrease) InsertHash(h uint64, times uint32) {
	count := saturatingAdd(s.CountHash(h), times)
	for i := range s.K() {
		c := &s.counters[s.Position(h, i)]
		*c = max(*c, count)
	}
}
