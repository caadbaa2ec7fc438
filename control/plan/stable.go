package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"

	"weir/filter/ordered"
	"weir/filter/stable"
)

// StableRequest asks for filters that forget.
type StableRequest struct {
	Memory    int       // bytes
	Gap       int       // items between an item and its repetition
	Algorithm string    // by its name; "": all that forget
	Bits      int       // of a cell
	K, P      int       // cells of an item, and cells that sink for it; 0: the best
	Rate      float64   // of false positives at most, where K or P is to be chosen
	Shares    []float64 // of the items, by level, in any unit; nil: equal
}

// Stable is planned filters that forget.
type Stable struct {
	Memory  int      `json:"memory"`
	Gap     int      `json:"gap"`
	Filters []Forget `json:"filters"` // the one with the fewest weighted false negatives first
}

// Forget is a planned filter that forgets.
type Forget struct {
	Algorithm string    `json:"algorithm"`
	Cells     int       `json:"cells"`
	Bits      int       `json:"bits"` // of a cell
	K         int       `json:"k"`    // cells of an item
	P         int       `json:"p"`    // cells that sink by one for each item
	FP        float64   `json:"false_positives"`
	FN        float64   `json:"false_negatives"`
	Weighted  float64   `json:"weighted_false_negatives"` // each counts as much as its level
	ByLevel   []float64 `json:"by_level"`                 // false negatives
}

// Limits of the search.
const (
	mostStableBits = 6
	mostStableK    = 16
	mostSinking    = 1 << 12
)

// StableFor plans filters that forget: of each algorithm, the K with the fewest false
// negatives weighted by the level, as in the paper, and the least P with which the rate of
// false positives is low enough. It fails with an InvalidError for requests that make no
// sense, and otherwise if no filter has the rate.
func StableFor(r StableRequest) (Stable, error) {
	switch {
	case r.Memory < 1 || r.Memory > 1<<30:
		return Stable{}, Invalid("plan stable: memory: %d bytes, want up to 1GiB", r.Memory)
	case r.Gap < 1 || r.Gap > math.MaxInt32:
		return Stable{}, Invalid("plan stable: gap: %d, want 1 to 2G items", r.Gap)
	case r.Bits < 1 || r.Bits > mostStableBits:
		return Stable{}, Invalid("plan stable: bits: %d, want 1 to %d", r.Bits, mostStableBits)
	case r.K < 0 || r.K > mostStableK || r.P < 0 || r.P > mostSinking:
		return Stable{}, Invalid("plan stable: k %d and p %d, want 1 to %d and %d", r.K, r.P, mostStableK, mostSinking)
	case (r.K == 0 || r.P == 0) && !(r.Rate > 0 && r.Rate < 1):
		return Stable{}, Invalid("plan stable: rate: %v, want one between 0 and 1", r.Rate)
	}
	levels, err := levelsOf(r.Shares, 1<<r.Bits-1)
	if err != nil {
		return Stable{}, err
	}
	s := Stable{Memory: r.Memory, Gap: r.Gap}
	var names []string
	for _, a := range stable.Algorithms[1:] {
		names = append(names, algorithmName(a))
		if r.Algorithm != "" && r.Algorithm != names[len(names)-1] {
			continue
		}
		f, ok, err := r.best(a, levels)
		if err != nil {
			return Stable{}, Invalid("plan %w", err)
		}
		if ok {
			s.Filters = append(s.Filters, f)
		}
	}
	if r.Algorithm != "" && !slices.Contains(names, r.Algorithm) {
		return Stable{}, Invalid("plan stable: algorithm: %q, want one of %s", r.Algorithm, strings.Join(names, ", "))
	}
	if len(s.Filters) == 0 {
		return Stable{}, fmt.Errorf("plan stable: no filter of %d bytes has at most %v false positives", r.Memory, r.Rate)
	}
	ordered.By(s.Filters, func(a, b Forget) int { return cmp.Compare(a.Weighted, b.Weighted) })
	return s, nil
}

// levelsOf returns the distribution of the items over the levels, equal if there are no
// shares.
func levelsOf(shares []float64, levels int) (stable.Levels, error) {
	if shares == nil {
		shares = slices.Repeat([]float64{1}, levels)
	}
	if len(shares) != levels {
		return nil, Invalid("plan stable: shares: %d, want one for each of %d levels", len(shares), levels)
	}
	sum := 0.
	for _, x := range shares {
		if !(x >= 0 && x <= 1e9) {
			return nil, Invalid("plan stable: shares: %v, want 0 to 1G", x)
		}
		sum += x
	}
	if sum == 0 {
		return nil, Invalid("plan stable: shares: all are 0")
	}
	l := make(stable.Levels, levels)
	for i, x := range shares {
		l[i] = x / sum
	}
	return l, nil
}

// best returns the best filter of an algorithm, if there is any.
func (r StableRequest) best(a stable.Algorithm, levels stable.Levels) (best Forget, ok bool, err error) {
	least, most := 1, mostStableK
	if r.K > 0 {
		least, most = r.K, r.K
	}
	for k := least; k <= most; k++ {
		p := stable.Within(a, r.Memory, r.Bits, k, max(1, r.P))
		if r.P == 0 {
			p.P = r.sinking(p, levels)
		}
		fp, err := p.FalsePositive(levels)
		if err != nil {
			return Forget{}, false, err
		}
		if (r.K == 0 || r.P == 0) && fp > r.Rate {
			continue
		}
		fn, err := p.FalseNegatives(levels, r.Gap)
		if err != nil {
			return Forget{}, false, err
		}
		f := Forget{Algorithm: algorithmName(a), Cells: p.Cells, Bits: p.Bits, K: k, P: p.P, FP: fp, ByLevel: fn}
		var weights float64
		for i, share := range levels {
			level := float64(i + 1)
			f.FN += share * fn[i]
			f.Weighted += share * level * fn[i]
			weights += share * level
		}
		f.Weighted /= weights
		if !ok || f.Weighted < best.Weighted {
			best, ok = f, true
		}
	}
	return best, ok, nil
}

// sinking returns the least P with which a filter has few enough false positives, or the most
// if there is none.
func (r StableRequest) sinking(p stable.Params, levels stable.Levels) int {
	return 1 + sort.Search(mostSinking-1, func(i int) bool {
		p.P = 1 + i
		fp, err := p.FalsePositive(levels)
		return err != nil || fp <= r.Rate
	})
}

func algorithmName(a stable.Algorithm) string { return strings.ToLower(a.String()) }
