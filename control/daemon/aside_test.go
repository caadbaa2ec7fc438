package daemon

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"weir/control/api"
	"weir/filter/verdict"
)

// While a list is replaced, entries change at once, and the next engine has them, too: those of
// a shape for which there is no room wait for it.
func TestEntriesChangeBesideBuilding(t *testing.T) {
	m := newMachine(t)
	path := filepath.Join(m.dir, "list")
	write(t, path, firstSource+"\n")
	d, stop := m.start(fmt.Sprintf("state_dir: %s/state\nlists: {big: {sources: [{file: %s}]}}", m.dir, path))
	defer stop()
	m.until("the list is ready", func() bool { s := d.readings.Status(); return s.Complete() })
	change := func(remove bool, ttl float64, entries ...string) {
		t.Helper()
		c := api.Change{Action: api.Block, List: "manual", Entries: entries, Remove: remove, TTL: ttl, UID: api.NoUID}
		if _, err := d.changes.Change(t.Context(), c); err != nil {
			t.Errorf("%q: %v", entries, err)
		}
	}
	is := func(when, source string, want verdict.Action) {
		t.Helper()
		if got := verdictOf(t, d, source); got != want {
			t.Errorf("%s: %s: %v, want %v", when, source, got, want)
		}
	}
	for _, c := range []struct {
		name  string
		build func()
		ready func() bool
	}{
		{"prefixes", func() { write(t, path, firstSource+"\n45.0.0.0/15\n") }, func() bool { return verdictOf(t, d, "45.0.0.1") == verdict.Drop }},
		{"another family", func() { write(t, path, firstSource+"\n2001:db8:5::/48\n") }, func() bool { return verdictOf(t, d, "2001:db8:5::1") == verdict.Drop }},
		{"reload", func() {
			if _, err := d.ReloadUnconfirmed(t.Context(), time.Hour); err != nil { // builds an engine
				t.Error(err)
			} else if err := d.Confirm(t.Context()); err != nil {
				t.Error(err)
			}
		}, func() bool { return true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			change(false, 0, "192.0.2.1", "192.0.2.2")
			change(false, 1.2, "192.0.2.3") // it expires meanwhile
			held := make(chan struct{})
			release := sync.OnceFunc(func() { close(held) })
			defer release()
			hold := func(c chan struct{}) {
				if err := d.loop.Do(t.Context(), func() error { d.loop.held = c; return nil }); err != nil {
					t.Fatal(err)
				}
			}
			hold(held)
			var all sync.WaitGroup
			all.Go(c.build)
			m.until("programs are being loaded", func() (is bool) {
				_ = d.loop.Do(t.Context(), func() error { is = d.loop.stage == loading; return nil })
				return is
			})
			change(true, 0, "192.0.2.1")
			change(false, 0, "192.0.2.4")
			look := func(when string) {
				t.Helper()
				is(when, "192.0.2.1", verdict.Pass)
				is(when, "192.0.2.2", verdict.Drop)
				is(when, "192.0.2.4", verdict.Drop)
			}
			look("meanwhile")
			m.until("the entry has expired", func() bool { return verdictOf(t, d, "192.0.2.3") == verdict.Pass })
			all.Go(func() { change(false, 0, "2001:db8:7:8::/61") }) // no room in place: it waits
			hold(nil)
			release()
			m.until("the contents are active", c.ready)
			all.Wait()
			is("once it is acknowledged", "2001:db8:7:8::1", verdict.Drop)
			look("afterwards")
			is("expired", "192.0.2.3", verdict.Pass)
			change(true, 0, "192.0.2.2", "192.0.2.4", "2001:db8:7:8::/61")
			is("removed", "192.0.2.4", verdict.Pass)
		})
	}
}
