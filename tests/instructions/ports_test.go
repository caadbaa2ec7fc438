package instructions

import (
	"slices"
	"testing"

	"weir/loader"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/timed"
)

// middle returns the mean of the middle half of some figures.
func middle(all []float64) (mean float64) {
	all = slices.Sorted(slices.Values(all))
	all = all[len(all)/4 : len(all)-len(all)/4]
	for _, x := range all {
		mean += x / float64(len(all))
	}
	return mean
}

// TestPortsOfHit measures what the ports of a list cost a packet that the list drops, and one that no
// list has: by test runs of the kernel, with and without ports in turns, and the mean of the middle
// half of the differences. The kernel measures in whole nanoseconds, which the turns average out.
func TestPortsOfHit(t *testing.T) {
	timed.Alone(t)
	lab.Root(t)
	turns, runs := long.Or(41, 201), 100_000
	// In nanoseconds, where a packet takes 11 without ports (docs/benchmarks.md), and more on a slower
	// machine: there the difference of a program varies by a quarter between runs. A test run that is
	// short can be unlucky.
	const nominal = 11
	most := map[string]float64{"listed TCP": long.Or(10., 5), "clean TCP": long.Or(3., 1)}
	names := []string{"exact", "list with ports"}
	programs := make(map[string]*loader.Program)
	for _, c := range configurations(t) {
		if !slices.Contains(names, c.name) {
			continue
		}
		g, stats := c.build(t)
		var err error
		if programs[c.name], err = g.Load(stats); err != nil {
			t.Fatal(err)
		}
		defer programs[c.name].Close()
	}
	for _, p := range packets() {
		bar, measured := most[p.name]
		if !measured {
			continue
		}
		times := make(map[string][]float64)
		var more []float64
		for turn := range turns {
			took := make(map[string]float64)
			for i := range names {
				name := names[(i+turn)%len(names)]
				each, err := programs[name].Time(p.frame, runs)
				if err != nil {
					t.Fatal(err)
				}
				took[name] = float64(each)
				times[name] = append(times[name], took[name])
			}
			more = append(more, took[names[1]]-took[names[0]])
		}
		if slower := middle(times[names[0]]) / nominal; slower > 1.5 {
			bar *= 1.25 * slower
		}
		t.Logf("%s: %.1f ns, with ports %.1f ns: %.2f ns more", p.name, middle(times[names[0]]), middle(times[names[1]]), middle(more))
		if middle(more) > bar {
			t.Errorf("%s: ports cost %.2f ns, want at most %.2f", p.name, middle(more), bar)
		}
	}
}
