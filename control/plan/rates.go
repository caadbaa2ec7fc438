package plan

import (
	"math"

	"weir/filter/fpr"
)

// Rates are the false-positive rates of a standard filter.
type Rates struct {
	Classic   float64 `json:"classic"`   // the textbook's formula, fpr.Classic
	Exact     float64 `json:"exact"`     // the true rate, fpr.Exact
	Bloom1970 float64 `json:"bloom1970"` // Bloom's own formula, fpr.Bloom1970
}

// FPR returns the rates of a standard filter of m bits for n elements with k
// hash functions. It fails with an InvalidError unless m ≥ 1, n ≥ 0 and
// 0 ≤ k ≤ m.
func FPR(m, n, k int) (Rates, error) {
	if m < 1 || n < 0 || k < 0 || k > m {
		return Rates{}, Invalid("plan fpr: no filter has m=%d, n=%d, k=%d", m, n, k)
	}
	return Rates{Classic: fpr.Classic(m, n, k), Exact: fpr.Exact(m, n, k), Bloom1970: fpr.Bloom1970(m, n, k)}, nil
}

// Filter is a standard filter.
type Filter struct {
	K int `json:"k"` // hash functions
	Rates
}

// mostHashes bounds a k that is given: the exact rate takes a time that grows with k².
const mostHashes = 1024

// FilterOf is FPR with the best k, unless k is given, which may be up to 1024.
func FilterOf(m, n, k int, given bool) (Filter, error) {
	switch {
	case given && k > mostHashes:
		return Filter{}, Invalid("plan fpr: k: %d is above %d", k, mostHashes)
	case !given && m >= 1 && n >= 0:
		k, _ = fpr.BestK(m, n)
	}
	r, err := FPR(m, n, k)
	return Filter{k, r}, err
}

// Smallest is the smallest standard filter that reaches a rate.
type Smallest struct {
	M               int     `json:"m"`                 // bits
	K               int     `json:"k"`                 // hash functions
	BitsPerEntry    float64 `json:"bits_per_entry"`    // m/n
	AboveLowerBound float64 `json:"above_lower_bound"` // times n·log₂(1/rate), which no filter beats
	Rates
}

// SmallestFor returns the smallest standard filter for n elements whose exact rate
// is at most the target. It fails with an InvalidError unless n ≥ 1 and
// 0 < target < 1.
func SmallestFor(n int, target float64) (Smallest, error) {
	if n < 1 || !(target > 0 && target < 1) {
		return Smallest{}, Invalid("plan fpr: no filter has n=%d and rate %v", n, target)
	}
	m, k := fpr.Smallest(n, target)
	rates, err := FPR(m, n, k)
	return Smallest{
		M: m, K: k, Rates: rates,
		BitsPerEntry:    float64(m) / float64(n),
		AboveLowerBound: float64(m) / (-float64(n) * math.Log2(target)),
	}, err
}
