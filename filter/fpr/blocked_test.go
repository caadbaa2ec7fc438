package fpr

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"

	"weir/filter/internal/trial"
)

// Putze, Sanders and Singler's sum over the load of a block, with the binomial
// load that the Poisson one approximates.
func overLoads(blocks, n int, inner func(load int) float64) float64 {
	load := distuv.Binomial{N: float64(n), P: 1 / float64(blocks)}
	var rate float64
	for i := 0; i <= n && i < 400; i++ {
		rate += load.Prob(float64(i)) * inner(i)
	}
	return rate
}

func TestBlockedAgainstLoads(t *testing.T) {
	for _, c := range []struct{ blocks, width, n, k int }{
		{2, 64, 9, 4}, {3, 32, 20, 3}, {100, 512, 5000, 7}, {1953, 512, 100000, 9}, {50, 512, 100, 12},
	} {
		want := overLoads(c.blocks, c.n, func(i int) float64 { return Exact(c.width, i, c.k) })
		// distuv's binomial probabilities keep 9 to 10 digits here.
		near(t, fmt.Sprintf("Blocked(%+v)", c), Blocked(c.blocks, c.width, c.n, c.k), want, 1e-9)
	}
	near(t, "one block is the standard filter", Blocked(1, 64, 7, 4), Exact(64, 7, 4), 1e-14)
}

func TestSplitAgainstLoads(t *testing.T) {
	for _, c := range []struct{ blocks, lanes, width, n int }{
		{2, 8, 64, 80}, {3, 4, 16, 20}, {1953, 8, 64, 100000}, {1953, 8, 32, 50000},
	} {
		want := overLoads(c.blocks, c.n, func(i int) float64 {
			return math.Pow(-math.Expm1(float64(i)*math.Log1p(-1/float64(c.width))), float64(c.lanes))
		})
		near(t, fmt.Sprintf("Split(%+v)", c), Split(c.blocks, c.lanes, c.width, c.n), want, 1e-9)
	}
}

// Bits per key for rates of 1 %, 0.1 % and 0.01 %, to two decimals; half a unit
// of the last one moves the rate by 0.3 %.
func TestBitsAKey(t *testing.T) {
	const n = 1e6
	lines := func(perKey float64, bits int) int { return int(perKey * n / float64(bits)) }
	for i, target := range []float64{1e-2, 1e-3, 1e-4} {
		m, _ := Smallest(n, target)
		if got, want := float64(m)/n, []float64{9.59, 14.38, 19.17}[i]; math.Abs(got-want) > 0.005 {
			t.Errorf("standard filter at %v: %.3f bits a key, want %.2f", target, got, want)
		}
		best := 1.
		for k := 1; k < 20; k++ {
			best = min(best, Blocked(lines([]float64{9.92, 15.55, 22.03}[i], 512), 512, n, k))
		}
		near(t, "512-bit line", best, target, 3e-3)
		near(t, "8 lanes of 64", Split(lines([]float64{10.10, 15.72, 23.61}[i], 512), 8, 64, n), target, 3e-3)
		near(t, "8 lanes of 32", Split(lines([]float64{10.53, 16.89, 26.34}[i], 256), 8, 32, n), target, 3e-3)
	}
}

func TestBlockedMeasured(t *testing.T) {
	const blocks, width, n, k = 2048, 512, 2048 * 512 / 14, 8
	rng := rand.New(rand.NewPCG(seed, 1))
	want := Blocked(blocks, width, n, k)
	trials := trial.Count(want, 0.03)
	hits := 0
	for range 8 { // filters
		filter := make([]bool, blocks*width)
		for range n {
			block := rng.IntN(blocks) * width
			for range k {
				filter[block+rng.IntN(width)] = true
			}
		}
		for range trials / 8 {
			block, positive := rng.IntN(blocks)*width, true
			for i := 0; i < k && positive; i++ {
				positive = filter[block+rng.IntN(width)]
			}
			if positive {
				hits++
			}
		}
	}
	trial.Check(t, hits, trials/8*8, want)
}

func TestSplitMeasured(t *testing.T) {
	const blocks, lanes, width, n = 4096, 8, 32, 4096 * 256 / 12
	rng := rand.New(rand.NewPCG(seed, 2))
	want := Split(blocks, lanes, width, n)
	trials := trial.Count(want, 0.03)
	hits := 0
	for range 8 { // filters
		filter := make([]bool, blocks*lanes*width)
		for range n {
			block := rng.IntN(blocks) * lanes
			for lane := range lanes {
				filter[(block+lane)*width+rng.IntN(width)] = true
			}
		}
		for range trials / 8 {
			block, positive := rng.IntN(blocks)*lanes, true
			for lane := 0; lane < lanes && positive; lane++ {
				positive = filter[(block+lane)*width+rng.IntN(width)]
			}
			if positive {
				hits++
			}
		}
	}
	trial.Check(t, hits, trials/8*8, want)
}

func BenchmarkBlocked(b *testing.B) {
	b.Run("k=8", func(b *testing.B) {
		for b.Loop() {
			Blocked(27343, 512, 1000000, 8)
		}
	})
}
