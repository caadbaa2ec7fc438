package cascade

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"weir/filter/hash"
	"weir/filter/internal/nibble"
	"weir/tests/seed"
)

func TestEmpty(t *testing.T) {
	if New(nil, 6, 0).Contains(1) {
		t.Error("a cascade without words contains a key")
	}
	if New(make([]uint64, LineWords), 5, 6).Contains(1) {
		t.Error("the empty cascade contains a key")
	}
}

// A key is present until it has been removed as often as it was added; after
// the last removal no bit is left.
func TestRemove(t *testing.T) {
	r := seed.Secrets(t)
	for _, k := range [][2]int{{6, 0}, {5, 2}, {5, 6}, {1, 0}, {2, 1}, {3, 3}, {4, 4}, {6, 5}} {
		words := make([]uint64, 200*LineWords)
		c := New(words, k[0], k[1])
		count := make(map[uint64]int)
		var added []uint64
		for range 20_000 {
			if len(added) < 5000 && r.IntN(5) < 3 || len(added) == 0 {
				h := r.Uint64()
				if len(added) > 0 && r.IntN(20) == 0 {
					h = added[r.IntN(len(added))]
				}
				c.Add(h)
				added = append(added, h)
				count[h]++
				continue
			}
			i := r.IntN(len(added))
			c.Remove(added[i])
			if count[added[i]]--; count[added[i]] == 0 {
				delete(count, added[i])
			}
			added[i] = added[len(added)-1]
			added = added[:len(added)-1]
		}
		for h := range count {
			if !c.Contains(h) {
				t.Fatalf("%v bits: key %#x is absent", k, h)
			}
		}
		if c.counters.Saturated() > 0 {
			t.Fatal("the test is too dense: counters are saturated, and bits rightly stay")
		}
		for _, h := range added {
			c.Remove(h)
		}
		if slices.ContainsFunc(words, func(w uint64) bool { return w != 0 }) {
			t.Errorf("%v bits: removing all keys leaves bits set", k)
		}
		if set, all := c.Bits(); set != 0 || all != 200*LineBits {
			t.Errorf("%v bits: %d of %d set", k, set, all)
		}
	}
}

// A saturated counter does not know how many keys share its bit, so the bit
// stays: a false positive is better than a lost key.
func TestSaturation(t *testing.T) {
	r := seed.Secrets(t)
	words := make([]uint64, LineWords)
	c := New(words, 6, 0)
	stays := r.Uint64()
	c.Add(stays)
	for range nibble.Max { // now all of its counters are saturated
		c.Add(stays)
	}
	for range 2 * nibble.Max {
		c.Remove(stays)
	}
	if !c.Contains(stays) {
		t.Error("saturated counters have come back to zero")
	}
}

// The bits of a key as bpf/cascade.h describes them, computed another way.
func TestBits(t *testing.T) {
	r := seed.Secrets(t)
	const lines = 1000
	for range 1000 {
		words, h := make([]uint64, lines*LineWords), r.Uint64()
		New(words, 6, 0).Add(h)
		line := int(float64(h>>32) / (1 << 32) * lines)
		for i, w := range words {
			var want uint64
			if i/LineWords == line {
				if j := uint64(i+16-int(h>>36&7)) % 8; j < 6 {
					want = 1 << (h >> (6 * j) % 64)
				}
			}
			if w != want {
				t.Fatalf("key %#x: word %d is %#x, want %#x", h, i, w, want)
			}
		}
	}
}

// The density equals an exhaustive count over all positions that a hash can
// have in a line.
func TestDensity(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	words := make([]uint64, 2*LineWords)
	for i := range words {
		words[i] = r.Uint64() & r.Uint64()
	}
	if got := Density(words, 0); got != 1 {
		t.Errorf("of no bits %g, want 1", got)
	}
	for line := range 2 {
		hits := 0
		for start := range LineWords {
			for a := range 64 {
				for b := range 64 {
					base := uint64(line * LineWords)
					h := uint64(start)<<36 | uint64(b)<<6 | uint64(a)
					i, first := place(base, h, 0)
					j, second := place(base, h, 1)
					hits += int((words[i] >> first) & (words[j] >> second) & 1)
				}
			}
		}
		want := float64(hits) / (LineWords * 64 * 64)
		if got := Density(words[line*LineWords:][:LineWords], 2); math.Abs(got-want) > 1e-12 {
			t.Errorf("line %d: %g, want %g", line, got, want)
		}
	}
}

// The operations cycle through a million hashes.
func BenchmarkFilter(b *testing.B) {
	const n = 1 << 20
	for _, k := range []struct {
		mode        string
		bits        int // a key
		first, rest int
	}{{"exact", 10, 5, 0}, {"approx", 16, 5, 6}} {
		c := New(make([]uint64, n*k.bits/64), k.first, k.rest)
		for i := range uint64(n) {
			c.Add(hash.Nth(1, i))
		}
		perHash(b, "mode="+k.mode+"/op=insert+remove", func(i uint64) {
			c.Add(hash.Nth(2, i%n))
			c.Remove(hash.Nth(2, i%n))
		})
		perHash(b, "mode="+k.mode+"/op=query-hit", func(i uint64) { c.Contains(hash.Nth(1, i%n)) })
		perHash(b, "mode="+k.mode+"/op=query-miss", func(i uint64) { c.Contains(hash.Nth(2, i%n)) })
	}
}

func perHash(b *testing.B, name string, do func(i uint64)) {
	b.Run(name, func(b *testing.B) {
		for i := range uint64(b.N) {
			do(i)
		}
	})
}
