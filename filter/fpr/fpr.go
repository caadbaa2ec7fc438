// Package fpr computes false-positive rates: of the standard Bloom filter by
// every formula in use, right and wrong, and of the blocked layouts that keep a
// key's bits in one cache line.
//
// The rate is the probability that a key that is not in the filter tests
// positive, over all choices of the hash functions: the mean over filters, not
// the rate of one filter with a mean number of bits set. Confusing the two is
// the error of the classic formula (Christensen, Roginsky and Jimeno, "A new
// analysis of the false positive rate of a Bloom filter", 2010, section 2,
// called "Christensen et al." below).
//
// Everywhere m is the number of bits, at least 1; n the number of keys in the
// filter, at least 0; and k the number of hash functions, at least 0, which
// choose their bits uniformly and independently, so that two of them may choose
// the same bit. Functions panic on other arguments. All are safe for concurrent
// use.
package fpr

import (
	"fmt"
	"math"
	"math/big"
)

func check(m, n, k int) {
	if m < 1 || n < 0 || k < 0 {
		panic(fmt.Sprintf("fpr: invalid filter m=%d, n=%d, k=%d", m, n, k))
	}
}

// Classic returns the textbook rate (1 − (1 − 1/m)^kn)^k (Christensen et al.,
// equation 1). It assumes that the bits of a filter are independent and is
// always too low, by a third at m = 32 and 16 bits a key, by less than a
// thousandth from m = 2^15 on.
func Classic(m, n, k int) float64 {
	check(m, n, k)
	return math.Pow(hit(1/float64(m), float64(k)*float64(n)), float64(k))
}

// hit returns the probability that at least one of the trials, each of
// probability p, hits.
func hit(p, trials float64) float64 {
	if trials == 0 {
		return 0 // also if p is 1
	}
	return -math.Expm1(trials * math.Log1p(-p))
}

// Bloom1970 returns Bloom's original rate (1 − (1 − k/m)^n)^k, for k hash
// functions that choose k distinct bits (Christensen et al., equation 19). It
// also assumes that the bits of a filter are independent. It panics if k
// exceeds m.
func Bloom1970(m, n, k int) float64 {
	check(m, n, k)
	if k > m {
		panic(fmt.Sprintf("fpr: cannot choose k=%d distinct bits of m=%d", k, m))
	}
	return math.Pow(hit(float64(k)/float64(m), float64(n)), float64(k))
}

// Exact returns the true rate for any m, n and k, to the last few digits of a
// float64. It takes O(k²) steps: about 20 µs at k = 7, whatever m and n.
//
// Christensen et al. condition on the number of bits set in the filter
// (equation 17, a sum over m terms); conditioning on the number j of distinct
// bits that the query tests instead makes it a sum over k terms:
//
//	Σ_j P(k, m, j) Σ_i (−1)^i C(j,i) (1 − i/m)^kn
//
// with P from equation 8. The inner sum, the probability that j given bits are
// all set, is an inclusion–exclusion over those that stay clear; its terms
// cancel, so it is computed with as many digits as the result needs.
func Exact(m, n, k int) float64 {
	check(m, n, k)
	// The whole rate can cancel, and so can one bit in each of k differences;
	// raising to the power of kn loses as many bits as kn has. The classic rate
	// never exceeds the true one.
	prec := precision(k, float64(k)*float64(n), Classic(m, n, k))
	clear := func(i int) *big.Float {
		return power(ratio(m-i, m, prec), k*n)
	}
	return query(m, k, clear)
}

// query returns the probability that k random bits of m are all set, given
// clear(i), the probability that i given bits are clear, i ≤ min(k, m).
func query(m, k int, clear func(i int) *big.Float) float64 {
	distinct := occupancy(k, m)
	set := allSet(len(distinct)-1, clear)
	var rate float64
	for j, p := range distinct {
		rate += p * set[j]
	}
	return rate
}

// allSet returns, for each j up to most, the probability that j given bits are
// all set, given clear(i), the probability that i given bits are clear.
func allSet(most int, clear func(i int) *big.Float) []float64 {
	// In round j, a[i] is the probability that i given bits are clear and j
	// others are set.
	a := make([]*big.Float, most+1)
	for i := range a {
		a[i] = clear(i)
	}
	set := make([]float64, most+1)
	for j := range set {
		set[j], _ = a[0].Float64()
		for i := range most - j {
			a[i].Sub(a[i], a[i+1])
		}
	}
	return set
}

// precision returns the number of mantissa bits with which k rounds of
// differences of probabilities, each raised to an integer power up to n, yield
// a result not below rate with all of a float64's digits.
func precision(k int, n, rate float64) uint {
	const float64Digits = 53
	lost := float64(k) + math.Log2(n+1)
	if rate > 0 {
		lost -= math.Log2(rate)
	} else {
		lost += 1074 // below the smallest float64
	}
	return float64Digits + 8 + uint(lost)
}

func ratio(a, b int, prec uint) *big.Float {
	x := new(big.Float).SetPrec(prec).SetInt64(int64(a))
	return x.Quo(x, new(big.Float).SetInt64(int64(b)))
}

// power overwrites x with x^n and returns it.
func power(x *big.Float, n int) *big.Float {
	square := new(big.Float).Copy(x)
	x.SetInt64(1)
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			x.Mul(x, square)
		}
		square.Mul(square, square)
	}
	return x
}

// occupancy returns, for each K up to min(balls, bins), the probability that
// balls thrown at random into bins occupy exactly K of them: P(N, M, K) of
// Christensen et al., by the recursion of equation 8, whose terms are all
// positive.
func occupancy(balls, bins int) []float64 {
	p := make([]float64, min(balls, bins)+1)
	p[0] = 1
	for range balls {
		for K := len(p) - 1; K > 0; K-- {
			p[K] = (p[K]*float64(K) + p[K-1]*float64(bins-K+1)) / float64(bins)
		}
		p[0] = 0 // the first ball leaves no filter empty
	}
	return p
}

// Table returns the true rate by the paper's own algorithm: the occupancy of
// the filter from the recursion of equation 8, unrolled into a table as in
// figure 1, then the sum of equation 17 (Christensen et al., section 3). It
// takes O(m·k·n) steps and is a check on [Exact].
func Table(m, n, k int) float64 {
	check(m, n, k)
	var rate float64
	for i, p := range occupancy(k*n, m) {
		rate += p * math.Pow(float64(i)/float64(m), float64(k))
	}
	return rate
}

// Bose returns the true rate by the formula of Bose et al. in integers without
// rounding (Christensen et al., equations 20 and 21, the latter with the
// corrected sign; multiplied out it is equation 18). It takes O(m²) steps on
// numbers of k·n·log₂ m bits and is a check on [Exact].
func Bose(m, n, k int) float64 {
	check(m, n, k)
	power := func(x, y int) *big.Int {
		return new(big.Int).Exp(big.NewInt(int64(x)), big.NewInt(int64(y)), nil)
	}
	sum, binomial := new(big.Int), new(big.Int)
	for i := 0; i <= m; i++ {
		onto := new(big.Int) // i! times the Stirling number {kn, i}
		for j := 0; j <= i; j++ {
			term := power(j, k*n)
			term.Mul(term, binomial.Binomial(int64(i), int64(j)))
			if (i-j)%2 == 1 {
				term.Neg(term)
			}
			onto.Add(onto, term)
		}
		onto.Mul(onto, binomial.Binomial(int64(m), int64(i)))
		sum.Add(sum, onto.Mul(onto, power(i, k)))
	}
	rate, _ := new(big.Rat).SetFrac(sum, power(m, k*(n+1))).Float64()
	return rate
}

// BestK returns the number of hash functions, at least 1, with the lowest exact
// rate, and that rate. It is never above the best k of the classic rate. For n
// = 0, for which every k has the rate 0, it is 1. Where the lowest rate is too
// small for a float64, k is one whose rate is 0 as such.
func BestK(m, n int) (k int, rate float64) {
	check(m, n, 1)
	if n == 0 {
		return 1, 0
	}
	// The keys set at most kn bits: with twice as many, the rate is at most
	// 2^-k, which is 0 as a float64 from here on. The time grows with k²: half
	// a minute at 100,000 bits a key.
	const underflow = 1075
	if m/n >= 2*underflow {
		return underflow, 0
	}
	k = max(1, int(float64(m)/float64(n)*math.Ln2))
	rate = Exact(m, n, k)
	// The rate falls to its minimum and rises after it, so the first rise in
	// each direction ends the search.
	for step := range 2 {
		for next := k + 1 - 2*step; next > 0; next += 1 - 2*step {
			r := Exact(m, n, next)
			if r >= rate {
				break
			}
			k, rate = next, r
		}
	}
	return k, rate
}

// Smallest returns the smallest number of bits m, and its best k, with which
// the exact rate for n keys is at most the target. It panics unless the target
// is above 0 and at most 1.
func Smallest(n int, target float64) (m, k int) {
	check(1, n, 1)
	if !(target > 0 && target <= 1) {
		panic(fmt.Sprintf("fpr: target rate %v outside of 0 to 1", target))
	}
	fits := func(m int) bool {
		_, rate := BestK(m, n)
		return rate <= target
	}
	// Invariant: low does not fit (0 never does), high does.
	low, high := 0, 1
	for !fits(high) {
		low, high = high, 2*high
	}
	for high-low > 1 {
		if mid := low + (high-low)/2; fits(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	k, _ = BestK(high, n)
	return high, k
}
