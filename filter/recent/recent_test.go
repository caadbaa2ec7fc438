package recent

import (
	"math"
	"math/rand/v2"
	"testing"

	"weir/filter/hash"
	"weir/filter/internal/trial"
)

// An item is remembered for a whole generation after it has last occurred, whatever
// occurs meanwhile.
func TestForgetsNothing(t *testing.T) {
	const each, lasting = 2000, 77
	g := New(256)
	has := func(h uint64) bool { return g.filters[0].Contains(h) || g.filters[1].Contains(h) }
	for turn := range 20 {
		item := func(i int) uint64 { return hash.Nth(uint64(turn), uint64(i)) }
		for i := range each {
			g.Observe(item(i), 1)
		}
		if known, entered := g.Observe(lasting, 1); known != (turn > 0) || !entered {
			t.Fatalf("generation %d: known %v, entered %v", turn, known, entered)
		}
		g.Turn()
		for i := range each {
			if !has(item(i)) {
				t.Fatalf("item %d is forgotten after one turn", i)
			}
		}
	}
	g.Turn()
	if has(lasting) {
		t.Error("an item is not forgotten after two turns")
	}
}

// The rate at which new items are taken for known ones is the predicted one.
func TestFalsePositive(t *testing.T) {
	const lines = 256
	rng := rand.New(rand.NewPCG(50, 1))
	g := New(lines)
	next := uint64(0)
	for range 2 {
		g.Turn()
		for range Full * lines {
			g.Observe(hash.Nth(rng.Uint64(), next), 1)
			next++
		}
	}
	rate := FalsePositive(lines, Full*lines, Full*lines)
	trials, hits := trial.Count(rate, 0.05), 0
	for range trials {
		h := rng.Uint64()
		if g.filters[0].Contains(h) || g.filters[1].Contains(h) {
			hits++
		}
	}
	trial.Check(t, hits, trials, rate)

	// The mean over many generations.
	var queries, mistaken float64
	for range 30 {
		g.Turn()
		for range Full * lines {
			queries++
			h := rng.Uint64()
			if known, _ := g.Observe(h, 1); known {
				mistaken++
			}
		}
	}
	mean := MeanFalsePositive(lines, Full*lines)
	if got := mistaken / queries; math.Abs(got/mean-1) > 0.1 || mean > 0.08 {
		t.Errorf("%.4f of new items are taken for known ones, predicted %.4f, want at most 0.08", got, mean)
	}
}
