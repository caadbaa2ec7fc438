package bloomier

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"weir/filter/hash"
)

// Each key has its value; of others, 2^−check have one; the table takes 1.24 cells a key.
func TestFind(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct{ n, values, check int }{{0, 4, 8}, {1, 4, 8}, {1000, 0, 6}, {50_000, 8, 4}, {50_000, 16, 10}} {
		entries := make([]Entry, c.n)
		for i := range entries {
			entries[i] = Entry{rng.Uint64(), rng.Uint64N(1 << c.values)}
		}
		f, err := New(entries, c.values, c.check)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if v, ok := f.Lookup(e.Hash); !ok || v != e.Value {
				t.Fatalf("%+v: %d, %v, want %d", c, v, ok, e.Value)
			}
		}
		const trials = 400_000
		found := 0
		for range trials {
			if _, ok := f.Lookup(rng.Uint64()); ok {
				found++
			}
		}
		want := f.FalsePositiveRate()
		if want != math.Exp2(-float64(c.check)) {
			t.Errorf("rate %v", want)
		}
		if c.n > 100 && math.Abs(float64(found)/trials-want) > 5*math.Sqrt(want/trials) {
			t.Errorf("%+v: %v of absent keys have a value, want %v", c, float64(found)/trials, want)
		}
		if most := 1.24*float64(c.n) + 4*spare; float64(len(f.cells)) > most || f.Bits() != len(f.cells)*(c.values+c.check) {
			t.Errorf("%+v: %d cells, %d bits", c, len(f.cells), f.Bits())
		}
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New([]Entry{{1, 0}, {1, 0}}, 1, 1); !errors.Is(err, ErrDuplicate) {
		t.Error(err)
	}
	for _, c := range [][2]int{{-1, 4}, {49, 4}, {0, 0}, {40, 24}} {
		if _, err := New(nil, c[0], c[1]); err == nil {
			t.Errorf("%v is accepted", c)
		}
	}
	if _, err := New([]Entry{{1, 4}}, 2, 4); err == nil {
		t.Error("a value that is too large is accepted")
	}
}

// A fixed map from names to numbers in 12 bits a cell.
func Example() {
	const seed = 1
	entries := []Entry{{hash.Sum(seed, []byte("ssh")), 22}, {hash.Sum(seed, []byte("smtp")), 25}}
	f, _ := New(entries, 8, 4)
	port, ok := f.Lookup(hash.Sum(seed, []byte("smtp")))
	fmt.Println(port, ok, f.FalsePositiveRate())
	// Output: 25 true 0.0625
}
