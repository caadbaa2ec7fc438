package fpr

import "math"

// Concentration bounds the probability that the fraction of clear bits in a standard
// filter of m bits, n elements and k hash functions differs from its expectation by eps or
// more: 2 exp(−2 ε² m²/nk), by the Azuma–Hoeffding inequality (Broder and Mitzenmacher,
// Network Applications of Bloom Filters: A Survey, section 2.1).
func Concentration(m, n, k int, eps float64) float64 {
	check(m, n, k)
	d := eps * float64(m)
	return min(1, 2*math.Exp(-2*d*d/(float64(n)*float64(k))))
}

// LeastBits returns the number of bits that any representation of n elements out of a
// universe of u needs for the false-positive rate eps (section 2.2):
//
//	log₂ C(u, n) − log₂ C(n + ε(u − n), n)
//
// It approaches n log₂(1/ε) in a large universe.
func LeastBits(u, n, eps float64) float64 {
	return (logChoose(u, n) - logChoose(n+eps*(u-n), n)) / math.Ln2
}

// logChoose is ln C(a, b) for real a, summed over b factors: differences of ln Γ would
// lose all digits in a large universe.
func logChoose(a, b float64) (sum float64) {
	for i := range int(b) {
		sum += math.Log((a - float64(i)) / float64(i+1))
	}
	return sum
}
