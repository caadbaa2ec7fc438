package daemon

import (
	"testing"

	"weir/control/api"
	"weir/tests/lab"
	"weir/tests/wait"
)

// A list with a feed has caught what its manual entries have, too.
func TestPacketsOfManualEntries(t *testing.T) {
	t.Parallel() // it waits a lot
	l := lab.New(t)
	d := begin(t, configure(t, l.B))
	if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Block, List: "feed", Entries: []string{secondSource}}); err != nil {
		t.Fatal(err)
	}
	send(t, l, 5, firstSource)
	send(t, l, 3, secondSource)
	awaitHits(t, d.Daemon, "feed", 5)
	awaitHits(t, d.Daemon, "feed"+api.ManualSuffix, 3)
	wait.For(t, "8 packets of the list", func() bool { // its readings are of another moment
		l := listNamed(d.Daemon, "feed")
		return l != nil && l.Packets != nil && *l.Packets == 8
	})
}
