package plan

import (
	"math"

	"weir/filter/bloom"
	"weir/filter/counting"
	"weir/filter/fpr"
)

// Counting is a planned counting filter with 4-bit counters.
type Counting struct {
	M             int     `json:"m"`              // counters
	K             int     `json:"k"`              // hash functions
	Bytes         int     `json:"bytes"`          // two counters a byte
	Rate          float64 `json:"rate"`           // exact false-positive rate
	Overflow      float64 `json:"overflow"`       // bound of the probability that any counter overflows
	OverflowBound float64 `json:"overflow_bound"` // a simpler one, m (e n k/16m)^16
}

// CountingFor plans a counting filter of m counters for n elements with k hash
// functions, or the best k if that is 0. It fails with an InvalidError unless m
// and n are at least 1 and k is within the limits of filters.
func CountingFor(m, n, k int) (Counting, error) {
	if n < 1 || m < 1 || m > math.MaxUint32 {
		return Counting{}, Invalid("plan counting: no filter has m=%d, n=%d", m, n)
	}
	if k == 0 {
		k, _ = fpr.BestK(m, n)
	}
	g, err := bloom.Standard(uint32(m), k)
	if err != nil {
		return Counting{}, Invalid("plan counting: %w", err)
	}
	return Counting{
		M: m, K: k, Bytes: (m + 1) / 2,
		Rate:          fpr.Exact(m, n, k),
		Overflow:      counting.TailBound(g, uint64(n), counting.Max+1),
		OverflowBound: counting.Bound(uint64(m), uint64(n), k, counting.Max+1),
	}, nil
}
