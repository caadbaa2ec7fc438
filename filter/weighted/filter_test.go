package weighted

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"

	"weir/filter/hash"
	"weir/filter/internal/trial"
	"weir/tests/long"
)

const seed = 20060801

func mustNew(t testing.TB, m uint32, weights Weights) *Filter {
	t.Helper()
	f, err := New(m, seed, weights)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// population draws elements of a universe's classes. The class is a property of
// the element that is easily checked, as in section I: the low 16 bits of its
// hash.
type population struct {
	Universe
	rng   *rand.Rand
	k     []float64
	round Rounding
}

func (p population) draw(class int) uint64 { return p.rng.Uint64()&^0xffff | uint64(class) }

func (p population) weight(h uint64) int { return p.round.Round(p.k[h&0xffff], h) }

// The false-positive rate of real filters, over queries in proportion to the
// frequencies, agrees with equation 4.
func TestRateMeasured(t *testing.T) {
	long.Seconds(t)
	const size, members, perMember = 1e7, 60000, 10
	correlated, err := Step(size, members, 0.1, 30).Correlated(-0.4)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		universe Universe
		k        func(Universe, float64) []float64
		round    Rounding
	}{
		{"step/nearest", Step(size, members, 0.1, 30), Universe.Theorem, Rounding{}},
		{"step/probabilistic", Step(size, members, 0.1, 30), Universe.Theorem, Rounding{Probabilistic: true}},
		{"step/dropping", Step(size, members, 0.7, 1000), Universe.Theorem, Dropping},
		{"step/unclamped", Step(size, members, 0.7, 1000), Universe.Theorem, Rounding{}},
		{"correlated/theorem", correlated, Universe.Theorem, Rounding{Probabilistic: true}},
		{"correlated/optimal", correlated, Universe.Optimal, Rounding{Probabilistic: true}},
		{"zipf/dropping", Zipf(size, 200, members, 1.1), Universe.Theorem, Dropping},
	} {
		t.Run(c.name, func(t *testing.T) {
			const m = perMember * members
			u := c.universe
			rng := rand.New(rand.NewPCG(seed, 1))
			p := population{u, rng, c.k(u, m), c.round}
			want := u.RoundedRate(m, p.k, c.round)

			shares := u.Queries()
			for i := range shares {
				shares[i] *= u[i].Count
			}
			class := distuv.NewCategorical(shares, rng)
			const filters = 4
			trials := trial.Count(want, 0.03) / filters
			hits := 0
			for range filters {
				f := mustNew(t, m, p.weight)
				for i, c := range u {
					listed := c.Count * c.Likelihood
					if fraction := listed - math.Floor(listed); rng.Float64() < fraction {
						listed++
					}
					for range int(listed) {
						f.AddHash(p.draw(i))
					}
				}
				for range trials {
					if f.ContainsHash(p.draw(int(class.Rand()))) {
						hits++
					}
				}
			}
			trial.Check(t, hits, filters*trials, want)
		})
	}
}

func TestNoFalseNegative(t *testing.T) {
	for _, round := range []Rounding{{}, {Probabilistic: true}, Dropping} {
		u := Step(1e6, 1e4, 0.2, 5000)
		m := 8 * u.Members()
		p := population{u, rand.New(rand.NewPCG(seed, 2)), u.Theorem(m), round}
		f := mustNew(t, uint32(m), p.weight)
		var added []uint64
		for i, c := range u {
			for range int(c.Count * c.Likelihood) {
				added = append(added, p.draw(i))
				f.AddHash(added[len(added)-1])
			}
		}
		for _, h := range added {
			if !f.ContainsHash(h) {
				t.Fatalf("%+v: %x was added and is not in the filter", round, h)
			}
		}
	}
}

func FuzzNoFalseNegative(f *testing.F) {
	f.Add([]byte("192.0.2.1"), uint32(1), uint8(0))
	f.Add([]byte{}, uint32(512), uint8(24))
	f.Fuzz(func(t *testing.T, element []byte, m uint32, k uint8) {
		filter, err := New(m%(1<<20)+1, seed, func(uint64) int { return int(k) })
		if err != nil {
			t.Fatal(err)
		}
		if k > 0 && filter.Contains(element) {
			t.Errorf("%q is in an empty filter", element)
		}
		filter.Add(element)
		if !filter.Contains(element) {
			t.Errorf("%q was added and is not in the filter", element)
		}
	})
}

// A member tests positive at every moment while its k_e rises or falls.
func TestWeightsChangeWithoutGap(t *testing.T) {
	hot := &Hot{Cold: 5, K: map[uint64]int{}}
	f := mustNew(t, 1<<16, hot.Weight)
	rng := rand.New(rand.NewPCG(seed, 3))
	elements := make([]uint64, 1000)
	for i := range elements {
		elements[i] = rng.Uint64()
		f.AddHash(elements[i])
	}
	for range 5000 {
		h, k := elements[rng.IntN(len(elements))], 1+rng.IntN(24)
		f.AddWeighted(h, k)
		if !f.ContainsHash(h) {
			t.Fatalf("%x is lost while its bits are set", h)
		}
		hot.K[h] = k
		if !f.ContainsHash(h) {
			t.Fatalf("%x is lost at k = %d", h, k)
		}
	}
}

func TestZeroWeightIsAlwaysPositive(t *testing.T) {
	f := mustNew(t, 64, new(Hot).Weight)
	if !f.Contains([]byte("x")) {
		t.Error("an element of no bits tests negative")
	}
	if k := Dropping.Round(-3, 1); k != 1 {
		t.Errorf("a dropping filter tests %d bits, want 1", k)
	}
}

func TestNewRejectsNoBits(t *testing.T) {
	if _, err := New(0, seed, new(Hot).Weight); err == nil {
		t.Error("a filter of 0 bits was accepted")
	}
}

func TestRound(t *testing.T) {
	for _, c := range []struct {
		r    Rounding
		k    float64
		want int
	}{
		{Rounding{}, 9.7, 10}, {Rounding{}, 9.3, 9}, {Rounding{}, -0.7, 0}, {Rounding{}, 22.99, 23}, {Rounding{}, 0.4, 0},
		{Dropping, 0.4, 1}, {Dropping, -9, 1}, {Dropping, 24.4, 24}, {Dropping, math.Inf(1), 24}, {Dropping, math.Inf(-1), 1},
		{Rounding{Probabilistic: true}, 7, 7}, {Rounding{Probabilistic: true, Least: 1, Most: 24}, 30, 24}, {Rounding{Probabilistic: true, Least: 1}, 0.5, 1},
	} {
		if got := c.r.Round(c.k, 42); got != c.want {
			t.Errorf("%+v rounds %v to %d, want %d", c.r, c.k, got, c.want)
		}
	}
}

// Probabilistic rounding keeps the expected value (report, section III-B) and
// is the same for the same element.
func TestProbabilisticRounding(t *testing.T) {
	r := Rounding{Probabilistic: true}
	for _, k := range []float64{0.03, 3.25, 11.5, 22.9} {
		trials := trial.Count(k-math.Floor(k), 0.03)
		up := 0
		for i := range trials {
			h := hash.Nth(seed, uint64(i))
			got := r.Round(k, h)
			if got != r.Round(k, h) {
				t.Fatalf("%v is rounded in two ways for %x", k, h)
			}
			if got != int(k) && got != int(k)+1 {
				t.Fatalf("%v is rounded to %d", k, got)
			}
			up += got - int(k)
		}
		trial.Check(t, up, trials, k-math.Floor(k))
	}
}

func benchmarkFilter(b *testing.B, n int) (*Filter, []uint64) {
	hot := &Hot{Cold: 10, K: map[uint64]int{}}
	f := mustNew(b, uint32(14*n), hot.Weight)
	rng := rand.New(rand.NewPCG(seed, 4))
	elements := make([]uint64, 1<<16)
	for i := range elements {
		elements[i] = rng.Uint64()
		if i%16 == 0 {
			hot.K[elements[i]] = 20
		}
	}
	for range n {
		f.AddHash(rng.Uint64())
	}
	return f, elements
}

func BenchmarkAdd(b *testing.B) {
	for _, n := range []int{100000, 1000000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			f, elements := benchmarkFilter(b, n)
			for i := 0; b.Loop(); i++ {
				f.AddHash(elements[i%len(elements)])
			}
		})
	}
}

func BenchmarkContains(b *testing.B) {
	for _, n := range []int{100000, 1000000} {
		b.Run(fmt.Sprintf("n=%d/miss", n), func(b *testing.B) {
			f, elements := benchmarkFilter(b, n)
			for i := 0; b.Loop(); i++ {
				f.ContainsHash(elements[i%len(elements)])
			}
		})
	}
}
