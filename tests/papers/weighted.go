package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/stat/distuv"

	"weir/filter/weighted"
	"weir/tests/papers/curve"
)

// The papers' figures have neither N nor n: a universe so large that no single
// element matters, at "a typical Bloom filter configuration", m/n = 14.
const (
	universeSize = 1e9
	memberCount  = 1e6
	filterBits   = 14 * memberCount
)

var probabilistic = weighted.Rounding{Probabilistic: true}

func stepUniverse(hot, ratio float64) weighted.Universe {
	return weighted.Step(universeSize, memberCount, hot, ratio)
}

// theorem is the improvement 1/R by theorem 3.1 with real k_e.
func theorem(u weighted.Universe) float64 {
	m := 14 * u.Members()
	return u.Improvement(m, u.TheoremRate(m))
}

// rounded is the improvement with the k_e rounded.
func rounded(u weighted.Universe, r weighted.Rounding) float64 {
	m := 14 * u.Members()
	return u.Improvement(m, u.RoundedRate(m, u.Theorem(m), r))
}

func floored(u weighted.Universe) float64 {
	m := 14 * u.Members()
	k := u.Theorem(m)
	for i := range k {
		k[i] = max(0, math.Floor(k[i]))
	}
	return u.Improvement(m, u.Rate(m, k))
}

func weightedPaper(p *page) {
	p.from(`J. Bruck, J. Gao, A. Jiang: *Weighted Bloom Filter*, conference version (2006).`)
	p.text(`An element that is queried often and is an unlikely member gets more hash
functions: theorem 3.1 gives k_e (equation 5), equation 7 the false-positive
rate. The package is weir/filter/weighted.`)
	p.stepFigure()
	p.stepTable()
	p.stepK()
	p.measured()

	p.section("Departures")
	p.text(`- **Theorem 3.1 is optimal for equal likelihoods only.** The page on the
  report has the correction and what it is worth. On this page all likelihoods
  are equal, and theorem and optimum are the same.
- **k_e = 0.** The paper rounds to "a nearby non-negative integer". With no bit
  to test, each query of the class is positive, which a filter that drops
  packets cannot afford: weir rounds to 1…24.
- **Rounding.** All k_e of the figure "take non-negative integer values"; by which
  rounding, and at which α, is not said. The table above has the combinations.
- **E{r_e}** is taken from equation 10 as printed, the ratio of expectations. It
  is within 3 %% of equation 9 for 14 elements of like frequency and exact in the
  limit.`)
}

func (p *page) stepFigure() {
	p.section("Figure 1: the step distribution")
	p.text(`A share α of the elements is queried c times as often as each of the others.
The improvement is how many times lower the false-positive rate is than the
standard filter's, 1/R = (αc + 1 − α)/c^α. The paper draws the surface over α
and c; here are its cuts.`)
	var curves []curve.Named
	for _, c := range []float64{10000, 1000, 100, 10} {
		curves = append(curves, curve.Named{
			Name:   fmt.Sprintf("c = %g", c),
			Points: curve.Sample(span(0.002, 0.998, 332), func(hot float64) float64 { return theorem(stepUniverse(hot, c)) }),
		})
	}
	curves = append(curves, curve.Named{
		Name:   "c = 10000, nearest k",
		Points: curve.Sample(span(0.002, 0.998, 332), func(hot float64) float64 { return rounded(stepUniverse(hot, 10000), weighted.Rounding{}) }),
	})
	f := curve.New("Step distribution, m/n = 14", "share of hot elements α", "improvement 1/R")
	f.LogY()
	p.figure("step", "Figure 1: improvement over the standard filter, step distribution", f, curves...)
}

func (p *page) stepTable() {
	best := func(steps int, improvement func(weighted.Universe) float64) string {
		value, at := 0., 0.
		for _, hot := range span(0, 1, steps)[1:steps] {
			if r := improvement(stepUniverse(hot, 1e4)); r > value {
				value, at = r, hot
			}
		}
		return fmt.Sprintf("%s at α = %s", fixed(value, 2), num(at, 4))
	}
	nearest := func(u weighted.Universe) float64 { return rounded(u, weighted.Rounding{}) }
	chance := func(u weighted.Universe) float64 { return rounded(u, probabilistic) }
	p.text(`The largest improvement for c ≤ 10⁴, which the paper gives as **396.9**. It lies
at c = 10⁴; with whole k_e it depends on the grid of α. With 100 points from 0 to 1 and
k_e rounded to the nearest whole number it is the paper's.`)
	p.table([]string{"k_e", "α in steps of 0.0005", "of 1/99", "of 0.02", "of 0.05"},
		[]string{"real", best(2000, theorem), best(99, theorem), best(50, theorem), best(20, theorem)},
		[]string{"nearest", best(2000, nearest), best(99, nearest), best(50, nearest), best(20, nearest)},
		[]string{"rounded down", best(2000, floored), best(99, floored), best(50, floored), best(20, floored)},
		[]string{"probabilistic", best(2000, chance), best(99, chance), best(50, chance), best(20, chance)},
	)
}

func (p *page) stepK() {
	low, high := [2]int{99, 99}, [2]int{-1, -1}
	for _, hot := range span(0.001, 0.999, 998) {
		for _, c := range []float64{1, 10, 100, 1000, 10000} {
			for i, k := range stepUniverse(hot, c).Theorem(filterBits) {
				r := weighted.Rounding{}.Round(k, 0)
				low[i], high[i] = min(low[i], r), max(high[i], r)
			}
		}
	}
	p.text(`The range of k_e over the figure, nearest whole number from 0 on:`)
	p.table([]string{"elements", "paper", "ours"},
		[]string{"hot", "10…23", fmt.Sprintf("%d…%d", low[0], high[0])},
		[]string{"cold", "0…10", fmt.Sprintf("%d…%d", low[1], high[1])},
	)
	k := func(class int) curve.Points {
		return curve.Sample(span(0.002, 0.998, 332), func(hot float64) float64 {
			return stepUniverse(hot, 1e4).Theorem(filterBits)[class]
		})
	}
	p.figure("k", "Hash functions by theorem 3.1, c = 10⁴", curve.New("Step distribution, m/n = 14, c = 10000", "share of hot elements α", "k_e"),
		curve.Named{Name: "hot", Points: k(0)},
		curve.Named{Name: "cold", Points: k(1)},
		curve.Named{Name: "standard filter", Points: curve.Sample(span(0.002, 0.998, 1), func(float64) float64 { return 14 * math.Ln2 })},
	)
}

// measured fills real filters and queries them.
func (p *page) measured() {
	p.section("Measured")
	const members, hot, ratio, seed = 50000, 0.1, 100, 1
	p.text(`Real filters of %d members, 10 %% of the elements hot with c = %d, nearest k_e ≥ 1,
queried in proportion to the frequencies. Equation 4 predicts the measured rates;
the bound is from the binomial distribution at six standard deviations.`, members, ratio)
	var predicted, standard, dots curve.Points
	var rows [][]string
	for perMember := 4.; perMember <= 12; perMember++ {
		u, m := weighted.Step(1e7, members, hot, ratio), perMember*members
		k := u.Theorem(m)
		want := u.RoundedRate(m, k, weighted.Dropping)
		trials := int(min(1e7, 2e4/want))
		got, err := measure(u, uint32(m), k, trials, seed)
		if err != nil {
			p.fail(err)
			return
		}
		bound := 6 * math.Sqrt((1-want)/want/float64(trials))
		predicted, dots = predicted.At(perMember, want), dots.At(perMember, got)
		standard = standard.At(perMember, weighted.StandardRate(m, members))
		rows = append(rows, []string{num(perMember, 2), num(want, 4), num(got, 4),
			fmt.Sprintf("%+.2f %%", 100*(got/want-1)), fmt.Sprintf("±%.1f %%", 100*bound), fixed(u.Improvement(m, want), 2)})
	}
	f := curve.New("Measured and predicted, step distribution", "bits a member m/n", "false-positive rate")
	f.LogY()
	p.figure("measured", "Measured rate of real filters against equation 4", f,
		curve.Named{Name: "equation 4", Points: predicted},
		curve.Named{Name: "standard filter", Points: standard},
		curve.Named{Name: "measured", Dots: true, Points: dots},
	)
	p.table([]string{"m/n", "equation 4", "measured", "difference", "bound", "improvement"}, rows...)
}

// measure is the false-positive rate of a filter over queries for elements of
// the universe, whose class is their first byte.
func measure(u weighted.Universe, m uint32, k []float64, trials int, seed uint64) (float64, error) {
	rng := rand.New(rand.NewPCG(seed, uint64(m)))
	element := func(class int) []byte {
		return binary.LittleEndian.AppendUint64([]byte{byte(class)}, rng.Uint64())
	}
	f, err := weighted.FromBits(k, weighted.Dropping, func(b []byte) int { return int(b[0]) }, m, seed)
	if err != nil {
		return 0, err
	}
	shares := u.Queries()
	for i, c := range u {
		shares[i] *= c.Count
		for range int(c.Count*c.Likelihood + 0.5) {
			f.Add(element(i))
		}
	}
	class := distuv.NewCategorical(shares, rng)
	positive := 0
	for range trials {
		if f.Contains(element(int(class.Rand()))) {
			positive++
		}
	}
	return float64(positive) / float64(trials), nil
}
