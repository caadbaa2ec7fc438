package recent

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"weir/filter/hash"
	"weir/filter/stable"
)

var cellKinds = map[Kind]stable.Algorithm{Stable: stable.SBF, IBF2C: stable.IBF2C, IBFMC: stable.IBFMC}

// An item sets its cells to the value of the filter of that name in package stable.
func TestValues(t *testing.T) {
	for kind, algorithm := range cellKinds {
		for level := 1; level <= MaxLevel; level++ {
			f, err := stable.New(stable.Within(algorithm, 64, cellBits, Bits, 1), rand.NewPCG(1, 2))
			if err != nil {
				t.Fatal(err)
			}
			f.Add(1, level)
			if v := f.Values(); v[kind.Value(level)] == 0 || v[0]+v[kind.Value(level)] < 1-1e-9 {
				t.Errorf("%v, level %d: %d, but %v has %v", kind, level, kind.Value(level), algorithm, v)
			}
		}
	}
}

// At rest, both errors are as frequent as the chain of one cell predicts, by level. Cells of
// neighbouring words do not sink independently, but in turn, so that somewhat fewer new items
// are taken for known ones.
func TestCells(t *testing.T) {
	const lines, items, within = 128, 150_000, 8000
	for kind := range cellKinds {
		chain := kind.NewChain(Uniform())
		c := NewCells(kind, lines)
		rng := rand.New(rand.NewPCG(3, 4))
		due := make(map[int]int)
		var fresh, missed float64
		var repeated, forgotten, predicted [MaxLevel + 1]float64
		for n := range items {
			of, known := due[n]
			if !known {
				of = n
				if again := n + 1 + rng.IntN(within); rng.IntN(20) == 0 && due[again] == 0 {
					due[again] = n
				}
			}
			level := 1 + of%MaxLevel
			was, _ := c.Observe(hash.Nth(5, uint64(of)), level)
			switch {
			case n < within: // it is not at rest
			case known:
				repeated[level]++
				predicted[level] += chain.Forgotten(level, float64(n-of), lines)
				if !was {
					forgotten[level]++
				}
			default:
				fresh++
				if was {
					missed++
				}
			}
		}
		if got, want := missed/fresh, chain.Missed(); got < 0.75*want || got > 1.05*want || want > 0.08 {
			t.Errorf("%v: %.4f of the new items are taken for known ones, predicted %.4f", kind, got, want)
		}
		if got := Missed(c.words); math.Abs(got/(missed/fresh)-1) > 0.25 {
			t.Errorf("%v: its words say that %.4f are taken for known ones, of which %.4f are", kind, got, missed/fresh)
		}
		for level := 1; level <= MaxLevel; level++ {
			if got, want := forgotten[level]/repeated[level], predicted[level]/repeated[level]; math.Abs(got-want) > 0.08 {
				t.Errorf("%v: %.3f of the items of level %d are forgotten, predicted %.3f", kind, got, level, want)
			}
		}
	}
}

// With a single item, only its cells and the word that sinks in its line change, and an
// item that is repeated changes nothing.
func TestCellsSettle(t *testing.T) {
	for kind := range cellKinds {
		c := NewCells(kind, 4)
		for i := range 10_000 {
			h := hash.Nth(6, uint64(i))
			level := 1 + i%MaxLevel
			if _, entered := c.Observe(h, level); i == 0 && !entered {
				t.Errorf("%v: nothing sinks for the first item", kind)
			}
			before := slices.Clone(c.words)
			if known, entered := c.Observe(h, level); !known || entered || !slices.Equal(c.words, before) {
				t.Fatalf("%v: an item that has just come: known %v, entered %v", kind, known, entered)
			}
		}
	}
}

// Cells that are all high are taken for known items, so that nothing sinks by itself: the
// filter is full, and Sink lets it recover.
func TestFullCells(t *testing.T) {
	c := NewCells(Stable, 16)
	for i := range c.words {
		c.words[i] = MaxLevel * lowest
	}
	if known, entered := c.Observe(1, 1); !known || entered || Missed(c.words) <= FullCells {
		t.Errorf("a full filter: known %v, entered %v, missed %v", known, entered, Missed(c.words))
	}
	for range MaxLevel {
		Sink(c.words)
	}
	if known, _ := c.Observe(1, 1); known || Missed(make([]uint64, 8)) != 0 {
		t.Error("cells that have sunk are not empty")
	}
}

// The chain is a distribution, is at rest, and forgets in the end exactly the items that never came.
func TestChain(t *testing.T) {
	for kind := range cellKinds {
		for _, levels := range []Levels{Uniform(), {1: 1}, {7: 5}, {1: 1000, 7: 1}} {
			c := kind.NewChain(levels)
			next, sum := c.v, 0.0
			c.step(&next)
			for v := range next {
				sum += next[v]
				if math.Abs(next[v]-c.v[v]) > 1e-9 {
					t.Errorf("%v, %v: after a step %v, before %v", kind, levels, next, c.v)
				}
			}
			if math.Abs(sum-1) > 1e-9 {
				t.Errorf("%v: the probabilities add up to %v", kind, sum)
			}
			last := 0.0
			for _, others := range []float64{0, 1, 10, 100, 1000, 1e5, 1e9} {
				f := c.Forgotten(4, others, 10)
				if f < last-1e-9 || others == 0 && f != 0 {
					t.Errorf("%v: %v forgotten after %v others, %v after fewer", kind, f, others, last)
				}
				last = f
			}
			if math.Abs(last-(1-c.Missed())) > 1e-6 {
				t.Errorf("%v: %v forgotten in the end, %v known by mistake", kind, last, c.Missed())
			}
		}
	}
}

// weir.yaml has these names.
func TestKindText(t *testing.T) {
	for k := range Kind(len(kinds)) {
		text, _ := k.MarshalText()
		var back Kind
		if err := back.UnmarshalText(text); err != nil || back != k {
			t.Errorf("%s: %v, %v", text, back, err)
		}
	}
	if err := new(Kind).UnmarshalText([]byte("BLOOM")); err == nil {
		t.Error("BLOOM is accepted")
	}
}
