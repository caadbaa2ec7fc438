package invertible

import (
	"math/rand/v2"
	"slices"
	"testing"

	"weir/tests/long"
)

func newTable(t *testing.T, n int) *Table {
	t.Helper()
	table, err := New(make([]uint64, Words(n)))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// The difference of two sets of 100,000 elements is listed exactly, whichever side
// elements are missing on, up to the number that the table is made for.
func TestDifference(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 2, 10, 100, 5000, 20_000} {
		mine, theirs := newTable(t, n), newTable(t, n)
		for range 100_000 {
			h := rng.Uint64()
			mine.Add(h)
			theirs.Add(h)
		}
		var added, removed []uint64
		for i := range n {
			h := rng.Uint64()
			if i%3 == 0 {
				theirs.Add(h)
				removed = append(removed, h)
			} else {
				mine.Add(h)
				added = append(added, h)
			}
		}
		inserted, deleted, ok := mine.Minus(theirs).List()
		for _, s := range [][]uint64{added, removed, inserted, deleted} {
			slices.Sort(s)
		}
		if !ok || !slices.Equal(inserted, added) || !slices.Equal(deleted, removed) {
			t.Errorf("%d differences: %d and %d are listed, want %d and %d (%v)",
				n, len(inserted), len(deleted), len(added), len(removed), ok)
		}
	}
}

// What cannot be listed is reported: too large a difference, or damage.
func TestCannotList(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	table := newTable(t, 1000)
	for range 3000 {
		table.Add(rng.Uint64())
	}
	if _, _, ok := table.List(); ok {
		t.Error("3000 elements are listed from a table for 1000")
	}
	for range 1000 {
		table := newTable(t, 100)
		for range 50 {
			table.Add(rng.Uint64())
		}
		table.words[rng.IntN(len(table.words))] += 1 + rng.Uint64N(3)
		if _, _, ok := table.List(); ok {
			t.Fatal("damage is not noticed")
		}
	}
	if _, err := New(make([]uint64, 10)); err == nil {
		t.Error("10 words are a table")
	}
}

// Of tables of the size that Words returns, some two in a thousand fail.
func TestLoad(t *testing.T) {
	long.Seconds(t)
	rng := rand.New(rand.NewPCG(5, 6))
	for _, n := range []int{1000, 3000} {
		failed := 0
		const times = 3000
		for range times {
			table := newTable(t, n)
			for range n {
				table.Add(rng.Uint64())
			}
			if _, _, ok := table.List(); !ok {
				failed++
			}
		}
		t.Logf("%d elements: %d of %d failed", n, failed, times)
		if failed > 20 { // 6 are expected at most
			t.Errorf("%d elements: %d of %d tables cannot be listed", n, failed, times)
		}
	}
}
