package blocked

import (
	"math"
	"math/rand/v2"
	"testing"

	"weir/filter/internal/trial"
)

// Elements stay, also in the union with another filter, and others test positive at the rate
// that the geometry predicts and the filter itself reports.
func TestFilter(t *testing.T) {
	const seed = 5
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	g := Geometry{Lines: 500, Bits: 4}
	const n = 30_000
	f, half := New(g), New(g)
	var all []uint64
	for i := range n {
		h := rng.Uint64()
		all = append(all, h)
		if i%2 == 0 {
			f.Observe(h)
		} else {
			half.Observe(h)
		}
	}
	if err := f.Union(half.Words()); err != nil {
		t.Fatal(err)
	}
	for _, h := range all {
		if !f.Contains(h) || !f.Observe(h) {
			t.Fatalf("%#x is forgotten", h)
		}
	}
	rate := f.Chance()
	if want := g.FalsePositiveRate(n); math.Abs(rate/want-1) > 0.02 {
		t.Errorf("the filter reports a rate of %.5f, predicted %.5f", rate, want)
	}
	trials, hits := trial.Count(rate, 0.05), 0
	for range trials {
		if f.Contains(rng.Uint64()) {
			hits++
		}
	}
	trial.Check(t, hits, trials, rate)
	f.Clear()
	if f.FillRatio() != 0 || f.Contains(all[0]) || f.Chance() != 0 {
		t.Error("it is not empty")
	}
}

// Words whose number does not match the geometry are refused.
func TestGeometryIsChecked(t *testing.T) {
	for _, c := range []struct {
		Geometry
		words int
	}{{Geometry{0, 1}, 0}, {Geometry{1, 0}, 8}, {Geometry{1, MaxBits + 1}, 8}, {Geometry{2, 1}, 8}} {
		if _, err := FromWords(c.Geometry, make([]uint64, c.words)); err == nil {
			t.Errorf("%d words are accepted for %+v", c.words, c.Geometry)
		}
	}
	f, err := FromWords(Geometry{2, 1}, make([]uint64, 16))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Union(make([]uint64, 8)); err == nil {
		t.Error("the union with a smaller filter is accepted")
	}
}
