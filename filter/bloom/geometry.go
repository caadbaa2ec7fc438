package bloom

import (
	"fmt"
	"math"

	"weir/filter/hash"
)

// MaxK is the largest number of hash functions that a Geometry can have.
const MaxK = 255

// Geometry says which of m bits each of an element's k hash functions selects
// (Broder and Mitzenmacher, section 2.1).
// Filters of equal geometry and seed can be combined bit by bit. Geometries
// are comparable. The zero Geometry has no bits and no hash functions, so that
// nothing is ever found missing from a filter of it.
type Geometry struct {
	m, span, stride uint32 // hash function i selects from span bits, beginning at i·stride
	k               int
}

// Standard is the geometry of the standard filter: each of k hash functions
// selects any of m bits (Broder and Mitzenmacher, section 2.1). It fails
// unless m ≥ 1 and 1 ≤ k ≤ MaxK. Positions are scaled from 32 hash bits, so
// they are uniform to within m/2³².
func Standard(m uint32, k int) (Geometry, error) {
	if m == 0 || k < 1 || k > MaxK {
		return Geometry{}, fmt.Errorf("bloom: no standard filter of %d bits with %d hashes", m, k)
	}
	return Geometry{m: m, span: m, k: k}, nil
}

// Partitioned is the geometry of the partitioned filter: each of k hash
// functions has a slice of m/k bits to itself (section 2.1). Bits that do not
// fill the slices are left out, so M may be a little less than m. It fails
// unless m ≥ k and 1 ≤ k ≤ MaxK.
func Partitioned(m uint32, k int) (Geometry, error) {
	if k < 1 || k > MaxK || uint32(k) > m {
		return Geometry{}, fmt.Errorf("bloom: no partitioned filter of %d bits with %d hashes", m, k)
	}
	span := m / uint32(k)
	return Geometry{m: span * uint32(k), span: span, stride: span, k: k}, nil
}

// M is the number of bits.
func (g Geometry) M() uint32 { return g.m }

// K is the number of hash functions.
func (g Geometry) K() int { return g.k }

// Partitioned reports whether each hash function has its own slice of the bits.
func (g Geometry) Partitioned() bool { return g.stride != 0 }

// Position is the bit, 0…M−1, that hash function i, 0…K−1, selects for an
// element with the 64-bit hash h.
func (g Geometry) Position(h uint64, i int) uint32 {
	return uint32(i)*g.stride + hash.Reduce(hash.Nth(h, uint64(i)), g.span)
}

// Halve is the geometry of half the bits, where it selects bit b/2 for each
// bit b that g selects. It fails where the bits, or those of a slice, do not
// divide by two.
func (g Geometry) Halve() (Geometry, error) {
	if g.span == 0 || g.span%2 != 0 {
		return Geometry{}, fmt.Errorf("bloom: cannot halve ranges of %d bits", g.span)
	}
	return Geometry{m: g.m / 2, span: g.span / 2, stride: g.stride / 2, k: g.k}, nil
}

// lnSpared is the logarithm of the probability that an element leaves a given
// bit alone: (1 − 1/m)^k, and 1 − k/m in the partitioned filter.
func (g Geometry) lnSpared() float64 {
	ln := math.Log1p(-1 / float64(g.span))
	if g.Partitioned() {
		return ln
	}
	return float64(g.k) * ln
}

// ZeroFraction is the expected fraction of bits that n elements leave zero:
// p′ = (1 − 1/m)^{kn}, and (1 − k/m)^n in the partitioned filter (section 2.1).
func (g Geometry) ZeroFraction(n uint64) float64 {
	if n == 0 {
		return 1 // also where lnSpared is −∞
	}
	return math.Exp(float64(n) * g.lnSpared())
}

// FalsePositiveRate is f′ = (1 − p′)^k, the probability that an element
// outside of a set of n is found in its filter (section 2.1). For the
// partitioned filter it is exact; for the standard filter it is the classic
// approximation, a little low for small m (see weir/filter/fpr).
func (g Geometry) FalsePositiveRate(n uint64) float64 {
	if n == 0 {
		return 0
	}
	return math.Pow(-math.Expm1(float64(n)*g.lnSpared()), float64(g.k))
}

// OptimalK is the number of hash functions, 1…MaxK, that gives n elements in
// a standard filter of m bits the least false-positive rate: the better
// neighbour of (m/n) ln 2 (section 2.1).
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

// Bits is the number of bits that a filter with the best number of hash
// functions needs for n elements at the false-positive rate eps, 0 < eps ≤ 1:
// n log₂e log₂(1/ε) (section 2.2).
func Bits(n uint64, eps float64) float64 { return math.Log2E * LowerBound(n, eps) }

// LowerBound is the number of bits that any representation of n elements from
// a large universe needs for the false-positive rate eps, 0 < eps ≤ 1:
// n log₂(1/ε) (section 2.2).
func LowerBound(n uint64, eps float64) float64 { return -float64(n) * math.Log2(eps) }
