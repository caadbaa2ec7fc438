package fpr

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"testing"

	"weir/filter/internal/trial"
	"weir/tests/long"
)

// simulated is the cascade as its layout describes it, with random bits instead
// of hashed ones.
type simulated struct {
	words []uint64
	rng   *rand.Rand
}

// group visits the bits of a random line's group until visit returns false.
func (s simulated) group(bits int, visit func(word *uint64, mask uint64) bool) bool {
	line := s.rng.IntN(len(s.words)/lineWords) * lineWords
	start := s.rng.IntN(lineWords)
	for i := range bits {
		if !visit(&s.words[line+(start+i)%lineWords], 1<<s.rng.IntN(wordBits)) {
			return false
		}
	}
	return true
}

func (s simulated) insert(first, rest int) {
	set := func(word *uint64, mask uint64) bool { *word |= mask; return true }
	s.group(first, set)
	for ; rest > 0; rest -= MaxRest {
		s.group(min(rest, MaxRest), set)
	}
}

func (s simulated) query(first, rest int) (firstLine, positive bool) {
	test := func(word *uint64, mask uint64) bool { return *word&mask != 0 }
	if !s.group(first, test) {
		return false, false
	}
	for ; rest > 0; rest -= MaxRest {
		if !s.group(min(rest, MaxRest), test) {
			return true, false
		}
	}
	return true, true
}

func TestCascadeMeasured(t *testing.T) {
	long.Seconds(t)
	const lines = 4096
	for _, c := range []struct {
		layout  CascadeLayout
		members []Members
	}{
		{CascadeLayout{lines, 5, 2}, []Members{{lines * LineBits / 10, 2}}},
		{CascadeLayout{lines, 5, 3}, []Members{{lines * LineBits / 12, 3}}},
		{CascadeLayout{lines, 5, 6}, []Members{{lines * LineBits / 12, 6}}},
		{CascadeLayout{lines, 6, 0}, []Members{{lines * LineBits / 10, 0}}},
		{CascadeLayout{lines, 8, 0}, []Members{{lines * LineBits / 8, 0}}},
		{CascadeLayout{lines, 5, 9}, []Members{{lines * LineBits / 8, 3}, {lines * LineBits / 80, 14}}},
		{CascadeLayout{lines, 5, 13}, []Members{{lines * LineBits / 18, 13}}},
	} {
		t.Run(fmt.Sprintf("first=%d/rest=%d", c.layout.First, c.layout.Rest), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(c.layout.K())))
			want := c.layout.RateAmong(c.members...)
			const filters = 8
			trials := min(trial.Count(want, 0.03), 1<<24) / filters
			passed, hits := 0, 0
			for range filters {
				s := simulated{words: make([]uint64, lines*lineWords), rng: rng}
				for _, m := range c.members {
					for range m.Keys {
						s.insert(c.layout.First, m.Rest)
					}
				}
				for range trials {
					firstLine, positive := s.query(c.layout.First, c.layout.Rest)
					if firstLine {
						passed++
					}
					if positive {
						hits++
					}
				}
			}
			trial.Check(t, hits, filters*trials, want)
			if len(c.members) == 1 {
				trial.Check(t, passed, filters*trials, c.layout.FirstLine(c.members[0].Keys))
			}
		})
	}
}

// The best layouts at 10 to 16 bits a key, their rates relative to the standard
// filter's optimum, and the share of queries that read a second line; to three
// decimals.
func TestBestCascade(t *testing.T) {
	const n = 1000000
	for _, c := range []struct {
		perKey, rest     int
		ratio, firstLine float64
	}{
		{10, 2, 1.062, 0.034},
		{12, 3, 1.086, 0.029},
		{14, 4, 1.131, 0.026},
		{16, 6, 1.193, 0.033},
	} {
		layout := BestCascade(n, uint32(n*c.perKey/LineBits), MaxFurther)
		if layout.First != ApproxFirst || layout.Rest != c.rest {
			t.Errorf("%d bits a key: %+v, want %d+%d", c.perKey, layout, ApproxFirst, c.rest)
		}
		_, optimum := BestK(layout.Bits(), n)
		if got := layout.Rate(n) / optimum; math.Abs(got-c.ratio) > 0.001 {
			t.Errorf("%d bits a key: %.4f × the standard filter's rate, want %.3f", c.perKey, got, c.ratio)
		}
		if got := layout.FirstLine(n); math.Abs(got-c.firstLine) > 0.0006 {
			t.Errorf("%d bits a key: %.4f pass the first line, want %.3f", c.perKey, got, c.firstLine)
		}
	}
}

// Low rates take little more than a standard filter, which takes 1.44 times the lower
// bound.
func TestLowRates(t *testing.T) {
	const n = 1000000
	for rate, most := range map[float64]float64{1e-3: 1.5, 1e-6: 1.55, 1e-9: 1.7} {
		bits := sort.Search(100*100, func(i int) bool {
			return BestCascade(n, uint32(n*float64(i+100)/100/LineBits), MaxFurther).Rate(n) <= rate
		})
		got := float64(bits+100) / 100 / -math.Log2(rate)
		t.Logf("rate %g: %.2f bits a key, %.3f times the lower bound", rate, float64(bits+100)/100, got)
		if got > most {
			t.Errorf("rate %g: %.3f times the lower bound, want %v", rate, got, most)
		}
	}
}

// A larger filter is never worse than a smaller one, as far as that matters.
func TestLargerIsNoWorse(t *testing.T) {
	for _, n := range []int{1, 10, 100, 1000, 30000, 1000000} {
		best := CascadeLayout{}
		least := 1.0
		for lines := uint32(1); int(lines)*LineBits <= 100*n+LineBits; lines += 1 + lines/40 {
			c := BestCascade(n, lines, MaxFurther)
			rate := max(c.Rate(n), LowEnough)
			if rate > least*(1+1e-9) {
				t.Errorf("%d keys: %+v has the rate %g, and the smaller %+v %g", n, c, rate, best, least)
			}
			best, least = c, rate
		}
		if n > 1 && least > LowEnough {
			t.Errorf("%d keys: a hundred bits each leave the rate at %g", n, least)
		}
	}
}

// Cases that can be computed by hand.
func TestCascadeByHand(t *testing.T) {
	one := CascadeLayout{Lines: 1, First: 1}
	near(t, "one bit, one key", one.Rate(1), 1./512, 1e-12)
	near(t, "one bit, no key", one.Rate(0), 0, 0)
	// Eight words are always all covered: a split filter of eight lanes.
	near(t, "all words", CascadeLayout{Lines: 1000, First: 8}.Rate(50000), Split(1000, 8, 64, 50000), 1e-9)
	near(t, "two lines are two tests", CascadeLayout{Lines: 100, First: 3, Rest: 3}.Rate(1000),
		math.Pow(CascadeLayout{Lines: 100, First: 3, Rest: 3}.FirstLine(1000), 2), 1e-12)
	// Against one key, the line, the starting word and each bit must coincide.
	near(t, "almost empty", CascadeLayout{Lines: 1e6, First: 2}.Rate(1), 1e-6/8/64/64, 1e-9)
}

func BenchmarkCascadeRate(b *testing.B) {
	b.Run("first=5/rest=6", func(b *testing.B) {
		c := CascadeLayout{Lines: 31250, First: 5, Rest: 6}
		for b.Loop() {
			c.Rate(1000000)
		}
	})
}
