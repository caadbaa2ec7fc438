package bloom_test

import (
	"encoding"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"weir/filter/bloom"
	"weir/filter/hash"
	"weir/filter/internal/trial"
	"weir/tests/must"
)

const seed = 20040413

var (
	_ encoding.BinaryAppender    = (*bloom.Filter)(nil)
	_ encoding.BinaryMarshaler   = (*bloom.Filter)(nil)
	_ encoding.BinaryUnmarshaler = (*bloom.Filter)(nil)
)

// geometries are those over which the properties of every filter are tested.
var geometries = []bloom.Geometry{
	standard(1, 1), standard(64, 3), standard(1000, 7), standard(1<<16, 11),
	partitioned(5, 5), partitioned(1000, 7), partitioned(1<<16, 8),
}

func standard(m uint32, k int) bloom.Geometry    { return must.Have(bloom.Standard(m, k)) }
func partitioned(m uint32, k int) bloom.Geometry { return must.Have(bloom.Partitioned(m, k)) }

func name(g bloom.Geometry) string {
	kind := "standard"
	if g.Partitioned() {
		kind = "partitioned"
	}
	return fmt.Sprintf("%s/m=%d/k=%d", kind, g.M(), g.K())
}

// fill returns a filter of n random elements.
func fill(g bloom.Geometry, n int, rng *rand.Rand) *bloom.Filter {
	f := bloom.New(g, seed)
	for range n {
		f.AddHash(rng.Uint64())
	}
	return f
}

func newRand(t testing.TB) *rand.Rand {
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

func TestGeometryRejects(t *testing.T) {
	for _, c := range []struct {
		m uint32
		k int
	}{{0, 1}, {1, 0}, {1, -1}, {1000, bloom.MaxK + 1}} {
		if _, err := bloom.Standard(c.m, c.k); err == nil {
			t.Errorf("Standard(%d, %d): no error", c.m, c.k)
		}
		if _, err := bloom.Partitioned(c.m, c.k); err == nil {
			t.Errorf("Partitioned(%d, %d): no error", c.m, c.k)
		}
	}
	if _, err := bloom.Partitioned(4, 5); err == nil {
		t.Error("Partitioned(4, 5): no error")
	}
	if g := partitioned(1003, 7); g.M() != 1001 {
		t.Errorf("7 slices of 1003 bits have %d, want 1001", g.M())
	}
}

// Hash functions of a partitioned filter stay in their slices, and every bit is
// reachable.
func TestPosition(t *testing.T) {
	rng := newRand(t)
	for _, g := range []bloom.Geometry{standard(70, 3), partitioned(70, 7)} {
		seen := make([]int, g.M())
		for range 10_000 {
			h := rng.Uint64()
			for i := range g.K() {
				p := g.Position(h, i)
				seen[p]++
				if g.Partitioned() && p/10 != uint32(i) {
					t.Fatalf("%s: hash %d selects bit %d", name(g), i, p)
				}
			}
		}
		for p, n := range seen {
			if n == 0 {
				t.Errorf("%s: no hash selects bit %d", name(g), p)
			}
		}
	}
}

func TestNoFalseNegatives(t *testing.T) {
	for _, g := range geometries {
		t.Run(name(g), func(t *testing.T) {
			f := bloom.New(g, seed)
			if f.Contains([]byte("x")) {
				t.Fatal("the empty filter contains something")
			}
			for i := range 2000 {
				b := fmt.Append(nil, i)
				f.Add(b)
				if !f.Contains(b) || !f.ContainsHash(hash.Sum(seed, b)) {
					t.Fatalf("%d is not in the filter", i)
				}
			}
			for i := range 2000 {
				if !f.Contains(fmt.Append(nil, i)) {
					t.Fatalf("%d is no longer in the filter", i)
				}
			}
		})
	}
}

// The measured false-positive rate is f' within 3 %. The filter is so large
// that the spread of its fill ratio, about 1/√m, is far below that.
func TestFalsePositiveRate(t *testing.T) {
	const n = 100_000
	for _, g := range []bloom.Geometry{
		standard(8*n, 5), standard(8*n, 6), standard(12*n, 8),
		partitioned(8*n, 5), partitioned(12*n, 8),
	} {
		t.Run(name(g), func(t *testing.T) {
			rng := newRand(t)
			f := fill(g, n, rng)
			rate := g.FalsePositiveRate(n)
			hits, trials := 0, trial.Count(rate, 0.03)
			for range trials {
				if f.ContainsHash(rng.Uint64()) {
					hits++
				}
			}
			trial.Check(t, hits, trials, rate)
		})
	}
}

// For the partitioned filter f' is exact, however small it is: over all filters
// of seven elements the rate is f' within 1 %.
func TestPartitionedRateIsExact(t *testing.T) {
	g := partitioned(40, 4)
	rng := newRand(t)
	rate := g.FalsePositiveRate(7)
	hits, trials := 0, trial.Count(rate, 0.01)
	for range trials {
		if fill(g, 7, rng).ContainsHash(rng.Uint64()) {
			hits++
		}
	}
	trial.Check(t, hits, trials, rate)
}

func TestRateFormulas(t *testing.T) {
	near := func(what string, got, want, tolerance float64) {
		t.Helper()
		if math.Abs(got-want) > tolerance*math.Abs(want) {
			t.Errorf("%s is %.10g, want %.10g", what, got, want)
		}
	}
	// The classic rate of two bits, one element, two hashes.
	near("f'(2,1,2)", standard(2, 2).FalsePositiveRate(1), 0.5625, 1e-12)
	// Section 2.3: "just over 0.02" at m = 8n.
	const n = 1 << 20
	for _, k := range []int{5, 6} {
		if f := standard(8*n, k).FalsePositiveRate(n); f < 0.02 || f > 0.022 {
			t.Errorf("rate at m = 8n, k = %d is %v, want just over 0.02", k, f)
		}
	}
	// Section 2.1: the partitioned rate is the larger one, equal for k = 1.
	for k := 1; k < 20; k++ {
		s, p := standard(9600, k).FalsePositiveRate(800), partitioned(9600, k).FalsePositiveRate(800)
		if k == 1 && s != p || k > 1 && s > p {
			t.Errorf("k = %d: standard %v, partitioned %v", k, s, p)
		}
	}
	// Section 2.2: the lower bound is log₂e = 1.44 times smaller, and Bits bits
	// achieve the rate with k = −log₂ ε, if that is an integer.
	near("overhead", bloom.Bits(n, 1e-3)/bloom.LowerBound(n, 1e-3), 1.4426950408889634, 1e-12)
	near("lower bound", bloom.LowerBound(n, 1.0/1024), 10*n, 1e-12)
	near("rate at Bits", standard(uint32(bloom.Bits(n, 1.0/1024)), 10).FalsePositiveRate(n), 1.0/1024, 1e-5)
	// (0.6185)^(m/n), section 2.1.
	near("best rate", standard(14*n, bloom.OptimalK(14*n, n)).FalsePositiveRate(n), math.Pow(0.6185, 14), 0.02)
	if g := standard(1, 1); g.ZeroFraction(0) != 1 || g.ZeroFraction(1) != 0 || g.FalsePositiveRate(0) != 0 {
		t.Error("a filter of one bit is empty with no element, full with one")
	}
}

func TestOptimalKIsBest(t *testing.T) {
	for _, c := range []struct {
		m uint32
		n uint64
	}{{1, 1}, {100, 1000}, {100, 100}, {1000, 180}, {1600, 100}, {4800, 100}, {1 << 31, 1 << 30}} {
		best := bloom.OptimalK(c.m, c.n)
		for k := 1; k <= 60; k++ {
			if standard(c.m, k).FalsePositiveRate(c.n) < standard(c.m, best).FalsePositiveRate(c.n) {
				t.Errorf("m = %d, n = %d: k = %d is better than %d", c.m, c.n, k, best)
			}
		}
	}
	if k := bloom.OptimalK(1<<30, 0); k != bloom.MaxK {
		t.Errorf("without elements k = %d, want %d", k, bloom.MaxK)
	}
}

func TestUnionIsFilterOfUnion(t *testing.T) {
	for _, g := range geometries {
		rng := newRand(t)
		a, b := bloom.New(g, seed), bloom.New(g, seed)
		both := bloom.New(g, seed)
		for range 100 {
			x, y := rng.Uint64(), rng.Uint64()
			a.AddHash(x)
			b.AddHash(y)
			both.AddHash(x)
			both.AddHash(y)
		}
		before := b.Clone()
		if err := a.Union(b); err != nil || !a.Equal(both) {
			t.Errorf("%s: union differs from the filter of the union, %v", name(g), err)
		}
		if !b.Equal(before) {
			t.Errorf("%s: union changed its argument", name(g))
		}
	}
}

func TestIntersectKeepsBoth(t *testing.T) {
	for _, g := range geometries {
		rng := newRand(t)
		a, b := fill(g, 50, rng), fill(g, 50, rng)
		var common []uint64
		for range 50 {
			h := rng.Uint64()
			common = append(common, h)
			a.AddHash(h)
			b.AddHash(h)
		}
		ones := a.Ones()
		if err := a.Intersect(b); err != nil {
			t.Fatal(err)
		}
		for _, h := range common {
			if !a.ContainsHash(h) {
				t.Fatalf("%s: an element of both sets is lost", name(g))
			}
		}
		if a.Ones() > ones {
			t.Errorf("%s: AND set bits", name(g))
		}
	}
}

// A halved filter is the filter of half the size, whether or not the size is a
// power of two.
func TestHalveIsFilterOfHalfSize(t *testing.T) {
	for _, c := range []struct{ full, half bloom.Geometry }{
		{standard(2, 1), standard(1, 1)},
		{standard(130, 3), standard(65, 3)},
		{standard(1<<12, 7), standard(1<<11, 7)},
		{partitioned(7*130, 7), partitioned(7*65, 7)},
		{partitioned(1<<12, 8), partitioned(1<<11, 8)},
	} {
		rng := newRand(t)
		f, want := bloom.New(c.full, seed), bloom.New(c.half, seed)
		for range 60 {
			h := rng.Uint64()
			f.AddHash(h)
			want.AddHash(h)
		}
		if err := f.Halve(); err != nil || !f.Equal(want) {
			t.Errorf("%s: halved differs from built at half the size, %v", name(c.full), err)
		}
	}
	f := fill(partitioned(21, 7), 3, newRand(t)) // slices of three bits
	before := f.Clone()
	if err := f.Halve(); err == nil || !f.Equal(before) {
		t.Error("a filter with slices of three bits was halved or changed")
	}
}

func TestIncompatible(t *testing.T) {
	f := bloom.New(standard(70, 7), 1)
	for _, o := range []*bloom.Filter{
		bloom.New(standard(70, 7), 2),
		bloom.New(standard(70, 6), 1),
		bloom.New(standard(71, 7), 1),
		bloom.New(partitioned(70, 7), 1),
	} {
		_, err1 := f.IntersectionSize(o)
		_, err2 := f.IntersectionSizeOf(o, 1, 1)
		for i, err := range []error{f.Union(o), f.Intersect(o), err1, err2} {
			if !errors.Is(err, bloom.ErrIncompatible) {
				t.Errorf("operation %d with %s: %v", i, name(o.Geometry), err)
			}
		}
	}
}

// Estimates of both sizes stay within five standard deviations. The standard
// deviation of the number of zero bits is at most √(m·p(1−p)); one element
// clears about k·p of them.
func TestEstimates(t *testing.T) {
	const n1, n2, common = 20_000, 30_000, 8_000
	for _, g := range []bloom.Geometry{standard(400_000, 6), partitioned(400_002, 6)} {
		t.Run(name(g), func(t *testing.T) {
			rng := newRand(t)
			a, b := fill(g, n1-common, rng), fill(g, n2-common, rng)
			for range common {
				h := rng.Uint64()
				a.AddHash(h)
				b.AddHash(h)
			}
			check := func(what string, got, want float64, n uint64) {
				t.Helper()
				p := g.ZeroFraction(n)
				bound := 5 * math.Sqrt(float64(g.M())*p*(1-p)) / (float64(g.K()) * p)
				t.Logf("%s: %.1f, true %.0f, bound %.0f", what, got, want, bound)
				if math.Abs(got-want) > bound {
					t.Errorf("%s is %.1f, want %.0f ± %.0f", what, got, want, bound)
				}
			}
			check("|S1|", a.Cardinality(), n1, n1)
			check("|S2|", b.Cardinality(), n2, n2)
			check("|S1 ∩ S2|", must.Have(a.IntersectionSize(b)), common, n1+n2-common)
			check("|S1 ∩ S2| of known sizes", must.Have(a.IntersectionSizeOf(b, n1, n2)), common, n1+n2-common)

			// The formula as the paper writes it.
			z1, z2 := float64(g.M()-a.Ones()), float64(g.M()-b.Ones())
			inner := a.Clone()
			if err := inner.Intersect(b); err != nil {
				t.Fatal(err)
			}
			z12 := float64(g.M() - inner.Ones())
			m, q := float64(g.M()), g.ZeroFraction(1)
			paper := -math.Log(m*(z1+z2-z12)/(z1*z2)) / math.Log(q)
			if got := must.Have(a.IntersectionSize(b)); math.Abs(got-paper) > 1e-6*paper {
				t.Errorf("estimate %v, paper's formula %v", got, paper)
			}
		})
	}
}

func TestEstimatesAtTheEdges(t *testing.T) {
	g := standard(64, 2)
	empty, full := bloom.New(g, seed), fill(g, 10_000, newRand(t))
	if c := empty.Cardinality(); c != 0 {
		t.Errorf("the empty filter has cardinality %v", c)
	}
	if c := full.Cardinality(); !math.IsInf(c, 1) || full.FillRatio() != 1 {
		t.Errorf("the full filter has cardinality %v", c)
	}
	if n := must.Have(empty.IntersectionSize(empty)); n != 0 {
		t.Errorf("empty sets have %v in common", n)
	}
	if n := must.Have(empty.IntersectionSize(full)); !math.IsInf(n, 1) {
		t.Errorf("with a full filter the estimate is %v", n)
	}
	if n := must.Have(full.IntersectionSizeOf(full, 5, 3)); n != 0 && n != 3 {
		t.Errorf("estimate %v is outside of 0…3", n)
	}
}

func TestEncoding(t *testing.T) {
	for _, g := range geometries {
		f := fill(g, 20, newRand(t))
		b := must.Have(f.MarshalBinary())
		var d bloom.Filter
		if err := d.UnmarshalBinary(b); err != nil || !d.Equal(f) {
			t.Errorf("%s: decoded filter differs, %v", name(g), err)
		}
		appended := must.Have(f.AppendBinary([]byte("head")))
		if string(appended) != "head"+string(b) {
			t.Errorf("%s: AppendBinary and MarshalBinary differ", name(g))
		}
	}
}

// sealed returns b with a valid checksum, so that decoding gets past it.
func sealed(b []byte) []byte {
	if len(b) < 8 {
		return b
	}
	body := b[: len(b)-8 : len(b)-8]
	return binary.LittleEndian.AppendUint64(body, hash.Sum(0, body))
}

// malformed returns one mutation for each reason to reject an encoding.
func malformed() map[string][]byte {
	mutate := func(g bloom.Geometry, change func(b []byte) []byte) []byte {
		f := bloom.New(g, seed)
		f.AddHash(1)
		return change(must.Have(f.MarshalBinary()))
	}
	set := func(offset int, v byte) func([]byte) []byte {
		return func(b []byte) []byte { b[offset] = v; return sealed(b) }
	}
	s, p := standard(70, 3), partitioned(70, 7)
	return map[string][]byte{
		"empty":            nil,
		"short":            mutate(s, func(b []byte) []byte { return b[:31] }),
		"magic":            mutate(s, set(0, 'X')),
		"version":          mutate(s, set(4, 2)),
		"reserved":         mutate(s, set(5, 1)),
		"kind":             mutate(s, set(8, 2)),
		"k is 0":           mutate(s, set(9, 0)),
		"geometry zeros":   mutate(s, set(10, 1)),
		"m is 0":           mutate(s, set(12, 0)),
		"m for more words": mutate(s, set(13, 1)),
		"slices":           mutate(p, set(12, 71)),
		"stray bit":        mutate(s, set(24+15, 0x80)),
		"word missing": mutate(s, func(b []byte) []byte {
			return sealed(b[:len(b)-8])
		}),
		"trailing byte": mutate(s, func(b []byte) []byte { return sealed(append(b, 0)) }),
		"checksum":      mutate(s, func(b []byte) []byte { b[len(b)-1]++; return b }),
		"damage":        mutate(s, func(b []byte) []byte { b[25]++; return b }),
	}
}

func TestDecodeRejects(t *testing.T) {
	for what, b := range malformed() {
		f := fill(standard(70, 3), 5, newRand(t))
		before := f.Clone()
		if err := f.UnmarshalBinary(b); err == nil {
			t.Errorf("%s: no error", what)
		} else {
			t.Logf("%s: %v", what, err)
		}
		if !f.Equal(before) {
			t.Errorf("%s: the receiver changed", what)
		}
	}
	var g bloom.Geometry
	if err := g.UnmarshalBinary([]byte{0, 3, 0, 0, 70}); err == nil || g != (bloom.Geometry{}) {
		t.Error("a short geometry was accepted")
	}
}

func FuzzUnmarshal(f *testing.F) {
	for _, b := range malformed() {
		f.Add(b)
	}
	for _, g := range geometries[:3] {
		f.Add(must.Have(bloom.New(g, seed).MarshalBinary()))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, sealed(b)} {
			d := bloom.New(standard(70, 3), seed)
			before := d.Clone()
			if err := d.UnmarshalBinary(b); err != nil {
				if !d.Equal(before) {
					t.Fatal("the receiver changed")
				}
				continue
			}
			if again := must.Have(d.MarshalBinary()); string(again) != string(b) {
				t.Fatalf("%x decodes, but encodes again as %x", b, again)
			}
			h := hash.Sum(seed, b)
			d.AddHash(h)
			if !d.ContainsHash(h) {
				t.Fatal("the decoded filter loses an element it was given")
			}
		}
	})
}

// A query of a member tests all k bits, one of an absent element about two.
func BenchmarkFilter(b *testing.B) {
	const n = 1_000_000
	for _, g := range []bloom.Geometry{standard(16*n, 11), partitioned(16*n, 11)} {
		kind := map[bool]string{false: "standard", true: "partitioned"}[g.Partitioned()]
		f := bloom.New(g, seed)
		for i := range uint64(n) {
			f.AddHash(hash.Nth(seed, i))
		}
		run := func(op string, do func(h uint64)) {
			b.Run("kind="+kind+"/op="+op, func(b *testing.B) {
				i := uint64(0)
				for b.Loop() {
					do(i)
					i++
				}
			})
		}
		run("insert", func(i uint64) { f.AddHash(hash.Nth(seed, i%n)) })
		run("query-hit", func(i uint64) { f.ContainsHash(hash.Nth(seed, i%n)) })
		run("query-miss", func(i uint64) { f.ContainsHash(hash.Nth(seed, i+n)) })
	}
}
