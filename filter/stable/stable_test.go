package stable

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/floats"

	"weir/filter/hash"
	"weir/filter/internal/trial"
)

// The parameters of Table III.
const (
	memory = 16 << 10
	bits   = 3 // M = 7
	k      = 5
	p      = 10
	most   = 50 // largest importance
)

func tableIII(a Algorithm) Params { return Within(a, memory, bits, k, p) }

// decaying lists the algorithms that forget.
var decaying = []Algorithm{SBF, IBF2C, IBFMC, IBFH}

func source(t testing.TB, seed uint64) *rand.PCG {
	t.Helper()
	t.Logf("seed %d", seed)
	return rand.NewPCG(seed, 0)
}

func mustNew(t testing.TB, params Params, source rand.Source) *Filter {
	t.Helper()
	f, err := New(params, source)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// fill adds n fresh items of uniform level and returns the next free hash.
func fill(f *Filter, rng *rand.Rand, next uint64, n int) uint64 {
	for range n {
		f.Add(hash.Nth(0, next), 1+rng.IntN(f.M()))
		next++
	}
	return next
}

func TestTableIII(t *testing.T) {
	if params := tableIII(IBFMC); params.Cells != 43690 || params.M() != 7 { // "about 42.6K cells"
		t.Errorf("16 KB of 3 bits are %d cells of at most %d", params.Cells, params.M())
	}
	f := mustNew(t, tableIII(IBFMC), rand.NewPCG(1, 0))
	if got := f.Bytes(); got != memory {
		t.Errorf("%d bytes, want %d", got, memory)
	}
	if params := tableIII(BF); params.Cells != 8*memory || params.P != 0 {
		t.Errorf("standard filter %+v", params)
	}
}

// TestCells checks the packed cells of every width against a plain array.
func TestCells(t *testing.T) {
	rng := rand.New(source(t, 2))
	for d := 1; d <= 8; d++ {
		f := mustNew(t, Params{Algorithm: SBF, Cells: 101, Bits: d, K: 1, P: 1}, rng)
		plain := make([]int, f.Cells)
		for range 5000 {
			i, v := rng.IntN(f.Cells), rng.IntN(f.M()+1)
			f.setCell(i, v)
			plain[i] = v
		}
		for i, want := range plain {
			if got := f.cell(i); got != want {
				t.Fatalf("%d bits: cell %d is %d, want %d", d, i, got, want)
			}
		}
	}
}

// TestInsert checks the effect of each algorithm on a cell at 0, in between and
// at M, for each level. The filter has one cell only, so that the decremented
// cell is known.
func TestInsert(t *testing.T) {
	for _, a := range decaying {
		f := mustNew(t, Params{Algorithm: a, Cells: 1, Bits: 3, K: 1, P: 1}, rand.NewPCG(3, 0))
		for level := 1; level <= 7; level++ {
			set := map[Algorithm]int{SBF: 7, IBF2C: 7, IBFMC: level, IBFH: level}[a]
			if a == IBF2C && level < 4 {
				set = 4
			}
			for v := 0; v <= 7; v++ {
				f.setCell(0, v)
				f.Add(0, level)
				if got, want := f.cell(0), max(v-1, set); got != want {
					t.Errorf("%v: level %d on %d results in %d, want %d", a, level, v, got, want)
				}
			}
		}
	}
}

func TestLevel(t *testing.T) {
	params := tableIII(IBFMC)
	count := make([]int, params.M()+1)
	for imp := 1; imp <= most; imp++ {
		count[params.Level(imp, most)]++
	}
	if count[0] != 0 || params.Level(1, most) != 1 || params.Level(most, most) != 7 {
		t.Errorf("levels %v", count)
	}
	for level, n := range count[1:] {
		if n < most/7 || n > most/7+1 {
			t.Errorf("level %d has %d of %d importances", level+1, n, most)
		}
	}
}

// TestBloomFilter checks that BF forgets nothing and has the false-positive
// rate of the classic formula.
func TestBloomFilter(t *testing.T) {
	params := tableIII(BF)
	rng := rand.New(source(t, 4))
	f := mustNew(t, params, rng)
	const n = 12_000
	next := fill(f, rng, 0, n)
	for i := range uint64(n) {
		if !f.Contains(hash.Nth(0, i)) {
			t.Fatalf("item %d forgotten", i)
		}
	}
	rate := math.Pow(1-math.Pow(1-1/float64(params.Cells), n*k), k)
	trials, hits := trial.Count(rate, 0.1), 0
	for range trials {
		if f.Contains(hash.Nth(0, next)) {
			hits++
		}
		next++
	}
	trial.Check(t, hits, trials, rate)
}

// v0 returns the product form of V₀, in the variables of the paper.
func v0(params Params) float64 {
	m := float64(params.Cells)
	pm, km := float64(params.P)/m, float64(params.K)/m
	sunk := pm * (1 - km)
	v := 1.0
	for i := 1; i <= params.M(); i++ {
		var reach float64
		for level := 1; level <= params.M(); level++ {
			if params.sets(level) >= i {
				reach += 1 / float64(params.M())
			}
		}
		v *= sunk / (sunk + km*reach)
	}
	return v
}

// TestStationary checks the closed form against the product of p′/(p′ + k·Pr[f
// ≥ i]), against independently computed figures, and against a simulation.
func TestStationary(t *testing.T) {
	for _, c := range []struct {
		a  Algorithm
		v0 float64 // within 3 %, for importances that are not quite uniform
	}{{SBF, 0.058}, {IBF2C, 0.093}, {IBFMC, 0.185}} {
		params := tableIII(c.a)
		v, err := params.Stationary(params.Uniform())
		if err != nil {
			t.Fatal(err)
		}
		if product := v0(params); math.Abs(v[0]/product-1) > 1e-3 { // with p and k approximated by P/m and K/m
			t.Errorf("%v: V₀ = %.6f, product %.6f", c.a, v[0], product)
		}
		if math.Abs(v[0]/c.v0-1) > 0.03 {
			t.Errorf("%v: V₀ = %.4f, want %.3f", c.a, v[0], c.v0)
		}
		if sum := floats.Sum(v); math.Abs(sum-1) > 1e-12 {
			t.Errorf("%v: stationary distribution sums to %g", c.a, sum)
		}
	}

	for i, a := range decaying {
		t.Run(a.String(), func(t *testing.T) {
			rng := rand.New(source(t, uint64(10+i)))
			params := tableIII(a)
			want, err := params.Stationary(params.Uniform())
			if err != nil {
				t.Fatal(err)
			}
			f := mustNew(t, params, rng)
			next := fill(f, rng, 0, 60_000)
			// An item touches a given cell with probability of about 15/43690,
			// so that snapshots 10 000 items apart are independent. The K cells
			// of an item move together: in one snapshot, chance moves the zeros
			// by 1 % and a rare value by 4 %; in the mean of 30 by a fifth of
			// that.
			const snapshots = 30
			got := make([]float64, len(want))
			for range snapshots {
				next = fill(f, rng, next, 10_000)
				for v, x := range f.Values() {
					got[v] += x / snapshots
				}
			}
			t.Logf("zeros %.5f, predicted %.5f", got[0], want[0])
			for v := range want {
				tolerance := 0.04
				if v == 0 {
					tolerance = 0.01
				}
				if math.Abs(got[v]/want[v]-1) > tolerance {
					t.Errorf("fraction of cells at %d: %.5f, predicted %.5f", v, got[v], want[v])
				}
			}
		})
	}
}

// TestPaperRecursion follows the proof of Theorem III.1 for two classes, with
// an even M as in the paper. V_{M/2} has the factor (1 − A + B), as cells above
// M/2 are decremented into it too; with the printed (1 − A − B) the recursion
// does not result in the stationary distribution.
func TestPaperRecursion(t *testing.T) {
	const M, sunk, set = 8, 2.0, 1.0 // p′ and k; only their ratio matters
	up, down := make([]float64, M+1), make([]float64, M+1)
	for v := 1; v <= M; v++ {
		up[v], down[v] = set, sunk
		if v > M/2 {
			up[v] = set / 2
		}
	}
	want := stationary(up, down)[0]

	zeros := func(sign float64) float64 {
		a := sunk / (sunk + set/2)
		A, B := 0.0, math.Pow(a, M/2)
		for i := M/2 + 1; i <= M; i++ {
			A += math.Pow(a, float64(M-i)) * (set / 2) / (sunk + set/2)
		}
		middle := (set / 2) / (sunk + set) * (1 - A + sign*B)
		rest := 1 - A - middle
		for i := M/2 - 1; i > 0; i-- {
			rest -= math.Pow(sunk/(sunk+set), float64(M/2-i)) * middle
		}
		return rest
	}
	if got := zeros(+1); math.Abs(got-want) > 1e-12 {
		t.Errorf("recursion with 1 − A + B: V₀ = %.6f, want %.6f", got, want)
	}
	if got := zeros(-1); math.Abs(got-want) < 0.05 {
		t.Errorf("recursion with 1 − A − B: V₀ = %.6f, the printed version is right", got)
	}
}

// TestPaperBound computes the stable false-positive rate for the paper's
// parameters, which the paper states to be below 20 %.
func TestPaperBound(t *testing.T) {
	for _, c := range []struct {
		a      Algorithm
		levels Levels
		want   float64
	}{
		{SBF, tableIII(SBF).Uniform(), 0.74},
		{IBF2C, Levels{0.5, 0, 0, 0, 0, 0, 0.5}, 0.59}, // the chain of Figure 1: each class with k/2
		{IBFMC, tableIII(IBFMC).Uniform(), 0.37},       // the chain of Figure 2: each level with k/M
	} {
		got, err := tableIII(c.a).FalsePositive(c.levels)
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(got-c.want) > 0.005 {
			t.Errorf("%v: stable false-positive rate %.4f, want %.2f", c.a, got, c.want)
		}
	}
}

// TestFalsePositive measures the rate at which a stable filter reports new
// items as duplicates.
func TestFalsePositive(t *testing.T) {
	for i, a := range decaying {
		t.Run(a.String(), func(t *testing.T) {
			rng := rand.New(source(t, uint64(20+i)))
			params := tableIII(a)
			rate, err := params.FalsePositive(params.Uniform())
			if err != nil {
				t.Fatal(err)
			}
			f := mustNew(t, params, rng)
			next := fill(f, rng, 0, 40_000)
			// The zeros drift about their mean, so the trials are spread over
			// as many items as the test can afford.
			trials, hits := trial.Count(rate, 0.06), 0
			for range trials {
				next = fill(f, rng, next, 8)
				if f.Contains(hash.Nth(0, next)) {
					hits++
				}
				next++
			}
			trial.Check(t, hits, trials, rate)
		})
	}
}

// TestFalseNegative measures how often an item is reported as new after a
// number of others, by its level. Every item of the level is a trial.
func TestFalseNegative(t *testing.T) {
	for i, c := range []struct {
		a          Algorithm
		level, gap int
	}{
		{SBF, 1, 1500}, {IBF2C, 1, 750}, {IBF2C, 7, 1500},
		{IBFMC, 1, 200}, {IBFMC, 4, 750}, {IBFMC, 7, 1500}, {IBFH, 2, 200}, {IBFH, 7, 1500},
	} {
		t.Run(fmt.Sprintf("%v/level=%d", c.a, c.level), func(t *testing.T) {
			rng := rand.New(source(t, uint64(30+i)))
			params := Params{Algorithm: c.a, Cells: 4096, Bits: bits, K: k, P: p}
			rate, err := params.FalseNegative(params.Uniform(), c.level, c.gap)
			if err != nil {
				t.Fatal(err)
			}
			f := mustNew(t, params, rng)
			next := fill(f, rng, 0, 5000)
			levels := make([]int, c.gap) // of the last items, by number
			want, trials, hits := trial.Count(rate, 0.1), 0, 0
			for trials < want {
				slot := next % uint64(c.gap)
				if levels[slot] == c.level {
					trials++
					if !f.Contains(hash.Nth(0, next-uint64(c.gap))) {
						hits++
					}
				}
				levels[slot] = 1 + rng.IntN(f.M())
				f.Add(hash.Nth(0, next), levels[slot])
				next++
			}
			trial.Check(t, hits, trials, rate)
		})
	}
}

// More cells are to sink than are set: what comes is forgotten after few items, and all
// figures are probabilities.
func TestAllSink(t *testing.T) {
	p := Params{Algorithm: IBFH, Cells: 1000, Bits: 3, K: 1, P: 100}
	fp, err := p.FalsePositive(p.Uniform())
	if err != nil || !(fp >= 0 && fp < 0.01) {
		t.Errorf("false positives %v, %v", fp, err)
	}
	fn, err := p.FalseNegatives(p.Uniform(), 10)
	if err != nil || slices.ContainsFunc(fn, func(x float64) bool { return !(x > 0.9 && x <= 1) }) {
		t.Errorf("false negatives %v, %v", fn, err)
	}
}

func TestRejects(t *testing.T) {
	good := Params{Algorithm: IBFMC, Cells: 100, Bits: 3, K: 5, P: 10}
	mustNew(t, good, rand.NewPCG(0, 0))
	for name, change := range map[string]func(*Params){
		"algorithm": func(p *Params) { p.Algorithm = IBFH + 1 },
		"cells":     func(p *Params) { p.Cells = 0 },
		"bits":      func(p *Params) { p.Bits = 9 },
		"bf bits":   func(p *Params) { p.Algorithm, p.P = BF, 0 },
		"k":         func(p *Params) { p.K = 0 },
		"p":         func(p *Params) { p.P = 0 },
		"bf p":      func(p *Params) { p.Algorithm, p.Bits = BF, 1 },
	} {
		p := good
		change(&p)
		if _, err := New(p, rand.NewPCG(0, 0)); err == nil {
			t.Errorf("%s: New accepts %+v", name, p)
		}
		if _, err := p.Stationary(p.Uniform()); err == nil {
			t.Errorf("%s: Stationary accepts %+v", name, p)
		}
	}
	for _, levels := range []Levels{nil, {1}, {1, 1, 0, 0, 0, 0, 0}, {2, -1, 0, 0, 0, 0, 0}} {
		if _, err := good.FalsePositive(levels); err == nil {
			t.Errorf("levels %v accepted", levels)
		}
	}
	if _, err := tableIII(BF).Stationary(Levels{1}); err == nil {
		t.Error("BF has a stationary distribution")
	}
	if _, err := good.FalseNegative(good.Uniform(), 8, 1); err == nil {
		t.Error("level 8 of 7 accepted")
	}
	f := mustNew(t, good, rand.NewPCG(0, 0))
	defer func() {
		if recover() == nil {
			t.Error("Add accepts level 0")
		}
	}()
	f.Add(1, 0)
}

func BenchmarkFilter(b *testing.B) {
	for _, a := range Algorithms {
		rng := rand.New(rand.NewPCG(5, 0))
		f := mustNew(b, tableIII(a), rng)
		next := fill(f, rng, 0, 20_000)
		b.Run(fmt.Sprintf("op=insert/algorithm=%v", a), func(b *testing.B) {
			for b.Loop() {
				f.Add(hash.Nth(0, next), 1+int(next)%f.M())
				next++
			}
		})
		b.Run(fmt.Sprintf("op=query/algorithm=%v", a), func(b *testing.B) {
			for b.Loop() {
				f.Contains(hash.Nth(0, next))
				next++
			}
		})
	}
}
