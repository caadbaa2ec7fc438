package member

import (
	"math"
	"math/rand/v2"
	"testing"

	"weir/tests/seed"
)

// keysOf returns n keys, and n others.
func keysOf(r *rand.Rand, n int) (in, out []uint64) {
	s := r.Uint64()
	for i := range uint32(n) {
		in, out = append(in, Key(i, s)), append(out, Key(uint32(n)+i, s))
	}
	return in, out
}

// Each kind has all of its keys, and others at the predicted rate, in as much memory as it says.
func TestKinds(t *testing.T) {
	const n, queries = 20_000, 400_000
	for _, k := range Kinds {
		for _, r := range []float64{6, 8, 11} {
			if math.IsInf(k.Bits(n, r), 1) {
				continue
			}
			rng := seed.New(t)
			s := rng.Uint64()
			in, _ := keysOf(rng, n)
			f, err := k.Build(in, r, rng.Uint64())
			if err != nil {
				t.Fatalf("%s: %v", k.Name, err)
			}
			for _, key := range in {
				if !f.Contains(key) {
					t.Fatalf("%s: a key of the set is missing", k.Name)
				}
			}
			if bits := float64(f.Bits()) / n; math.Abs(bits/k.Bits(n, r)-1) > 1e-9 {
				t.Errorf("%s: %.3f bits an entry, %.3f are planned", k.Name, bits, k.Bits(n, r))
			}
			set := make(map[uint64]bool, n)
			for _, key := range in {
				set[key] = true
			}
			hits, asked := 0.0, 0.0
			for i := range uint32(queries) {
				if key := Key(i, s); !set[key] {
					asked++
					if f.Contains(key) {
						hits++
					}
				}
			}
			want := k.Rate(n, r)
			// The bits of one filter of this size vary, too: 3 % besides chance in the queries.
			if off := math.Abs(hits - asked*want); off > 6*math.Sqrt(asked*want)+0.03*asked*want+1 {
				t.Errorf("%s: rate %.5f, %.5f is predicted", k.Name, hits/asked, want)
			}
		}
	}
}

// Deleters lose what is deleted, and nothing else, through many changes.
func TestDelete(t *testing.T) {
	const n = 4000
	type adder interface{ add(key uint64) bool }
	for _, k := range Kinds {
		rng := seed.New(t)
		in, out := keysOf(rng, n)
		f, err := k.Build(in, 11, rng.Uint64())
		if err != nil {
			if math.IsInf(k.Bits(n, 11), 1) {
				continue
			}
			t.Fatalf("%s: %v", k.Name, err)
		}
		d, ok := f.(Deleter)
		if !ok {
			continue
		}
		gone := 0
		for i, key := range in {
			if i%4 == 0 {
				continue // stays
			}
			d.Delete(key)
			if !d.Contains(key) {
				gone++
			}
		}
		if a, ok := f.(adder); ok {
			for i, key := range out {
				if i%4 == 1 && !a.add(key) {
					t.Fatalf("%s: no room, though three times as many were deleted", k.Name)
				}
			}
		}
		if share := float64(gone) / (n * 3 / 4); share < 0.99 {
			t.Errorf("%s: %.3f of the deleted keys are gone", k.Name, share)
		}
		for i, key := range in {
			if i%4 == 0 && !d.Contains(key) {
				t.Fatalf("%s: a key is missing that was not deleted", k.Name)
			}
		}
		if _, ok := f.(adder); ok {
			for i, key := range out {
				if i%4 == 1 && !d.Contains(key) {
					t.Fatalf("%s: a key is missing that was added after a delete", k.Name)
				}
			}
		}
	}
}

// A pocket is a multiset of fingerprints.
func TestPocket(t *testing.T) {
	r := seed.New(t)
	for _, p := range []*pocket{&vector8, &vector16, &prefixBin} {
		m := newMemory(3 * 64 * p.size)
		at := p.size
		p.clear(&m, at)
		oracle := make(map[[2]uint64]int)
		count := 0
		for range 20_000 {
			quotient, remainder := r.IntN(p.quotients), r.Uint64N(3) // few, so that they repeat
			fingerprint := [2]uint64{uint64(quotient), remainder}
			switch slot, _, _ := p.find(&m, at, quotient, remainder); {
			case (slot >= 0) != (oracle[fingerprint] > 0):
				t.Fatalf("found in slot %d what is there %d times", slot, oracle[fingerprint])
			case slot >= 0 && r.IntN(2) == 0:
				p.remove(&m, at, quotient, slot)
				oracle[fingerprint]--
				count--
			case count < p.slots:
				p.add(&m, at, quotient, remainder)
				oracle[fingerprint]++
				count++
			}
			if got := p.count(p.head(&m, at)); got != count {
				t.Fatalf("%d in the pocket, want %d", got, count)
			}
			if count > 0 {
				q, _, remainder := p.greatest(&m, at)
				var want [2]uint64
				for f, n := range oracle {
					if n > 0 && (f[0] > want[0] || f[0] == want[0] && f[1] > want[1]) {
						want = f
					}
				}
				if want != [2]uint64{uint64(q), remainder} {
					t.Fatalf("the greatest is %d, %d, want %v", q, remainder, want)
				}
			}
		}
		for i, w := range m.words {
			if w != 0 && i/p.size != 1 {
				t.Fatalf("word %d outside of the pocket has changed", i)
			}
		}
	}
}

// Lines are counted as the designs have them.
func TestReads(t *testing.T) {
	const n = 50_000
	for name, want := range map[string]struct{ absent, present [2]float64 }{
		cascadeKind.Name:  {[2]float64{1, 1.2}, [2]float64{2, 2}},
		quotientKind.Name: {[2]float64{1, 1.2}, [2]float64{1.01, 1.1}},
		xorKind.Name:      {[2]float64{3, 3}, [2]float64{3, 3}},
		ribbonKind.Name:   {[2]float64{1.9, 2.5}, [2]float64{3.5, 4}},
		cuckooKind.Name:   {[2]float64{2, 2.3}, [2]float64{1.2, 1.8}}, // a bucket may begin in one line and end in the next
		vectorKind.Name:   {[2]float64{1.99, 2}, [2]float64{1.3, 1.6}},
		prefixKind.Name:   {[2]float64{1, 1.2}, [2]float64{1, 1.15}},
	} {
		for _, k := range Kinds {
			if k.Name != name {
				continue
			}
			r := seed.New(t)
			in, out := keysOf(r, n)
			f, err := k.Build(in, 8, r.Uint64())
			if err != nil {
				t.Fatalf("%s: %v", k.Name, err)
			}
			for kind, keys := range map[string][]uint64{"absent": out, "present": in} {
				bounds := want.absent
				if kind == "present" {
					bounds = want.present
				}
				if got := Lines(f, keys); got < bounds[0]-0.005 || got > bounds[1]+0.005 {
					t.Errorf("%s: %.2f lines of %s keys, want %v", name, got, kind, bounds)
				}
			}
		}
	}
}
