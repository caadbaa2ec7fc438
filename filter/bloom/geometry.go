package bloom

import (
	"fmt"
	"math"

	"weir/filter/hash"
)

// MaxK is the maximum number of hash functions of a Geometry.
const MaxK = 255

// Geometry is the size of a filter, m bits and k hash functions, and the
// mapping from an element to its k bits (Broder and Mitzenmacher, section 2.1).
// Filters of equal geometry and seed can be combined bit by bit. Geometries are
// comparable and immutable. The zero Geometry has no bits and no hash
// functions: a filter with it contains everything.
type Geometry struct {
	m, span, stride uint32 // hash function i selects from span bits, beginning at i·stride
	k               int
}

// Standard returns the geometry of the standard filter: each of k hash
// functions selects any of m bits (Broder and Mitzenmacher, section 2.1). It
// fails unless m ≥ 1 and 1 ≤ k ≤ MaxK. Positions are scaled from 32 hash bits,
// so they are uniform to within m/2³².
func Standard(m uint32, k int) (Geometry, error) {
	if m == 0 || k < 1 || k > MaxK {
		return Geometry{}, fmt.Errorf("bloom: invalid standard filter: %d bits, %d hash functions", m, k)
	}
	return Geometry{m: m, span: m, k: k}, nil
}

// Partitioned returns the geometry of the partitioned filter: each of k hash
// functions has its own slice of m/k bits (section 2.1). Bits left over by the
// division are not used, so M may be slightly less than m. It fails unless m ≥
// k and 1 ≤ k ≤ MaxK.
func Partitioned(m uint32, k int) (Geometry, error) {
	if k < 1 || k > MaxK || uint32(k) > m {
		return Geometry{}, fmt.Errorf("bloom: invalid partitioned filter: %d bits, %d hash functions", m, k)
	}
	span := m / uint32(k)
	return Geometry{m: span * uint32(k), span: span, stride: span, k: k}, nil
}

// For returns the geometry of the smallest standard filter that has at most the
// false-positive rate, 0 < rate < 1, with n elements, n ≥ 1. It fails where that
// takes 2³² bits or more.
func For(n uint64, rate float64) (Geometry, error) {
	if n < 1 || !(rate > 0 && rate < 1) {
		return Geometry{}, fmt.Errorf("bloom: a filter of %d elements with a false-positive rate of %v", n, rate)
	}
	best, bits := 0, math.Inf(1)
	// The best real k is log₂(1/rate), at which half of the bits are set (section 2.2).
	for k := max(1, int(-math.Log2(rate))); k <= min(MaxK, int(-math.Log2(rate))+1); k++ {
		// Of f′ = (1 − p′)^k with p′ = (1 − 1/m)^{kn}.
		lnZero := math.Log1p(-math.Pow(rate, 1/float64(k))) / (float64(k) * float64(n))
		if m := -1 / math.Expm1(lnZero); m < bits {
			best, bits = k, m
		}
	}
	if best == 0 || bits > math.MaxUint32 {
		return Geometry{}, fmt.Errorf("bloom: a filter of %d elements with a false-positive rate of %v takes more than 2^32 bits or %d hash functions", n, rate, MaxK)
	}
	m := uint32(math.Ceil(bits))
	for { // where rounding has gone below
		if g, err := Standard(m, best); err != nil || g.FalsePositiveRate(n) <= rate {
			return g, err
		}
		m++
	}
}

// M returns the number of bits.
func (g Geometry) M() uint32 { return g.m }

// K returns the number of hash functions.
func (g Geometry) K() int { return g.k }

// Partitioned reports whether each hash function has its own slice of the bits.
func (g Geometry) Partitioned() bool { return g.stride != 0 }

// Position returns the bit, 0…M−1, that hash function i, 0…K−1, selects for an
// element with the 64-bit hash h.
func (g Geometry) Position(h uint64, i int) uint32 {
	return uint32(i)*g.stride + hash.Reduce(hash.Nth(h, uint64(i)), g.span)
}

// Halve returns the geometry with half the bits, which selects bit b/2 where g
// selects bit b. It fails if the number of bits, or of bits in a slice, is odd.
func (g Geometry) Halve() (Geometry, error) {
	if g.span == 0 || g.span%2 != 0 {
		return Geometry{}, fmt.Errorf("bloom: cannot halve ranges of %d bits", g.span)
	}
	return Geometry{m: g.m / 2, span: g.span / 2, stride: g.stride / 2, k: g.k}, nil
}

// lnSpared returns the logarithm of the probability that an element does not
// set a given bit: (1 − 1/m)^k, or 1 − k/m in the partitioned filter.
func (g Geometry) lnSpared() float64 {
	ln := math.Log1p(-1 / float64(g.span))
	if g.Partitioned() {
		return ln
	}
	return float64(g.k) * ln
}

// ZeroFraction returns the expected fraction of bits that are zero after n
// elements: p′ = (1 − 1/m)^{kn}, or (1 − k/m)^n in the partitioned filter
// (section 2.1).
func (g Geometry) ZeroFraction(n uint64) float64 {
	if n == 0 {
		return 1 // also where lnSpared is −∞
	}
	return math.Exp(float64(n) * g.lnSpared())
}

// FalsePositiveRate returns f′ = (1 − p′)^k, the probability that an absent
// element tests positive in a filter of n elements (section 2.1). For the
// partitioned filter it is exact; for the standard filter it is the classic
// approximation, slightly low for small m (see [weir/filter/fpr.Exact]).
func (g Geometry) FalsePositiveRate(n uint64) float64 {
	if n == 0 {
		return 0
	}
	return math.Pow(-math.Expm1(float64(n)*g.lnSpared()), float64(g.k))
}

// OptimalK returns the number of hash functions, 1…MaxK, that minimises the
// false-positive rate of a standard filter of m bits with n elements: the
// better neighbour of (m/n) ln 2 (section 2.1).
func OptimalK(m uint32, n uint64) int {
	real := float64(m) / float64(max(n, 1)) * math.Ln2
	k := max(1, int(min(real, MaxK)))
	if k < MaxK && rate(m, k+1, n) < rate(m, k, n) {
		k++
	}
	return k
}

func rate(m uint32, k int, n uint64) float64 {
	return Geometry{m: m, span: m, k: k}.FalsePositiveRate(n)
}

// Bits returns the number of bits that a filter with the optimal number of hash
// functions needs for n elements at the false-positive rate eps, 0 < eps ≤ 1: n
// log₂e log₂(1/ε) (section 2.2).
func Bits(n uint64, eps float64) float64 { return math.Log2E * LowerBound(n, eps) }

// LowerBound returns the number of bits that any representation of n elements
// from a large universe needs for the false-positive rate eps, 0 < eps ≤ 1: n
// log₂(1/ε) (section 2.2).
func LowerBound(n uint64, eps float64) float64 { return -float64(n) * math.Log2(eps) }
