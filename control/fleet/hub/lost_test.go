package hub

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/tests/wait"
)

// A hub that has lost its state knows no contents of a feed before it was read. Nodes keep
// what they have, with waves or without.
func TestStateLost(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	feed := f.feed("192.0.2.1")
	lists := fmt.Sprintf("lists: {drop: {sources: [{file: %s}], interval: 1s}}", feed)
	f.start(lists)
	h := f.host("rome-1")
	h.becomes("drop", "192.0.2.1")
	f.stop()
	if err := os.RemoveAll(filepath.Join(f.dir, "hub")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(feed); err != nil {
		t.Fatal(err)
	}
	f.start(lists)
	f.change(block("198.51.100.1")) // others' lists are published
	h.becomes("block", "198.51.100.1")
	wait.For(t, "the feed was tried, and published anew", func() bool {
		s := f.hub.Metrics()
		return f.hub.lists.get("drop").feed.Status().Sources[0].Failures > 0 && s.Published.Catalogs > 3
	})
	if got := h.entry("drop"); got != "192.0.2.1" || h.had("") {
		t.Errorf("the node has %q, and had %q", got, h.seen)
	}
	s, err := f.hub.Fleet(t.Context())
	if err != nil || len(s.Problems) < 2 {
		t.Errorf("problems %q, %v", s.Problems, err)
	}

	add := api.Change{Action: api.Block, List: "drop", Entries: []string{"192.0.2.9"}}
	if _, err := f.hub.Change(t.Context(), add); err == nil || !strings.Contains(err.Error(), "were not read yet") {
		t.Errorf("an entry is added: %v", err)
	}

	f.feed("192.0.2.2")
	h.becomes("drop", "192.0.2.2")
	wait.For(t, "nothing is wrong", func() bool {
		s, err := f.hub.Fleet(t.Context())
		s.Problems = slices.DeleteFunc(s.Problems, func(p string) bool { return strings.Contains(p, "older copy") || strings.Contains(p, "empty state") })
		return err == nil && len(s.Problems) == 0
	})
	if h.had("") {
		t.Errorf("the node had %q", h.seen)
	}
	if c := f.change(add); !c.Published {
		t.Errorf("%+v", c)
	}
}

// A hub whose state was lost as a whole begins a later epoch, in which no number comes again. That
// entries by commands are lost is said all the same, once.
func TestStateBeganEmpty(t *testing.T) {
	t.Parallel() // it waits a lot
	for name, lost := range map[string][]string{"a node says so": {"hub", "broker"}, "the stream says so": {"hub"}} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			f.start("")
			if len(lost) > 1 {
				h := f.host("rome-1")
				f.change(block("198.51.100.1"))
				h.becomes("block", "198.51.100.1")
			}
			said := func() (problems, records int) {
				for _, p := range f.problems() {
					if strings.Contains(p, "began with an empty state") && strings.Contains(p, "make them again") {
						problems++
					}
				}
				for _, r := range f.hub.Audit(100) {
					if r.Change == audit.NewEpoch {
						records++
					}
				}
				return problems, records
			}
			if p, r := said(); p+r > 0 {
				t.Fatalf("a new fleet has %d problems and %d records", p, r)
			}
			wait.For(t, "a catalog", func() bool { return f.hub.Metrics().Published.Catalogs > 0 })
			f.stop()
			for _, dir := range lost {
				if err := os.RemoveAll(filepath.Join(f.dir, dir)); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(1100 * time.Millisecond) // epochs begin with the second
			f.start("")
			wait.For(t, "the loss is said", func() bool { p, r := said(); return p == 1 && r == 1 })
			f.stop()
			f.start("")
			wait.For(t, "catalogs", func() bool { return f.hub.Metrics().Published.Catalogs > 2 })
			if p, r := said(); p != 0 || r != 1 {
				t.Errorf("after a restart there are %d problems and %d records", p, r)
			}
		})
	}
}

// Where the hub cannot note that the loss was said, it says it all the same, once, and notes it later.
func TestStateBeganEmptyUnsaved(t *testing.T) {
	t.Parallel() // it waits
	f := newFleet(t)
	f.start("")
	wait.For(t, "a catalog", func() bool { return f.hub.Metrics().Published.Catalogs > 0 })
	obstacle := filepath.Join(f.dir, "hub", storeDir, "state.json.new")
	if err := os.Mkdir(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	p := f.hub.publisher
	report := func() {
		used := p.store.Used().Epoch
		p.history(&lost{what: "a test", epoch: used - 1, of: used, empty: true})
	}
	records := func() (n int) {
		for _, r := range f.hub.Audit(100) {
			if r.Change == audit.NewEpoch {
				n++
			}
		}
		return n
	}
	attempts := func(least uint64) {
		t.Helper()
		before := p.current().failures
		wait.For(t, "attempts to publish", func() bool { return p.current().failures >= before+least })
	}
	report()
	attempts(1)
	report()
	attempts(2)
	if n := records(); n != 1 || p.store.First() == 0 {
		t.Errorf("while it cannot be noted: %d records, first epoch %d", n, p.store.First())
	}
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "it is noted", func() bool { return p.store.First() == 0 })
	report() // it was compared before
	before := p.current().published.Catalogs
	wait.For(t, "another catalog", func() bool { return p.current().published.Catalogs > before+1 })
	if n := records(); n != 1 {
		t.Errorf("%d records at the end", n)
	}
}

// problems returns the hub's problems.
func (f *fleet) problems() []string {
	f.t.Helper()
	s, err := f.hub.Fleet(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	return s.Problems
}

// What the last version has of a source that is not known stays, until it was read.
func TestSourceLost(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	one, other := filepath.Join(f.dir, "one.txt"), filepath.Join(f.dir, "other.txt")
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(one, "192.0.2.1\n")
	write(other, "192.0.2.2\n")
	lists := fmt.Sprintf("lists: {drop: {sources: [{file: %s}, {file: %s}], interval: 1s}}", one, other)
	f.start(lists)
	entries := func() (n int) {
		t.Helper()
		if err := f.hub.Do(t.Context(), func() error { n = f.hub.lists.get("drop").history.Contents().Len(); return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	wait.For(t, "both are read", func() bool { return entries() == 2 })
	f.stop()
	if err := os.RemoveAll(filepath.Join(f.dir, "hub", "feeds")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	write(one, "192.0.2.3\n")
	f.start(lists)
	least := 3
	wait.For(t, "one is read", func() bool { n := entries(); least = min(least, n); return n == 3 })
	if least < 2 {
		t.Errorf("the list had %d entries meanwhile", least)
	}
	time.Sleep(50 * time.Millisecond)
	write(other, "192.0.2.4\n")
	wait.For(t, "both are read again", func() bool { return entries() == 2 })
}
