// Package compress implements compressed Bloom filters: sparse filters, with
// more bits and fewer hash functions than are optimal in memory, that are
// entropy-coded for transmission. For the same transmitted size they have fewer
// false positives than an uncompressed optimal filter.
//
// The idea is Mitzenmacher's (Compressed Bloom Filters, IEEE/ACM Transactions
// on Networking 10, 2002). Sections refer to Broder and Mitzenmacher, Network
// Applications of Bloom Filters: A Survey (Internet Mathematics 1, 2004).
package compress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sort"

	"weir/filter/bloom"
	"weir/filter/hash"
)

// SentBits returns the expected size in bits of a filter of n elements after
// compression, without its header: z = m·H(p′), where H is the binary entropy
// and p′ the expected fraction of zeros (section 2.6).
func SentBits(g bloom.Geometry, n uint64) float64 {
	p := g.ZeroFraction(n)
	return float64(g.M()) * Entropy(p)
}

// Entropy returns the binary entropy H(p) in bits.
func Entropy(p float64) float64 {
	if p == 0 || p == 1 {
		return 0
	}
	return -p*math.Log2(p) - (1-p)*math.Log2(1-p)
}

// Plan is a filter geometry chosen by [Optimal], with its expected properties.
type Plan struct {
	Geometry bloom.Geometry
	Sent     float64 // expected size after compression in bits, at most the requested size
	Rate     float64 // false-positive rate
}

// Optimal returns the standard filter for n elements with the lowest
// false-positive rate among those of at most maxM bits in memory and at most
// sent bits in expectation after compression, without the header (section 2.6).
// It fails if n, sent or maxM is zero.
//
// The limit on memory is necessary: without it the best filter has a single
// hash function and very many bits. As ln(p)·ln(1−p) is symmetric, each sparse
// filter has a dense counterpart, nearly all ones, of the same rate and size
// that takes a multiple of the hash functions. Optimal considers sparse filters
// only: k is at most the optimum for m bits without compression.
func Optimal(n uint64, sent float64, maxM uint32) (Plan, error) {
	if n == 0 || maxM == 0 || !(sent > 0) {
		return Plan{}, fmt.Errorf("compress: cannot plan a filter of at most %d bits for %d elements in %v transmitted bits", maxM, n, sent)
	}
	best := Plan{Rate: math.Inf(1)}
	for k := 1; k <= bloom.OptimalK(maxM, n); k++ {
		// For each k, the more bits, the larger the size and the lower the rate.
		plan := func(m uint32) Plan {
			g, _ := bloom.Standard(m, k) // m ≥ 1, k within its limits
			return Plan{g, SentBits(g, n), g.FalsePositiveRate(n)}
		}
		m := uint32(sort.Search(int(maxM), func(i int) bool { return plan(uint32(i)+1).Sent > sent }))
		if k > bloom.OptimalK(m, n) {
			continue
		}
		if p := plan(m); p.Rate < best.Rate {
			best = p
		}
	}
	return best, nil
}

// The encoding of a compressed filter, in little-endian order:
//
//	 0  magic "WCBF"
//	 4  version, 1
//	 5  zero, 3 bytes
//	 8  geometry, as encoded by weir/filter/bloom
//	16  seed, 8 bytes
//	24  the bits, as encoded by AppendBits
//	    XXH64 of everything before it, with seed 0, 8 bytes
//
// The checksum detects corruption, not forgery.
const (
	prefix      = "WCBF\x01\x00\x00\x00"
	headerLen   = 24
	checksumLen = 8
)

// Encode returns the filter compressed to the entropy of its bits plus a header
// and checksum of 36 bytes.
func Encode(f *bloom.Filter) []byte {
	b, _ := f.Geometry.AppendBinary([]byte(prefix)) // never fails
	b = binary.LittleEndian.AppendUint64(b, f.Seed())
	b = AppendBits(b, f.Words(), f.M())
	return binary.LittleEndian.AppendUint64(b, hash.Sum(0, b))
}

// Decode decodes what [Encode] produced. It fails on anything else, and on
// filters of more than maxM bits: a few bytes can encode a filter of any size.
func Decode(b []byte, maxM uint32) (*bloom.Filter, error) {
	if len(b) < headerLen+onesLen+checksumLen {
		return nil, fmt.Errorf("compress: decode: %d bytes, need at least %d", len(b), headerLen+onesLen+checksumLen)
	}
	if string(b[:8]) != prefix {
		return nil, fmt.Errorf("compress: decode: magic and version % x, want % x", b[:8], prefix)
	}
	body := b[:len(b)-checksumLen]
	if hash.Sum(0, body) != binary.LittleEndian.Uint64(b[len(body):]) {
		return nil, errors.New("compress: decode: checksum does not match")
	}
	var g bloom.Geometry
	if err := g.UnmarshalBinary(b[8:16]); err != nil {
		return nil, fmt.Errorf("compress: decode: %w", err)
	}
	if g.M() > maxM {
		return nil, fmt.Errorf("compress: decode: filter of %d bits exceeds the limit of %d", g.M(), maxM)
	}
	words, err := DecodeBits(body[headerLen:], g.M())
	if err != nil {
		return nil, err
	}
	return bloom.FromWords(g, binary.LittleEndian.Uint64(b[16:]), words)
}
