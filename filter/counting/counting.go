// Package counting implements Bloom filters whose cells are counters: the
// counting filter, which supports deletion, and the spectral filters, which
// estimate how often an element was added.
//
// Sections refer to Broder and Mitzenmacher, Network Applications of Bloom
// Filters: A Survey (Internet Mathematics 1, 2004).
//
// The counting filter is of Fan, Cao, Almeida and Broder, "Summary cache", 2000; spectral
// filters are of Cohen and Matias, "Spectral Bloom filters", 2003; space-code filters are of
// Kumar, Xu, Li and Wang, "Space-code Bloom filter for efficient traffic flow measurement", 2003.
package counting

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"gonum.org/v1/gonum/mathext"

	"weir/filter/bloom"
	"weir/filter/hash"
	"weir/filter/internal/nibble"
	"weir/filter/internal/sealed"
)

// Max is the value at which a 4-bit counter saturates.
const Max = nibble.Max

// Filter is the counting Bloom filter of Fan, Cao, Almeida and Broder: m 4-bit
// counters beside m bits, so that elements can be removed (section 2.5). A bit
// is set where the counter is not zero, so that queries read the bits alone, in
// the time of a standard filter; adding takes two to four times as long. Concurrent queries are safe; a change must not
// run concurrently with anything else. The zero Filter only supports
// UnmarshalBinary.
type Filter struct {
	bloom.Geometry
	seed     uint64
	words    []uint64 // bit b is bit b%64 of word b/64
	counters *nibble.Array
}

// New returns an empty filter of g.M() counters; [bloom.For] has the geometry for
// a number of elements and a rate. The seed selects its hash functions.
func New(g bloom.Geometry, seed uint64) *Filter {
	return &Filter{g, seed, make([]uint64, (uint64(g.M())+63)/64), nibble.New(uint64(g.M()))}
}

// Seed returns the seed with which byte strings are hashed.
func (f *Filter) Seed() uint64 { return f.seed }

// Saturated returns the number of counters that have reached Max and are never
// decremented again.
func (f *Filter) Saturated() uint64 { return f.counters.Saturated() }

// FillRatio returns the fraction of nonzero counters.
func (f *Filter) FillRatio() float64 {
	n := 0
	for _, w := range f.words {
		n += bits.OnesCount64(w)
	}
	return float64(n) / float64(f.M())
}

// Add adds the element b. An element added twice must be removed twice.
func (f *Filter) Add(b []byte) { f.AddHash(hash.Sum(f.seed, b)) }

// AddHash adds the element with the 64-bit hash h.
func (f *Filter) AddHash(h uint64) {
	for i := range f.K() {
		p := f.Position(h, i)
		f.counters.Inc(uint64(p))
		f.words[p/64] |= 1 << (p % 64) // whether it was set is not worth a branch
	}
}

// Remove removes the element b. It reports false, and changes nothing, if the
// counters show that b is not in the set. Removing a false positive, an element
// that was never added, can cause false negatives for others.
func (f *Filter) Remove(b []byte) bool { return f.RemoveHash(hash.Sum(f.seed, b)) }

// RemoveHash is like [Filter.Remove], for the element with the 64-bit hash h.
func (f *Filter) RemoveHash(h uint64) bool {
	if !f.ContainsHash(h) {
		return false
	}
	for i := range f.K() {
		p := f.Position(h, i)
		if f.counters.Dec(uint64(p)) {
			f.words[p/64] &^= 1 << (p % 64)
		}
	}
	return true
}

// Contains reports whether the element b may be in the set.
func (f *Filter) Contains(b []byte) bool { return f.ContainsHash(hash.Sum(f.seed, b)) }

// ContainsHash reports whether the element with the 64-bit hash h may be in
// the set.
func (f *Filter) ContainsHash(h uint64) bool {
	for i := range f.K() {
		p := f.Position(h, i)
		if f.words[p/64]>>(p%64)&1 == 0 {
			return false
		}
	}
	return true
}

// The encodings have 8 bytes of magic and version, the geometry as weir/filter/bloom encodes it,
// and 8 bytes of seed; then the counters, in words of 16 for the counting filter, and of 4 bytes
// each for spectral ones. They end with the XXH64 of everything before it, with seed 0. Numbers
// are in little-endian order. The checksum detects corruption, not forgery.
const header = "WCNT\x01\x00\x00\x00"

// appendStart appends what encodings begin with.
func appendStart(b []byte, header string, g bloom.Geometry, seed uint64) []byte {
	b, _ = g.AppendBinary(append(b, header...)) // never fails
	return binary.LittleEndian.AppendUint64(b, seed)
}

// readStart reads that. A filter needs a geometry with bits.
func readStart(r *sealed.Reader) (g bloom.Geometry, seed uint64) {
	if encoded := r.Bytes(bloom.GeometryLen); encoded != nil {
		if err := g.UnmarshalBinary(encoded); err != nil {
			r.Fail("%w", err)
		}
	}
	return g, r.Uint64()
}

// AppendBinary appends the filter's encoding, including its seed, to b. The
// error is always nil. It implements encoding.BinaryAppender.
func (f *Filter) AppendBinary(b []byte) ([]byte, error) {
	start := len(b)
	b = appendStart(b, header, f.Geometry, f.seed)
	return sealed.Seal(sealed.AppendWords(b, f.counters.Words()), start), nil
}

// MarshalBinary returns the encoding of AppendBinary. It implements
// encoding.BinaryMarshaler.
func (f *Filter) MarshalBinary() ([]byte, error) { return f.AppendBinary(nil) }

// UnmarshalBinary decodes b into f. It accepts exactly what AppendBinary
// produces; otherwise it fails and leaves f unchanged. It implements
// encoding.BinaryUnmarshaler.
func (f *Filter) UnmarshalBinary(b []byte) error {
	r := sealed.Open("counting", header, b)
	g, seed := readStart(r)
	counters, ok := nibble.Over(r.Words((uint64(g.M())+15)/16), uint64(g.M()))
	if !ok {
		r.Fail("counters beyond the last")
	}
	if err := r.End(); err != nil {
		return err
	}
	words := make([]uint64, (uint64(g.M())+63)/64)
	for i := range words {
		words[i] = counters.Bits(uint64(i))
	}
	*f = Filter{g, seed, words, counters}
	return nil
}

// Bits returns the standard filter of the set, for sending to others: a bit is
// set if the counter is nonzero (section 4).
func (f *Filter) Bits() *bloom.Filter {
	standard, err := bloom.FromWords(f.Geometry, f.seed, slices.Clone(f.words))
	if err != nil {
		panic(err) // cannot happen: bits beyond M are zero
	}
	return standard
}

// OverflowBound bounds the probability that any of m 4-bit counters overflows,
// that is, is incremented 16 times, for any n and k ≤ (m/n) ln 2: m (e ln 2 /
// 16)¹⁶ ≈ 1.37·10⁻¹⁵ m (section 2.5). For a filter that contained t different
// sets over time, multiply by t.
func OverflowBound(m uint64) float64 { return MaxBound(m, Max+1) }

// Bound bounds the probability that any of m counters of a filter of n elements and k
// hash functions is incremented j ≥ 1 or more times: m (e n k / j m)^j, for any k (section
// 2.5). With k = (m/n) ln 2 it is [MaxBound].
func Bound(m, n uint64, k, j int) float64 {
	return min(1, float64(m)*math.Pow(math.E*float64(n)*float64(k)/(float64(j)*float64(m)), float64(j)))
}

// MaxBound bounds the probability that any of m counters is incremented j ≥ 1
// or more times, for k ≤ (m/n) ln 2: m (e ln 2 / j)^j (section 2.5).
func MaxBound(m uint64, j int) float64 {
	return min(1, float64(m)*math.Pow(math.E*math.Ln2/float64(j), float64(j)))
}

// TailBound bounds the probability that any counter of a filter of n elements
// is incremented j ≥ 1 or more times, by the sum over all counters of the
// binomial tail: m·P(c(i) ≥ j), with nk trials of probability 1/m, or n trials
// of k/m in a partitioned filter (section 2.5).
func TailBound(g bloom.Geometry, n uint64, j int) float64 {
	trials, p := float64(n)*float64(g.K()), 1/float64(g.M())
	if g.Partitioned() {
		trials, p = float64(n), float64(g.K())*p
	}
	if float64(j) > trials {
		return 0
	}
	// The regularised incomplete beta function is the binomial tail itself; one
	// minus the distribution function would lose it to rounding.
	return min(1, float64(g.M())*mathext.RegIncBeta(float64(j), trials-float64(j)+1, p))
}
