package weighted

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"weir/filter/hash"
	"weir/filter/internal/sealed"
)

// MaxK is the maximum number of hash functions of an element.
const MaxK = 255

// Filter is a weighted Bloom filter: a set of byte strings that answers membership queries
// without false negatives, and with false positives at the rate of equation 4 (section III).
// An element has the number of hash functions of its class. Concurrent queries are safe; a
// change must not run concurrently with anything else.
type Filter struct {
	m        uint32
	seed     uint64
	k        []float64 // by class
	rounding Rounding
	classify func(b []byte) int
	words    []uint64 // bit b is bit b%64 of word b/64
}

// New returns an empty filter of m bits for elements of a universe, with the numbers of hash
// functions of [Universe.Optimal], rounded as in [Dropping]: the theorem in one call. classify
// returns the class of an element, its index in the universe, which must always be the same.
// The hash functions are chosen at random. New fails if the universe is not valid, or m is 0.
//
// [Universe.Bits] has an m for a rate.
func New(u Universe, classify func(b []byte) int, m uint32) (*Filter, error) {
	if err := u.Validate(); err != nil {
		return nil, err
	}
	return FromBits(u.Optimal(float64(m)), Dropping, classify, m, rand.Uint64())
}

// FromBits returns an empty filter of m bits with the given number of hash functions for the
// elements of each class, which a rounding makes whole, as of [Universe.Theorem]. The seed
// selects the hash functions. It fails if m is 0 or a class has more than [MaxK].
func FromBits(k []float64, r Rounding, classify func(b []byte) int, m uint32, seed uint64) (*Filter, error) {
	if m == 0 {
		return nil, fmt.Errorf("weighted: filter of 0 bits")
	}
	if r.Least < 0 || r.Most < 0 || r.Least > MaxK || r.Most > MaxK {
		return nil, fmt.Errorf("weighted: %d to %d hash functions, want 0 to %d", r.Least, r.Most, MaxK)
	}
	for i, x := range k {
		if math.IsNaN(x) || r.Most == 0 && x > MaxK {
			return nil, fmt.Errorf("weighted: class %d: %v hash functions, want at most %d", i, x, MaxK)
		}
	}
	return &Filter{m, seed, slices.Clone(k), r, classify, make([]uint64, (uint64(m)+63)/64)}, nil
}

// M returns the number of bits.
func (f *Filter) M() uint32 { return f.m }

// K returns the numbers of hash functions of each class, before they are rounded.
func (f *Filter) K() []float64 { return slices.Clone(f.k) }

// FalsePositiveRate returns the expected rate of the queries for elements of a universe once
// its members have been added (equation 4). It has the classes of the filter.
func (f *Filter) FalsePositiveRate(u Universe) float64 {
	return u.RoundedRate(float64(f.m), f.k, f.rounding)
}

// of returns an element's hash, and its number of hash functions.
func (f *Filter) of(b []byte) (h uint64, k int) {
	h = hash.Sum(f.seed, b)
	return h, f.rounding.Round(f.k[f.classify(b)], h)
}

// Add adds the element b to the set. It panics if the element has no class.
func (f *Filter) Add(b []byte) {
	h, k := f.of(b)
	for i := range k {
		p := f.position(h, i)
		f.words[p/64] |= 1 << (p % 64)
	}
}

// Contains reports whether the element b may be in the set. It is always true for an element
// without hash functions. It panics if the element has no class.
func (f *Filter) Contains(b []byte) bool {
	h, k := f.of(b)
	for i := range k {
		if p := f.position(h, i); f.words[p/64]>>(p%64)&1 == 0 {
			return false
		}
	}
	return true
}

func (f *Filter) position(h uint64, i int) uint32 { return hash.Reduce(hash.Nth(h, uint64(i)), f.m) }

// The encoding, in little-endian order:
//
//	 0  magic "WWGT"
//	 4  version, 1
//	 5  1 for probabilistic rounding, else 0
//	 6  Least and Most of the rounding, a byte each
//	 8  m, 4 bytes
//	12  the number of classes, 4 bytes
//	16  seed, 8 bytes
//	24  k of each class, of 8 bytes in IEEE 754
//	    the bits, in words of 8 bytes
//	    XXH64 of everything before it, with seed 0, 8 bytes
//
// The checksum detects corruption, not forgery.
const header = "WWGT\x01"

// AppendBinary appends the filter's encoding, including its seed, to b. What classifies
// elements is not part of it. The error is always nil. It implements encoding.BinaryAppender.
func (f *Filter) AppendBinary(b []byte) ([]byte, error) {
	start := len(b)
	probabilistic := byte(0)
	if f.rounding.Probabilistic {
		probabilistic = 1
	}
	b = append(append(b, header...), probabilistic, byte(f.rounding.Least), byte(f.rounding.Most))
	b = binary.LittleEndian.AppendUint32(b, f.m)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(f.k)))
	b = binary.LittleEndian.AppendUint64(b, f.seed)
	for _, k := range f.k {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(k))
	}
	return sealed.Seal(sealed.AppendWords(b, f.words), start), nil
}

// MarshalBinary returns the encoding of AppendBinary. It implements encoding.BinaryMarshaler.
func (f *Filter) MarshalBinary() ([]byte, error) { return f.AppendBinary(nil) }

// UnmarshalBinary decodes b into f, which classifies elements as before: it must be of [New] or
// [FromBits], with as many classes. It accepts exactly what AppendBinary produces; otherwise it
// fails and leaves f unchanged. It implements encoding.BinaryUnmarshaler.
func (f *Filter) UnmarshalBinary(b []byte) error {
	r := sealed.Open("weighted", header, b)
	probabilistic := r.Uint8()
	if probabilistic > 1 {
		r.Fail("rounding %d", probabilistic)
	}
	rounding := Rounding{Probabilistic: probabilistic == 1, Least: int(r.Uint8()), Most: int(r.Uint8())}
	m, classes, seed := r.Uint32(), r.Uint32(), r.Uint64()
	if r.Err() == nil && uint64(classes) != uint64(len(f.k)) {
		r.Fail("%d classes, want %d", classes, len(f.k))
	}
	k := make([]float64, 0, len(f.k))
	for _, x := range r.Words(uint64(classes)) {
		k = append(k, math.Float64frombits(x))
	}
	words := r.Words((uint64(m) + 63) / 64)
	if tail := m % 64; r.Err() == nil && tail != 0 && words[len(words)-1]>>tail != 0 {
		r.Fail("bits set beyond bit %d", m-1)
	}
	if err := r.End(); err != nil {
		return err
	}
	decoded, err := FromBits(k, rounding, f.classify, m, seed)
	if err != nil {
		return fmt.Errorf("weighted: decode: %w", err)
	}
	decoded.words = words
	*f = *decoded
	return nil
}
