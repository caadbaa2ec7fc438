package ordered

import (
	"cmp"
	"slices"
	"testing"

	"weir/tests/seed"
)

// Values are in the order of package slices, and equal ones in that before.
func TestBy(t *testing.T) {
	type value struct{ k, n int }
	r := seed.New(t)
	for range 100 {
		all := make([]value, r.IntN(100))
		for i := range all {
			all[i] = value{r.IntN(10), i}
		}
		byKey := func(a, b value) int { return cmp.Compare(a.k, b.k) }
		want := slices.SortedStableFunc(slices.Values(all), byKey)
		if got := Of(slices.Values(all), byKey); !slices.Equal(got, want) {
			t.Fatalf("%v of %v", got, all)
		}
	}
}
