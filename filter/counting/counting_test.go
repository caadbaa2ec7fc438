package counting

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat/distuv"

	"weir/filter/bloom"
	"weir/filter/hash"
	"weir/filter/internal/trial"
	"weir/tests/must"
	"weir/tests/timed"
)

const seed = 20000601

func standard(m uint32, k int) bloom.Geometry    { return must.Have(bloom.Standard(m, k)) }
func partitioned(m uint32, k int) bloom.Geometry { return must.Have(bloom.Partitioned(m, k)) }

func newRand(t testing.TB) *rand.Rand {
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// After random insertions and deletions the filter equals one built from the
// remaining elements, counter by counter, and its bits equal their
// standard filter.
func TestRemoveUndoesAdd(t *testing.T) {
	for _, g := range []bloom.Geometry{standard(20_001, 5), partitioned(20_001, 7)} {
		rng := newRand(t)
		f := New(g, seed)
		var set []uint64
		for range 10_000 {
			if len(set) > 0 && rng.IntN(10) < 4 {
				i := rng.IntN(len(set))
				if !f.RemoveHash(set[i]) {
					t.Fatal("an element cannot be removed")
				}
				set[i] = set[len(set)-1]
				set = set[:len(set)-1]
			} else {
				set = append(set, rng.Uint64())
				f.AddHash(set[len(set)-1])
			}
		}
		want, bits := New(g, seed), bloom.New(g, seed)
		for _, h := range set {
			want.AddHash(h)
			bits.AddHash(h)
			if !f.ContainsHash(h) {
				t.Fatal("an element of the set is not found")
			}
		}
		if f.Saturated() > 0 {
			t.Fatal("a counter saturated: choose a larger filter")
		}
		for i := range uint64(g.M()) {
			if f.counters.Get(i) != want.counters.Get(i) {
				t.Fatalf("counter %d is %d, want %d", i, f.counters.Get(i), want.counters.Get(i))
			}
		}
		if !f.Bits().Equal(bits) {
			t.Error("the bits differ from the standard filter's")
		}
		if f.FillRatio() != bits.FillRatio() {
			t.Errorf("fill ratio %v, the bits have %v", f.FillRatio(), bits.FillRatio())
		}
	}
}

func TestRemoveAbsent(t *testing.T) {
	f := New(standard(1000, 5), seed)
	f.Add([]byte("present"))
	before := f.Bits()
	if f.Remove([]byte("absent")) {
		t.Error("an absent element was removed")
	}
	if !f.Bits().Equal(before) {
		t.Error("a rejected deletion changed the filter")
	}
	if !f.Remove([]byte("present")) || f.Contains([]byte("present")) {
		t.Error("the element is still there")
	}
	if f.Remove([]byte("present")) {
		t.Error("it was removed a second time")
	}
}

// A counter that overflowed stays, so that no deletion causes a false negative.
func TestSaturatedStays(t *testing.T) {
	f := New(standard(1, 1), seed)
	for range Max + 5 {
		f.AddHash(1)
	}
	for range 100 {
		if !f.RemoveHash(1) {
			t.Fatal("an element cannot be removed")
		}
	}
	if !f.ContainsHash(2) || f.Saturated() != 1 {
		t.Error("a saturated counter was decremented")
	}
}

// The measured false-positive rate equals the standard filter's within 3 %,
// even after the same number of other elements was inserted and deleted.
func TestFalsePositiveRate(t *testing.T) {
	const n = 50_000
	g := standard(8*n, 5)
	rng := newRand(t)
	f := New(g, seed)
	for range n {
		gone := rng.Uint64()
		f.AddHash(gone)
		f.AddHash(rng.Uint64())
		if !f.RemoveHash(gone) {
			t.Fatal("an element cannot be removed")
		}
	}
	rate := g.FalsePositiveRate(n)
	hits, trials := 0, trial.Count(rate, 0.03)
	for range trials {
		if f.ContainsHash(rng.Uint64()) {
			hits++
		}
	}
	trial.Check(t, hits, trials, rate)
}

// Section 2.5 states 1.37·10⁻¹⁵ m, to three digits, for 4-bit counters at the
// optimal k; the binomial tail itself is smaller.
func TestOverflowBound(t *testing.T) {
	if got := OverflowBound(1); math.Abs(got-1.37e-15) > 0.005e-15 {
		t.Errorf("bound for one counter is %g, want 1.37e-15", got)
	}
	if got := OverflowBound(math.MaxUint64); got != 1 {
		t.Errorf("bound for 2⁶⁴ counters is %g, want 1", got)
	}
	const m, n = 1 << 20, 1 << 17
	for _, g := range []bloom.Geometry{standard(m, 5), partitioned(m, 5)} {
		for j := 1; j <= 20; j++ {
			if tail, bound := TailBound(g, n, j), MaxBound(m, j); tail > bound {
				t.Errorf("j = %d: tail %g exceeds the bound %g", j, tail, bound)
			}
		}
	}
	// The bound for any k holds, also where there are more hash functions than are best,
	// for which MaxBound does not.
	for k := 1; k <= 40; k++ {
		for j := 1; j <= 20; j++ {
			if tail, bound := TailBound(standard(m, k), n, j), Bound(m, n, k, j); tail > bound {
				t.Errorf("k = %d, j = %d: tail %g exceeds the bound %g", k, j, tail, bound)
			}
		}
	}
	if TailBound(standard(m, 20), n, Max+1) < OverflowBound(m) {
		t.Error("20 hash functions do not exceed the bound for the best number")
	}
	for _, c := range []struct {
		g    bloom.Geometry
		n    uint64
		j    int
		want float64
	}{
		{standard(8, 1), 2, 2, 8 * 1.0 / 64},
		{standard(8, 2), 1, 2, 8 * 1.0 / 64},
		{partitioned(12, 3), 2, 2, 12 * 1.0 / 16},
		{standard(100, 1), 3, 2, 100 * (3*0.01*0.01*0.99 + 0.01*0.01*0.01)},
		{standard(m, 3), 5, 16, 0}, // 15 increments
	} {
		if got := TailBound(c.g, c.n, c.j); math.Abs(got-c.want) > 1e-12*c.want {
			t.Errorf("TailBound(%+v, %d, %d) is %g, want %g", c.g, c.n, c.j, got, c.want)
		}
	}
}

// The values of the counters follow the binomial distribution of section 2.5:
// the number of counters that are at least j
// lies within 4.9 standard deviations, chance 10⁻⁶, of its expectation.
func TestCountersAreBinomial(t *testing.T) {
	const m, n, k = 1 << 20, 1 << 17, 5
	rng := newRand(t)
	f := New(standard(m, k), seed)
	for range n {
		f.AddHash(rng.Uint64())
	}
	var atLeast [Max + 1]float64
	for i := range uint64(m) {
		for j := range int(f.counters.Get(i)) + 1 {
			atLeast[j]++
		}
	}
	c := distuv.Binomial{N: n * k, P: 1.0 / m}
	for j := 1; j <= 6; j++ {
		p := c.Survival(float64(j) - 1)
		if got, mean, sd := atLeast[j], m*p, math.Sqrt(m*p*(1-p)); math.Abs(got-mean) > 4.9*sd {
			t.Errorf("%v counters are at least %d, want %.1f ± %.1f", got, j, mean, sd)
		}
	}
}

// Estimates of minimum selection are wrong at the false-positive rate of the
// standard filter, here within 15 %: an element of the set is tested against
// the n − 1 others. Those of minimal increase are never larger. Neither is ever
// too small.
func TestSpectralErrors(t *testing.T) {
	const n = 100_000
	g := standard(8*n, 5)
	rate := g.FalsePositiveRate(n - 1)
	if need := trial.Count(rate, 0.15); need > n {
		t.Fatalf("%d elements are too few to judge, need %d", n, need)
	}
	// Element i occurs 1 + n/10i times.
	rng := newRand(t)
	count := make(map[uint64]uint32, n)
	var stream []uint64
	for i := range n {
		h := rng.Uint64()
		count[h] = uint32(1 + n/10/(i+1))
		stream = append(stream, slices.Repeat([]uint64{h}, int(count[h]))...)
	}
	rng.Shuffle(len(stream), func(i, j int) { stream[i], stream[j] = stream[j], stream[i] })

	ms, mi := NewMinimumSelection(g, seed), NewMinimalIncrease(g, seed)
	for _, h := range stream {
		ms.AddHash(h, 1)
		mi.AddHash(h, 1)
	}
	var msErrors, miErrors int
	for h, want := range count {
		s, i := ms.CountHash(h), mi.CountHash(h)
		if i < want || s < i {
			t.Fatalf("minimum selection returns %d, minimal increase %d for %d", s, i, want)
		}
		if s != want {
			msErrors++
		}
		if i != want {
			miErrors++
		}
	}
	trial.Check(t, msErrors, n, rate)
	t.Logf("minimal increase is wrong for %d", miErrors)
	if 2*miErrors > msErrors {
		t.Error("minimal increase does not halve the errors of minimum selection")
	}
}

func TestSpectralRemove(t *testing.T) {
	g := standard(4001, 4)
	rng := newRand(t)
	f, want := NewMinimumSelection(g, seed), NewMinimumSelection(g, seed)
	for range 500 {
		stays, goes := rng.Uint64(), rng.Uint64()
		f.AddHash(stays, 3)
		f.AddHash(goes, 7)
		want.AddHash(stays, 3)
		want.AddHash(stays, 2)
		f.AddHash(stays, 2)
		if !f.RemoveHash(goes, 7) {
			t.Fatal("an element cannot be removed")
		}
	}
	for i, c := range f.counters {
		if c != want.counters[i] {
			t.Fatalf("counter %d is %d, want %d", i, c, want.counters[i])
		}
	}
	h := rng.Uint64()
	f.AddHash(h, 2)
	if f.RemoveHash(h, 1000) || f.CountHash(h) < 2 {
		t.Errorf("more was removed than was added, %d are left", f.CountHash(h))
	}
}

func TestSpectralSaturates(t *testing.T) {
	g := standard(10, 2)
	ms, mi := NewMinimumSelection(g, seed), NewMinimalIncrease(g, seed)
	for range 2 {
		ms.AddHash(1, math.MaxUint32-1)
		mi.AddHash(1, math.MaxUint32-1)
	}
	if ms.CountHash(1) != math.MaxUint32 || mi.CountHash(1) != math.MaxUint32 {
		t.Error("a counter wrapped around")
	}
	if !ms.RemoveHash(1, 5) || ms.CountHash(1) != math.MaxUint32 {
		t.Error("a saturated counter was decremented")
	}
}

func TestBytesAreHashedWithSeed(t *testing.T) {
	g := standard(1000, 3)
	for i := range 50 {
		b := fmt.Append(nil, i)
		h := hash.Sum(seed, b)
		f, ms, mi := New(g, seed), NewMinimumSelection(g, seed), NewMinimalIncrease(g, seed)
		f.Add(b)
		ms.Add(b)
		mi.Add(b)
		if !f.ContainsHash(h) || !f.Contains(b) || f.Seed() != seed {
			t.Errorf("%d is not found", i)
		}
		if ms.Count(b) != 1 || ms.CountHash(h) != 1 || mi.Count(b) != 1 {
			t.Errorf("%d is not counted once", i)
		}
		if !ms.Remove(b) || ms.Count(b) != 0 {
			t.Errorf("%d is not removed", i)
		}
	}
}

// A look-up takes at most twice the time that it takes in a standard filter of the same geometry.
// Adding is only logged: counters have four times the memory of bits. Both take turns at pieces of the keys, and of each piece the fastest time counts,
// since all else that the machine does can only add to it.
func TestTakesAtMostTwice(t *testing.T) {
	timed.Alone(t)
	const n, piece, rounds = 1_000_000, 20_000, 5
	g := must.Have(bloom.For(n, 0.0082)) // 10 bits an element, 7 hash functions
	standard, f := bloom.New(g, seed), New(g, seed)
	present, absent := make([]uint64, n), make([]uint64, n)
	for i := range uint64(n) {
		present[i], absent[i] = hash.Nth(seed, i), hash.Nth(seed+1, i)
		standard.AddHash(present[i])
		f.AddHash(present[i])
	}
	for _, c := range []struct {
		name     string
		keys     []uint64
		one, two func(h uint64)
	}{
		{"present", present, func(h uint64) { standard.ContainsHash(h) }, func(h uint64) { f.ContainsHash(h) }},
		{"absent", absent, func(h uint64) { standard.ContainsHash(h) }, func(h uint64) { f.ContainsHash(h) }},
		{"add", absent, bloom.New(g, seed).AddHash, New(g, seed).AddHash},
	} {
		var one, two time.Duration
		for keys := range slices.Chunk(c.keys, piece) {
			fastest := [2]time.Duration{time.Hour, time.Hour}
			for range rounds {
				for i, do := range [2]func(h uint64){c.one, c.two} {
					start := time.Now()
					for _, h := range keys {
						do(h)
					}
					fastest[i] = min(fastest[i], time.Since(start))
				}
			}
			one, two = one+fastest[0], two+fastest[1]
		}
		ratio := float64(two) / float64(one)
		t.Logf("%s: %d and %d ns, %.2f times", c.name, one/n, two/n, ratio)
		if c.name != "add" && ratio > 2 {
			t.Errorf("%s: a counting filter takes %.2f times as long as a standard filter", c.name, ratio)
		}
	}
}

func BenchmarkFilter(b *testing.B) {
	const n = 1_000_000
	f := New(standard(16*n, 11), seed)
	for i := range uint64(n) {
		f.AddHash(hash.Nth(seed, i))
	}
	run(b, "op=add+remove", func(i uint64) {
		f.AddHash(hash.Nth(seed, i+n))
		f.RemoveHash(hash.Nth(seed, i+n))
	})
	run(b, "op=query-hit", func(i uint64) { f.ContainsHash(hash.Nth(seed, i%n)) })
	run(b, "op=query-miss", func(i uint64) { f.ContainsHash(hash.Nth(seed, i+n)) })
	b.Run("op=bits", func(b *testing.B) {
		b.SetBytes(int64(f.M()) / 2)
		for b.Loop() {
			f.Bits()
		}
	})
}

func BenchmarkSpectral(b *testing.B) {
	const n = 1_000_000
	g := standard(8*n, 5)
	for _, s := range []struct {
		name string
		f    interface {
			AddHash(h uint64, times uint32)
			CountHash(h uint64) uint32
		}
	}{
		{"minimum-selection", NewMinimumSelection(g, seed)},
		{"minimal-increase", NewMinimalIncrease(g, seed)},
	} {
		run(b, "policy="+s.name+"/op=add", func(i uint64) { s.f.AddHash(hash.Nth(seed, i%n), 1) })
		run(b, "policy="+s.name+"/op=query", func(i uint64) { s.f.CountHash(hash.Nth(seed, i%n)) })
	}
}

func run(b *testing.B, name string, do func(i uint64)) {
	b.Run(name, func(b *testing.B) {
		i := uint64(0)
		for b.Loop() {
			do(i)
			i++
		}
	})
}
