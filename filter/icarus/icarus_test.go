package icarus

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"

	"weir/filter/internal/trial"
)

func mustMask(t testing.TB, seed, id uint64, size, k int) Filter {
	t.Helper()
	m, err := Mask(seed, id, size, k)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestBestFigures checks the best k and its false-alarm probability for sizes
// and path lengths with known figures, to half a unit of their second digit.
func TestBestFigures(t *testing.T) {
	for _, c := range []struct {
		size, hops int
		k          int // 0: not known
		want, half float64
	}{
		{64, 8, 6, 2.2e-2, 0.05e-2}, {64, 16, 0, 0.50, 0.005},
		{128, 8, 12, 2.0e-4, 0.05e-4}, {128, 16, 7, 5.4e-2, 0.05e-2},
		{256, 8, 23, 2.4e-8, 0.05e-8}, {256, 16, 12, 5.8e-4, 0.05e-4}, {256, 32, 0, 0.11, 0.005},
	} {
		k, p, err := Best(c.size, c.hops, 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d bits, %d hops: k = %d, false alarm %.3g", c.size, c.hops, k, p)
		if math.Abs(p-c.want) > c.half || c.k != 0 && k != c.k {
			t.Errorf("%d bits, %d hops: k = %d, false alarm %.3g, want %d, %.2g", c.size, c.hops, k, p, c.k, c.want)
		}
		for i := 1; i <= min(2*k+8, c.size/2); i++ {
			if q := falseAlarm(c.size, i, c.hops, 1); q < p {
				t.Errorf("%d bits, %d hops: k = %d has %.3g, Best found %.3g with %d", c.size, c.hops, i, q, p, k)
			}
		}
	}
}

// TestFalseAlarmByEnumeration enumerates all assignments of masks to nodes.
func TestFalseAlarmByEnumeration(t *testing.T) {
	const size, k = 6, 2
	var masks []Filter
	for m := range uint64(1 << size) {
		if bits.OnesCount64(m) == k {
			masks = append(masks, Filter{m})
		}
	}
	for hops := 1; hops <= 4; hops++ {
		for confirm := 1; confirm <= 3; confirm++ {
			alarms, all := 0, 0
			var walk func(trace Trace, alarmed bool, left int)
			walk = func(trace Trace, alarmed bool, left int) {
				if left == 0 {
					all++
					if alarmed {
						alarms++
					}
					return
				}
				for _, m := range masks {
					next := trace
					loop := next.Visit(m, confirm)
					walk(next, alarmed || loop, left-1)
				}
			}
			walk(Trace{}, false, hops)
			want := float64(alarms) / float64(all)
			if got := falseAlarm(size, k, hops, confirm); math.Abs(got-want) > 1e-12 {
				t.Errorf("%d hops, %d to confirm: %.15f, want %.15f", hops, confirm, got, want)
			}
		}
	}
}

// TestFalseAlarmMeasured sends packets along loop-free paths.
func TestFalseAlarmMeasured(t *testing.T) {
	for i, c := range []struct{ size, hops, k, confirm int }{
		{64, 8, 6, 1}, {64, 16, 4, 1}, {64, 16, 4, 2}, {128, 16, 7, 1}, {256, 32, 7, 1},
	} {
		t.Run(fmt.Sprintf("%d bits, %d hops, confirm %d", c.size, c.hops, c.confirm), func(t *testing.T) {
			seed := uint64(i)
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 0))
			p, err := FalseAlarm(c.size, c.k, c.hops, c.confirm)
			if err != nil {
				t.Fatal(err)
			}
			trials, hits := trial.Count(p, 0.1), 0
			for range trials {
				var trace Trace
				domain := rng.Uint64()
				for id := range uint64(c.hops) {
					if trace.Visit(mustMask(t, domain, id, c.size, c.k), c.confirm) {
						hits++
						break
					}
				}
			}
			trial.Check(t, hits, trials, p)
		})
	}
}

// TestLoops checks that every loop is reported by the first revisit, or confirm
// − 1 nodes later.
func TestLoops(t *testing.T) {
	rng := rand.New(rand.NewPCG(10, 0))
	t.Log("seed 10")
	for range 2000 {
		size := Sizes[rng.IntN(len(Sizes))]
		k, confirm := 1+rng.IntN(12), 1+rng.IntN(3)
		before, around := rng.IntN(8), 1+rng.IntN(8)
		domain := rng.Uint64()
		var trace Trace
		for n := range before + around + confirm {
			id := n
			if n >= before {
				id = before + (n-before)%around
			}
			loop := trace.Visit(mustMask(t, domain, uint64(id), size, k), confirm)
			if loop {
				break // at the latest here, or falsely before
			}
			if n == before+around+confirm-1 {
				t.Fatalf("%d bits, k = %d: loop of %d after %d nodes not reported with confirm %d", size, k, around, before, confirm)
			}
		}
	}
}

// TestLongLoop checks that the count of unchanged hops does not wrap around.
func TestLongLoop(t *testing.T) {
	m := mustMask(t, 1, 1, 64, 6)
	var trace Trace
	trace.Visit(m, 255)
	for n := 1; n < 600; n++ {
		if got, want := trace.Visit(m, 255), n >= 255; got != want {
			t.Fatalf("revisit %d reported: %v", n, got)
		}
	}
}

func TestMask(t *testing.T) {
	seen := make(map[Filter]bool)
	for _, size := range Sizes {
		for id := range uint64(200) {
			m := mustMask(t, 11, id, size, 7)
			if m.Len() != 7 {
				t.Fatalf("mask %x has %d bits", m, m.Len())
			}
			for _, w := range m[size/64:] {
				if w != 0 {
					t.Fatalf("mask %x exceeds %d bits", m, size)
				}
			}
			if m != mustMask(t, 11, id, size, 7) {
				t.Fatal("mask is not a function of the id")
			}
			seen[m] = true
		}
	}
	if len(seen) != 600 {
		t.Errorf("%d masks of 600 nodes differ", len(seen))
	}
	for _, c := range []struct{ size, k int }{{32, 4}, {0, 1}, {64, 0}, {64, 33}, {512, 5}} {
		if _, err := Mask(1, 1, c.size, c.k); err == nil {
			t.Errorf("mask of %d in %d bits accepted", c.k, c.size)
		}
		if _, err := FalseAlarm(c.size, c.k, 8, 1); err == nil {
			t.Errorf("false alarm for %d in %d bits", c.k, c.size)
		}
	}
	for _, c := range []struct{ hops, confirm int }{{0, 1}, {8, 0}, {8, 256}} {
		if _, _, err := Best(64, c.hops, c.confirm); err == nil {
			t.Errorf("best for %d hops, confirm %d", c.hops, c.confirm)
		}
	}
	if _, _, err := Best(65, 8, 1); err == nil {
		t.Error("best for 65 bits")
	}
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		hops   int
		target float64
		want   Geometry
	}{
		{8, 0.03, Geometry{64, 6, 1}},
		{8, 1e-3, Geometry{128, 12, 1}},
		{16, 1e-3, Geometry{256, 12, 1}},
	} {
		got, p, err := Choose(c.hops, c.target)
		if err != nil || got != c.want || p > c.target {
			t.Errorf("%d hops, %g: %+v with %.3g, %v; want %+v", c.hops, c.target, got, p, err, c.want)
		}
	}
	// 256 bits are not enough for 32 hops unless consecutive nodes confirm each
	// other.
	g, p, err := Choose(32, 0.01)
	if err != nil || g.Confirm < 2 || p > 0.01 {
		t.Errorf("32 hops: %+v with %.3g, %v", g, p, err)
	}
	t.Logf("32 hops under 1 %%: %+v, %.3g", g, p)
	if g, _, err := Choose(255, 1e-9); err == nil {
		t.Errorf("255 hops under 1e-9: %+v", g)
	}
	if _, _, err := Choose(0, 0.1); err == nil {
		t.Error("no hops accepted")
	}
}

func BenchmarkFilter(b *testing.B) {
	for _, size := range Sizes {
		mask := mustMask(b, 1, 1, size, 6)
		b.Run(fmt.Sprintf("op=visit/bits=%d", size), func(b *testing.B) {
			var f Filter
			for b.Loop() {
				f.Visit(mask)
			}
		})
		b.Run(fmt.Sprintf("op=mask/bits=%d", size), func(b *testing.B) {
			var id uint64
			for b.Loop() {
				mustMask(b, 1, id, size, 6)
				id++
			}
		})
	}
	b.Run("op=best/bits=256/hops=32", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := Best(256, 32, 1); err != nil {
				b.Fatal(err)
			}
		}
	})
}
