package weighted

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"

	"weir/filter/hash"
	"weir/filter/internal/sealed"
	"weir/filter/internal/trial"
	"weir/tests/long"
)

const seed = 20060801

func mustNew(t testing.TB, m uint32, p population) *Filter {
	t.Helper()
	f, err := FromBits(p.k, p.round, class, m, seed)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// population draws elements of a universe's classes. The class is a property of
// the element that is easily checked, as in section I: its first two
// bytes.
type population struct {
	Universe
	rng   *rand.Rand
	k     []float64
	round Rounding
}

func (p population) draw(class int) []byte {
	b := binary.LittleEndian.AppendUint16(make([]byte, 0, 10), uint16(class))
	return binary.LittleEndian.AppendUint64(b, p.rng.Uint64())
}

func class(b []byte) int { return int(binary.LittleEndian.Uint16(b)) }

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
			of := distuv.NewCategorical(shares, rng)
			const filters = 4
			trials := trial.Count(want, long.Or(0.04, 0.03)) / filters
			hits := 0
			for range filters {
				f := mustNew(t, m, p)
				for i, c := range u {
					listed := c.Count * c.Likelihood
					if fraction := listed - math.Floor(listed); rng.Float64() < fraction {
						listed++
					}
					for range int(listed) {
						f.Add(p.draw(i))
					}
				}
				for range trials {
					if f.Contains(p.draw(int(of.Rand()))) {
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
		f := mustNew(t, uint32(m), p)
		var added [][]byte
		for i, c := range u {
			for range int(c.Count * c.Likelihood) {
				added = append(added, p.draw(i))
				f.Add(added[len(added)-1])
			}
		}
		for _, h := range added {
			if !f.Contains(h) {
				t.Fatalf("%+v: %x was added and is not in the filter", round, h)
			}
		}
	}
}

func FuzzNoFalseNegative(f *testing.F) {
	f.Add([]byte("192.0.2.1"), uint32(1), uint8(0))
	f.Add([]byte{}, uint32(512), uint8(24))
	f.Fuzz(func(t *testing.T, element []byte, m uint32, k uint8) {
		filter, err := FromBits([]float64{float64(k)}, Rounding{}, func([]byte) int { return 0 }, m%(1<<20)+1, seed)
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

func TestZeroWeightIsAlwaysPositive(t *testing.T) {
	f := mustNew(t, 64, population{k: []float64{0}})
	if !f.Contains([]byte{0, 0, 'x'}) {
		t.Error("an element of no bits tests negative")
	}
	if k := Dropping.Round(-3, 1); k != 1 {
		t.Errorf("a dropping filter tests %d bits, want 1", k)
	}
}

func TestNewRejects(t *testing.T) {
	u := Step(1e6, 1e4, 0.1, 100)
	for name, err := range map[string]error{
		"no bits":            second(New(u, class, 0)),
		"no members":         second(New(Universe{{1, 1, 0}}, class, 64)),
		"too many functions": second(FromBits([]float64{MaxK + 1}, Rounding{}, class, 64, 0)),
		"no number":          second(FromBits([]float64{math.NaN()}, Dropping, class, 64, 0)),
		"too large a bound":  second(FromBits([]float64{1}, Rounding{Most: MaxK + 1}, class, 64, 0)),
		"a rate of 0":        second(u.Bits(0)),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// The filter of one call has the rate that was asked for, over queries by the frequencies, and
// one of fewer bits has not. By the theorem it takes fewer bits than a standard filter.
func TestNew(t *testing.T) {
	const rate = 0.004
	u := Universe{{Count: 2e4, Frequency: 200, Likelihood: 0.01}, {Count: 1e6, Frequency: 1, Likelihood: 0.03}}
	m, err := u.Bits(rate)
	if err != nil {
		t.Fatal(err)
	}
	if less := float64(m - 1); u.RoundedRate(less, u.Optimal(less), Dropping) <= rate {
		t.Errorf("%v bits suffice, too", less)
	}
	if standard := -u.Members() * math.Log(rate) / (math.Ln2 * math.Ln2); float64(m) > 0.9*standard {
		t.Errorf("%d bits, where a standard filter takes %.0f", m, standard)
	}
	p := population{Universe: u, rng: rand.New(rand.NewPCG(seed, 5))}
	f, err := New(u, class, m)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range u {
		for range int(c.Count * c.Likelihood) {
			b := p.draw(i)
			if f.Add(b); !f.Contains(b) {
				t.Fatalf("% x was added and is not in the filter", b)
			}
		}
	}
	shares := u.Queries()
	hot := shares[0] * u[0].Count
	want := f.FalsePositiveRate(u)
	if want > rate {
		t.Errorf("a rate of %g, where %g was asked for", want, rate)
	}
	hits, trials := 0, trial.Count(want, 0.03)
	for range trials {
		of := 1
		if p.rng.Float64() < hot {
			of = 0
		}
		if f.Contains(p.draw(of)) {
			hits++
		}
	}
	trial.Check(t, hits, trials, want)
}

// A decoded filter answers as the encoded one did, and what is damaged is refused.
func TestEncode(t *testing.T) {
	for _, round := range []Rounding{{}, Dropping, {Probabilistic: true, Most: 30}} {
		p := population{rng: rand.New(rand.NewPCG(seed, 6)), k: []float64{3.5, 9, math.Inf(1), -1}, round: round}
		if round.Most == 0 {
			p.k = p.k[:2]
		}
		f := mustNew(t, 10_007, p)
		for range 1000 {
			f.Add(p.draw(p.rng.IntN(len(p.k))))
		}
		b, err := f.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		g := mustNew(t, 1, population{k: make([]float64, len(p.k))})
		before := *g
		for i := range b {
			damaged := bytes.Clone(b)
			damaged[i] ^= 1 << (i % 8)
			if g.UnmarshalBinary(damaged) == nil || g.UnmarshalBinary(b[:i]) == nil {
				t.Fatalf("%+v: damage at byte %d is not found", round, i)
			}
		}
		if !reflect.DeepEqual(before.words, g.words) || g.m != 1 {
			t.Error("what was refused has changed the filter")
		}
		if err := g.UnmarshalBinary(b); err != nil {
			t.Fatal(err)
		}
		for range 20_000 {
			if e := p.draw(p.rng.IntN(len(p.k))); f.Contains(e) != g.Contains(e) {
				t.Fatalf("% x: %v, and decoded %v", e, f.Contains(e), g.Contains(e))
			}
		}
		if err := new(Filter).UnmarshalBinary(b); err == nil {
			t.Error("a filter without classes was decoded into")
		}
	}
}

// Whatever is accepted is encoded to the same bytes, and takes bounded time to ask.
func FuzzUnmarshal(f *testing.F) {
	filter, _ := New(Step(1000, 10, 0.1, 10), class, 100)
	b, _ := filter.MarshalBinary()
	f.Add(b[:len(b)-8])
	f.Fuzz(func(t *testing.T, b []byte) {
		b = sealed.Seal(b, 0)
		filter, _ := New(Step(1000, 10, 0.1, 10), class, 100)
		if filter.UnmarshalBinary(b) != nil {
			return
		}
		filter.Contains([]byte{1, 0, 7})
		if again, err := filter.MarshalBinary(); err != nil || !bytes.Equal(again, b) {
			t.Errorf("% x is encoded as % x, %v", b, again, err)
		}
	})
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

func BenchmarkFilter(b *testing.B) {
	for _, n := range []int{100000, 1000000} {
		p := population{rng: rand.New(rand.NewPCG(seed, 4)), k: []float64{10, 20}, round: Dropping}
		f := mustNew(b, uint32(14*n), p)
		for range n {
			f.Add(p.draw(0))
		}
		elements := make([][]byte, 1<<16)
		for i := range elements {
			elements[i] = p.draw(i % 16 / 15)
		}
		b.Run(fmt.Sprintf("n=%d/op=query-miss", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				f.Contains(elements[i%len(elements)])
			}
		})
		b.Run(fmt.Sprintf("n=%d/op=add", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				f.Add(elements[i%len(elements)])
			}
		})
	}
}
