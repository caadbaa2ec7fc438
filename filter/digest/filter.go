package digest

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sort"

	"weir/filter/fpr"
	"weir/filter/hash"
)

const (
	lineWords = 8
	wordBits  = 64

	// MaxBits is the maximum number of bits that a digest sets in its line.
	MaxBits = fpr.MaxRest
	// MaxLines is the maximum number of lines of a filter, which keeps it below
	// 2³² bits.
	MaxLines = 1<<23 - 1
)

// Geometry is the size of a Filter.
type Geometry struct {
	Lines uint32 // of 64 bytes, at least 1
	Bits  int    // set by a digest in its line, 1 … MaxBits
}

// sparing is how much larger than the minimum a filter may be if its digests
// set fewer bits, each of which costs time per packet.
const sparing = 1.1

// Smallest returns the geometry of a filter for n packets at a false-positive
// rate, by the exact formula: the smallest one, or one up to a tenth larger
// with fewer bits. It fails if n is below 1, the rate is not between 0 and 1,
// or the filter would need more than MaxLines.
//
// At a rate of 1 % it takes 13 % more memory than a filter whose bits may lie
// anywhere, and a packet costs one cache miss instead of seven.
func Smallest(n, rate float64) (Geometry, error) {
	n = math.Ceil(n)
	if !(n >= 1 && n < math.MaxInt32) || !(rate > 0 && rate < 1) {
		return Geometry{}, fmt.Errorf("digest: cannot plan a filter of %g packets at a false-positive rate of %g", n, rate)
	}
	var all [MaxBits]Geometry
	least := uint32(MaxLines + 1)
	for i := range all {
		lines := uint32(sort.Search(MaxLines, func(j int) bool {
			return Geometry{uint32(j) + 1, i + 1}.FalsePositiveRate(int(n)) <= rate
		})) + 1
		all[i] = Geometry{lines, i + 1}
		least = min(least, lines)
	}
	if least > MaxLines {
		return Geometry{}, fmt.Errorf("digest: a filter of %g packets at a false-positive rate of %g takes more than 512 MiB", n, rate)
	}
	i := slices.IndexFunc(all[:], func(g Geometry) bool { return float64(g.Lines) <= sparing*float64(least) })
	return all[i], nil
}

// FalsePositiveRate returns the exact probability that a packet tests positive
// although it is none of the n in the filter.
func (g Geometry) FalsePositiveRate(n int) float64 {
	return fpr.CascadeLayout{Lines: g.Lines, First: g.Bits}.Rate(n)
}

// Bytes returns the size of a filter in bytes.
func (g Geometry) Bytes() int { return int(g.Lines) * fpr.LineBits / 8 }

// Filter is a Bloom filter of digests. A digest h sets its bits in one line of
// 64 bytes: line Reduce(h), bit j being bit (h >> 6j) mod 64 of word (h>>36 +
// j) mod 8. bpf/digest.h is its twin. Concurrent queries are safe; a change
// must not run concurrently with anything else.
type Filter struct {
	Geometry
	words []uint64
}

// NewFilter returns an empty filter.
func NewFilter(g Geometry) *Filter {
	return &Filter{g, make([]uint64, int(g.Lines)*lineWords)}
}

// FromWords returns a filter over the given words, of which it takes ownership.
// It fails if their number does not match the geometry.
func FromWords(g Geometry, words []uint64) (*Filter, error) {
	if g.Lines < 1 || g.Bits < 1 || g.Bits > MaxBits || uint64(len(words)) != uint64(g.Lines)*lineWords {
		return nil, fmt.Errorf("digest: %d words for %d lines, %d bits each", len(words), g.Lines, g.Bits)
	}
	return &Filter{g, words}, nil
}

// Record adds a digest. It reports whether all of its bits were set before: the
// packet was seen already, or it is a false positive.
func (f *Filter) Record(digest uint64) (again bool) {
	all := ^uint64(0)
	line := f.line(digest)
	for j := range f.Bits {
		word, bit := place(digest, j)
		all &= line[word] >> bit
		line[word] |= 1 << bit
	}
	return all&1 != 0
}

// Contains reports whether the digest may be in the filter.
func (f *Filter) Contains(digest uint64) bool {
	all := ^uint64(0)
	line := f.line(digest)
	for j := range f.Bits {
		word, bit := place(digest, j)
		all &= line[word] >> bit
	}
	return all&1 != 0
}

func (f *Filter) line(digest uint64) []uint64 {
	base := int(hash.Reduce(digest, f.Lines)) * lineWords
	return f.words[base : base+lineWords]
}

// place returns the word in its line, and the bit in that word, of a digest's
// bit j.
func place(digest uint64, j int) (word, bit uint64) {
	return (digest>>36 + uint64(j)) % lineWords, digest >> (6 * j) % wordBits
}

// Words returns the filter's words, which the caller must not change.
func (f *Filter) Words() []uint64 { return f.words }

// Union adds the digests of another filter of the same geometry, given by its
// words. It fails if the number of words differs.
func (f *Filter) Union(words []uint64) error {
	if len(words) != len(f.words) {
		return errors.New("digest: filters differ in geometry")
	}
	for i, w := range words {
		f.words[i] |= w
	}
	return nil
}

// Clear removes all digests.
func (f *Filter) Clear() { clear(f.words) }

// Fill returns the fraction of set bits.
func (f *Filter) Fill() float64 {
	n := 0
	for _, w := range f.words {
		n += bits.OnesCount64(w)
	}
	return float64(n) / float64(len(f.words)*wordBits)
}

// Chance returns the false-positive rate of this very filter, by its set bits:
// the mean, over lines and first words, of the probability that all the bits
// that a digest selects are set. It takes about 40 ns a line.
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
