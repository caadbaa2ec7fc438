package fpr

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// The bound holds over random filters, and is not idle.
func TestConcentration(t *testing.T) {
	const m, n, k, filters = 4096, 500, 6, 2000
	rng := rand.New(rand.NewPCG(1, 2))
	mean := math.Pow(1-1./m, n*k)
	for _, eps := range []float64{0.005, 0.01, 0.02} {
		far := 0
		for range filters {
			var set [m]bool
			clear := m
			for range n * k {
				if b := rng.IntN(m); !set[b] {
					set[b] = true
					clear--
				}
			}
			if math.Abs(float64(clear)/m-mean) >= eps {
				far++
			}
		}
		bound := Concentration(m, n, k, eps)
		t.Logf("ε = %v: %d of %d, the bound is %.3g", eps, far, filters, bound)
		if float64(far)/filters > bound {
			t.Errorf("ε = %v: %d of %d filters differ so much, the bound is %v", eps, far, filters, bound)
		}
	}
	if b := Concentration(m, n, k, 0.04); b > 1e-4 || b <= 0 {
		t.Errorf("the bound for 0.04 is %v", b)
	}
}

// By hand, by counting sets, and in a large universe.
func TestLeastBits(t *testing.T) {
	// Of 4 elements, 2 sets of one: a rate of 1/3 accepts 2 of 4.
	if got := LeastBits(4, 1, 1./3); math.Abs(got-1) > 1e-12 {
		t.Errorf("%v bits, want 1", got)
	}
	// Without false positives, a bit for each doubling of the number of sets.
	if got, want := LeastBits(10, 3, 0), math.Log2(120); math.Abs(got-want) > 1e-12 {
		t.Errorf("%v bits, want %v", got, want)
	}
	for _, eps := range []float64{0.5, 0.01, 1e-6} {
		got, limit := LeastBits(1e15, 1000, eps), -1000*math.Log2(eps)
		if math.Abs(got/limit-1) > 1e-3 {
			t.Errorf("rate %v: %v bits, in the limit %v", eps, got, limit)
		}
		if small := LeastBits(10_000, 1000, eps); small > got {
			t.Errorf("rate %v: a small universe takes %v bits, a large one %v", eps, small, got)
		}
	}
}

func ExampleLeastBits() {
	fmt.Printf("%.0f bits of IPv4 addresses, %.0f of any\n", LeastBits(1<<32, 1e6, 1e-3), LeastBits(1e18, 1e6, 1e-3))
	// Output: 9809667 bits of IPv4 addresses, 9965784 of any
}
