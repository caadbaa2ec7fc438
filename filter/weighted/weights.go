package weighted

import (
	"fmt"
	"math"
	"slices"
	"sort"

	"weir/filter/hash"
)

// Theorem returns k_e for each class by theorem 3.1 (equation 5), for a filter
// of m bits:
//
//	(m/n) ln 2 + (ln E{r_e} − Σ_i (x_i/n) ln E{r_i}) / ln 2
//
// It is a real number, negative for elements that are hardly ever queried. If
// all frequencies and likelihoods are equal, it is (m/n) ln 2 exactly.
func (u Universe) Theorem(m float64) []float64 {
	return u.balance(m, u.Queries())
}

// Optimal returns the k_e for each class that minimise the expected rate
// (equation 4), even if the likelihoods differ:
//
//	(m/n) ln 2 + (ln(E{r_e}/x_e) − Σ_i (x_i/n) ln(E{r_i}/x_i)) / ln 2
//
// One more bit for the element e costs the filter x_e bits, and at the optimum
// all classes gain the same for that price: r_e (1−p)^k_e = x_e·const, where
// [Universe.Theorem] has r_e (1−p)^k_e = const. Bits for elements that cannot
// be members are free: their k_e is +Inf, to be bounded by rounding.
func (u Universe) Optimal(m float64) []float64 {
	gain := u.Queries()
	for i, c := range u {
		gain[i] /= c.Likelihood
	}
	return u.balance(m, gain)
}

// balance returns the k_e that differ by the log₂ of the classes' gains and
// leave half of the m bits clear (equation 6).
func (u Universe) balance(m float64, gain []float64) []float64 {
	// Relative to a finite one, equal gains differ by exactly 0.
	reference := gain[slices.IndexFunc(u, func(c Class) bool { return c.Likelihood > 0 })]
	n, mean := u.Members(), 0.
	k := make([]float64, len(u))
	for i, c := range u {
		k[i] = math.Log2(gain[i] / reference)
		if c.Likelihood > 0 { // otherwise k may be infinite, and costs nothing
			mean += c.Count * c.Likelihood / n * k[i]
		}
	}
	for i := range k {
		k[i] = m/n*math.Ln2 + (k[i] - mean)
	}
	return k
}

// TheoremRate returns the expected false-positive rate of a filter of m bits
// with the k_e of [Universe.Theorem], 2^(−(m/n) ln 2)·N·Π E{r_e}^(x_e/n)
// (equation 7).
func (u Universe) TheoremRate(m float64) float64 {
	n := u.Members()
	log := math.Log(u.Size()) - m/n*math.Ln2*math.Ln2
	for i, r := range u.Queries() {
		log += u[i].Count * u[i].Likelihood / n * math.Log(r)
	}
	return math.Exp(log)
}

// Bits returns the number of bits of a filter that [New] makes whose rate is at most the given
// one, above 0; with one bit less it is higher. It fails if the universe is not valid or that takes 2³² bits or more.
func (u Universe) Bits(rate float64) (uint32, error) {
	if err := u.Validate(); err != nil {
		return 0, err
	}
	m := sort.Search(math.MaxUint32, func(i int) bool {
		m := float64(i) + 1
		return u.RoundedRate(m, u.Optimal(m), Dropping) <= rate
	})
	if m == math.MaxUint32 {
		return 0, fmt.Errorf("weighted: no filter has a false-positive rate of %v", rate)
	}
	return uint32(m) + 1, nil
}

// Clear returns the expected fraction p of clear bits in a filter of m bits
// with k[i] bits for each element of class i: (1 − 1/m)^K with K = Σ x_e·k_e
// (equation 1).
func (u Universe) Clear(m float64, k []float64) float64 {
	var bits float64
	for i, c := range u {
		if c.Likelihood > 0 {
			bits += c.Count * c.Likelihood * k[i]
		}
	}
	return math.Exp(bits * math.Log1p(-1/m))
}

// Rate returns the expected false-positive rate of the queries to a filter of m
// bits with k[i] bits, a real number, for each element of class i: Σ E{r_e}
// (1−p)^k_e (equation 4).
func (u Universe) Rate(m float64, k []float64) float64 {
	set := 1 - u.Clear(m, k)
	var rate float64
	for i, r := range u.Queries() {
		rate += u[i].Count * r * math.Pow(set, k[i])
	}
	return rate
}

// RoundedRate returns the [Universe.Rate] with k[i] rounded to integers.
func (u Universe) RoundedRate(m float64, k []float64, r Rounding) float64 {
	v, l := u.rounded(k, r)
	return v.Rate(m, l)
}

// rounded splits each class into the elements that round down and those that
// round up.
func (u Universe) rounded(k []float64, r Rounding) (Universe, []float64) {
	v, l := make(Universe, 0, 2*len(u)), make([]float64, 0, 2*len(u))
	for i, c := range u {
		low, up := r.split(k[i])
		if up < 1 {
			v, l = append(v, Class{c.Count * (1 - up), c.Frequency, c.Likelihood}), append(l, float64(low))
		}
		if up > 0 {
			v, l = append(v, Class{c.Count * up, c.Frequency, c.Likelihood}), append(l, float64(low+1))
		}
	}
	return v, l
}

// StandardRate returns the lowest rate of a standard filter of m bits for n
// members, 2^(−(m/n) ln 2), with a real number of hash functions (section II).
func StandardRate(m, n float64) float64 { return math.Exp(-m / n * math.Ln2 * math.Ln2) }

// Improvement returns the ratio of the standard filter's rate to the given rate
// of a weighted filter of m bits, 1/R (section III-C).
func (u Universe) Improvement(m, rate float64) float64 {
	return StandardRate(m, u.Members()) / rate
}

// Growth returns the number of additional bits per member with which a standard
// filter achieves the same improvement, ln(improvement)/ln² 2 (section III-C).
func Growth(improvement float64) float64 { return math.Log(improvement) / (math.Ln2 * math.Ln2) }

// Rounding turns a real k_e into a number of hash functions (section III-B).
// The zero Rounding rounds to the nearest integer, at least 0.
type Rounding struct {
	// Probabilistic rounds k_e up for a fraction of the elements, equal to its
	// fractional part, which preserves its mean (report, section III-B).
	Probabilistic bool
	// Least and Most are the bounds of the result. Most is not a bound if 0.
	Least, Most int
}

// Dropping is the rounding for a filter whose positives are dropped: an element
// without bits would always test positive and be dropped. Most bounds the cost
// per packet.
var Dropping = Rounding{Least: 1, Most: 24}

// Round rounds k for the element with the 64-bit hash h. An element is always
// rounded the same way, so that queries test what was set.
func (r Rounding) Round(k float64, h uint64) int {
	low, up := r.split(k)
	// The hash functions are the first of the sequence; the last is unused by
	// them.
	const coin = math.MaxUint64
	if up > 0 && float64(hash.Nth(h, coin)>>11) < up*(1<<53) {
		return low + 1
	}
	return low
}

// split returns the number that k rounds down to and the fraction that rounds
// up to the next one.
func (r Rounding) split(k float64) (low int, up float64) {
	most := math.Inf(1)
	if r.Most > 0 {
		most = float64(r.Most)
	}
	k = max(min(k, most), float64(r.Least))
	if !r.Probabilistic {
		return int(math.Round(k)), 0
	}
	floor := math.Floor(k)
	return int(floor), k - floor
}
