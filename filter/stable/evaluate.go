package stable

import (
	"iter"
	"math/rand/v2"
	"sort"

	"weir/filter/hash"
)

// Item is an occurrence of an element in a stream.
type Item struct {
	Hash       uint64
	Importance int  // 1…the largest of the stream
	Duplicate  bool // the element has occurred before
}

// Stream describes a synthetic stream as in section IV-D of the paper.
type Stream struct {
	Items     int     // length
	Repeating float64 // probability that an item repeats an earlier one
	// Weights are proportional to the share of elements of each importance,
	// 1…len(Weights). The paper has 50, equal (Figure 9), in proportion to the
	// importance (Figure 15) or in inverse proportion (Figure 12).
	Weights []float64
}

// All yields the stream. Its elements, their importance and the element that a
// repeating item repeats, each earlier one with equal probability, are drawn
// from source.
func (s Stream) All(source rand.Source) iter.Seq[Item] {
	return func(yield func(Item) bool) {
		rng := rand.New(source)
		below := make([]float64, len(s.Weights)) // sums of the weights up to each
		all := 0.
		for i, w := range s.Weights {
			all += w
			below[i] = all
		}
		seed := rng.Uint64()
		var seen []int // importance of each element
		for range s.Items {
			repeats := rng.Float64() < s.Repeating && len(seen) > 0
			element := len(seen)
			if repeats {
				element = rng.IntN(len(seen))
			} else {
				seen = append(seen, 1+sort.SearchFloat64s(below, all*(1-rng.Float64())))
			}
			if !yield(Item{hash.Nth(seed, uint64(element)), seen[element], repeats}) {
				return
			}
		}
	}
}

// Rates collects the answers of a filter and computes the paper's error
// measures (section IV-B), as fractions of all queries. They are NaN before the
// first query.
type Rates struct {
	queries, fp, fn []float64 // by importance − 1
}

// NewRates returns empty rates for importances 1…most.
func NewRates(most int) *Rates {
	return &Rates{make([]float64, most), make([]float64, most), make([]float64, most)}
}

// Observe records the answer to a query of an element of the given importance,
// and the truth.
func (r *Rates) Observe(importance int, occurred, answer bool) {
	i := importance - 1
	r.queries[i]++
	if answer && !occurred {
		r.fp[i]++
	}
	if occurred && !answer {
		r.fn[i]++
	}
}

// FP returns the rate of false positives.
func (r *Rates) FP() float64 { return share(r.fp, r.queries, same) }

// FN returns the rate of false negatives.
func (r *Rates) FN() float64 { return share(r.fn, r.queries, same) }

// WeightedFP returns the paper's wFP: every query is weighted by its
// importance.
func (r *Rates) WeightedFP() float64 { return share(r.fp, r.queries, byImportance) }

// WeightedFN returns the paper's wFN.
func (r *Rates) WeightedFN() float64 { return share(r.fn, r.queries, byImportance) }

// FPByImportance returns the paper's array I_fp: entry i is the rate of false
// positives among the queries of importance i + 1, NaN if there were none.
func (r *Rates) FPByImportance() []float64 { return each(r.fp, r.queries) }

// FNByImportance returns the paper's array I_fn.
func (r *Rates) FNByImportance() []float64 { return each(r.fn, r.queries) }

func same(int) float64                    { return 1 }
func byImportance(importance int) float64 { return float64(importance) }

func share(errors, queries []float64, weight func(importance int) float64) float64 {
	var e, q float64
	for i := range queries {
		w := weight(i + 1)
		e += w * errors[i]
		q += w * queries[i]
	}
	return e / q
}

func each(errors, queries []float64) []float64 {
	r := make([]float64, len(queries))
	for i := range r {
		r[i] = errors[i] / queries[i]
	}
	return r
}
