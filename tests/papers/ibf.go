package main

import (
	"fmt"
	"math/rand/v2"

	"weir/filter/stable"
	"weir/tests/papers/curve"
)

// Table III of the paper, the importances of its synthetic data, and what it
// leaves open: the length of a stream.
const (
	ibfMemory = 16 << 10
	ibfBits   = 3 // M = 7
	ibfK      = 5
	ibfP      = 10
	ibfMost   = 50
	ibfItems  = 60000
	ibfRuns   = 3
)

// ibfDistributions are the distributions of section IV-D.
var ibfDistributions = []struct {
	name   string
	figure int // of the false positives; the next has the false negatives
	words  string
	weight func(importance int) float64
}{
	{"equal", 10, "all importances equally frequent", func(int) float64 { return 1 }},
	{"inverse", 13, "frequency in inverse proportion to the importance", func(i int) float64 { return 1 / float64(i) }},
	{"direct", 16, "frequency in proportion to the importance", func(i int) float64 { return float64(i) }},
}

// ibfParams gives every algorithm the 43690 cells of 3 bits in 16 KB; the
// standard filter, "M-insert with M = 1", uses one bit of each.
func ibfParams(a stable.Algorithm) stable.Params { return ibfParamsOf(a, ibfBits) }

// ibfParamsOf is ibfParams with cells of another number of bits.
func ibfParamsOf(a stable.Algorithm, bits int) stable.Params {
	p := stable.Within(a, ibfMemory, bits, ibfK, ibfP)
	p.Cells = 8 * ibfMemory / bits
	return p
}

func ibfStream(weight func(int) float64, items int, repeating float64) stable.Stream {
	s := stable.Stream{Items: items, Repeating: repeating}
	for i := 1; i <= ibfMost; i++ {
		s.Weights = append(s.Weights, weight(i))
	}
	return s
}

// ibfRates runs streams through an algorithm, each through an empty filter.
func (p *page) ibfRates(params stable.Params, s stable.Stream, runs uint64) *stable.Rates {
	r := stable.NewRates(ibfMost)
	for seed := range runs {
		f, err := stable.New(params, rand.NewPCG(seed, 1))
		if err != nil {
			p.fail(err)
			return r
		}
		for item := range s.All(rand.NewPCG(seed, 2)) {
			r.Observe(item.Importance, item.Duplicate, f.Observe(item.Hash, f.Level(item.Importance, ibfMost)))
		}
	}
	return r
}

func importanceAware(p *page) {
	p.from(`R. Boraskar, V. Gabale, P. Kulkarni, D. Kulkarni: *Importance-aware Bloom Filter for Managing Set Membership Queries on Streaming Data* (2013).`)
	p.text(`Filters for endless streams: cells of d bits, P of which sink by one for each item,
so that the filter forgets and its false-positive rate settles. The package is
weir/filter/stable. All is computed with the paper's parameters, 16 KB, M = 7,
K = 5, P = 10, unless it says otherwise.`)
	p.ibfZeros()
	p.ibfComparison()
	p.ibfImportance()
	p.ibfSweeps()
	p.ibfForgetting()

	p.section("Departures")
	p.text(`- **Digits of Table II** cannot be had: neither the length of the streams nor the
  function f from importance to level is stated, and the trace is not at hand. What
  can be had are the orderings, on each of the paper's synthetic distributions. Our
  f divides the importances 1…50 evenly among the levels 1…7.
- **Algorithm 1** as printed sets a cell that stands at M/2 to M for an unimportant
  item too (its *else* belongs to the wrong *if*). Ours raises it to M/2, as the text
  and the Markov chain have it. M is odd; M/2 is rounded up.
- **V_{M/2}** in the proof of theorem III.1 must carry (1 − A + B), not
  (1 − A − B): the cells above M/2 sink into it too. The closed form used here,

      V₀ = Π_{v=1…M} p′ / (p′ + k·Pr[f ≥ v]),   p′ = p(1 − k),

  holds for every distribution of levels. It follows from the balance between what
  sinks from v to v − 1 and what jumps from below v to v or above.
- **Theorems III.3 and III.7** call m·V₀ the fraction of zeros; it is their number.
- **The bound of 20 %%** for K = 5 and P = 10 (section IV-A), said of IBF-2C and IBF-MC,
  follows from (1 − A − B) as printed, which makes it 4 to 6 %%, and not from the
  corrected formula; see the first table.
- **False negatives** are counted in the paper if a cell was at zero at any time since
  the item came. It may have been set again since; ours counts the cells as they are
  when the item is asked for.
- **The standard filter** has as many cells as the others here, as Table IV puts it. If
  it may use all the bits of its 16 KB it lasts three times as long: see the last table of Table II's section.`)
}

// ibfZeros is Figure 18 and the stable point.
func (p *page) ibfZeros() {
	p.section("Figure 18: the fraction of cells at zero")
	const items, every = 100000, 2500
	s := ibfStream(ibfDistributions[0].weight, items, 0)
	var curves []curve.Named
	var rows [][]string
	paper := map[stable.Algorithm]string{stable.IBF2C: "≤ 0.20", stable.IBFMC: "≤ 0.20"}
	for _, a := range stable.Algorithms {
		f, err := stable.New(ibfParams(a), rand.NewPCG(18, uint64(a)))
		if err != nil {
			p.fail(err)
			return
		}
		levels, n, rest, mean := make(stable.Levels, f.M()), 0, 0, 0.0
		for i := 1; i <= ibfMost; i++ {
			levels[f.Level(i, ibfMost)-1] += 1.0 / ibfMost
		}
		points := curve.Points{}.At(0, 1)
		for item := range s.All(rand.NewPCG(18, 18)) {
			f.Add(item.Hash, f.Level(item.Importance, ibfMost))
			if n++; n%every == 0 {
				points = points.At(float64(n), f.Zeros())
				if n > items/2 {
					mean += f.Zeros()
					rest++
				}
			}
		}
		curves = append(curves, curve.Named{Name: a.String(), Points: points})
		if a == stable.BF {
			rows = append(rows, []string{a.String(), fixed(mean/float64(rest), 4), "0, in the end", "1, in the end", ""})
			continue
		}
		v, err := f.Stationary(levels)
		p.fail(err)
		fp, err := f.FalsePositive(levels)
		p.fail(err)
		if p.err != nil {
			return
		}
		rows = append(rows, []string{a.String(), fixed(mean/float64(rest), 4), fixed(v[0], 4), fixed(fp, 2), paper[a]})
	}
	f := curve.New("Cells at zero", "items", "fraction")
	p.figure("zeros", "Figure 18: the filters that forget come to rest, the standard filter fills up", f, curves...)
	p.text(`The mean of the second half of the run against V₀, and the stable false-positive
rate (1 − V₀)^K that follows from it. The importances are as in Figure 9:
every one of 1…50 as often.`)
	p.table([]string{"", "zeros, measured", "V₀", "(1 − V₀)^K", "paper"}, rows...)

	two, err := stable.Within(stable.IBF2C, ibfMemory, ibfBits, ibfK, ibfP).FalsePositive(stable.Levels{0.5, 0, 0, 0, 0, 0, 0.5})
	p.fail(err)
	p.text(`In the paper's own chain for two classes each has probability 1/2; (1 − V₀)^K is
%s there.`, fixed(two, 2))
}

// ibfComparison is Table II.
func (p *page) ibfComparison() {
	p.section("Table II: the algorithms compared")
	p.text(`In per cent of all queries. The paper's are for a trace of video requests with two
ways to derive importances; ours are the means of %d synthetic streams of %d items,
30 %% of which repeat an earlier one.`, ibfRuns, ibfItems)
	paper := map[stable.Algorithm][]string{
		stable.BF:    {"34.81", "0", "35.29", "0", "34.81", "0", "34.17", "0"},
		stable.SBF:   {"25.83", "0.84", "26.23", "0.87", "26", "0.9", "25.55", "0.81"},
		stable.IBF2C: {"16.14", "2.49", "16.34", "1.99", "10.16", "3.97", "9.95", "2.91"},
		stable.IBFMC: {"5.19", "8.91", "5.23", "4.76", "0.84", "14.01", "0.87", "7.52"},
		stable.IBFH:  {"9.08", "13.25", "9.39", "10.43", "0.12", "16.07", "0.07", "10.34"},
	}
	header := []string{"", "FP", "FN", "wFP", "wFN", "FP", "FN", "wFP", "wFN"}
	var theirs, ours [][]string
	for _, a := range stable.Algorithms {
		theirs = append(theirs, append([]string{a.String()}, paper[a]...))
	}
	p.text("The paper's data sets 1 and 2:")
	p.table(header, theirs...)

	for _, a := range stable.Algorithms {
		row := []string{a.String()}
		for _, d := range ibfDistributions[:2] {
			r := p.ibfRates(ibfParams(a), ibfStream(d.weight, ibfItems, 0.3), ibfRuns)
			for _, x := range []float64{r.FP(), r.FN(), r.WeightedFP(), r.WeightedFN()} {
				row = append(row, fixed(100*x, 2))
			}
		}
		ours = append(ours, row)
	}
	p.text("Ours, importances equally frequent, and in inverse proportion to themselves:")
	p.table(header, ours...)
	p.text(`The orderings agree: false positives fall from BF to SBF, IBF-2C and IBF-MC, false
negatives rise, and the weighted false negatives of the importance-aware filters are
lower than the plain ones. IBF-H has fewer false positives than IBF-MC and more false
negatives; only in the paper's data set 1 are its false positives more numerous.`)

	var rows [][]string
	for _, items := range []int{60000, 150000, 300000} {
		row := []string{fmt.Sprint(items)}
		for _, params := range []stable.Params{ibfParams(stable.BF), stable.Within(stable.BF, ibfMemory, ibfBits, ibfK, ibfP), ibfParams(stable.SBF)} {
			r := p.ibfRates(params, ibfStream(ibfDistributions[0].weight, items, 0.3), 1)
			row = append(row, fixed(100*r.FP(), 2))
		}
		rows = append(rows, row)
	}
	p.text(`How long the stream has to be for the standard filter to be the worst, false
positives in per cent:`)
	p.table([]string{"items", "BF, 43690 cells", "BF, 131072 cells of one bit", "SBF"}, rows...)
}

// ibfImportance is Figures 10 to 17.
func (p *page) ibfImportance() {
	p.section("Figures 10 to 17: errors by importance")
	p.text(`The arrays I_fp and I_fn, as fractions of the queries of each importance, for the
paper's three distributions, which its figures 9, 12 and 15 show; 30 %% of the items repeat
an earlier one. SBF makes no difference; IBF-2C has two classes, with the
border at importance 23 as level 4 begins there; IBF-MC and IBF-H have seven.`)
	for _, d := range ibfDistributions {
		var fp, fn []curve.Named
		for _, a := range stable.Algorithms {
			r := p.ibfRates(ibfParams(a), ibfStream(d.weight, ibfItems, 0.3), ibfRuns)
			for _, c := range []struct {
				curves *[]curve.Named
				rates  []float64
			}{{&fp, r.FPByImportance()}, {&fn, r.FNByImportance()}} {
				var points curve.Points
				for i, x := range c.rates {
					points = points.At(float64(i+1), x)
				}
				*c.curves = append(*c.curves, curve.Named{Name: a.String(), Points: points})
			}
		}
		p.figure(d.name+"-fp", fmt.Sprintf("Figure %d: false positives, %s", d.figure, d.words),
			curve.New("False positives", "importance", "rate"), fp...)
		p.figure(d.name+"-fn", fmt.Sprintf("Figure %d: false negatives, %s", d.figure+1, d.words),
			curve.New("False negatives", "importance", "rate"), fn...)
	}
}

// ibfSweeps varies M, as section IV-A does, and the share of items that repeat, as section
// IV-D.
func (p *page) ibfSweeps() {
	p.section("Sections IV-A and IV-D: M = 3, 7 and 15; 10, 30 and 50 % repeats")
	p.text(`False positives and false negatives in per cent of the queries of streams of %d items,
all importances equally frequent. The memory stays at 16 KB, so that a larger M leaves
fewer cells; the standard filter, which has as many, is worse for it.`, ibfItems)
	header := []string{"repeats", ""}
	var rows [][]string
	var sums [][]string // of IBF-MC
	curves := make(map[float64][]curve.Named)
	for _, repeating := range []float64{0.1, 0.3, 0.5} {
		stream := ibfStream(ibfDistributions[0].weight, ibfItems, repeating)
		sum := []string{fmt.Sprintf("%.0f %%", 100*repeating)}
		for _, a := range stable.Algorithms {
			row := []string{fmt.Sprintf("%.0f %%", 100*repeating), a.String()}
			for bits := 2; bits <= 4; bits++ {
				m := 1<<bits - 1
				r := p.ibfRates(ibfParamsOf(a, bits), stream, 1)
				row = append(row, fixed(100*r.FP(), 2), fixed(100*r.FN(), 2))
				if len(rows) == 0 {
					header = append(header, fmt.Sprintf("M = %d: FP", m), "FN")
				}
				if a != stable.IBFMC {
					continue
				}
				sum = append(sum, fixed(100*(r.FP()+r.FN()), 1))
				var points curve.Points
				for i, x := range r.FNByImportance() {
					points = points.At(float64(i+1), x)
				}
				curves[repeating] = append(curves[repeating], curve.Named{Name: fmt.Sprintf("M = %d", m), Points: points})
			}
			rows = append(rows, row)
		}
		sums = append(sums, sum)
	}
	p.table(header, rows...)
	p.text(`The paper chose M = 7 since it "trades the false positive and false negatives rates well to
keep the sum of the rates lower as compared to the other two options". The sums of IBF-MC:`)
	p.table([]string{"repeats", "M = 3", "M = 7", "M = 15"}, sums...)
	p.text(`On these streams that holds with 50 %% repeats. With fewer, most queries are of new items,
for which false positives count, and M = 3 has the lower sum.`)
	for _, repeating := range []float64{0.1, 0.3, 0.5} {
		percent := fmt.Sprintf("%.0f", 100*repeating)
		p.figure("sweep-"+percent, fmt.Sprintf("IBF-MC: false negatives by importance, %s %% repeats", percent),
			curve.New("False negatives", "importance", "rate"), curves[repeating]...)
	}
}

// ibfForgetting is the false-negative rate by the gap since an item.
func (p *page) ibfForgetting() {
	p.section("Section III: how fast they forget")
	p.text(`The paper gives the false-negative rate as 1 − Π(1 − Pr₀(δ)), with Pr₀(δ) the
probability that a cell is at zero δ items after it was set, and leaves Pr₀ to the
Markov chain. Here it is, from powers of the transition matrix, for an unimportant and
an important item. In the end an item is as forgotten as one that never came.`)
	gaps := span(0, 40000, 40)
	var curves []curve.Named
	for _, c := range []struct {
		a     stable.Algorithm
		level int
	}{{stable.SBF, 7}, {stable.IBF2C, 1}, {stable.IBFMC, 1}, {stable.IBFMC, 4}, {stable.IBFMC, 7}} {
		params := ibfParams(c.a)
		name := fmt.Sprintf("%v, level %d", c.a, c.level)
		if c.a == stable.SBF {
			name = "SBF"
		}
		curves = append(curves, curve.Named{Name: name, Points: curve.Sample(gaps, func(gap float64) float64 {
			x, err := params.FalseNegative(params.Uniform(), c.level, int(gap))
			p.fail(err)
			return x
		})})
	}
	p.figure("forgetting", "False-negative rate by the number of items since", curve.New("Forgetting", "items since", "false-negative rate"), curves...)
}
