package stable

import (
	"fmt"
	"math"
)

// Levels is a distribution of items over the levels: entry i is the
// probability of level i + 1, for 1…M.
type Levels []float64

// Uniform returns the distribution in which all levels of the filter have equal
// probability, as in the paper's analysis.
func (p Params) Uniform() Levels {
	l := make(Levels, p.M())
	for i := range l {
		l[i] = 1 / float64(len(l))
	}
	return l
}

// rates returns the probabilities, for one cell and one item, that the cell is
// set to a value of at least v (up[v]) and that it is decremented from v
// (down[v]), v = 1…M. Entry 0 is unused. For IBF-H the caller multiplies down
// by the remaining factor P·m·(1/weight), weight being Σ 1/v over the nonzero
// cells.
func (p Params) rates(levels Levels) (up, down []float64, err error) {
	if err := p.check(); err != nil {
		return nil, nil, err
	}
	if len(levels) != p.M() {
		return nil, nil, fmt.Errorf("stable: %d levels, want %d", len(levels), p.M())
	}
	sum := 0.
	for _, probability := range levels {
		if probability < 0 {
			sum = math.NaN()
		}
		sum += probability
	}
	if !(math.Abs(sum-1) <= 1e-9) {
		return nil, nil, fmt.Errorf("stable: levels %v are not a distribution", levels)
	}
	m := float64(p.Cells)
	k := 1 - math.Pow(1-1/m, float64(p.K))    // the item has the cell
	sink := 1 - math.Pow(1-1/m, float64(p.P)) // the cell is among the P
	up, down = make([]float64, p.M()+1), make([]float64, p.M()+1)
	for i, probability := range levels {
		for v := 1; v <= p.sets(i+1); v++ {
			up[v] += k * probability
		}
	}
	for v := 1; v <= p.M(); v++ {
		down[v] = sink * (1 - k) // the paper's p′
		if p.Algorithm == IBFH {
			down[v] = (1 - k) / float64(v)
		}
	}
	return up, down, nil
}

// Stationary returns the distribution of a cell's value after many items (the
// V_i of section III): entry v is the probability of v, 0…M. Entry 0, V₀, is
// the expected fraction of zeros, the stable point of Theorems III.3 and III.7.
//
// Upwards the chain jumps to any level; downwards it moves one step at a time.
// In the stationary state, as many cells go from v to v − 1 as jump from below
// v to v or above: p′·V_v = k·Pr[f ≥ v]·(V₀ + … + V_{v−1}), hence
//
//	V₀ = Π_{v=1…M} p′ / (p′ + k·Pr[f ≥ v])
//
// with p′ = p(1 − k). For IBF-H, p′ depends on v and, through the sum of 1/v
// over all cells, on the distribution itself; that sum is found by bisection.
//
// It fails if the parameters are out of range, if levels is not a distribution
// over 1…M, and for BF, whose cells all fill up eventually.
func (p Params) Stationary(levels Levels) ([]float64, error) {
	up, down, err := p.rates(levels)
	if err != nil {
		return nil, err
	}
	if p.Algorithm == BF {
		return nil, fmt.Errorf("stable: %v has no stationary distribution", p.Algorithm)
	}
	if p.Algorithm == IBFH {
		p.balance(up, down)
	}
	return stationary(up, down), nil
}

func stationary(up, down []float64) []float64 {
	v := make([]float64, len(up))
	v[0] = 1
	below := 1.0 // Σ of the entries below, in units of V₀
	for i := 1; i < len(v); i++ {
		v[i] = below * up[i] / down[i]
		below += v[i]
	}
	for i := range v {
		v[i] /= below
	}
	return v
}

// balance scales down, which is (1 − k)/v, so that P cells in all are
// decremented for each item: down[v] = (1 − k)·P·(1/v)/weight with weight =
// m·Σ_v V_v/v.
func (p Params) balance(up, down []float64) {
	m := float64(p.Cells)
	scaled := make([]float64, len(down))
	// try returns the weight that follows from an assumed one.
	try := func(weight float64) float64 {
		for i, x := range down {
			scaled[i] = x * float64(p.P) / weight
		}
		var w float64
		for i, x := range stationary(up, scaled)[1:] {
			w += x / float64(i+1)
		}
		return m * w
	}
	// The sum of the cells' weights is in (0, m]. A small assumed weight means
	// fast decrements, few nonzero cells and an even smaller weight, unless
	// more is set than decremented. Bisect in log space for the sake of sparse
	// filters.
	low, high := math.Log(1e-9), math.Log(m)
	for range 100 {
		mid := (low + high) / 2
		if try(math.Exp(mid)) > math.Exp(mid) {
			low = mid
		} else {
			high = mid
		}
	}
	// Where more were to sink than there are, all do: no cell sinks twice for an item.
	most := down[1]
	for i := range down {
		down[i] = min(most, down[i]*float64(p.P)/math.Exp(high))
	}
}

// FalsePositive returns the stable false-positive rate (1 − V₀)^K of an item
// that never occurred (Corollaries III.4 and III.8). It fails if Stationary
// does.
func (p Params) FalsePositive(levels Levels) (float64, error) {
	v, err := p.Stationary(levels)
	if err != nil {
		return 0, err
	}
	return math.Pow(1-v[0], float64(p.K)), nil
}

// FalseNegative returns the probability that an item of the given level is
// reported as new after gap other items of the given distribution, in a filter
// that is stable when the item arrives (section III-A, false negative rate): 1
// − (1 − Pr₀)^K, where Pr₀ is the probability that one of its cells is zero. It
// fails if Stationary does, or if level or gap is out of range. For BF it is 0.
func (p Params) FalseNegative(levels Levels, level, gap int) (float64, error) {
	all, err := p.FalseNegatives(levels, gap)
	if err != nil {
		return 0, err
	}
	if level < 1 || level > p.M() {
		return 0, fmt.Errorf("stable: level %d, want 1 to %d", level, p.M())
	}
	return all[level-1], nil
}

// FalseNegatives returns FalseNegative of each level, in less time: entry i belongs to
// level i + 1.
func (p Params) FalseNegatives(levels Levels, gap int) ([]float64, error) {
	up, down, err := p.rates(levels)
	if err != nil {
		return nil, err
	}
	if gap < 0 {
		return nil, fmt.Errorf("stable: gap %d", gap)
	}
	all := make([]float64, p.M())
	if p.Algorithm == BF {
		return all, nil
	}
	if p.Algorithm == IBFH {
		p.balance(up, down)
	}
	stable, zero := stationary(up, down), p.zero(up, down, gap)
	for i := range all {
		// The state of a cell after the item: its stable state, but at least the value
		// that the item sets.
		var forgotten float64
		for v, probability := range stable {
			forgotten += probability * zero[max(v, p.sets(i+1))]
		}
		all[i] = 1 - math.Pow(1-forgotten, float64(p.K))
	}
	return all, nil
}

// zero returns the probabilities that a cell is at zero after some more items, by its value
// before them.
func (p Params) zero(up, down []float64, items int) []float64 {
	// One more item: step[v][w] is the probability of going from v to w.
	n := p.M() + 1
	step := square(n)
	for v := range n {
		stay := 1.0
		for w := v + 1; w < n; w++ {
			step[v][w] = up[w]
			if w+1 < n {
				step[v][w] -= up[w+1]
			}
			stay -= step[v][w]
		}
		if v > 0 {
			step[v][v-1] = down[v]
			stay -= down[v]
		}
		step[v][v] = stay
	}
	zero, next := make([]float64, n), make([]float64, n)
	zero[0] = 1
	for ; items > 0; items >>= 1 {
		if items&1 == 1 {
			for v := range next {
				next[v] = 0
				for w, probability := range step[v] {
					next[v] += probability * zero[w]
				}
			}
			zero, next = next, zero
		}
		if items > 1 {
			step = squared(step)
		}
	}
	return zero
}

func square(n int) [][]float64 {
	rows, cells := make([][]float64, n), make([]float64, n*n)
	for i := range rows {
		rows[i], cells = cells[:n], cells[n:]
	}
	return rows
}

// squared returns a matrix times itself.
func squared(m [][]float64) [][]float64 {
	product := square(len(m))
	for i, row := range m {
		for j, x := range row {
			for k, y := range m[j] {
				product[i][k] += x * y
			}
		}
	}
	return product
}
