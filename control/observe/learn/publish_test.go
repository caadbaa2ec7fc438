package learn

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"weir/filter/key"
	"weir/filter/membership"
)

// weights returns weights for sources 0, 1, … with the given numbers of extra
// bits.
func weights(s *membership.Set, extra ...int) Weights {
	w := Weights{Base: s.First + s.Rest}
	for i, e := range extra {
		w.Elements = append(w.Elements, Weight{Key: source(i), K: w.Base + e})
	}
	return w
}

func published(s *membership.Set) map[uint64]int { return maps.Collect(s.Weights()) }

// The set has exactly the weights published last; unchanged ones are left
// alone.
func TestPublish(t *testing.T) {
	s := newSet(t, 100, 14, 100, src32)
	for _, c := range []struct {
		extra   []int
		changed int
	}{
		{nil, 0},
		{[]int{9, 6, 0, 1}, 3},
		{[]int{9, 6, 0, 1}, 0},
		{[]int{9, 7, 1, 0}, 3}, // one rises, one comes, one leaves
		{[]int{2, 7, 1, 0}, 1},
		{[]int{2}, 2},
		{nil, 1},
	} {
		p, err := Publish(s, weights(s, c.extra...), func() { t.Error("waiting although nothing is listed") })
		if err != nil || p.Changed != c.changed || p.Refused != 0 {
			t.Errorf("%v: %+v, %v", c.extra, p, err)
		}
		want := make(map[uint64]int)
		for i, e := range c.extra {
			if e > 0 {
				want[source(i).Hash(s.Secret)] = e
			}
		}
		if got := published(s); !maps.Equal(got, want) {
			t.Errorf("%v: published %v, want %v", c.extra, got, want)
		}
	}
}

// The bits of listed elements stay until the grace period is over, and are
// cleared then.
func TestPublishWaits(t *testing.T) {
	s := newSet(t, 100, 14, 100, src32)
	empty, _ := s.Load()
	listed := make(map[key.Key]bool)
	s.Listed = func(k key.Key) bool { return listed[k] }
	for i := range 3 {
		listed[source(i)] = true
		if err := s.Add(source(i), 1); err != nil {
			t.Fatal(err)
		}
	}
	without, _ := s.Load()
	waited := 0
	publish := func(extra ...int) (during, after float64) {
		t.Helper()
		before, _ := s.Load()
		during = before
		if _, err := Publish(s, weights(s, extra...), func() {
			waited++
			if during, _ = s.Load(); during < before {
				t.Error("bits are gone before the grace period is over")
			}
			for i, e := range extra { // what programs see
				if h := source(i).Hash(s.Secret); s.Weight(h) != e {
					t.Errorf("source %d has weight %d while waiting, want %d", i, s.Weight(h), e)
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		for k := range listed {
			if _, ok := s.Lookup(k); !ok {
				t.Errorf("%v is lost", k)
			}
		}
		after, _ = s.Load()
		return during, after
	}
	if _, after := publish(9, 6, 2); waited != 0 || after <= without {
		t.Errorf("raised: waited %d times, load from %v to %v", waited, without, after)
	}
	if during, after := publish(12, 6, 1); waited != 1 || after >= during {
		t.Errorf("one raised and one lowered: waited %d times, load %v", waited, after)
	}
	if during, after := publish(); waited != 2 || after != without || during <= without {
		t.Errorf("all gone: waited %d times, load %v, want %v", waited, after, without)
	}
	publish(9, 6, 2)
	for k := range listed { // removed elements have nothing to settle
		s.Remove(k)
	}
	clear(listed)
	if _, after := publish(); waited != 2 || after != empty {
		t.Errorf("removed: waited %d times, load %v, want %v", waited, after, empty)
	}
}

// If buckets are full, the coolest elements have no weight, and the next call
// changes nothing.
func TestPublishFull(t *testing.T) {
	s := newSet(t, 100, 14, 1, src32) // 256 slots
	extra := make([]int, 400)
	for i := range extra {
		extra[i] = 1 + (len(extra)-i)/50
	}
	p, err := Publish(s, weights(s, extra...), nil)
	if err != nil {
		t.Fatal(err)
	}
	first := published(s)
	if p.Refused == 0 || p.Refused+len(first) != len(extra) || p.Changed != len(first) {
		t.Errorf("%+v with %d elements in the table", p, len(first))
	}
	if p, _ := Publish(s, weights(s, extra...), nil); p.Changed != 0 || !maps.Equal(published(s), first) {
		t.Errorf("the second time: %+v", p)
	}
	// An element without weight replaces another once it is hotter.
	var without int
	for i := range extra {
		if s.Weight(source(i).Hash(s.Secret)) == 0 {
			without = i
		}
	}
	extra[without] = membership.MaxExtra
	if _, err := Publish(s, weights(s, extra...), nil); err != nil || s.Weight(source(without).Hash(s.Secret)) != membership.MaxExtra {
		t.Errorf("the hotter element has found no room: %v", err)
	}
}

// A set without Listed cannot have weights.
func TestPublishRejected(t *testing.T) {
	s := newSet(t, 100, 14, 100, src32)
	s.Listed = nil
	if p, err := Publish(s, weights(s, 3), nil); err == nil || errors.Is(err, membership.ErrHotFull) || !strings.Contains(err.Error(), "Listed") || p.Changed != 0 {
		t.Errorf("%+v, %v", p, err)
	}
}
