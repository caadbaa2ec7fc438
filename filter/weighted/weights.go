package weighted

import (
	"math"
	"slices"

	"weir/filter/hash"
)

// Theorem gives k_e for each class by theorem 3.1 (equation 5), for a filter
// of m bits:
//
//	(m/n) ln 2 + (ln E{r_e} − Σ_i (x_i/n) ln E{r_i}) / ln 2
//
// It is a real number, below 0 for elements that are hardly ever queried. If
// all frequencies and likelihoods are equal, it is (m/n) ln 2 exactly.
func (u Universe) Theorem(m float64) []float64 {
	return u.balance(m, u.Queries())
}

// Optimal gives k_e for each class so that the expected rate (equation 4) is
// least, also where the likelihoods differ:
//
//	(m/n) ln 2 + (ln(E{r_e}/x_e) − Σ_i (x_i/n) ln(E{r_i}/x_i)) / ln 2
//
// A bit more for the element e costs the filter x_e bits, and at the optimum
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

// balance gives the k_e that differ by the log₂ of the classes' gains, and
// leave half of the m bits clear (equation 6).
func (u Universe) balance(m float64, gain []float64) []float64 {
	// Relative to one that is finite, equal gains give differences of exactly 0.
	reference := gain[slices.IndexFunc(u, func(c Class) bool { return c.Likelihood > 0 })]
	n, mean := u.Members(), 0.
	k := make([]float64, len(u))
	for i, c := range u {
		k[i] = math.Log2(gain[i] / reference)
		if c.Likelihood > 0 { // else k may be infinite, and costs nothing
			mean += c.Count * c.Likelihood / n * k[i]
		}
	}
	for i := range k {
		k[i] = m/n*math.Ln2 + (k[i] - mean)
	}
	return k
}

// TheoremRate is the expected false-positive rate of a filter of m bits with
// the k_e of [Universe.Theorem], 2^(−(m/n) ln 2)·N·Π E{r_e}^(x_e/n)
// (equation 7).
func (u Universe) TheoremRate(m float64) float64 {
	n := u.Members()
	log := math.Log(u.Size()) - m/n*math.Ln2*math.Ln2
	for i, r := range u.Queries() {
		log += u[i].Count * u[i].Likelihood / n * math.Log(r)
	}
	return math.Exp(log)
}

// Clear is the expected share p of clear bits in a filter of m bits that gives
// k[i] bits to each element of class i: (1 − 1/m)^K with K = Σ x_e·k_e
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

// Rate is the expected false-positive rate of the queries to a filter of m
// bits that gives k[i] bits, a real number, to each element of class i:
// Σ E{r_e} (1−p)^k_e (equation 4).
func (u Universe) Rate(m float64, k []float64) float64 {
	set := 1 - u.Clear(m, k)
	var rate float64
	for i, r := range u.Queries() {
		rate += u[i].Count * r * math.Pow(set, k[i])
	}
	return rate
}

// RoundedRate is the [Universe.Rate] with k[i] rounded to whole numbers.
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

// StandardRate is the least rate of a standard filter of m bits for n members,
// 2^(−(m/n) ln 2), with a real number of hash functions (section II).
func StandardRate(m, n float64) float64 { return math.Exp(-m / n * math.Ln2 * math.Ln2) }

// Improvement is how many times lower the rate of a weighted filter of m bits
// is than the standard one's, 1/R (section III-C).
func (u Universe) Improvement(m, rate float64) float64 {
	return StandardRate(m, u.Members()) / rate
}

// Growth is the number of bits for each member by which a standard filter must
// grow to improve its rate as many times, ln(improvement)/ln² 2 (section
// III-C).
func Growth(improvement float64) float64 { return math.Log(improvement) / (math.Ln2 * math.Ln2) }

// Rounding turns a real k_e into a number of hash functions (section III-B).
// The zero Rounding takes the nearest whole number from 0 on.
type Rounding struct {
	// Probabilistic rounds k_e up for the share of the elements that its
	// fraction gives, so that its mean stays (report, section III-B).
	Probabilistic bool
	// Least and Most are the bounds of the result. Most is not a bound if 0.
	Least, Most int
}

// Dropping is the rounding of a filter whose positives are dropped: with no
// bit to test, all traffic of a class would be. Most is what a packet may
// cost.
var Dropping = Rounding{Least: 1, Most: 24}

// Round rounds k for the element with the 64-bit hash h. The same element is
// always rounded the same way, so that queries test what was set.
func (r Rounding) Round(k float64, h uint64) int {
	low, up := r.split(k)
	// The hash functions are the first of the sequence; the last is free.
	const coin = math.MaxUint64
	if up > 0 && float64(hash.Nth(h, coin)>>11) < up*(1<<53) {
		return low + 1
	}
	return low
}

// split gives the number that k rounds down to and the share that rounds up to
// the next one.
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
