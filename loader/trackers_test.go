package loader

import (
	"errors"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/bpf"
	"weir/loader/hooks"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/wait"
)

// opened returns the memory of an attachment's trackers, until the test ends.
func opened(t *testing.T, g *Generation, a *Attachment) *Trackers {
	t.Helper()
	tr, err := g.OpenTrackers(a.Stats())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

// continueFrom has a generation continue what is pinned for an interface.
func continueFrom(t *testing.T, g *Generation, pins Pins, e lab.End, other bool) {
	t.Helper()
	found, err := pins.Open(target(e))
	if err != nil {
		t.Fatal(err)
	}
	continued, err := g.Continue(found.Stats(), func() bool { return other })
	if err := errors.Join(err, found.Close()); err != nil || !continued {
		t.Fatal(continued, err)
	}
}

var oneTracker = Config{Trackers: []Tracker{{Lines: 2, Buckets: 1}}, TrackerSeed: Seed{1}}

// All interfaces count in the same memory, also when the next process has found their pins, or an
// interface comes later, whose program is loaded first. A new one looks for penalties.
func TestSharedTrackers(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	g := newTestGeneration(t, oneTracker)
	a, b := attachBoth(t, pins, l, g)
	one, other := opened(t, g, a), opened(t, g, b)
	if one.Place() != other.Place() {
		t.Error("two interfaces count apart")
	}
	if one.Penalized() == 0 || other.Penalized() == 0 {
		t.Error("a new interface does not look for penalties")
	}
	one.Penalties[0], one.Windows[0] = 7, 8
	one.SetThreshold(0, Threshold{Units: 9})
	_, flows := one.Bank(0, 0, 0)
	flows[len(flows)-1] = 10
	one.SetPenalized(3)
	other.SetPenalized(0)
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Fatal(err)
	}

	// The next process.
	next := newTestGeneration(t, oneTracker)
	continueFrom(t, next, pins, l.B, false)
	p := newTestProgram(t, next) // of an interface that may come
	defer p.Close()
	a, b = attachBoth(t, pins, l, next)
	one, other = opened(t, next, a), opened(t, next, b)
	if one.Place() != other.Place() || one.Place() != &p.maps[bpf.WeirMapTrackerLines].words[0] {
		t.Error("a restart has two interfaces count apart")
	}
	_, flows = other.Bank(0, 0, 0)
	if last := flows[len(flows)-1]; other.Penalties[0] != 7 || other.Windows[0] != 8 || other.Threshold(0).Units != 9 || last != 10 {
		t.Errorf("after a restart: %d, %d, %d, %d", other.Penalties[0], other.Windows[0], other.Threshold(0).Units, last)
	}
	if one.Penalized() != 3 || other.Penalized() == 0 {
		t.Errorf("after a restart, %d and %d penalties", one.Penalized(), other.Penalized())
	}

	// Other trackers, on one interface after the other.
	third := newTestGeneration(t, Config{Trackers: []Tracker{{Lines: 4, Buckets: 1}}, TrackerSeed: Seed{1}})
	if continued, err := third.Continue(a.Stats(), func() bool { t.Error("it looks for programs in vain"); return false }); continued || err != nil {
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

// The memory outlasts the generations that use it where programs count in it, and is released with
// the last of them.
func TestTrackersOutlast(t *testing.T) {
	before := openFiles(t)
	s, err := NewStats(0)
	if err != nil {
		t.Fatal(err)
	}
	var place *uint64
	for range 3 {
		g, err := NewGeneration(oneTracker)
		if err != nil {
			t.Fatal(err)
		}
		if continued, err := g.Continue(s, nil); err != nil || continued != (place != nil) {
			t.Fatal(continued, err)
		}
		p := loadAndTake(t, g, s)
		tr, err := g.OpenTrackers(s)
		if err != nil {
			t.Fatal(err)
		}
		if place != nil && tr.Place() != place {
			t.Error("the next generation counts anew")
		}
		place = tr.Place()
		lines, _ := tr.Bank(0, 0, 0)
		lines[0]++
		if err := errors.Join(tr.Close(), p.Close(), g.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if after := openFiles(t); after != before {
		t.Errorf("open before: %s; after: %s", before, after)
	}
}

// Banks are exchanged on all interfaces that count in them, those included that are not opened
// yet, and on all CPUs, whatever a process that was killed has left. What another process has taken
// over is left alone.
func TestExchangeTogether(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	g := newTestGeneration(t, oneTracker)
	a := attach(t, pins, target(l.A), hooks.Native, g)
	one := opened(t, g, a)
	one.Exchange(0)
	b := attach(t, pins, target(l.B), hooks.Native, g)
	banks := func(s *Stats) (all []uint64) {
		s.read(func(k pinnedMaps) {
			rows := k[bpf.WeirMapReasonStats].words
			for i := banksWord; i < len(rows); i += rowWords {
				all = append(all, rows[i]&trackerBanks)
			}
		})
		return all
	}
	want := func(what string, s *Stats, bank uint64) {
		t.Helper()
		for cpu, got := range banks(s) {
			if got != bank {
				t.Errorf("%s: CPU %d counts in bank %d, want %d", what, cpu, got, bank)
			}
		}
	}
	want("a new interface", b.Stats(), 1)
	p := newTestProgram(t, g) // joins once, where one that is attached does so before and after
	defer p.Close()
	s := p.stats
	if err := s.Take(p); err != nil {
		t.Fatal(err)
	}
	want("a program under test", s, 1)
	one.Exchange(0)
	want("the one", a.Stats(), 0)
	want("the other", b.Stats(), 0)

	// Killed after the first CPU of one interface.
	a.stats.read(func(k pinnedMaps) { atomic.StoreUint64(&k[bpf.WeirMapReasonStats].words[banksWord], 1) })
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Fatal(err)
	}
	next := newTestGeneration(t, oneTracker)
	continueFrom(t, next, pins, l.A, false)
	a, b = attachBoth(t, pins, l, next)
	want("after a kill, the one", a.Stats(), 1)
	want("after a kill, the other", b.Stats(), 1)

	// Another process takes one over.
	third := newTestGeneration(t, oneTracker)
	continueFrom(t, third, pins, l.B, true)
	taken := attach(t, pins, target(l.B), hooks.Native, third)
	opened(t, third, taken).Exchange(0)
	opened(t, next, a).Exchange(0)
	want("what stays", a.Stats(), 0)
	want("what was taken over", taken.Stats(), 1)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	detach(t, a)
	detach(t, taken)
}

// Banks are exchanged while the pins are locked and somebody waits for them to detach.
func TestExchangeDoesNotWait(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	g := newTestGeneration(t, oneTracker)
	a, b := attachBoth(t, pins, l, g)
	one := opened(t, g, a)
	setPatience(t, 2*wait.Patience)
	unlock, err := pins.lock(unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	detached := make(chan error)
	go func() { detached <- b.Detach() }()
	wait.For(t, "the one waits to detach", func() bool {
		free := b.mu.TryLock()
		if free {
			b.mu.Unlock()
		}
		return !free
	})
	exchanged := make(chan bool)
	go func() {
		one.Exchange(0)
		exchanged <- true
	}()
	select {
	case <-exchanged:
	case <-time.After(wait.Patience):
		t.Error("it waits for the one that detaches")
	}
	unlock()
	if err := <-detached; err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	detach(t, a)
}

// Programs that are not replaced are not counted with: a process that finds some in the memory of
// an interface takes the penalties over, and another memory.
func TestTrackersOfOthers(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	g := newTestGeneration(t, oneTracker)
	a, b := attachBoth(t, pins, l, g)
	tr := opened(t, g, a)
	tr.Penalties[0] = 7
	for _, x := range []struct {
		targets []netif.Target
		want    bool
	}{{[]netif.Target{target(l.A), target(l.B)}, false}, {[]netif.Target{target(l.A)}, true}, {nil, true}} {
		if got, err := pins.CountElsewhere(a.Stats(), x.targets); got != x.want || err != nil {
			t.Errorf("others than %v count there: %t, %v", x.targets, got, err)
		}
	}
	next := newTestGeneration(t, oneTracker)
	continueFrom(t, next, pins, l.B, true)
	mine := attach(t, pins, target(l.B), hooks.Native, next)
	other := opened(t, next, mine)
	if other.Place() == tr.Place() || other.Penalties[0] != 7 {
		t.Errorf("counts together %t, penalty %d", other.Place() == tr.Place(), other.Penalties[0])
	}
	if other.Penalties[0] = 8; tr.Penalties[0] != 7 {
		t.Error("they have one table of penalties")
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := pins.CountElsewhere(a.Stats(), []netif.Target{target(l.A)}); got || err != nil {
		t.Errorf("others than %v still count there: %t, %v", target(l.A), got, err)
	}
	detach(t, mine)
	detach(t, a)
}

// Earlier versions count on each interface alone. Their penalties stay, and programs count anew; so
// they do where a process was killed while it replaced pins, and some are the former ones.
func TestTrackersOfAnEarlierVersion(t *testing.T) {
	for name, change := range map[string]func(g *Generation, entries map[string]int){
		"earlier": func(g *Generation, entries map[string]int) {
			now := entries[bpf.WeirMapTrackerLines]
			entries[bpf.WeirMapTrackerLines] = CPUs() * banks * int(g.layout.lines)
			if now == entries[bpf.WeirMapTrackerLines] {
				t.Error("an earlier version would continue in memory that interfaces share")
			}
		},
		"killed": func(*Generation, map[string]int) {},
	} {
		t.Run(name, func(t *testing.T) {
			l, pins := lab.New(t), testPins(t)
			for i, to := range []lab.End{l.A, l.B} {
				g := newTestGeneration(t, oneTracker) // of each interface
				entries := g.layout.counted(CPUs())
				change(g, entries)
				maps.Copy(entries, punished())
				k, err := newPinnedMaps(entries)
				if err != nil {
					t.Fatal(err)
				}
				g.counting.memory = newMemoryOf(k).use()
				k[bpf.WeirMapPenalties].words[0] = uint64(7 + i)
				if err := attach(t, pins, target(to), hooks.Native, g).Close(); err != nil {
					t.Fatal(err)
				}
			}
			g := newTestGeneration(t, oneTracker)
			continueFrom(t, g, pins, l.A, false)
			b, a := attach(t, pins, target(l.B), hooks.Native, g), attach(t, pins, target(l.A), hooks.Native, g)
			one, other := opened(t, g, a), opened(t, g, b)
			if one.Place() != other.Place() || one.Penalties[0] != 7 || other.Penalties[0] != 7 {
				t.Errorf("together %t, penalties %d and %d", one.Place() == other.Place(), one.Penalties[0], other.Penalties[0])
			}
			if one.Began(0, one.Active(0)) == 0 {
				t.Error("they began to count at an unknown time")
			}
			detach(t, a)
			detach(t, b)
		})
	}
}
