package membership

import (
	"errors"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/filter/cascade"
	"weir/filter/hash"
	"weir/filter/internal/trial"
	"weir/filter/key"
	"weir/tests/long"
)

// weighable returns an empty set with a hot table, and Listed from a map.
func weighable(t testing.TB, mode Mode, bitsPerKey float64, n, hot int, seed uint64, listed map[key.Key]bool) *Set {
	t.Helper()
	l, err := PlanLayout(Census{Keys: map[key.Shape]int{{SrcBits: 32, DstBits: 32}: n}}, mode, bitsPerKey, secretOf(seed))
	if err != nil {
		t.Fatal(err)
	}
	l.PlanHot(hot)
	return weighableOf(t, l, listed)
}

func weighableOf(t testing.TB, l Layout, listed map[key.Key]bool) *Set {
	t.Helper()
	s, err := NewSet(l, l.Alloc())
	if err != nil {
		t.Fatal(err)
	}
	if l.Mode == Approximate {
		s.Listed = func(k key.Key) bool { return listed[k] }
	}
	return s
}

// sources returns n distinct keys.
func sources(t *testing.T, n int) []key.Key {
	c := numbered(key.Shape{SrcBits: 32, DstBits: 32}, 0, n, 0)
	keys := make([]key.Key, n)
	for i := range keys {
		keys[i] = mustParse(t, c.Keys[i*c.Shape.KeyLen():(i+1)*c.Shape.KeyLen()])
	}
	return keys
}

// bitsOf returns the positions of a key's bits, as bpf/cascade.h and bpf/hot.h
// describe them, computed independently, bit by bit.
func bitsOf(l *Layout, h uint64, extra int) map[int]bool {
	places := make(map[int]bool)
	for n := range l.First + l.Rest + extra {
		g, j := h, n
		if n >= l.First {
			g = hash.Nth(h, uint64(1+(n-l.First)/6))
			j = (n - l.First) % 6
		}
		line := int(float64(g>>32) / (1 << 32) * float64(l.Lines))
		word := (int(g>>36&7) + j) % 8
		places[line*512+word*64+int(g>>(6*j)%64)] = true
	}
	return places
}

func setBits(words []uint64) map[int]bool {
	set := make(map[int]bool)
	for i := range 64 * len(words) {
		if words[i/64]>>(i%64)&1 != 0 {
			set[i] = true
		}
	}
	return set
}

// A listed element has exactly the bits set that its weight asks for, and
// exactly those are tested; an unlisted one has none.
func TestExtraBits(t *testing.T) {
	r := newRandom(t)
	k := sources(t, 1)[0]
	for _, first := range []int{5, 6} {
		for _, rest := range []int{0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 18} {
			for extra := range MaxExtra + 1 {
				for _, listed := range []bool{true, false} {
					l := Layout{Mode: Approximate, Secret: secretOf(r.Uint64()), Capacity: 1, Lines: 1000, First: first, Rest: rest,
						V4Flow: []GatedShape{{key.Shape{SrcBits: 32, DstBits: 32}, GateAlways}}, HotBuckets: 32}
					s, err := NewSet(l, l.Alloc())
					if err != nil {
						t.Fatal(err)
					}
					s.Listed = func(key.Key) bool { return listed }
					if listed {
						if err := s.Add(k, 1); err != nil {
							t.Fatal(err)
						}
					}
					if err := s.SetWeight(k, extra); err != nil {
						t.Fatal(err)
					}
					h := k.Hash(l.Secret)
					want := make(map[int]bool)
					if listed {
						want = bitsOf(&l, h, extra)
					}
					if got := setBits(s.memory.Lines); !maps.Equal(got, want) {
						t.Fatalf("%d+%d+%d bits, listed %t: %v, want %v", first, rest, extra, listed, got, want)
					}
					if _, ok := s.lookup(h); ok != listed {
						t.Fatalf("%d+%d+%d bits, listed %t: found %t", first, rest, extra, listed, ok)
					}
					for p := range want { // each of them is tested
						s.memory.Lines[p/64] ^= 1 << (p % 64)
						if _, ok := s.lookup(h); ok {
							t.Fatalf("%d+%d+%d bits: bit %d is not tested", first, rest, extra, p)
						}
						s.memory.Lines[p/64] ^= 1 << (p % 64)
					}
				}
			}
		}
	}
}

// The rate of hot elements, measured through the whole set, is as predicted.
func TestHotFalsePositiveRate(t *testing.T) {
	long.Seconds(t)
	r, tolerance := fixed(3), long.Or(0.08, 0.04)
	const n, filters = 1 << 17, 8 // many keys, so that one filter is like the other
	for _, c := range []struct {
		bitsPerKey float64
		mode       Mode
		extra      []int
	}{{4, Approximate, []int{0, 1, 6, 7, 13}}, {8, Approximate, []int{2, 5, 6}}, {0, Exact, []int{1, 3}}} {
		var l Layout
		passed := make([]int, len(c.extra))
		var queries []int
		for range filters {
			s := weighable(t, c.mode, c.bitsPerKey, n, 1000, r.Uint64(), nil)
			l = s.Layout
			for range n {
				s.cascade.Add(r.Uint64())
			}
			queries = queries[:0]
			for i, extra := range c.extra {
				queries = append(queries, trial.Count(s.HotFalsePositiveRate(n, extra), tolerance)/filters+1)
				for range queries[i] {
					h := r.Uint64()
					if extra > 0 {
						slot, ok := s.hot.slot(h, extra)
						if !ok {
							t.Fatal("no room")
						}
						s.hot.put(slot, h, extra)
					}
					if s.Mode == Exact { // the table would confirm none
						if s.cascade.Contains(h) && s.cascade.ContainsExtra(h, s.Weight(h)) {
							passed[i]++
						}
					} else if _, ok := s.lookup(h); ok {
						passed[i]++
					}
					s.Cool(h)
				}
			}
		}
		for i, extra := range c.extra {
			t.Logf("%v, %d+%d+%d bits", c.mode, l.First, l.Rest, extra)
			trial.Check(t, passed[i], filters*queries[i], l.HotFalsePositiveRate(n, extra))
		}
	}
	if l := (&Layout{}); l.HotFalsePositiveRate(0, 3) != 0 {
		t.Error("a set without lines has false positives")
	}
}

// laggard is a program that has read an element's weight but not yet tested its
// bits.
type laggard struct {
	key   key.Key
	extra int
}

// In any order of operations, no listed key tests negative, neither now nor for
// a program that has read its weight before. After all are removed and settled,
// no bit is left.
func TestWeightsNoFalseNegative(t *testing.T) {
	for name, mode := range map[string]Mode{"exact": Exact, "approx": Approximate, "approx, with classes": Approximate} {
		t.Run(name, func(t *testing.T) {
			r := newRandom(t)
			for range 10 {
				testWeightsNoFalseNegative(t, mode, strings.HasSuffix(name, "classes"), r)
			}
		})
	}
}

func testWeightsNoFalseNegative(t *testing.T, mode Mode, classed bool, r random) {
	keys := sources(t, 600)
	listed := make(map[key.Key]bool)
	weights := make(map[key.Key]int) // as last set, without those that were replaced
	s := weighable(t, mode, 12, 400, 100, r.Uint64(), listed)
	if classed {
		s.First, s.Rest = maxClassedFirst, r.IntN(4)
		s.Classes = r.classes()
		s = weighableOf(t, s.Layout, listed)
	}
	var laggards []laggard
	check := func(k key.Key) {
		if _, ok := s.Lookup(k); !ok {
			t.Fatalf("%v is lost with weight %d", k, s.Weight(s.Hash(k)))
		}
	}
	rejected := 0
	for step := range 20_000 {
		k := keys[r.IntN(len(keys))]
		h := s.Hash(k)
		if listed[k] && r.IntN(2) == 0 {
			laggards = append(laggards, laggard{k, max(s.Weight(h), s.Classes.Extra(h))})
		}
		switch r.IntN(8) {
		case 0, 1:
			if !listed[k] {
				if err := s.Add(k, 1); err != nil {
					t.Fatal(err)
				}
				listed[k] = true
			}
		case 2:
			if listed[k] {
				delete(listed, k)
				if !s.Remove(k) {
					t.Fatalf("%v cannot be removed", k)
				}
				laggards = slices.DeleteFunc(laggards, func(l laggard) bool { return l.key == k })
			}
		case 3, 4, 5:
			extra := r.IntN(MaxExtra + 1)
			switch err := s.SetWeight(k, extra); {
			case err == nil:
				weights[k] = extra
			case errors.Is(err, ErrHotFull):
				rejected++
			default:
				t.Fatal(err)
			}
			if got := s.Weight(h); got != weights[k] && got != 0 {
				t.Fatalf("%v has weight %d, want %d", k, got, weights[k])
			}
		case 6:
			s.Cool(h)
			weights[k] = 0
		case 7: // the programs have ended
			if laggards = nil; r.IntN(10) == 0 {
				s.Settle()
				if s.Unsettled() {
					t.Fatal("unsettled after settling")
				}
			}
		}
		if listed[k] {
			check(k)
		}
		for _, l := range laggards {
			if h := s.Hash(l.key); !s.cascade.Contains(h) || !s.cascade.ContainsExtra(h, l.extra) {
				t.Fatalf("step %d: %v is lost for a program that read weight %d", step, l.key, l.extra)
			}
		}
		if step%1000 == 0 {
			for k := range listed {
				check(k)
			}
		}
	}
	// After Settle, exactly the bits of the listed keys with their weights are
	// set.
	s.Settle()
	want := make(map[int]bool)
	for k := range listed {
		h := s.Hash(k)
		maps.Copy(want, bitsOf(&s.Layout, h, max(s.Weight(h), s.Classes.Extra(h))))
	}
	if s.cascade.Saturated() > 0 {
		t.Fatal("the test is too dense: counters are saturated, and bits rightly stay")
	}
	if got := setBits(s.memory.Lines); !maps.Equal(got, want) {
		t.Errorf("%d bits are set, want %d", len(got), len(want))
	}
	if rejected == 0 {
		t.Error("no bucket of the hot table was ever full")
	}
	if shape := keys[0].Shape; s.Keys(shape) != len(listed) || s.Keys(key.Shape{}) != 0 {
		t.Errorf("%d keys are counted, want %d", s.Keys(shape), len(listed))
	}
	for k := range listed {
		s.Remove(k)
	}
	for h := range s.Weights() {
		s.Cool(h)
	}
	s.Settle()
	if slices.ContainsFunc(slices.Concat(s.memory.Lines, s.memory.Buckets, s.memory.Hot), func(w uint64) bool { return w != 0 }) {
		t.Error("removing all keys leaves bits or slots in use")
	}
	if len(s.raised) != 0 || s.hot.len != 0 {
		t.Errorf("%d keys count as raised, %d as hot", len(s.raised), s.hot.len)
	}
}

// An element without room, or whose membership is unknown, changes nothing.
func TestSetWeightRejects(t *testing.T) {
	keys := sources(t, 2)
	s := weighable(t, Approximate, 12, 10, 10, 1, nil)
	for _, extra := range []int{-1, MaxExtra + 1} {
		if err := s.SetWeight(keys[0], extra); err == nil {
			t.Errorf("%d extra bits were accepted", extra)
		}
	}
	s.Listed = nil
	if err := s.SetWeight(keys[0], 1); err == nil || !strings.Contains(err.Error(), "Listed") {
		t.Errorf("an approximate set without Listed: %v", err)
	}
	if err := s.SetWeight(keys[0], 0); err != nil {
		t.Errorf("no weight needs no Listed: %v", err)
	}
	if slices.ContainsFunc(slices.Concat(s.memory.Lines, s.memory.Hot), func(w uint64) bool { return w != 0 }) {
		t.Error("something has changed")
	}
	none := weighable(t, Exact, 0, 10, 0, 1, nil)
	if err := none.SetWeight(keys[0], 1); !errors.Is(err, ErrHotFull) {
		t.Errorf("without a hot table: %v", err)
	}
	if err := none.SetWeight(keys[0], 0); err != nil {
		t.Errorf("no weight without a hot table: %v", err)
	}

	s = weighable(t, Exact, 0, 10, 10, 1, nil)
	if err := s.SetWeight(keys[0], 1); err != nil {
		t.Fatal(err)
	}
	if err := s.Fill([]Column{numbered(key.Shape{SrcBits: 32, DstBits: 32}, 0, 2, 0)}); !errors.Is(err, ErrNoRoom) {
		t.Errorf("filling a set with weights: %v", err)
	}
}

// lookupLikeC performs the loads of bpf/hot.h and bpf/cascade.h in their order,
// for readers concurrent with a writer, which Lookup does not support. pause
// runs between reading the weight and the bits; weighed counts the weights that are above 0.
func lookupLikeC(s *Set, h uint64, weighed *int, pause func()) bool {
	test := func(h uint64, from, to int) bool {
		base := int(hash.Reduce(h, s.Lines)) * cascade.LineWords
		for j := from; j < to; j++ {
			if atomic.LoadUint64(&s.memory.Lines[base+int(h>>36+uint64(j))%cascade.LineWords])>>(h>>(6*j)&63)&1 == 0 {
				return false
			}
		}
		return true
	}
	if !test(h, 0, s.First) {
		return false
	}
	for i, rest := uint64(1), s.Rest; rest > 0; i, rest = i+1, rest-cascade.MaxLineBits {
		if !test(hash.Nth(h, i), 0, min(rest, cascade.MaxLineBits)) {
			return false
		}
	}
	var extra int
	bucket := int(h&uint64(s.HotBuckets-1)) * BucketSlots
	for i := range BucketSlots {
		if slot := atomic.LoadUint64(&s.memory.Hot[bucket+i]); (slot^h>>hotLowerBits)&hotHashMask == 0 {
			extra = int(slot >> hotHashBits)
			*weighed++
		}
	}
	extra = max(extra, s.Classes.Extra(h))
	pause()
	from, to := s.Rest, s.Rest+extra
	for i := uint64(1); ; i++ {
		if !test(hash.Nth(h, i), from, min(to, cascade.MaxLineBits)) {
			return false
		}
		if to <= cascade.MaxLineBits {
			return true
		}
		from, to = 0, to-cascade.MaxLineBits
	}
}

// The data plane relies on this: a reader concurrent with the writer finds each
// listed key while weights rise and fall all the time.
func TestWeightsReadersBesideWriter(t *testing.T) {
	long.Seconds(t)
	for name, classed := range map[string]bool{"": false, "with classes": true} {
		t.Run(name, func(t *testing.T) { testWeightsReadersBesideWriter(t, classed) })
	}
}

func testWeightsReadersBesideWriter(t *testing.T, classed bool) {
	r := newRandom(t)
	keys := sources(t, 40)
	listed := make(map[key.Key]bool)
	s := weighable(t, Approximate, 12, 40, 100, r.Uint64(), listed)
	if classed {
		s.First, s.Rest, s.Classes = maxClassedFirst, 3, r.classes()
		s = weighableOf(t, s.Layout, listed)
	}
	staying, coming := keys[:20], keys[20:]
	for _, k := range staying {
		listed[k] = true
		if err := s.Add(k, 1); err != nil {
			t.Fatal(err)
		}
	}
	var (
		passes [2]atomic.Int64 // lookups that have ended
		done   atomic.Bool
		wg     sync.WaitGroup
	)
	for i := range passes {
		seed := r.Uint64()
		wg.Go(func() {
			defer done.Store(true)
			weighed := 0
			defer func() {
				if weighed < 1000 {
					t.Errorf("%d weights were read", weighed)
				}
			}()
			for n := seed; !done.Load(); n++ {
				k := staying[hash.Reduce(hash.Nth(n, 0), uint32(len(staying)))]
				if !lookupLikeC(s, s.Hash(k), &weighed, func() {
					if n%8 == 0 {
						runtime.Gosched() // for a long time, as programs go
					}
				}) {
					t.Errorf("%v was briefly missing", k)
					return
				}
				passes[i].Add(1)
			}
		})
	}
	grace := func() { // all lookups that run have ended
		for i := range passes {
			for now := passes[i].Load(); passes[i].Load() < now+2 && !done.Load(); {
				runtime.Gosched()
			}
		}
	}
	settled := 0
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline) && !done.Load(); {
		for range 20 {
			if err := s.SetWeight(staying[r.IntN(len(staying))], r.IntN(MaxExtra+1)); err != nil && !errors.Is(err, ErrHotFull) {
				t.Fatal(err)
			}
			k := coming[r.IntN(len(coming))]
			if listed[k] {
				delete(listed, k)
				s.Remove(k)
			} else {
				listed[k] = true
				if err := s.Add(k, 1); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.SetWeight(k, r.IntN(MaxExtra+1)); err != nil && !errors.Is(err, ErrHotFull) {
				t.Fatal(err)
			}
		}
		if s.Unsettled() {
			grace()
			s.Settle()
			settled++
		}
	}
	lookups := passes[0].Load() + passes[1].Load()
	ended := done.Swap(true)
	wg.Wait()
	t.Logf("%d lookups, settled %d times", lookups, settled)
	if !ended && (lookups < 1000 || settled < 10) {
		t.Error("too little happened to test anything")
	}
}
