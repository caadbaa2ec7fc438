package counting

import (
	"encoding/binary"
	"math"

	"weir/filter/bloom"
	"weir/filter/hash"
	"weir/filter/internal/sealed"
)

// spectrum is the array of a spectral Bloom filter: m saturating 32-bit
// counters. An element's estimate is the least of its k counters, the one to
// which other elements added least.
type spectrum struct {
	bloom.Geometry
	seed     uint64
	counters []uint32
}

func newSpectrum(g bloom.Geometry, seed uint64) spectrum {
	return spectrum{Geometry: g, seed: seed, counters: make([]uint32, g.M())}
}

// Seed returns the seed with which byte strings are hashed.
func (s *spectrum) Seed() uint64 { return s.seed }

// Count estimates the multiplicity of the element b.
func (s *spectrum) Count(b []byte) uint32 { return s.CountHash(hash.Sum(s.seed, b)) }

// CountHash estimates the multiplicity of the element with the 64-bit hash h.
func (s *spectrum) CountHash(h uint64) uint32 {
	least := uint32(math.MaxUint32)
	for i := range s.K() {
		least = min(least, s.counters[s.Position(h, i)])
	}
	return least
}

// Counter returns the element's counter of one of the k hash functions, 0…K−1.
func (s *spectrum) Counter(h uint64, i int) uint32 { return s.counters[s.Position(h, i)] }

func (s *spectrum) appendBinary(b []byte, header string) ([]byte, error) {
	start := len(b)
	b = appendStart(b, header, s.Geometry, s.seed)
	for _, c := range s.counters {
		b = binary.LittleEndian.AppendUint32(b, c)
	}
	return sealed.Seal(b, start), nil
}

func (s *spectrum) unmarshalBinary(b []byte, header string) error {
	r := sealed.Open("counting", header, b)
	g, seed := readStart(r)
	encoded := r.Bytes(4 * int(g.M()))
	if err := r.End(); err != nil {
		return err
	}
	d := newSpectrum(g, seed)
	for i := range d.counters {
		d.counters[i] = binary.LittleEndian.Uint32(encoded[4*i:])
	}
	*s = d
	return nil
}

func saturatingAdd(a, b uint32) uint32 {
	if a > math.MaxUint32-b {
		return math.MaxUint32
	}
	return a + b
}

// MinimumSelection is the spectral Bloom filter of Cohen and Matias (Spectral
// Bloom Filters, SIGMOD 2003; section 9 of the survey): a multiset that
// estimates an element's multiplicity by the least of its counters. An estimate
// is never too small; in a filter of n distinct elements it is too large with
// probability FalsePositiveRate(n). Counters saturate at 2³²−1. Concurrent
// queries are safe; a change must not run concurrently with anything else.
type MinimumSelection struct{ spectrum }

// NewMinimumSelection returns an empty filter of g.M() counters. The seed
// selects its hash functions.
func NewMinimumSelection(g bloom.Geometry, seed uint64) *MinimumSelection {
	return &MinimumSelection{newSpectrum(g, seed)}
}

// Add adds the element b once.
func (s *MinimumSelection) Add(b []byte) { s.AddHash(hash.Sum(s.seed, b), 1) }

// AddHash adds the element with the 64-bit hash h the given number of times.
func (s *MinimumSelection) AddHash(h uint64, times uint32) {
	for i := range s.K() {
		c := &s.counters[s.Position(h, i)]
		*c = saturatingAdd(*c, times)
	}
}

// Remove removes the element b once. It reports false, and changes nothing, if
// the counters show that b is absent.
func (s *MinimumSelection) Remove(b []byte) bool { return s.RemoveHash(hash.Sum(s.seed, b), 1) }

// RemoveHash removes the element with the 64-bit hash h the given number of
// times. It reports false, and changes nothing, if the counters show that it was
// added fewer times.
func (s *MinimumSelection) RemoveHash(h uint64, times uint32) bool {
	if s.CountHash(h) < times {
		return false
	}
	for i := range s.K() {
		if c := &s.counters[s.Position(h, i)]; *c != math.MaxUint32 {
			*c -= min(*c, times) // smaller if two of the hashes coincide
		}
	}
	return true
}

const selectionHeader = "WSMS\x01\x00\x00\x00"

// AppendBinary appends the filter's encoding, including its seed, to b. The
// error is always nil. It implements encoding.BinaryAppender.
func (s *MinimumSelection) AppendBinary(b []byte) ([]byte, error) {
	return s.appendBinary(b, selectionHeader)
}

// MarshalBinary returns the encoding of AppendBinary. It implements
// encoding.BinaryMarshaler.
func (s *MinimumSelection) MarshalBinary() ([]byte, error) { return s.AppendBinary(nil) }

// UnmarshalBinary decodes b into s. It accepts exactly what AppendBinary
// produces; otherwise it fails and leaves s unchanged. It implements
// encoding.BinaryUnmarshaler.
func (s *MinimumSelection) UnmarshalBinary(b []byte) error {
	return s.unmarshalBinary(b, selectionHeader)
}

// MinimalIncrease is the spectral Bloom filter that raises only those of an
// element's counters that are below its new estimate (Cohen and Matias). Its
// estimates are never too small, and never larger than those of
// MinimumSelection, but elements cannot be removed. Concurrent queries are
// safe; a change must not run concurrently with anything else.
type MinimalIncrease struct{ spectrum }

// NewMinimalIncrease returns an empty filter of g.M() counters. The seed
// selects its hash functions.
func NewMinimalIncrease(g bloom.Geometry, seed uint64) *MinimalIncrease {
	return &MinimalIncrease{newSpectrum(g, seed)}
}

// Add adds the element b once.
func (s *MinimalIncrease) Add(b []byte) { s.AddHash(hash.Sum(s.seed, b), 1) }

// AddHash adds the element with the 64-bit hash h the given number of times.
func (s *MinimalIncrease) AddHash(h uint64, times uint32) {
	count := saturatingAdd(s.CountHash(h), times)
	for i := range s.K() {
		c := &s.counters[s.Position(h, i)]
		*c = max(*c, count)
	}
}

const increaseHeader = "WSMI\x01\x00\x00\x00"

// AppendBinary appends the filter's encoding, including its seed, to b. The
// error is always nil. It implements encoding.BinaryAppender.
func (s *MinimalIncrease) AppendBinary(b []byte) ([]byte, error) {
	return s.appendBinary(b, increaseHeader)
}

// MarshalBinary returns the encoding of AppendBinary. It implements
// encoding.BinaryMarshaler.
func (s *MinimalIncrease) MarshalBinary() ([]byte, error) { return s.AppendBinary(nil) }

// UnmarshalBinary decodes b into s. It accepts exactly what AppendBinary
// produces; otherwise it fails and leaves s unchanged. It implements
// encoding.BinaryUnmarshaler.
func (s *MinimalIncrease) UnmarshalBinary(b []byte) error {
	return s.unmarshalBinary(b, increaseHeader)
}
