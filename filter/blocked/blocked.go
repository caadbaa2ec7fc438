// Package blocked implements Bloom filters in which all bits of an element lie in one cache
// line: Putze, Sanders and Singler, "Cache-, hash- and space-efficient Bloom filters", 2007.
// The data plane remembers elements in them, each at the cost of one cache miss: bpf/cascade.h is the twin.
package blocked

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sort"

	"weir/filter/fpr"
	"weir/filter/hash"
	"weir/filter/internal/sealed"
)

const (
	lineWords = 8
	wordBits  = 64

	// MaxBits is the maximum number of bits that an element sets in its line.
	MaxBits = fpr.MaxRest
)

// Geometry is the size of a Filter.
type Geometry struct {
	Lines uint32 // of 64 bytes, at least 1
	Bits  int    // set by an element in its line, 1 … MaxBits
}

// MaxLines is the maximum number of lines of a geometry of [For], which keeps filters below 2³²
// bits.
const MaxLines = 1<<23 - 1

// sparing is how much larger than the minimum a filter may be if its elements
// set fewer bits, each of which costs time.
const sparing = 1.1

// For returns the geometry of a filter that has at most the false-positive rate,
// 0 < rate < 1, with n elements, n ≥ 1, by the exact formula: the smallest one,
// or one up to a tenth larger with fewer bits. It fails where that takes more
// than MaxLines.
//
// At a rate of 1 % it takes 13 % more memory than a filter whose bits may lie
// anywhere, and an element costs one cache miss instead of seven.
func For(n int, rate float64) (Geometry, error) {
	if !(n >= 1 && n < math.MaxInt32) || !(rate > 0 && rate < 1) {
		return Geometry{}, fmt.Errorf("blocked: a filter of %d elements with a false-positive rate of %g", n, rate)
	}
	var all [MaxBits]Geometry
	least := uint32(MaxLines + 1)
	for i := range all {
		lines := uint32(sort.Search(MaxLines, func(j int) bool {
			return Geometry{Lines: uint32(j) + 1, Bits: i + 1}.FalsePositiveRate(n) <= rate
		})) + 1
		all[i] = Geometry{Lines: lines, Bits: i + 1}
		least = min(least, lines)
	}
	if least > MaxLines {
		return Geometry{}, fmt.Errorf("blocked: a filter of %d elements with a false-positive rate of %g takes more than 512 MiB", n, rate)
	}
	i := slices.IndexFunc(all[:], func(g Geometry) bool { return float64(g.Lines) <= sparing*float64(least) })
	return all[i], nil
}

// FalsePositiveRate returns the exact probability that an element tests positive
// although it is none of the n in the filter.
func (g Geometry) FalsePositiveRate(n int) float64 {
	return fpr.CascadeLayout{Lines: g.Lines, First: g.Bits}.Rate(n)
}

// Bytes returns the size of a filter in bytes.
func (g Geometry) Bytes() int { return int(g.Lines) * fpr.LineBits / 8 }

// Filter is a Bloom filter of elements, which are given by 64-bit hashes. A hash h sets its
// bits in one line of 64 bytes: line Reduce(h), bit j being bit (h >> 6j) mod 64 of word
// (h>>36 + j) mod 8. line_set of bpf/cascade.h is its twin. Concurrent queries are safe; a
// change must not run concurrently with anything else.
type Filter struct {
	Geometry
	words []uint64
}

// New returns an empty filter.
func New(g Geometry) *Filter {
	return &Filter{g, make([]uint64, int(g.Lines)*lineWords)}
}

// FromWords returns a filter over the given words, of which it takes ownership.
// It fails if their number does not match the geometry.
func FromWords(g Geometry, words []uint64) (*Filter, error) {
	if g.Lines < 1 || g.Bits < 1 || g.Bits > MaxBits || uint64(len(words)) != uint64(g.Lines)*lineWords {
		return nil, fmt.Errorf("blocked: %d words for %d lines, %d bits each", len(words), g.Lines, g.Bits)
	}
	return &Filter{g, words}, nil
}

// Add adds the element with hash h.
func (f *Filter) Add(h uint64) { f.Observe(h) }

// Observe adds the element with hash h. It reports whether all of its bits were set before:
// the element was there already, or it is a false positive.
func (f *Filter) Observe(h uint64) (again bool) {
	all := ^uint64(0)
	line := f.line(h)
	for j := range f.Bits {
		word, bit := place(h, j)
		all &= line[word] >> bit
		line[word] |= 1 << bit
	}
	return all&1 != 0
}

// Contains reports whether the element with hash h may be in the filter.
func (f *Filter) Contains(h uint64) bool {
	all := ^uint64(0)
	line := f.line(h)
	for j := range f.Bits {
		word, bit := place(h, j)
		all &= line[word] >> bit
	}
	return all&1 != 0
}

func (f *Filter) line(h uint64) []uint64 {
	base := int(hash.Reduce(h, f.Lines)) * lineWords
	return f.words[base : base+lineWords]
}

// place returns the word in its line, and the bit in that word, of a hash's bit j.
func place(h uint64, j int) (word, bit uint64) {
	return (h>>36 + uint64(j)) % lineWords, h >> (6 * j) % wordBits
}

// The encoding: magic "WBLK", version 1, the bits of an element in a byte and two zero bytes;
// the number of lines in 4 bytes, 4 zero bytes, the words; all in little-endian order, then
// the XXH64 of everything before it, with seed 0. The checksum detects corruption, not forgery.
const header = "WBLK\x01"

// AppendBinary appends the filter's encoding to b. The error is always nil. It
// implements encoding.BinaryAppender.
func (f *Filter) AppendBinary(b []byte) ([]byte, error) {
	start := len(b)
	b = append(append(b, header...), byte(f.Bits), 0, 0)
	b = binary.LittleEndian.AppendUint32(b, f.Lines)
	b = binary.LittleEndian.AppendUint32(b, 0)
	return sealed.Seal(sealed.AppendWords(b, f.words), start), nil
}

// MarshalBinary returns the encoding of AppendBinary. It implements
// encoding.BinaryMarshaler.
func (f *Filter) MarshalBinary() ([]byte, error) { return f.AppendBinary(nil) }

// UnmarshalBinary decodes b into f. It accepts exactly what AppendBinary
// produces; otherwise it fails and leaves f unchanged. It implements
// encoding.BinaryUnmarshaler.
func (f *Filter) UnmarshalBinary(b []byte) error {
	r := sealed.Open("blocked", header, b)
	g := Geometry{Bits: int(r.Uint8())}
	r.Zero(2)
	g.Lines = r.Uint32()
	r.Zero(4)
	words := r.Words(uint64(g.Lines) * lineWords)
	if err := r.End(); err != nil {
		return err
	}
	d, err := FromWords(g, words)
	if err != nil {
		return fmt.Errorf("blocked: decode: %w", err)
	}
	*f = *d
	return nil
}

// Words returns the filter's words, which the caller must not change.
func (f *Filter) Words() []uint64 { return f.words }

// Union adds the elements of another filter of the same geometry, given by its
// words. It fails if the number of words differs.
func (f *Filter) Union(words []uint64) error {
	if len(words) != len(f.words) {
		return errors.New("blocked: filters differ in geometry")
	}
	for i, w := range words {
		f.words[i] |= w
	}
	return nil
}

// Clear removes all elements.
func (f *Filter) Clear() { clear(f.words) }

// FillRatio returns the fraction of set bits.
func (f *Filter) FillRatio() float64 {
	n := 0
	for _, w := range f.words {
		n += bits.OnesCount64(w)
	}
	return float64(n) / float64(len(f.words)*wordBits)
}

// Chance returns the false-positive rate of this very filter, by its set bits:
// the mean, over lines and first words, of the probability that all the bits
// that a hash selects are set. It takes about 40 ns a line.
func (f *Filter) Chance() float64 {
	var sum float64
	for base := 0; base < len(f.words); base += lineWords {
		var fill [2 * lineWords]float64
		for i, w := range f.words[base : base+lineWords] {
			fill[i] = float64(bits.OnesCount64(w)) / wordBits
			fill[i+lineWords] = fill[i]
		}
		for start := range lineWords {
			p := 1.
			for j := range f.Bits {
				p *= fill[start+j]
			}
			sum += p
		}
	}
	return sum / float64(len(f.words))
}
