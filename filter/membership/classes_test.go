package membership

import (
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
	"testing"

	"weir/filter/internal/trial"
	"weir/filter/key"
	"weir/tests/forgers"
	"weir/tests/long"
)

// classes returns random numbers of bits, so that every third class has none.
func (r random) classes() Classes {
	c := make(Classes, NumClasses+1)
	for i := range c {
		c[i] = byte(max(r.IntN(15)-5, 0))
	}
	return c
}

// classOfKey is Layout.class by the documentation alone.
func classOfKey(l *Layout, k key.Key) (class int, ok bool) {
	bits := 16
	if k.V6() {
		bits = 32
	}
	a := k.Src
	if int(k.SrcBits) < bits {
		if a = k.Dst; int(k.DstBits) < bits {
			return 0, false
		}
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return 0, false
	}
	var network [4]byte
	copy(network[:], p.Addr().AsSlice())
	return int(uint64(binary.NativeEndian.Uint32(network[:])) * uint64(l.ClassFactor) % (1 << 32) >> 21), true
}

// Keys have the bits of their class, however they come into a set: one by one, all at once, or with memory
// that another process has filled. No other bits are set.
func TestClasses(t *testing.T) {
	for range 20 {
		r := newRandom(t)
		keys := make(map[key.Key]uint16)
		for len(keys) < 300 {
			keys[r.key()] = 1
		}
		for _, s := range []key.Shape{{}, {SrcBits: 15}, {Fields: key.FieldV6, DstBits: 31}} { // without a class
			k, ok := s.Of(r.tuple())
			for !ok {
				k, ok = s.Of(r.tuple())
			}
			keys[k] = 1
		}
		l, err := PlanLayout(census(keys), Approximate, 200, secretOf(r.Uint64()))
		if err != nil {
			t.Fatal(err)
		}
		l.First, l.Rest, l.Classes = maxClassedFirst, r.IntN(9), r.classes()
		want := make(map[int]bool)
		classed := 0
		for k := range keys {
			extra := int(l.Classes[NumClasses])
			if class, ok := classOfKey(&l, k); ok {
				extra = int(l.Classes[class])
				classed++
			}
			h := k.Hash(l.Secret)&^(31<<24) | uint64(extra)<<24
			for p := range bitsOf(&l, h, extra) {
				want[p] = true
			}
		}
		if classed == 0 || classed == len(keys) {
			t.Fatalf("%d of %d keys have a class", classed, len(keys))
		}
		check := func(how string, s *Set) {
			t.Helper()
			got := setBits(s.memory.Lines)
			if len(got) != len(want) {
				t.Errorf("%s: %d bits are set, want %d", how, len(got), len(want))
			}
			for p := range got {
				if !want[p] {
					t.Fatalf("%s: bit %d is set", how, p)
				}
			}
			for k := range keys {
				if _, ok := s.Lookup(k); !ok || !s.Passes(k) {
					t.Fatalf("%s: %v is lost", how, k)
				}
			}
		}
		one, err := NewSet(l, l.Alloc())
		if err != nil {
			t.Fatal(err)
		}
		for k := range keys {
			if err := one.Add(k, 1); err != nil {
				t.Fatal(err)
			}
		}
		check("one by one", one)
		m := l.Alloc()
		all, err := NewSet(l, m)
		if err != nil {
			t.Fatal(err)
		}
		if err := all.Fill(columns(keys)); err != nil {
			t.Fatal(err)
		}
		check("all at once", all)
		for k := range keys {
			if r.IntN(2) == 0 {
				all.Remove(k)
			}
		}
		adopted, _, err := Adopt(l, m, columns(keys), func() {})
		if err != nil {
			t.Fatal(err)
		}
		check("adopted", adopted)
		for k := range keys {
			adopted.Remove(k)
		}
		if slices.ContainsFunc(adopted.memory.Lines, func(w uint64) bool { return w != 0 }) {
			t.Error("removing all keys leaves bits")
		}
	}
}

// countClass counts a key.
func countClass(l *Layout, c *ClassCounts, k key.Key) {
	if class, ok := classOfKey(l, k); ok {
		c[class]++
	}
}

// foundIn returns what is learned at a host, with the sources of a forger, if any.
func foundIn(w *forgers.World, honest int, f *forgers.Forger) *Sightings {
	s := Sightings{Periods: make([]Period, MaxPeriods)}
	w.Found(honest, f, func(period int, source uint32) {
		s.Periods[period].Exposed = 1
		s.Periods[period].Add(hostKey(source))
	})
	return &s
}

// Where networks differ, classes lower the rate, as predicted; where they do not, there are none.
func TestPlanClasses(t *testing.T) {
	long.Seconds(t)
	const n = 100_000
	r, tolerance := fixed(5), long.Or(0.15, 0.08)
	for _, c := range []struct {
		bits, exponent float64
		least          float64 // times fewer
	}{{8, 1.1, 8}, {10, 1.1, 8}, {16, 1.1, 8}, {10, 0.8, 1.2}, {10, 0, 1}} {
		if c.bits > 10 && !long.Enabled {
			continue // mistakes are rare
		}
		w := forgers.New(r.Rand, c.exponent)
		l, err := PlanLayout(Census{Keys: map[key.Shape]int{hosts4: n}}, Approximate, c.bits, secretOf(r.Uint64()))
		if err != nil {
			t.Fatal(err)
		}
		plain := l.FalsePositiveRate(n)
		keys := make(map[key.Key]uint16)
		var listed ClassCounts
		for len(keys) < n {
			k := hostKey(w.Listed())
			if _, ok := keys[k]; !ok {
				keys[k] = 1
				countClass(&l, &listed, k)
			}
		}
		l.PlanClasses(&listed, foundIn(w, 20_000, nil), n)
		s, err := NewSet(l, l.Alloc())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Fill(columns(keys)); err != nil {
			t.Fatal(err)
		}
		predicted := l.FalsePositiveRate(n)
		passed, asked := 0, 0
		for want := trial.Count(predicted, tolerance); asked < want; {
			if k := hostKey(w.Honest()); keys[k] == 0 {
				asked++
				if s.Passes(k) {
					passed++
				}
			}
		}
		rate := float64(passed) / float64(asked)
		t.Logf("%v bits, exponent %v: %d classes of bits, %d+%d; %.3g, predicted %.3g, without classes %.3g", c.bits, c.exponent, len(l.ClassShares), l.First, l.Rest, rate, predicted, plain)
		if (l.Classes == nil) != (c.least == 1) {
			t.Errorf("classes: %t", l.Classes != nil)
		}
		if rate > plain/c.least*1.1 {
			t.Errorf("%.2f times fewer, want %v", plain/rate, c.least)
		}
		if math.Abs(rate/predicted-1) > long.Or(0.3, 0.15) {
			t.Errorf("rate %.3g, predicted %.3g", rate, predicted)
		}
	}
}

// Keys without a class, as those of short prefixes, are taken for listed ones as often as without classes:
// any packet asks for them.
func TestPlanClassesBesideShortPrefixes(t *testing.T) {
	const n, short = 50_000, 2000
	r := fixed(6)
	w := forgers.New(r.Rand, 1.1)
	shape := key.Shape{SrcBits: 15}
	l, err := PlanLayout(Census{Keys: map[key.Shape]int{hosts4: n, shape: short}}, Approximate, 8, secretOf(1))
	if err != nil {
		t.Fatal(err)
	}
	plain := l.FalsePositiveRate(n + short)
	keys := make(map[key.Key]uint16)
	var listed ClassCounts
	for len(keys) < n {
		if k := hostKey(w.Listed()); keys[k] == 0 {
			keys[k] = 1
			countClass(&l, &listed, k)
		}
	}
	prefix := func(i int) key.Key { return mustKey(t, shape, uint32(i)<<17) }
	for i := range short {
		keys[prefix(i)] = 1
	}
	l.PlanClasses(&listed, foundIn(w, 20_000, nil), n+short)
	if l.Classes == nil {
		t.Fatal("no classes")
	}
	s, err := NewSet(l, l.Alloc())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Fill(columns(keys)); err != nil {
		t.Fatal(err)
	}
	passed := 0
	const asked = 1<<15 - short
	for i := range asked {
		if s.Passes(prefix(short + i)) {
			passed++
		}
	}
	if rate := float64(passed) / asked; rate > 1.2*plain {
		t.Errorf("%.3g of short prefixes are taken for listed ones, %.3g without classes", rate, plain)
	}
}

func mustKey(t *testing.T, s key.Shape, address uint32) key.Key {
	k, ok := s.Of(key.Tuple{Src: netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, address))), Dst: netip.AddrFrom4([4]byte{})})
	if !ok {
		t.Fatal("no key")
	}
	return k
}

// The same plan again is not better, wherever entries and elements are.
func TestPlanClassesAgain(t *testing.T) {
	const n = 100_000
	for _, sending := range []int{5, 50, 500} {
		var listed ClassCounts
		var found Sightings
		for i := range listed {
			listed[i] = float64(n) / NumClasses
		}
		found.Periods = make([]Period, MaxPeriods)
		for p := range found.Periods {
			found.Periods[p].Networks = make(map[uint32]Sighting)
			for i := range sending {
				found.Periods[p].Networks[uint32(i)<<16] = Sighting{Found: 50, Exposed: 1}
			}
		}
		l, err := PlanLayout(Census{Keys: map[key.Shape]int{hosts4: n}}, Approximate, 10, secretOf(1))
		if err != nil {
			t.Fatal(err)
		}
		l.PlanClasses(&listed, &found, n)
		now := l.RateOf(&found, n)
		next := l
		next.PlanClasses(&listed, &found, n)
		if rate := next.FalsePositiveRate(n); now > 1.1*rate || l.Classes == nil {
			t.Errorf("%d classes send: rate %.3g, and %.3g with the same plan", sending, now, rate)
		}
	}
}

// Keys may be removed after they were counted: a plan is not made for fewer than none.
func TestPlanClassesAfterRemovals(t *testing.T) {
	l, err := PlanLayout(Census{Keys: map[key.Shape]int{hosts4: 1000}}, Approximate, 8, secretOf(1))
	if err != nil {
		t.Fatal(err)
	}
	var listed ClassCounts
	var found Sightings
	found.Periods = []Period{{Networks: map[uint32]Sighting{0: {Found: 1000, Exposed: 1}}}}
	listed[l.classOf([4]byte{0, 1})] = 1000
	l.PlanClasses(&listed, &found, 10)
	if rate := l.FalsePositiveRate(10); l.Classes == nil || !(rate < 1e-3) {
		t.Errorf("rate %v with classes %t", rate, l.Classes != nil)
	}
}

// Who writes entries into the networks that share a class under one secret does not reach the class under another:
// networks share a class by chance.
func TestClassesCannotBeAimedAt(t *testing.T) {
	r := newRandom(t)
	victim := [4]byte{45, 7}
	shared, tries := 0, 0
	for range 200 {
		known, l := Layout{ClassFactor: classFactor(secretOf(r.Uint64()))}, Layout{ClassFactor: classFactor(secretOf(r.Uint64()))}
		for n := range uint32(1 << 16) {
			if network := networkAt(n << 16); known.classOf(network) == known.classOf(victim) && network != victim {
				tries++
				if l.classOf(network) == l.classOf(victim) {
					shared++
				}
			}
		}
	}
	if limit := 2 * float64(tries) / NumClasses; tries < 3000 || float64(shared) > limit+5*math.Sqrt(limit)*8 {
		t.Errorf("%d of %d networks share the victim's class, want %.0f at most", shared, tries, limit)
	}
}

func TestClassesAreChecked(t *testing.T) {
	good := Layout{Mode: Approximate, Secret: secretOf(1), Lines: 1, First: 4, ClassFactor: 1, Classes: make(Classes, NumClasses+1)}
	if _, err := NewSet(good, good.Alloc()); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Layout){
		"no factor":                 func(l *Layout) { l.ClassFactor = 2 },
		"too few":                   func(l *Layout) { l.Classes = l.Classes[1:] },
		"too many bits":             func(l *Layout) { l.Classes = slices.Repeat(Classes{MaxExtra + 1}, NumClasses+1) },
		"five bits in a first line": func(l *Layout) { l.First = 5 },
		"exact":                     func(l *Layout) { l.Mode = Exact },
	} {
		l := good
		change(&l)
		if _, err := NewSet(l, l.Alloc()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
