package daemon

import (
	"errors"
	"testing"

	"weir/control/feed"
	"weir/control/list"
	"weir/filter/key"
	"weir/tests/lab"
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
		l := d.active.prepared.lists[0]
		name, l.from, l.seenVersion, l.failed = l.Name, from, from.Version(), failure
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := d.take(t.Context(), name, from); !errors.Is(err, failure) || from.kept != 0 || from.reverted != 1 {
		t.Errorf("error %v, kept %d times, reverted %d times", err, from.kept, from.reverted)
	}
}
