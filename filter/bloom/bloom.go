// Package bloom has the standard and the partitioned Bloom filter and the
// algebra of their bits.
//
// Its source is Broder and Mitzenmacher, Network Applications of Bloom
// Filters: A Survey (Internet Mathematics 1, 2004), to which sections refer.
package bloom

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"weir/filter/hash"
)

// ErrIncompatible says that two filters differ in geometry or seed, so that
// equal bits do not mean equal elements.
var ErrIncompatible = errors.New("bloom: filters differ in geometry or seed")

// Filter is a set of elements that answers membership queries without false
// negatives, and with false positives at a rate given by its geometry and the
// number of elements (section 2.1). Elements are byte strings or their 64-bit
// hashes. It is safe for concurrent queries, not for changes beside them.
type Filter struct {
	Geometry
	seed  uint64
	words []uint64 // bit b is bit b%64 of word b/64; bits from m on are zero
}

// New makes an empty filter. The seed selects its hash functions.
func New(g Geometry, seed uint64) *Filter {
	return &Filter{Geometry: g, seed: seed, words: make([]uint64, wordsOf(g.m))}
}

// FromWords makes a filter of the given bits, bit b being bit b%64 of
// words[b/64]. It takes ownership of words. It fails unless they hold exactly
// the M bits of the geometry, with the rest of the last word zero.
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

// Seed is the seed under which byte strings are hashed.
func (f *Filter) Seed() uint64 { return f.seed }

// Words is the filter's bits, to be read only: bit b is bit b%64 of word b/64.
func (f *Filter) Words() []uint64 { return f.words }

// Add puts the element b into the set.
func (f *Filter) Add(b []byte) { f.AddHash(hash.Sum(f.seed, b)) }

// AddHash puts the element with the 64-bit hash h into the set.
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

// Clone is a copy that shares nothing with f.
func (f *Filter) Clone() *Filter {
	c := *f
	c.words = slices.Clone(f.words)
	return &c
}

// Clear takes all elements out.
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

// Union makes f the filter of the union of both sets, by OR (section 2.4). It
// is bit for bit the filter to which the elements of both had been added. It
// fails with ErrIncompatible.
func (f *Filter) Union(o *Filter) error {
	if err := f.compatible(o); err != nil {
		return err
	}
	for i, w := range o.words {
		f.words[i] |= w
	}
	return nil
}

// Intersect takes out of f, by AND, the bits that o lacks. Every element of
// both sets remains; yet f has more bits than a filter made of the
// intersection alone, and so more false positives (section 2.4). It fails with
// ErrIncompatible.
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
// filter of m/2 bits to which the same elements had been added. It fails, and
// changes nothing, where m, or in the partitioned filter m/k, is odd.
//
// Section 2.4 ORs the two halves of a filter whose size is a power of two and
// masks the highest bit of a position. Here a position is a hash scaled down
// to m, which makes the lowest bit the one to lose: neighbouring bits are
// ORed, and any even size will do.
func (f *Filter) Halve() error {
	g, err := f.Geometry.Halve()
	if err != nil {
		return err
	}
	words := make([]uint64, wordsOf(g.m))
	for i, w := range f.words {
		words[i/2] |= orPairs(w) << (i % 2 * 32)
	}
	f.Geometry, f.words = g, words
	return nil
}

// orPairs gathers the ORs of w's 32 pairs of bits in the lower half of a word.
func orPairs(w uint64) uint64 {
	w = (w | w>>1) & 0x5555555555555555
	w = (w | w>>1) & 0x3333333333333333
	w = (w | w>>2) & 0x0f0f0f0f0f0f0f0f
	w = (w | w>>4) & 0x00ff00ff00ff00ff
	w = (w | w>>8) & 0x0000ffff0000ffff
	return (w | w>>16) & 0x00000000ffffffff
}

// Ones is the number of bits set.
func (f *Filter) Ones() uint32 {
	n := 0
	for _, w := range f.words {
		n += bits.OnesCount64(w)
	}
	return uint32(n)
}

// FillRatio is the fraction of bits set, 1 − ρ in section 2.1.
func (f *Filter) FillRatio() float64 { return float64(f.Ones()) / float64(f.m) }

// Cardinality estimates the number of distinct elements in the set from the
// number of zero bits, which is close to its expectation m(1 − 1/m)^{k|S|}
// (section 2.4). It is +Inf for a filter without zero bits.
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
// Z₁₂: (1/m)(1 − 1/m)^{−k|S₁∩S₂|} ≈ (Z₁ + Z₂ − Z₁₂) / Z₁Z₂ (section 2.4). It is
// 0 where chance puts the estimate below, and +Inf for a filter without zero
// bits. It fails with ErrIncompatible.
func (f *Filter) IntersectionSize(o *Filter) (float64, error) {
	if err := f.compatible(o); err != nil {
		return 0, err
	}
	z1, z2 := f.zeros(), o.zeros()
	neither := z1 + z2 - (float64(f.m) - f.innerProduct(o)) // zeros of the union
	if neither == 0 {
		return math.Inf(1), nil
	}
	// Written as |S₁| + |S₂| − |S₁ ∪ S₂|, which is the paper's formula solved.
	return max(0, f.cardinality(z1)+f.cardinality(z2)-f.cardinality(neither)), nil
}

// IntersectionSizeOf estimates the number of elements in both sets, as
// IntersectionSize does, where the sizes n1 of f's set and n2 of o's set are
// known. It solves for |S₁ ∩ S₂| the expected inner product of both filters,
// m(1 − q^{|S₁|} − q^{|S₂|} + q^{|S₁|+|S₂|−|S₁∩S₂|}) with q = (1 − 1/m)^k
// (section 2.4). The estimate lies in 0…min(n1, n2). It fails with
// ErrIncompatible.
func (f *Filter) IntersectionSizeOf(o *Filter, n1, n2 uint64) (float64, error) {
	if err := f.compatible(o); err != nil {
		return 0, err
	}
	neither := f.innerProduct(o) - float64(f.m)*(1-f.ZeroFraction(n1)-f.ZeroFraction(n2))
	if neither <= 0 { // the union seems endless, so nothing is in both
		return 0, nil
	}
	both := float64(n1) + float64(n2) - f.cardinality(neither)
	return min(max(0, both), float64(min(n1, n2))), nil
}

// innerProduct is the number of bits set in both filters.
func (f *Filter) innerProduct(o *Filter) float64 {
	n := 0
	for i, w := range f.words {
		n += bits.OnesCount64(w & o.words[i])
	}
	return float64(n)
}
