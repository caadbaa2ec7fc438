package prefix

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// exhaustive tries every set of levels.
func exhaustive(h *Histogram, budget, most int) (levels, entries int) {
	var used []int
	for bits, c := range h {
		if c > 0 {
			used = append(used, bits)
		}
	}
	levels, entries = most, math.MaxInt
	kept := false
	for set := 1; set < 1<<len(used); set++ {
		var l Levels
		for i, bits := range used {
			if set>>i&1 != 0 {
				l = append(l, bits)
			}
		}
		n := l.Expanded(h)
		switch {
		case len(l) > most:
		case n <= budget && (!kept || len(l) < levels || len(l) == levels && n < entries):
			levels, entries, kept = len(l), n, true
		case !kept && len(l) == min(most, len(used)) && n < entries:
			levels, entries = len(l), n
		}
	}
	return levels, entries
}

func TestPlanAgainstExhaustiveSearch(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var h Histogram
		for range 1 + r.IntN(9) {
			h[8+r.IntN(25)] = 1 + r.IntN(1<<r.IntN(14))
		}
		budget := h.Total() + r.IntN(2*h.Total()+1)
		most := 1 + r.IntN(6)
		got := Plan(&h, budget, most)
		levels, entries := exhaustive(&h, budget, most)
		if len(got) != levels || got.Expanded(&h) != entries {
			t.Fatalf("%v within %d entries and %d levels: %v (%d entries), but %d levels need %d", h, budget, most, got, got.Expanded(&h), levels, entries)
		}
	}
}

func TestPlanEdges(t *testing.T) {
	if got := Plan(new(Histogram), 0, 9); got != nil {
		t.Errorf("no entries: %v", got)
	}
	if got := Plan(&Histogram{0: 1, 128: 1}, 1<<40, 9); !slices.Equal(got, Levels{0, 128}) {
		t.Errorf("an expansion by 128 bits: %v", got)
	}
	if got := Plan(&Histogram{16: 5, 24: 5}, 0, 9); !slices.Equal(got, Levels{16, 24}) {
		t.Errorf("a budget that cannot be met: %v", got)
	}
	if got := Plan(&Histogram{23: 1, 24: 100}, 102, 9); !slices.Equal(got, Levels{24}) {
		t.Errorf("a rare length: %v", got)
	}
}

func TestLevels(t *testing.T) {
	l := Levels{16, 24, 32}
	for bits, want := range map[int]int{0: 16, 16: 16, 17: 24, 24: 24, 32: 32} {
		if got, ok := l.Of(bits); !ok || got != want {
			t.Errorf("level of /%d: %d %v, want %d", bits, got, ok, want)
		}
	}
	if _, ok := l.Of(33); ok {
		t.Error("a length beyond all levels was assigned a level")
	}
	if got := l.Expanded(&Histogram{40: 1}); got != math.MaxInt {
		t.Errorf("an entry without a level: %d", got)
	}
}
