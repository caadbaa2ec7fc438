package daemon

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/filter/verdict"
	"weir/tests/crash"
	"weir/tests/wait"
)

// stormed has the answer to a change.
type stormed struct {
	changed api.Changed
	err     error
}

// storm gives changes in their order while the loop is busy, so that one turn finds all of them,
// and returns the answers.
func storm(t *testing.T, d *Daemon, changes ...api.Change) []stormed {
	t.Helper()
	held, release := make(chan struct{}), make(chan struct{})
	go func() {
		_ = d.loop.Do(t.Context(), func() error { close(held); <-release; return nil })
	}()
	<-held
	results := make([]stormed, len(changes))
	var all sync.WaitGroup
	for i, c := range changes {
		all.Go(func() { results[i].changed, results[i].err = d.changes.Change(t.Context(), c) })
		for deadline := wait.Deadline(); ; time.Sleep(time.Millisecond) {
			d.changes.mu.Lock()
			n := len(d.changes.waiting)
			d.changes.mu.Unlock()
			if n == i+1 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d changes wait, want %d", n, i+1)
			}
		}
	}
	close(release)
	all.Wait()
	return results
}

// Changes that wait for a turn are one sync of the journal, and each is answered after it. Where
// that fails, none is made.
func TestChangesTogether(t *testing.T) {
	m := newMachine(t)
	disk := crash.Watch(t, "entries")
	d, stop := m.start(fmt.Sprintf("state_dir: %s/state\nlists: {jail: {}}", m.dir))
	defer stop()
	block := func(entries ...string) api.Change {
		return api.Change{Action: api.Block, List: "jail", Entries: entries, UID: api.NoUID}
	}
	const many = 50
	var changes []api.Change
	for i := range many {
		changes = append(changes, block(fmt.Sprintf("192.0.2.%d", i), fmt.Sprintf("198.51.100.%d", i)))
	}
	are := func(want verdict.Action) {
		t.Helper()
		for i := range many {
			if got := verdictOf(t, d, fmt.Sprintf("192.0.2.%d", i)); got != want {
				t.Errorf("192.0.2.%d: %v, want %v", i, got, want)
			}
		}
	}
	d.changes.Change(t.Context(), block("203.0.113.1")) // later ones fit in place

	disk.Fail(true)
	for i, r := range storm(t, d, changes...) {
		if !errors.Is(r.err, unix.EIO) {
			t.Fatalf("change %d, which cannot be recorded: %+v, %v", i, r.changed, r.err)
		}
	}
	are(verdict.Pass)
	if n := d.journal.Len(); n != 1 {
		t.Errorf("%d entries are recorded, want the one of before", n)
	}

	disk.Fail(false)
	disk.Syncs()
	for i, r := range storm(t, d, changes...) {
		if r.err != nil || r.changed.Added != 2 {
			t.Errorf("change %d: %+v, %v", i, r.changed, r.err)
		}
	}
	if n := disk.Syncs(); n > 2 { // what the failure has left is cut off first
		t.Errorf("%d changes took %d syncs", many, n)
	}
	are(verdict.Drop)
	if n := d.journal.Len(); n != 1+2*many {
		t.Errorf("%d entries are recorded, want %d", n, 1+2*many)
	}
}

// Changes that one turn makes are as if each were made by itself, in their order: those of the
// same entry, those that are refused because of one before, and those that need another engine.
func TestChangesTogetherInOrder(t *testing.T) {
	m := newMachine(t)
	d, stop := m.start(fmt.Sprintf("state_dir: %s/state\nmax_coverage: 0.01%%\nlists: {jail: {}, other: {}}", m.dir))
	defer stop()
	on := func(list string, remove bool, entries ...string) api.Change {
		return api.Change{Action: api.Block, List: list, Remove: remove, Entries: entries, UID: api.NoUID}
	}
	results := storm(t, d,
		on("jail", false, "192.0.2.1"),
		on("jail", true, "192.0.2.1"),
		on("jail", false, "192.0.2.2", "192.0.2.3"),
		on("nowhere", false, "192.0.2.4"),
		on("jail", false, "192.0.2.3"),
		on("other", false, "45.0.0.0/14"),
		on("jail", false, "46.0.0.0/14"),
		on("jail", false, "47.0.0.0/14"), // each is below the coverage, and both are above it
		on("jail", false, "2001:db8:5::/48"),
	)
	for i, want := range []struct {
		added, removed, unchanged int
		refused                   string
	}{
		{added: 1}, {removed: 1}, {added: 2}, {refused: "nowhere"}, {unchanged: 1}, {added: 1}, {added: 1}, {refused: "max_coverage"}, {added: 1},
	} {
		c, err := results[i].changed, results[i].err
		if want.refused != "" {
			if err == nil || !strings.Contains(err.Error(), want.refused) {
				t.Errorf("change %d: %+v, %v, want it to be refused for %s", i, c, err, want.refused)
			}
		} else if err != nil || c.Added != want.added || c.Removed != want.removed || c.Unchanged != want.unchanged {
			t.Errorf("change %d: %+v, %v, want %+v", i, c, err, want)
		}
	}
	for source, want := range map[string]verdict.Action{
		"192.0.2.1": verdict.Pass, "192.0.2.2": verdict.Drop, "192.0.2.3": verdict.Drop, "192.0.2.4": verdict.Pass,
		"45.0.0.1": verdict.Drop, "46.0.0.1": verdict.Drop, "47.0.0.1": verdict.Pass, "2001:db8:5::1": verdict.Drop,
	} {
		if got := verdictOf(t, d, source); got != want {
			t.Errorf("%s: %v, want %v", source, got, want)
		}
	}
}
