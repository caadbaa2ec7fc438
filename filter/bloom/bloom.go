// Package bloom implements the standard and the partitioned Bloom filter, set
// operations on their bits, and estimates from them.
//
// Its source is Broder and Mitzenmacher, Network Applications of Bloom
// Filters: A Survey (Internet Mathematics 1, 2004), to which sections refer.
// The filter is of Bloom, "Space/time trade-offs in hash coding with allowable errors", 1970.
package bloom

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"weir/filter/hash"
)

// ErrIncompatible means that two filters differ in geometry or seed, so that
// their bits cannot be combined.
var ErrIncompatible = errors.New("bloom: filters differ in geometry or seed")

// Filter is a Bloom filter: a set that answers membership queries without false
// negatives, and with false positives at a rate that follows from its geometry
// and the number of elements (section 2.1). Elements are byte strings or their
// 64-bit hashes. Create a Filter with [New], [FromWords] or UnmarshalBinary;
// the zero value only supports the latter. Concurrent queries are safe; a
// change must not run concurrently with anything else.
type Filter struct {
	Geometry
	seed  uint64
	words []uint64 // bit b is bit b%64 of word b/64; bits from m on are zero
}

// New returns an empty filter. The seed selects its hash functions.
func New(g Geometry, seed uint64) *Filter {
	return &Filter{Geometry: g, seed: seed, words: make([]uint64, wordsOf(g.m))}
}

// FromWords returns a filter with the given bits, bit b being bit b%64 of
// words[b/64]. It takes ownership of words. It fails unless words has exactly
// the length for the geometry's M bits and the unused bits of the last word are
// zero.
func FromWords(g Geometry, seed uint64, words []uint64) (*Filter, error) {
	if len(words) != wordsOf(g.m) {
		return nil, fmt.Errorf("bloom: %d words for %d bits", len(words), g.m)
	}
	if tail := g.m % 64; tail != 0 && words[len(words)-1]>>tail != 0 {
		return nil, fmt.Errorf("bloom: bits set beyond bit %d", g.m-1)
	}
	return &Filter{Geometry: g, seed: seed, words: words}, nil
}

func wordsOf(m uint32) int { return (int(m) + 63) / 64 }

// Seed returns the seed with which byte strings are hashed.
func (f *Filter) Seed() uint64 { return f.seed }

// Words returns the filter's bits, which the caller must not change: bit b is
// bit b%64 of word b/64.
func (f *Filter) Words() []uint64 { return f.words }

// Add adds the element b to the set.
func (f *Filter) Add(b []byte) { f.AddHash(hash.Sum(f.seed, b)) }

// AddHash adds the element with the 64-bit hash h to the set.
func (f *Filter) AddHash(h uint64) {
	for i := range f.k {
		p := f.Position(h, i)
		f.words[p/64] |= 1 << (p % 64)
	}
}

// Contains reports whether the element b may be in the set.
func (f *Filter) Contains(b []byte) bool { return f.ContainsHash(hash.Sum(f.seed, b)) }

// ContainsHash reports whether the element with the 64-bit hash h may be in
// the set.
func (f *Filter) ContainsHash(h uint64) bool {
	for i := range f.k {
		p := f.Position(h, i)
		if f.words[p/64]>>(p%64)&1 == 0 {
			return false
		}
	}
	return true
}

// Clone returns a deep copy.
func (f *Filter) Clone() *Filter {
	c := *f
	c.words = slices.Clone(f.words)
	return &c
}

// Clear removes all elements.
func (f *Filter) Clear() { clear(f.words) }

// Equal reports whether both filters have the same geometry, seed and bits.
func (f *Filter) Equal(o *Filter) bool {
	return f.compatible(o) == nil && slices.Equal(f.words, o.words)
}

func (f *Filter) compatible(o *Filter) error {
	if f.Geometry != o.Geometry || f.seed != o.seed {
		return ErrIncompatible
	}
	return nil
}

// Union makes f the filter of the union of both sets, by OR (section 2.4): bit
// for bit the filter with the elements of both. It returns ErrIncompatible if
// the filters cannot be combined.
func (f *Filter) Union(o *Filter) error {
	if err := f.compatible(o); err != nil {
		return err
	}
	for i, w := range o.words {
		f.words[i] |= w
	}
	return nil
}

// Intersect clears in f the bits that o lacks, by AND. Every element of both
// sets remains, but f keeps more bits than a filter built from the
// intersection, hence more false positives (section 2.4). It returns
// ErrIncompatible if the filters cannot be combined.
func (f *Filter) Intersect(o *Filter) error {
	if err := f.compatible(o); err != nil {
		return err
	}
	for i, w := range o.words {
		f.words[i] &= w
	}
	return nil
}

// Halve shrinks the filter to half its bits. The result is bit for bit the
// filter of m/2 bits with the same elements. It fails, and changes nothing, if
// m, or m/k in a partitioned filter, is odd.
//
// Section 2.4 ORs the two halves of a filter whose size is a power of two and
// masks the highest bit of a position. Here a position is a hash scaled to m,
// so the lowest bit is the one to drop: neighbouring bits are ORed, and any
// even size will do.
func (f *Filter) Halve() error {
	g, err := f.Geometry.Halve()
	if err != nil {
		return err
	}
	words := make([]uint64, wordsOf(g.m))
	for i, w := range f.words {
		words[i/2] |= OrPairs(w) << (i % 2 * 32)
	}
	f.Geometry, f.words = g, words
	return nil
}

// OrPairs ORs each of w's 32 pairs of bits and packs the results into the lower
// half of a word.
func OrPairs(w uint64) uint64 {
	w = (w | w>>1) & 0x5555555555555555
	w = (w | w>>1) & 0x3333333333333333
	w = (w | w>>2) & 0x0f0f0f0f0f0f0f0f
	w = (w | w>>4) & 0x00ff00ff00ff00ff
	w = (w | w>>8) & 0x0000ffff0000ffff
	return (w | w>>16) & 0x00000000ffffffff
}

// Ones returns the number of set bits.
func (f *Filter) Ones() uint32 {
	n := 0
	for _, w := range f.words {
		n += bits.OnesCount64(w)
	}
	return uint32(n)
}

// FillRatio returns the fraction of set bits, 1 − ρ in section 2.1.
func (f *Filter) FillRatio() float64 { return float64(f.Ones()) / float64(f.m) }

// Cardinality estimates the number of distinct elements from the number of zero
// bits, which is close to its expectation m(1 − 1/m)^{k|S|} (section 2.4). It
// returns +Inf for a filter without zero bits.
func (f *Filter) Cardinality() float64 { return f.cardinality(f.zeros()) }

func (f *Filter) zeros() float64 { return float64(f.m - f.Ones()) }

func (f *Filter) cardinality(zeros float64) float64 {
	switch m := float64(f.m); zeros {
	case 0:
		return math.Inf(1)
	case m:
		return 0
	default:
		return math.Log(zeros/m) / f.lnSpared()
	}
}

// IntersectionSize estimates the number of elements in both sets from the
// numbers of zero bits of both filters and of their inner product, Z₁, Z₂ and
// Z₁₂: (1/m)(1 − 1/m)^{−k|S₁∩S₂|} ≈ (Z₁ + Z₂ − Z₁₂) / Z₁Z₂ (section 2.4).
// Negative estimates, which chance can cause, are returned as 0; the result is
// +Inf for a filter without zero bits. It returns ErrIncompatible if the
// filters cannot be combined.
func (f *Filter) IntersectionSize(o *Filter) (float64, error) {
	if err := f.compatible(o); err != nil {
		return 0, err
	}
	z1, z2 := f.zeros(), o.zeros()
	neither := z1 + z2 - (float64(f.m) - f.innerProduct(o)) // zeros of the union
	if neither == 0 {
		return math.Inf(1), nil
	}
	// Equal to the paper's formula, as |S₁| + |S₂| − |S₁ ∪ S₂|.
	return max(0, f.cardinality(z1)+f.cardinality(z2)-f.cardinality(neither)), nil
}

// IntersectionSizeOf is like [Filter.IntersectionSize], but uses the known
// sizes n1 of f's set and n2 of o's set. It solves the expected inner product
// of both filters for |S₁ ∩ S₂|: m(1 − q^{|S₁|} − q^{|S₂|} +
// q^{|S₁|+|S₂|−|S₁∩S₂|}) with q = (1 − 1/m)^k (section 2.4). The estimate lies
// in 0…min(n1, n2).
func (f *Filter) IntersectionSizeOf(o *Filter, n1, n2 uint64) (float64, error) {
	if err := f.compatible(o); err != nil {
		return 0, err
	}
	neither := f.innerProduct(o) - float64(f.m)*(1-f.ZeroFraction(n1)-f.ZeroFraction(n2))
	if neither <= 0 { // the union's estimate is infinite
		return 0, nil
	}
	both := float64(n1) + float64(n2) - f.cardinality(neither)
	return min(max(0, both), float64(min(n1, n2))), nil
}

// innerProduct returns the number of bits set in both filters.
func (f *Filter) innerProduct(o *Filter) float64 {
	n := 0
	for i, w := range f.words {
		n += bits.OnesCount64(w & o.words[i])
	}
	return float64(n)
}
