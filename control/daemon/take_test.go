package daemon

import (
	"errors"
	"testing"
	"time"

	"weir/control/feed"
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/wait"
)

// settled is a source that records what was decided about its contents.
type settled struct {
	kept, reverted int
}

func (s *settled) Contents() *list.Set          { return list.SetOf() }
func (s *settled) Version() uint64              { return 7 }
func (s *settled) Accepted() bool               { return false }
func (s *settled) Keep(uint64) error            { s.kept++; return nil }
func (s *settled) Revert(uint64, error)         { s.reverted++ }
func (s *settled) Status() feed.Status          { return feed.Status{} }
func (s *settled) Find([]key.Key) []feed.Origin { return nil }

// Of two readers of the same contents, the second keeps nothing that could not be
// activated for the first, whose decision is still to be settled.
func TestTakeTwice(t *testing.T) {
	d := begin(t, configure(t, lab.New(t).B)).Daemon
	failure := errors.New("cannot allocate memory")
	from := &settled{}
	var name string
	if err := d.loop.Do(t.Context(), func() error {
		l := d.active.prepared.Lists[0]
		name, l.From = l.Name, from
		l.Begin()
		l.Fail(failure, time.Now().Add(time.Hour))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := d.take(t.Context(), name, from); !errors.Is(err, failure) || from.kept != 0 || from.reverted != 1 {
		t.Errorf("error %v, kept %d times, reverted %d times", err, from.kept, from.reverted)
	}
}

// behind is a source of the fleet's kind that records what was decided about its contents.
type behind struct {
	settled
	contents *list.Set
	kept     chan error
}

func (b *behind) Contents() *list.Set { return b.contents }
func (b *behind) Keep(uint64) error   { b.kept <- nil; return nil }
func (b *behind) Status() feed.Status { return feed.Status{Sources: make([]feed.SourceStatus, 1)} }

func (b *behind) Revert(_ uint64, reason error) {
	select {
	case b.kept <- reason:
	default:
	}
}

// Contents of the fleet that could not be activated for a moment become active without another
// change: the hub sends each version once.
func TestTakenAgain(t *testing.T) {
	d := begin(t, configure(t, lab.New(t).B)).Daemon
	from := &behind{contents: setOf(t, "2001:db8:7:8::/61"), kept: make(chan error, 1)} // needs another engine
	// Alone: within the first update of the list, that would go on with what it has begun with.
	if err := d.loop.doAlone(t.Context(), func() error {
		l := d.active.prepared.List("feed")
		l.FromFeed, l.From = nil, from
		d.loop.stage = building // there is none now, as where memory is short
		defer func() { d.loop.stage = idle }()
		if err := d.update(l); !errors.Is(err, errBuilding) || !errors.Is(l.Problem(), errBuilding) {
			t.Errorf("active at once: %v", err)
		}
		// Nor does a look for whom the lists would cut off make them active, which would settle nothing.
		d.loop.stage = idle
		d.antiLockout.lookAgain = time.Time{}
		d.followPeers(time.Now())
		if l.Problem() == nil {
			t.Error("active, and its source has not learned it")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-from.kept:
		if got := verdictOf(t, d, "2001:db8:7:8::1"); err != nil || got != verdict.Drop {
			t.Errorf("kept %v, %v", err, got)
		}
	case <-time.After(wait.Patience):
		t.Fatal("not tried again")
	}
	if err := d.take(t.Context(), "feed", from); err != nil || <-from.kept != nil {
		t.Errorf("taken again: %v", err)
	}
}
