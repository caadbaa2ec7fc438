package daemon

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"weir/control/api"
	"weir/filter/verdict"
)

// An entry of a feed that covers a failsafe prefix is left out alone, whatever the
// direction, and a command with one is refused. Private networks that are left out do not
// count.
func TestOverFailsafe(t *testing.T) {
	m := newMachine(t)
	path := filepath.Join(m.dir, "list")
	write(t, path, "64.0.0.0/8\n64.20.0.0/24\n64.20.0.7\n198.51.100.1\n2001:db8::/32\n10.0.0.0/8\n")
	lists := "failsafe: {prefixes: [64.20.0.0/24, '2001:db8:1::/48']}\nmax_coverage: 0.5%%\nstate_dir: \"\"\n" +
		"lists: {l: {direction: %s, exclude_private: true, sources: [{file: %s}]}}"
	for _, direction := range []string{"src", "both"} {
		d, stop := m.start(fmt.Sprintf(lists, direction, path))
		l := d.readings.Lists().Lists[0]
		if l.Entries != 2 || len(l.LeftOut) != 3 || l.LeftOut[0].Failsafe == "" {
			t.Errorf("%s: %+v", direction, l)
		}
		for from, want := range map[string]verdict.Action{"198.51.100.1": verdict.Drop, "64.1.2.3": verdict.Pass, "64.20.0.7": verdict.Pass} {
			if got := verdictOf(t, d, from); got != want {
				t.Errorf("%s: %s: %v", direction, from, got)
			}
		}
		if got := strings.Join(d.active.prepared.Warnings(), "\n"); strings.Count(got, "covers the failsafe prefix") != 3 ||
			!strings.Contains(got, "list l: left out: 64.0.0.0/8 covers the failsafe prefix 64.20.0.0/24") {
			t.Error(got)
		}
		if s := d.readings.Status(); !s.Complete() {
			t.Errorf("%+v", s.NotReady)
		}
		if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Block, Entries: []string{"64.0.0.0/8"}}); err == nil || !strings.Contains(err.Error(), "its entry 64.0.0.0/8 covers the failsafe prefix 64.20.0.0/24") {
			t.Errorf("%v", err)
		}
		stop()
	}
}
