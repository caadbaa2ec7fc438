package membership

import (
	"maps"
	"slices"
	"testing"
)

// hotModel is the hot table as bpf/hot.h describes it: buckets of (hash, extra
// bits) with whole hashes.
type hotModel struct {
	buckets map[uint64]map[uint64]int
	number  int // of buckets
}

func (m hotModel) bucket(h uint64) uint64 { return h % uint64(m.number) }

func (m hotModel) set(h uint64, extra int) bool {
	b := m.buckets[m.bucket(h)]
	if b == nil {
		b = make(map[uint64]int)
		m.buckets[m.bucket(h)] = b
	}
	if _, ok := b[h]; !ok && extra > 0 && len(b) == BucketSlots {
		fewest := slices.Min(slices.Collect(maps.Values(b)))
		if fewest >= extra {
			return false
		}
		// Which of several is replaced is up to the table.
		return true
	}
	if b[h] = extra; extra == 0 {
		delete(b, h)
	}
	return true
}

func TestHotAgainstMap(t *testing.T) {
	r := newRandom(t)
	for _, buckets := range []int{32, 64, 1 << 12} {
		table := NewHot(make([]uint64, buckets*BucketSlots))
		m := hotModel{make(map[uint64]map[uint64]int), buckets}
		var known []uint64
		replaced, rejected := 0, 0
		for range 40 * buckets {
			h := r.Uint64()
			if len(known) > 0 && r.IntN(3) == 0 {
				h = known[r.IntN(len(known))]
			}
			known = append(known, h)
			extra := r.IntN(MaxExtra + 1)
			if extra == 0 {
				if i, ok := table.find(h); ok {
					table.put(i, h, 0)
				}
				m.set(h, 0)
				continue
			}
			b := m.buckets[m.bucket(h)]
			before := maps.Clone(b)
			i, ok := table.slot(h, extra)
			if ok != m.set(h, extra) {
				t.Fatalf("%#x with %d: room %t in the bucket %v", h, extra, ok, before)
			}
			if !ok {
				rejected++
				continue
			}
			if _, known := before[h]; !known && len(before) == BucketSlots {
				victim := table.slots[i]<<5 | h&31
				if fewest := slices.Min(slices.Collect(maps.Values(before))); before[victim] != fewest {
					t.Fatalf("%#x replaces %#x, which is not the coolest of %v", h, victim, before)
				}
				delete(b, victim)
				b[h] = extra
				replaced++
			}
			table.put(i, h, extra)
		}
		want := make(map[uint64]int)
		for _, b := range m.buckets {
			maps.Copy(want, b)
		}
		if got := maps.Collect(table.All()); !maps.Equal(got, want) || table.len != len(want) {
			t.Errorf("%d buckets: %d elements, counted as %d, want %d", buckets, len(got), table.len, len(want))
		}
		for _, h := range known {
			if got := table.Find(h); got != want[h] {
				t.Fatalf("%#x has %d extra bits, want %d", h, got, want[h])
			}
		}
		for i, s := range table.slots { // bit for bit
			if s == 0 {
				continue
			}
			h := s<<5 | uint64(i/8)&31
			if want[h] != int(s>>59) || m.bucket(h) != uint64(i/8) {
				t.Fatalf("slot %d is %#x", i, s)
			}
		}
		if replaced == 0 || rejected == 0 {
			t.Errorf("%d buckets: %d replaced and %d rejected", buckets, replaced, rejected)
		}
	}
}

// No element is confused with another, even if their hashes differ in one bit.
func TestHotDistinguishesHashes(t *testing.T) {
	r := newRandom(t)
	for buckets := MinHotBuckets; buckets <= 1<<12; buckets *= 2 {
		for _, h := range []uint64{0, 1<<64 - 1, r.Uint64()} {
			table := NewHot(make([]uint64, buckets*BucketSlots))
			if table.Find(h) != 0 {
				t.Fatalf("%#x is in the empty table", h)
			}
			i, _ := table.slot(h, 1)
			table.put(i, h, 1)
			if table.Find(h) != 1 {
				t.Fatalf("%#x is lost", h)
			}
			for bit := range 64 {
				if other := h ^ 1<<bit; table.Find(other) != 0 {
					t.Fatalf("%d buckets: %#x is confused with %#x", buckets, other, h)
				}
			}
		}
	}
}

func TestHotWithoutSlots(t *testing.T) {
	table := NewHot(nil)
	if _, ok := table.slot(1, MaxExtra); ok || table.Find(1) != 0 || len(maps.Collect(table.All())) != 0 {
		t.Error("the table without slots contains an element, or has room for one")
	}
}

// The planned size suffices for nearly all elements.
func TestPlanHot(t *testing.T) {
	r := fixed(1)
	for _, n := range []int{0, 1, 100, 5000, 46_000, 65_536, 90_000} {
		var l Layout
		l.Lines = 1
		l.PlanHot(n)
		l.Lines = 0
		if n == 0 {
			if l.HotBuckets != 0 {
				t.Error("a hot table for no element")
			}
			continue
		}
		s, err := NewSet(l, l.Alloc())
		if err != nil {
			t.Fatal(err)
		}
		if got := l.Bytes(); got != 64*int(l.HotBuckets) {
			t.Errorf("%d elements: %d bytes", n, got)
		}
		fill := float64(n) / float64(len(s.memory.Hot))
		if n > 1000 && (fill < HotFill/1.42 || fill > HotFill*1.42) {
			t.Errorf("%d elements fill the table to %.3f", n, fill)
		}
		rejected := 0
		for range n {
			h := r.Uint64()
			if i, ok := s.hot.slot(h, 1); ok {
				s.hot.put(i, h, 1)
			} else {
				rejected++
			}
		}
		t.Logf("%d elements: fill %.3f, %.4f rejected", n, fill, float64(rejected)/float64(n))
		if float64(rejected)/float64(n) > 0.02 {
			t.Errorf("%d elements: %d find no room", n, rejected)
		}
	}
}

func TestNewSetRejectsHotBuckets(t *testing.T) {
	for n, ok := range map[uint32]bool{0: true, 16: false, 32: true, 33: false, 48: false, 64: true} {
		l := Layout{HotBuckets: n}
		if _, err := NewSet(l, l.Alloc()); (err == nil) != ok {
			t.Errorf("%d buckets: %v", n, err)
		}
	}
	l := Layout{HotBuckets: 32}
	if _, err := NewSet(l, Memory{Hot: make([]uint64, 31*BucketSlots)}); err == nil {
		t.Error("a missing bucket was accepted")
	}
}
