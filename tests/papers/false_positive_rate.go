package main

import (
	"fmt"
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/stat"

	"weir/filter/fpr"
	"weir/tests/papers/curve"
)

func falsePositiveRate(p *page) {
	p.from(`K. Christensen, A. Roginsky, M. Jimeno: *A new analysis of the false positive rate of a Bloom filter*, Information Processing Letters 110 (2010).`)
	p.text(`The textbook's formula (equation 1) takes the bits of a filter to be independent,
and so predicts the rate of a filter with a mean number of bits set instead of
the mean rate of filters. It is always too low, much so for small filters. The
package is weir/filter/fpr.`)
	p.relativeError()
	p.experiments()
	p.formulas()
	p.smallest()
	p.cascade()

	p.section("Departures")
	p.text(`- **Algorithm.** The paper computes the rate by a table over the bits set and the
  hashes made, O(m·k·n) steps (figure 1). Conditioned on the number of distinct
  bits that a *query* tests instead, the same rate is

      m^−k Σ_j S(k,j) (m)_j Σ_i (−1)^i C(j,i) (1 − i/m)^kn

  with S the Stirling numbers of the second kind: O(k²) steps for any m and n. The
  outer factor is the paper's own P(k, m, j) of equation 8. The inner sum cancels
  up to k binary digits and more, so that it is taken in as many digits as the
  result needs; in plain floating point it is good to 2e-11 at k = 11 and 3e-7 at
  k = 20. The paper's table stays as the oracle of the tests.
- **Equation 18** overflows, as the paper says. In integers of any length it is
  equation 20 by Bose et al., with the corrected sign of equation 21.
- **Figure 2** gives no numbers and does not say how k and n are rounded. Ours has
  k = round((m/n) ln 2) and n = ⌊m/(m/n)⌋.`)
}

func relativeError(m int, perElement int) float64 {
	n, k := m/perElement, int(math.Round(float64(perElement)*math.Ln2))
	exact := fpr.Exact(m, n, k)
	return (exact - fpr.Classic(m, n, k)) / exact
}

func (p *page) relativeError() {
	p.section("Figure 2: relative error of the classic formula")
	var curves []curve.Named
	for _, perElement := range []int{16, 12, 8, 4} {
		var points curve.Points
		for m := 32; m <= 1<<20; m *= 2 {
			points = points.At(float64(m), relativeError(m, perElement))
		}
		curves = append(curves, curve.Named{Name: fmt.Sprintf("m/n = %d", perElement), Points: points})
	}
	f := curve.New("(exact − classic) / exact", "bits m", "relative error")
	f.LogX()
	f.LogY()
	p.figure("error", "Figure 2: the share by which the classic formula is too low", f, curves...)

	p.text(`"As m increases and as m/n decreases, the relative error decreases. Note that for small
values of m (such as m = 32 and m = 64) the relative error can be significant."`)
	var rows [][]string
	for _, m := range []int{32, 64, 256, 1024, 1 << 20} {
		row := []string{fmt.Sprint(m)}
		for _, perElement := range []int{4, 8, 12, 16} {
			row = append(row, num(100*relativeError(m, perElement), 3)+" %")
		}
		rows = append(rows, row)
	}
	p.table([]string{"m", "m/n = 4", "8", "12", "16"}, rows...)
}

// experiments are the experiments of section 2: the mean number of bits set, then the
// rate; and the mean of the rates.
func (p *page) experiments() {
	p.section("Section 2: the two experiments")
	const filters, seed = 100000, 2
	p.text(`%d random filters each. The mean number of bits set gives the classic rate
(equation 3), the mean of each filter's own rate gives the exact one (equation
4), which an application sees.`, filters)
	var rows [][]string
	for _, c := range []struct{ m, n, k int }{{32, 8, 3}, {32, 2, 11}, {64, 8, 6}, {256, 21, 8}, {1024, 64, 11}} {
		rng := rand.New(rand.NewPCG(seed, uint64(c.m)))
		fill, rate := make([]float64, filters), make([]float64, filters)
		for i := range fill {
			filter, set := make([]bool, c.m), 0
			for range c.n * c.k {
				if b := rng.IntN(c.m); !filter[b] {
					filter[b] = true
					set++
				}
			}
			fill[i] = float64(set) / float64(c.m)
			rate[i] = math.Pow(fill[i], float64(c.k))
		}
		mean, deviation := stat.MeanStdDev(rate, nil)
		rows = append(rows, []string{
			fmt.Sprint(c.m), fmt.Sprint(c.n), fmt.Sprint(c.k),
			num(math.Pow(stat.Mean(fill, nil), float64(c.k)), 4), num(fpr.Classic(c.m, c.n, c.k), 4),
			fmt.Sprintf("%s ± %s", num(mean, 4), num(2*stat.StdErr(deviation, filters), 1)), num(fpr.Exact(c.m, c.n, c.k), 4),
		})
	}
	p.table([]string{"m", "n", "k", "equation 3", "classic", "equation 4, two errors", "exact"}, rows...)
}

func (p *page) formulas() {
	p.section("The formulas side by side")
	p.text(`The exact rate by the closed form, by the paper's table and by Bose et al. where
these are feasible; Bloom's own formula of 1970, which is for distinct bits; and
the classic one. The first row is the example of Bose et al.: a filter of 2 bits.`)
	var rows [][]string
	for _, c := range []struct{ m, n, k int }{{2, 1, 2}, {32, 8, 3}, {64, 8, 6}, {1024, 64, 11}, {1 << 20, 104857, 7}, {1 << 30, 1 << 26, 11}} {
		table, bose := "–", "–"
		if c.m <= 1024 {
			table = num(fpr.Table(c.m, c.n, c.k), 8)
		}
		if c.m <= 64 {
			bose = num(fpr.Bose(c.m, c.n, c.k), 8)
		}
		rows = append(rows, []string{fmt.Sprint(c.m), fmt.Sprint(c.n), fmt.Sprint(c.k), num(fpr.Exact(c.m, c.n, c.k), 8), table, bose,
			num(fpr.Bloom1970(c.m, c.n, c.k), 8), num(fpr.Classic(c.m, c.n, c.k), 8)})
	}
	p.table([]string{"m", "n", "k", "closed form", "table, eq. 8 and 17", "Bose, eq. 20", "Bloom, eq. 19", "classic, eq. 1"}, rows...)
}

func (p *page) smallest() {
	p.section("Too small a filter")
	p.text(`"In a real application this is an error as it can lead to using a too small Bloom
filter in the terms of m for a given (targeted) false positive rate", or too large a k. The
smallest filter for a rate of 1 %% and of 0.01 %% by either formula, and what the
classic choice really has:`)
	var rows [][]string
	for _, target := range []float64{1e-2, 1e-4} {
		for _, n := range []int{2, 4, 8, 16, 64, 1024} {
			m, k := fpr.Smallest(n, target)
			cm, ck := smallestClassic(n, target)
			rows = append(rows, []string{num(target, 2), fmt.Sprint(n), fmt.Sprintf("m = %d, k = %d", cm, ck),
				num(fpr.Exact(cm, n, ck), 4), fmt.Sprintf("m = %d, k = %d", m, k), num(fpr.Exact(m, n, k), 4)})
		}
	}
	p.table([]string{"target", "n", "by the classic formula", "its exact rate", "by the exact formula", "its exact rate"}, rows...)

	m, n := 64, 4
	var ks []float64
	for k := 1.; k <= 20; k++ {
		ks = append(ks, k)
	}
	f := curve.New(fmt.Sprintf("m = %d bits, n = %d elements", m, n), "hash functions k", "rate")
	f.LogY()
	best, rate := fpr.BestK(m, n)
	p.figure("k", "The best k by the exact formula is lower than by the classic one", f,
		curve.Named{Name: "exact", Points: curve.Sample(ks, func(k float64) float64 { return fpr.Exact(m, n, int(k)) })},
		curve.Named{Name: "classic", Points: curve.Sample(ks, func(k float64) float64 { return fpr.Classic(m, n, int(k)) })},
		curve.Named{Name: "Bloom 1970", Points: curve.Sample(ks, func(k float64) float64 { return fpr.Bloom1970(m, n, int(k)) })},
		curve.Named{Name: fmt.Sprintf("best, k = %d", best), Dots: true, Points: curve.Points{}.At(float64(best), rate)},
	)
}

// cascade compares filters by the lines of memory a lookup reads.
func (p *page) cascade() {
	const n = 1_000_000
	p.section("Filters in lines of memory")
	p.text(`A standard filter reads a line of memory for each hash function. Blocked filters
keep an element within one line of 64 bytes and pay for it in false positives,
as lines differ in load. weir's cascade tests a few bits in one line and the rest
in another, which it reads only if the first test passes. The curves are computed from the layouts:
exactly, but for terms of order 1/lines in that of the cascade.`)
	lines := func(bits float64) int { return int(bits * n / fpr.LineBits) }
	bits := span(6, 24, 36)
	f := curve.New(fmt.Sprintf("False-positive rate of %d elements", n), "bits an element", "rate")
	f.LogY()
	p.figure("lines", "The cascade comes close to the standard filter, in two lines of memory", f,
		curve.Named{Name: "cascade, best rest", Points: curve.Sample(bits, func(b float64) float64 {
			return fpr.BestCascade(n, uint32(lines(b)), 1).Rate(n)
		})},
		curve.Named{Name: "standard, best k", Points: curve.Sample(bits, func(b float64) float64 {
			_, rate := fpr.BestK(lines(b)*fpr.LineBits, n)
			return rate
		})},
		curve.Named{Name: "one line, best k", Points: curve.Sample(bits, func(b float64) float64 {
			rate := 1.
			for k := 1; k <= 16; k++ {
				rate = min(rate, fpr.Blocked(lines(b), fpr.LineBits, n, k))
			}
			return rate
		})},
		curve.Named{Name: "one line, 8 × 64", Points: curve.Sample(bits, func(b float64) float64 {
			return fpr.Split(lines(b), 8, 64, n)
		})},
	)
}

func smallestClassic(n int, target float64) (m, k int) {
	for m := n; ; m++ {
		k, rate := 1, fpr.Classic(m, n, 1)
		for next := 2; (next-1)*n < m; next++ { // the rate is lowest at k = ln 2 · m/n
			if r := fpr.Classic(m, n, next); r < rate {
				k, rate = next, r
			}
		}
		if rate <= target {
			return m, k
		}
	}
}
