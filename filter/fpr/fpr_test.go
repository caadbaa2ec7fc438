package fpr

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/floats/scalar"

	"weir/filter/internal/trial"
	"weir/tests/long"
)

const seed = 20100803

func near(t *testing.T, what string, got, want, relative float64) {
	t.Helper()
	if !scalar.EqualWithinRel(got, want, relative) {
		t.Errorf("%s = %.10g, want %.10g within %.1g", what, got, want, relative)
	}
}

// Reference values of the exact rate, to eight digits.
func TestExactReference(t *testing.T) {
	for _, c := range []struct {
		m, n, k int
		want    float64
	}{
		{2, 1, 2, 0.625},
		{32, 8, 3, 0.15574079},
		{1024, 64, 11, 4.6808047e-4},
		{1 << 20, 104857, 7, 8.1935644e-3},
	} {
		near(t, fmt.Sprintf("Exact(%d, %d, %d)", c.m, c.n, c.k), Exact(c.m, c.n, c.k), c.want, 5e-8)
	}
	near(t, "Classic(2, 1, 2)", Classic(2, 1, 2), 0.5625, 1e-15)
	// By hand: one key's two bits coincide with probability 1/2, and then a
	// query hits with 1/4; otherwise they fill the filter.
	near(t, "by hand", Exact(2, 1, 2), 0.5*0.25+0.5*1, 1e-15)
}

// Figure 2 of Christensen et al.: the share by which the classic formula
// underestimates, with k = round((m/n) ln 2) and n = ⌊m/(m/n)⌋. The values are
// percentages to two decimals, below 0.1 % to three, and are met within one
// unit of the last one.
func TestFigure2(t *testing.T) {
	for _, c := range []struct {
		m    int
		want [4]float64 // percent, at 4, 8, 12 and 16 bits a key
		unit float64    // of the last digit
	}{
		{32, [4]float64{2.64, 12.16, 23.75, 37.48}, 0.01},
		{64, [4]float64{1.35, 6.46, 12.56, 22.04}, 0.01},
		{256, [4]float64{0.34, 1.70, 3.35, 6.31}, 0.01},
		{1024, [4]float64{0.086, 0.43, 0.85, 1.64}, 0.01},
	} {
		for i, perKey := range []int{4, 8, 12, 16} {
			n, k := c.m/perKey, int(math.Round(float64(perKey)*math.Ln2))
			exact := Exact(c.m, n, k)
			if got := 100 * (exact - Classic(c.m, n, k)) / exact; math.Abs(got-c.want[i]) > c.unit {
				t.Errorf("m=%d, m/n=%d: the classic rate is %.3f %% too low, want %.3f %%", c.m, perKey, got, c.want[i])
			}
		}
	}
}

// The closed form agrees with the paper's table and with Bose et al.'s
// integers to nearly all digits of a float64, for every shape where these are
// feasible: heavily loaded, almost empty, more hash functions than bits.
func TestExactAgainstTableAndBose(t *testing.T) {
	for _, m := range []int{1, 2, 3, 8, 32, 100, 512} {
		for _, n := range []int{0, 1, 2, 7, 50, 300} {
			for _, k := range []int{0, 1, 2, 3, 7, 11, 20, 33} {
				exact := Exact(m, n, k)
				near(t, fmt.Sprintf("Exact(%d, %d, %d) against Table", m, n, k), exact, Table(m, n, k), 1e-11)
				if m <= 32 && n <= 50 {
					near(t, fmt.Sprintf("Exact(%d, %d, %d) against Bose", m, n, k), exact, Bose(m, n, k), 1e-14)
				}
			}
		}
	}
	near(t, "large table", Exact(1<<14, 1170, 10), Table(1<<14, 1170, 10), 1e-10)
}

// The rate never falls below the classic one (Christensen et al., equation 6)
// and approaches it from above as m grows, by C(k,2) Var(fill)/fill² to first
// order.
func TestExactAboveClassic(t *testing.T) {
	for m := 16; m <= 1<<30; m *= 4 {
		n, k := m/10, 7
		exact, classic := Exact(m, n, k), Classic(m, n, k)
		if exact <= classic {
			t.Errorf("m=%d: exact %v is not above classic %v", m, exact, classic)
		}
		if m < 1<<12 {
			continue
		}
		clear := math.Exp(-float64(k*n) / float64(m))
		load := float64(k*n) / float64(m)
		variance := clear * (1 - clear*(1+load)) / float64(m) // of the share of bits set
		order := float64(k*(k-1)) / 2 * variance / math.Pow(1-clear, 2)
		near(t, fmt.Sprintf("excess at m=%d", m), exact/classic-1, order, max(20/float64(m), 1e-6)/order)
	}
}

// A filter of no keys has the rate 0, a query of no bits the rate 1, and a
// filter of one set bit contains everything.
func TestExtremes(t *testing.T) {
	for name, rate := range map[string]func(m, n, k int) float64{
		"Classic": Classic, "Bloom1970": Bloom1970, "Exact": Exact, "Table": Table, "Bose": Bose,
		"Blocked": func(m, n, k int) float64 { return Blocked(1, m, n, k) },
		"Split":   func(m, n, k int) float64 { return Split(1, k, m, n) },
	} {
		for _, c := range []struct {
			m, n, k int
			want    float64
		}{{1, 0, 1, 0}, {1, 1, 1, 1}, {1, 5, 0, 1}, {1, 0, 0, 1}, {9, 0, 3, 0}, {9, 4, 0, 1}} {
			if got := rate(c.m, c.n, c.k); got != c.want {
				t.Errorf("%s(%d, %d, %d) = %v, want %v", name, c.m, c.n, c.k, got, c.want)
			}
		}
	}
}

func TestBloom1970(t *testing.T) {
	// By hand: one key with two distinct bits of four fills half of them.
	near(t, "Bloom1970(4, 1, 2)", Bloom1970(4, 1, 2), 0.25, 1e-15)
	// For m ≫ k it is the classic rate (Christensen et al., section 4).
	near(t, "Bloom1970 at large m", Bloom1970(1<<24, 1<<20, 11), Classic(1<<24, 1<<20, 11), 1e-5)
	// Distinct bits set more of the filter.
	if b, c := Bloom1970(64, 8, 5), Classic(64, 8, 5); b <= c {
		t.Errorf("Bloom1970 = %v, want more than the classic %v", b, c)
	}
}

// The survey's rule of thumb: with m = 8n, k of 5 or 6 is "just over 0.02".
func TestEightBitsAKey(t *testing.T) {
	for _, k := range []int{5, 6} {
		if r := Exact(8<<20, 1<<20, k); r < 0.02 || r > 0.022 {
			t.Errorf("Exact at 8 bits a key, k=%d: %v, want just over 0.02", k, r)
		}
	}
}

// No filter beats n·log₂(1/ε) bits; a Bloom filter needs log₂ e = 1.44 times
// that, and with the exact rate and a whole k no less.
func TestSpaceBound(t *testing.T) {
	const n = 100000
	for _, target := range []float64{1e-2, 1e-3, 1e-4, 1e-6} {
		m, _ := Smallest(n, target)
		ratio := float64(m) / (n * math.Log2(1/target))
		if ratio < math.Log2E || ratio > 1.005*math.Log2E {
			t.Errorf("target %v takes %.4f × the lower bound, want %.4f or up to 0.5 %% more", target, ratio, math.Log2E)
		}
	}
}

func TestBestK(t *testing.T) {
	for _, c := range [][2]int{{1, 1}, {1, 9}, {8, 1}, {32, 2}, {32, 4}, {64, 4}, {100, 9}, {512, 32}, {1 << 20, 104857}} {
		m, n := c[0], c[1]
		k, rate := BestK(m, n)
		for other := 1; other <= 2*m/n+3; other++ {
			if r := Exact(m, n, other); r < rate {
				t.Errorf("BestK(%d, %d) = %d with %v, but k=%d has %v", m, n, k, rate, other, r)
			}
		}
		classic := 1
		for other := 1; other <= 2*m/n+3; other++ {
			if Classic(m, n, other) < Classic(m, n, classic) {
				classic = other
			}
		}
		if k > classic {
			t.Errorf("BestK(%d, %d) = %d is above the classic rate's best, %d", m, n, k, classic)
		}
		if rate != Exact(m, n, k) {
			t.Errorf("BestK(%d, %d) returns rate %v for k=%d, which has %v", m, n, rate, k, Exact(m, n, k))
		}
	}
	if k, rate := BestK(64, 0); k != 1 || rate != 0 {
		t.Errorf("BestK(64, 0) = %d, %v, want 1, 0", k, rate)
	}
	// The best of five keys in 64 KiB has 72,681 functions.
	if k, rate := BestK(1<<19, 5); rate != 0 || k > 2000 || Exact(1<<19, 5, k) != 0 {
		t.Errorf("BestK(1<<19, 5) = %d, %v, want at most 2000 with the rate 0", k, rate)
	}
}

func TestSmallest(t *testing.T) {
	for _, n := range []int{1, 3, 8, 64, 1000, 100000} {
		for _, target := range []float64{1, 0.3, 0.01, 1e-4} {
			m, k := Smallest(n, target)
			if r := Exact(m, n, k); r > target {
				t.Errorf("Smallest(%d, %v) = %d, %d, whose rate is %v", n, target, m, k, r)
			}
			if m > 1 {
				if _, r := BestK(m-1, n); r <= target {
					t.Errorf("Smallest(%d, %v) = %d, but %d has %v", n, target, m, m-1, r)
				}
			}
		}
	}
}

func TestPanics(t *testing.T) {
	for what, f := range map[string]func(){
		"m=0":         func() { Exact(0, 1, 1) },
		"n<0":         func() { Classic(1, -1, 1) },
		"k<0":         func() { Table(1, 1, -1) },
		"k>m":         func() { Bloom1970(4, 1, 5) },
		"target 0":    func() { Smallest(1, 0) },
		"target NaN":  func() { Smallest(1, math.NaN()) },
		"no blocks":   func() { Blocked(0, 512, 1, 1) },
		"no lanes":    func() { Split(1, -1, 64, 1) },
		"no lines":    func() { CascadeLayout{First: 5}.Rate(1) },
		"no bits":     func() { CascadeLayout{Lines: 1}.Rate(1) },
		"nine words":  func() { CascadeLayout{Lines: 1, First: 9}.Rate(1) },
		"minus a key": func() { CascadeLayout{Lines: 1, First: 5}.Rate(-1) },
	} {
		t.Run(what, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("did not panic")
				}
			}()
			f()
		})
	}
}

// A fresh filter for each query makes the trials independent.
func TestExactMeasured(t *testing.T) {
	long.Seconds(t)
	for _, c := range []struct{ m, n, k int }{{32, 8, 3}, {32, 2, 11}, {64, 8, 6}, {256, 21, 8}} {
		t.Run(fmt.Sprintf("m=%d/n=%d/k=%d", c.m, c.n, c.k), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(c.m)))
			want := Exact(c.m, c.n, c.k)
			// A third of the difference from the classic rate distinguishes the
			// two.
			trials := trial.Count(want, (want-Classic(c.m, c.n, c.k))/want/3)
			trials = min(trials, 1<<20)
			hits := 0
			filter := make([]bool, c.m)
			for range trials {
				clear(filter)
				for range c.n * c.k {
					filter[rng.IntN(c.m)] = true
				}
				positive := true
				for i := 0; i < c.k && positive; i++ {
					positive = filter[rng.IntN(c.m)]
				}
				if positive {
					hits++
				}
			}
			trial.Check(t, hits, trials, want)
		})
	}
}

func BenchmarkExact(b *testing.B) {
	for _, c := range []struct{ m, n, k int }{{128, 16, 7}, {1 << 20, 104857, 7}, {1 << 30, 1 << 26, 11}, {1 << 20, 1 << 15, 22}} {
		b.Run(fmt.Sprintf("m=%d/k=%d", c.m, c.k), func(b *testing.B) {
			for b.Loop() {
				Exact(c.m, c.n, c.k)
			}
		})
	}
}

func BenchmarkTable(b *testing.B) {
	b.Run("m=1024/k=7", func(b *testing.B) {
		for b.Loop() {
			Table(1024, 102, 7)
		}
	})
}

func BenchmarkSmallest(b *testing.B) {
	b.Run("n=10000000/target=0.001", func(b *testing.B) {
		for b.Loop() {
			Smallest(10000000, 0.001)
		}
	})
}
