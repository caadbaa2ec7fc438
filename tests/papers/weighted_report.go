package main

import (
	"fmt"
	"math"

	"weir/filter/hash"
	"weir/filter/weighted"
	"weir/tests/papers/curve"
)

func weightedReport(p *page) {
	p.from(`J. Bruck, J. Gao, A. Jiang: *Weighted Bloom Filter*, technical report (2006).`)
	p.text(`The report adds to the [conference version](weighted.md) the proof, probabilistic
rounding, Zipf's distribution and likelihoods that are correlated with the
frequencies.`)
	p.zipf()
	p.correlated()
	p.notOptimal()
	p.classes()

	p.section("Departures")
	p.text(`- **Theorem 3.1** is not optimal for unequal likelihoods: see above. Both forms
  are in the package, Theorem and Optimal.
- **Equation 15** is garbled in print. Derived again, it is
  1/R = (αc + 1 − α)/c^w with w = αc^b/(αc^b + 1 − α). It neglects x_e in E{r_e};
  the package does not, and meets it as x_e goes to 0.
- **N** of the Zipf figure is not stated; N = 10 000 gives the paper's 115.7. It
  matters: see the figure.
- **Introduction**: "a Bloom filter has no false positive but a low false negative
  probability" has the two the wrong way round; the conference version does not.`)
}

// zipfUniverse has each rank many times, so that no single element matters.
func zipfUniverse(n int, exponent float64) weighted.Universe {
	u := weighted.Zipf(n, n, 1, exponent)
	for i := range u {
		u[i].Count *= 1e6
	}
	return u
}

func (p *page) zipf() {
	p.section("Figure 1 (ii): Zipf's distribution")
	p.text(`The element of rank i is queried in proportion to i^−α.`)
	exponents := span(0, 1.6, 32)
	of := func(n int, improvement func(weighted.Universe) float64) curve.Points {
		return curve.Sample(exponents, func(s float64) float64 { return improvement(zipfUniverse(n, s)) })
	}
	f := curve.New("Zipf distribution, m/n = 14", "exponent α", "improvement 1/R")
	f.LogY()
	p.figure("zipf", "Figure 1 (ii): improvement over the standard filter, Zipf's distribution", f,
		curve.Named{Name: "N = 100000", Points: of(100000, theorem)},
		curve.Named{Name: "N = 10000", Points: of(10000, theorem)},
		curve.Named{Name: "N = 1000", Points: of(1000, theorem)},
		curve.Named{Name: "paper", Dots: true, Points: curve.Points{}.At(1.6, 115.7)},
	)
	u := zipfUniverse(10000, 1.6)
	p.table([]string{"at α = 1.6", "paper", "ours, N = 10 000"},
		[]string{"improvement, real k_e", "115.7", fixed(theorem(u), 3)},
		[]string{"improvement, nearest k_e", "", fixed(rounded(u, weighted.Rounding{}), 2)},
		[]string{"improvement, probabilistic k_e", "", fixed(rounded(u, probabilistic), 2)},
		[]string{"bits a member by which a standard filter must grow, ln(1/R)/ln² 2", "9.89", fixed(weighted.Growth(115.7), 2)},
	)
	p.text(`The report says that its figures use probabilistic rounding. The values show
real k_e: rounding costs some percent, as (1 − p)^k is convex in k.`)
}

func correlatedUniverse(p *page, hot, c, b float64) weighted.Universe {
	u, err := stepUniverse(hot, c).Correlated(b)
	p.fail(err)
	return u
}

func (p *page) correlated() {
	p.section("Figure 2: likelihoods correlated with frequencies")
	p.text(`An element of frequency f is a member with likelihood x = a·f^b. Frequent elements
are likelier members where b is positive, and the improvement is lower; it is
higher where b is negative. Cuts of the report's surfaces, which give no numbers:`)
	for _, hot := range []float64{0.4, 0.7} {
		var curves []curve.Named
		for _, c := range []float64{10000, 1000, 100, 10} {
			curves = append(curves, curve.Named{
				Name:   fmt.Sprintf("c = %g", c),
				Points: curve.Sample(span(-0.4, 0.4, 80), func(b float64) float64 { return theorem(correlatedUniverse(p, hot, c, b)) }),
			})
		}
		f := curve.New(fmt.Sprintf("Correlated likelihoods, m/n = 14, α = %g", hot), "exponent b of the correlation", "improvement 1/R")
		f.LogY()
		p.figure(fmt.Sprintf("correlated-%g", 10*hot), fmt.Sprintf("Figure 2: improvement by theorem 3.1, α = %g", hot), f, curves...)
	}
	var curves []curve.Named
	for _, b := range []float64{-0.4, -0.2, 0, 0.2, 0.4} {
		curves = append(curves, curve.Named{
			Name:   fmt.Sprintf("b = %g", b),
			Points: curve.Sample(span(0.002, 0.998, 332), func(hot float64) float64 { return theorem(correlatedUniverse(p, hot, 1e4, b)) }),
		})
	}
	f := curve.New("Correlated likelihoods, m/n = 14, c = 10000", "share of hot elements α", "improvement 1/R")
	f.LogY()
	p.figure("correlated-c", "Figure 2 (iii), (iv): improvement by theorem 3.1, c = 10⁴", f, curves...)

	var rows [][]string
	for _, hot := range []float64{0.4, 0.7} {
		for _, b := range []float64{-0.4, -0.2, 0, 0.2, 0.4} {
			w := hot * math.Pow(1e4, b) / (hot*math.Pow(1e4, b) + 1 - hot)
			equation := (hot*1e4 + 1 - hot) / math.Pow(1e4, w)
			rows = append(rows, []string{num(hot, 2), num(b, 2), num(equation, 4), num(theorem(correlatedUniverse(p, hot, 1e4, b)), 4)})
		}
	}
	p.text(`At c = 10⁴, equation 15 beside the rate of the package, which does not neglect x_e:`)
	p.table([]string{"α", "b", "equation 15", "ours"}, rows...)
}

func (p *page) notOptimal() {
	p.section("Theorem 3.1 is not optimal for unequal likelihoods")
	p.text(`In the figures above the improvement falls below 1: the theorem's filter is worse
than the standard one, which is among the filters that the theorem ranges over.
The proof (equations 16 to 24) minimises Σ E{r_e}·q^t_e while Σ k_e over the
whole *universe* is held constant. What fills the filter is Σ x_e·k_e, the bits
of the *members*. With that constraint, the derivative by k_e is

    E{r_e}·(1 − p)^k_e = x_e·const    (the theorem has: = const)

and the optimum, at p = 1/2 as before,

    k_e = (m/n) ln 2 + (ln(E{r_e}/x_e) − Σ_i (x_i/n) ln(E{r_i}/x_i)) / ln 2

A bit more for an element that is an unlikely member costs next to nothing. For
equal likelihoods it is the theorem. Weir's rates come from equation 4, which
holds for any k_e.`)
	compare := func(k func(weighted.Universe, float64) []float64) curve.Points {
		return curve.Sample(span(-0.4, 0.4, 80), func(b float64) float64 {
			u := correlatedUniverse(p, 0.4, 1e4, b)
			return u.Improvement(filterBits, u.Rate(filterBits, k(u, filterBits)))
		})
	}
	f := curve.New("Theorem and optimum, m/n = 14, α = 0.4, c = 10000", "exponent b of the correlation", "improvement 1/R")
	f.LogY()
	p.figure("optimal", "Theorem 3.1 against the optimum", f,
		curve.Named{Name: "optimum", Points: compare(weighted.Universe.Optimal)},
		curve.Named{Name: "theorem 3.1", Points: compare(weighted.Universe.Theorem)},
		curve.Named{Name: "standard filter", Points: curve.Sample([]float64{-0.4, 0.4}, func(float64) float64 { return 1 })},
	)
}

// classes compares popularity classes of random elements with single ones.
func (p *page) classes() {
	p.section("Popularity classes and single elements")
	const flows, buckets, seed = 4_000_000, 65536, 1
	p.text(`The papers group elements into popularity classes "by attributes that are easily
checkable". A data plane that knows no attribute can only group by hash: %d flows
in %d buckets average 61 flows each, and most of the gain is averaged away. Given
to the %d hottest flows singly, with all others as one class, as many weights
keep it. Improvement at m/n = 14, nearest k_e from 1 to 24:`, flows, buckets, buckets)
	var rows [][]string
	for _, exponent := range []float64{0.9, 1, 1.1, 1.2} {
		bucket := make(weighted.Universe, buckets)
		for i := range uint64(flows) {
			b := &bucket[hash.Reduce(hash.Nth(seed, i), buckets)]
			b.Count++
			b.Frequency += math.Pow(float64(i+1), -exponent)
		}
		for i := range bucket {
			bucket[i].Frequency /= bucket[i].Count
			bucket[i].Likelihood = 0.001
		}
		p.fail(bucket.Validate())
		single := weighted.Zipf(flows, buckets, 0.001*flows, exponent)
		rows = append(rows, []string{num(exponent, 2), fixed(rounded(bucket, weighted.Dropping), 2), fixed(rounded(single, weighted.Dropping), 2)})
	}
	p.table([]string{"exponent", "buckets by hash", "hottest flows singly"}, rows...)
}
