package nibble

import (
	"math/rand/v2"
	"testing"
)

// A plain array of integers is the oracle.
func TestArray(t *testing.T) {
	const n, seed = 37, 1 // the last word is partly used
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	c, want := New(n), make([]uint8, n)
	if c.Len() != n {
		t.Fatalf("Len() = %d, want %d", c.Len(), n)
	}
	for range 20_000 {
		i := rng.Uint64N(n)
		if rng.IntN(16) < 9 { // mostly increments, so that some saturate
			first := want[i] == 0
			want[i] = min(want[i]+1, Max)
			if got := c.Inc(i); got != first {
				t.Fatalf("Inc(%d) = %v at %d", i, got, want[i])
			}
		} else {
			last := want[i] == 1
			if want[i] > 0 && want[i] < Max {
				want[i]--
			}
			if got := c.Dec(i); got != last {
				t.Fatalf("Dec(%d) = %v at %d", i, got, want[i])
			}
		}
		var bits, saturated uint64
		for j, w := range want {
			if got := c.Get(uint64(j)); got != w {
				t.Fatalf("counter %d is %d, want %d", j, got, w)
			}
			if w > 0 {
				bits |= 1 << j
			}
			if w == Max {
				saturated++
			}
		}
		if c.Bits(0) != bits || c.Saturated() != saturated {
			t.Fatalf("bits %#x, %d saturated; want %#x, %d", c.Bits(0), c.Saturated(), bits, saturated)
		}
	}
	if c.Saturated() == 0 {
		t.Error("no counter was saturated: the test shows too little")
	}
}

func TestAllocateNothing(t *testing.T) {
	c := New(100)
	if n := testing.AllocsPerRun(100, func() { c.Inc(7); c.Dec(7); c.Get(7) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkArray(b *testing.B) {
	const n = 1 << 26 // 32 MiB: beyond the caches
	c := New(n)
	for _, op := range []struct {
		name string
		f    func(uint64) bool
	}{{"op=inc", c.Inc}, {"op=dec", c.Dec}} {
		b.Run(op.name, func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 0))
			for b.Loop() {
				op.f(rng.Uint64() % n)
			}
		})
	}
}

// The bits of 64 counters, from their values.
func TestBits(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 0))
	c := New(3 * 64)
	var want [3]uint64
	for range 150 {
		i := rng.Uint64N(3 * 64)
		for range 1 + rng.IntN(20) {
			c.Inc(i)
		}
		want[i/64] |= 1 << (i % 64)
	}
	for i, w := range want {
		if got := c.Bits(uint64(i)); got != w {
			t.Errorf("word %d is %#x, want %#x", i, got, w)
		}
	}
}
