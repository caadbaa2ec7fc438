package loader

import (
	"errors"
	"maps"
	"testing"

	"weir/bpf"
	"weir/tests/lab"
)

// opened returns the memory of an attachment's trackers, which the test closes.
func opened(t *testing.T, g *Generation, a *Attachment) *Trackers {
	t.Helper()
	tr, err := g.OpenTrackers(a.Stats())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

// All interfaces count in the same memory, also when the next process has found their pins, or an
// interface comes later, which is loaded first. Each has a number of penalties of its own.
func TestSharedTrackers(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	cfg := Config{Trackers: []Tracker{{Lines: 2, Buckets: 1}}, TrackerSeed: Seed{1}}
	g := newTestGeneration(t, cfg)
	a, b := attach(t, pins, target(l.A), Native, g), attach(t, pins, target(l.B), Native, g)
	one, other := opened(t, g, a), opened(t, g, b)
	if one.Place() != other.Place() {
		t.Error("two interfaces count apart")
	}
	one.Penalties[0], one.Windows[0] = 7, 8
	one.SetThreshold(0, Threshold{Units: 9})
	lines, _ := one.Bank(0, 0, 0)
	lines[0] = 10
	one.SetPenalized(1)
	if n := other.Penalized(); n != 0 {
		t.Errorf("the other interface has %d penalties", n)
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Fatal(err)
	}

	// The next process.
	next := newTestGeneration(t, cfg)
	if found, err := pins.Open(target(l.B)); err != nil {
		t.Fatal(err)
	} else if continued, err := next.Continue(found.Stats()); !continued || err != nil {
		t.Fatal(continued, err)
	} else if err := found.Close(); err != nil {
		t.Fatal(err)
	}
	p := newTestProgram(t, next) // of an interface that may come
	defer p.Close()
	a, b = attach(t, pins, target(l.A), Native, next), attach(t, pins, target(l.B), Native, next)
	one, other = opened(t, next, a), opened(t, next, b)
	if one.Place() != other.Place() || one.Place() != &p.maps[bpf.WeirMapTrackerLines].words[0] {
		t.Error("a restart has two interfaces count apart")
	}
	lines, _ = other.Bank(0, 0, 0)
	if other.Penalties[0] != 7 || other.Windows[0] != 8 || other.Threshold(0).Units != 9 || lines[0] != 10 {
		t.Errorf("after a restart: %d, %d, %d, %d", other.Penalties[0], other.Windows[0], other.Threshold(0).Units, lines[0])
	}
	if one.Penalized() != 1 || other.Penalized() != 0 {
		t.Errorf("after a restart, %d and %d penalties", one.Penalized(), other.Penalized())
	}

	// Other trackers, on one interface after the other.
	third := newTestGeneration(t, Config{Trackers: []Tracker{{Lines: 4, Buckets: 1}}, TrackerSeed: Seed{1}})
	if continued, err := third.Continue(a.Stats()); continued || err != nil {
		t.Error(continued, err)
	}
	for _, on := range []*Attachment{a, b} {
		p, err := third.Load(on.Stats())
		if err != nil {
			t.Fatal(err)
		}
		_, err = third.OpenTrackers(on.Stats())
		wantError(t, err, ErrNotRecorded)
		if err := on.Replace(p); err != nil {
			t.Fatal(err)
		}
	}
	one, other = opened(t, third, a), opened(t, third, b)
	if one.Place() != other.Place() || other.Penalties[0] != 0 {
		t.Errorf("other trackers: together %t, penalty %d", one.Place() == other.Place(), other.Penalties[0])
	}
	detach(t, a)
	detach(t, b)
}

// Earlier versions count on each interface alone. Their penalties stay, and programs count anew.
func TestTrackersOfAnEarlierVersion(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	cfg := Config{Trackers: []Tracker{{Lines: 2, Buckets: 1}}, TrackerSeed: Seed{1}}
	for i, to := range []lab.End{l.A, l.B} {
		g := newTestGeneration(t, cfg) // of each interface
		entries := g.layout.counted(CPUs())
		entries[bpf.WeirMapTrackerLines] = CPUs() * banks * int(g.layout.lines)
		maps.Copy(entries, punished())
		var err error
		if g.counting.maps, err = newPinnedMaps(entries); err != nil {
			t.Fatal(err)
		}
		g.counting.maps[bpf.WeirMapPenalties].words[0] = uint64(7 + i)
		if err := attach(t, pins, target(to), Native, g).Close(); err != nil {
			t.Fatal(err)
		}
	}
	g := newTestGeneration(t, cfg)
	found, err := pins.Open(target(l.A))
	if err != nil {
		t.Fatal(err)
	}
	if continued, err := g.Continue(found.Stats()); !continued || err != nil {
		t.Fatal(continued, err)
	}
	if err := found.Close(); err != nil {
		t.Fatal(err)
	}
	b, a := attach(t, pins, target(l.B), Native, g), attach(t, pins, target(l.A), Native, g)
	one, other := opened(t, g, a), opened(t, g, b)
	if one.Place() != other.Place() || one.Penalties[0] != 7 || other.Penalties[0] != 7 {
		t.Errorf("together %t, penalties %d and %d", one.Place() == other.Place(), one.Penalties[0], other.Penalties[0])
	}
	if one.Began(0, one.Active(0)) == 0 {
		t.Error("they began to count at an unknown time")
	}
	detach(t, a)
	detach(t, b)
}
