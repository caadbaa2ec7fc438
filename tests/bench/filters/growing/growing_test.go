package growing

import (
	"testing"

	"weir/filter/hash"
	"weir/tests/seed"
)

// No key is lost, however often a filter grows, and its rate stays near what is wanted while few
// doublings are behind it.
func TestGrow(t *testing.T) {
	r := seed.New(t)
	for _, k := range Kinds {
		f, from := k.New(1000, 8, r.Uint64()), r.Uint64()
		for i := range uint64(8000) {
			f.Add(hash.Nth(from, i))
			if i&(i-1) == 0 || i == 7999 {
				for j := range i + 1 {
					if !f.Contains(hash.Nth(from, j)) {
						t.Fatalf("%s: key %d is lost among %d", k.Name, j, i+1)
					}
				}
			}
		}
		wrong := 0
		for i := range uint64(200_000) {
			if f.Contains(hash.Nth(from+1, i)) {
				wrong++
			}
		}
		if rate := float64(wrong) / 200_000; rate > 3./256 || rate < 0.1/256 {
			t.Errorf("%s: a rate of %g", k.Name, rate)
		}
		if f.Peak() < f.Bits() || f.Bits() < 8*8000 {
			t.Errorf("%s: %d bits, %d at most", k.Name, f.Bits(), f.Peak())
		}
	}
}
