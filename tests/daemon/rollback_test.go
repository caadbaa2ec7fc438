package daemon

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weir/control/api"
	"weir/tests/wait"
)

// A feed lists an innocent, and changes with each reading. A rollback lets it through at once,
// and keeps it so over readings, a restart, a kill and a takeover, while what was always listed is
// dropped. What the feed mends is taken.
func TestRollback(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	listed := addresses(feedBlock, 0, 1000)
	innocent := addresses(cleanBlock, 0, 200)
	good := strings.Join(lines(listed), "\n")
	bad := good + "\n" + strings.Join(lines(innocent), "\n")
	var text atomic.Pointer[string]
	text.Store(&good)
	var readings atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := readings.Add(1)
		fmt.Fprintf(w, "# reading %d\n203.0.113.%d\n%s\n", n, n, *text.Load())
	}))
	t.Cleanup(s.Close)
	h.configure(h.B.Iface, "lists: {feed: {sources: [{url: %q}], interval: 24h}}\n", s.URL)
	d := h.start(releases[0])
	h.settled("feed")
	tx := h.A.Sender(t)
	// drops sends packets of some innocents and checks how many of them the list drops.
	drops := func(when string, want uint64) {
		t.Helper()
		before := *h.list("feed").Packets
		for _, a := range innocent[:100] {
			if err := tx.SendAll(frameOf(h.Lab, listedKind, from(a))); err != nil {
				t.Fatal(err)
			}
		}
		for _, a := range listed[:50] {
			if err := tx.SendAll(frameOf(h.Lab, listedKind, from(a))); err != nil {
				t.Fatal(err)
			}
		}
		var n uint64
		for deadline := wait.Deadline(); ; time.Sleep(20 * time.Millisecond) {
			if n = *h.list("feed").Packets - before; n >= 50+want || time.Now().After(deadline) {
				break
			}
		}
		if n != 50+want {
			t.Errorf("%s: %d of 150 packets dropped, want %d", when, n, 50+want)
		}
	}
	read := func(outcome string) {
		t.Helper()
		r, err := h.api.Refresh(t.Context(), "feed")
		if err != nil || len(r.Sources) != 1 || r.Sources[0].Outcome != outcome {
			t.Fatalf("%+v, %v, want %s", r, err, outcome)
		}
	}
	drops("at first", 0)
	text.Store(&bad)
	read("new")
	drops("with the bad contents", 100)
	if r, err := h.api.Rollback(t.Context(), "feed"); err != nil || len(r.Sources) != 1 || !r.Sources[0].Changed || r.Sources[0].Entries != 1001 {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, moment := range []struct {
		name string
		do   func()
	}{
		{"rolled back", func() {}},
		{"restarted", func() { d.stop(); d = h.start(releases[0]) }},
		{"killed", func() { d.kill(); d = h.start(releases[0]) }},
		{"taken over", func() { d = h.takeOver(d, releases[0]) }},
		{"reloaded", func() {
			if _, err := h.api.Reload(t.Context()); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		moment.do()
		h.settled("feed")
		drops(moment.name, 0)
		read("unchanged")
		drops(moment.name+", and the feed read", 0)
		if f := h.list("feed").Feeds[0]; f.RolledBack == nil || f.Failures > 0 {
			t.Errorf("%s: %+v", moment.name, f)
		}
	}
	versions, err := h.api.Versions(t.Context(), "feed")
	if err != nil || len(versions.Sources) != 1 || len(versions.Sources[0].Versions) < 1 || versions.Sources[0].Versions[0].Entries != 1001 {
		t.Errorf("%+v, %v", versions, err)
	}
	records, err := h.api.Audit(t.Context(), 100)
	if err != nil || !strings.Contains(fmt.Sprintf("%+v", records), "rollback list") {
		t.Errorf("%+v, %v", records, err)
	}
	text.Store(&good)
	read("new")
	if f := h.list("feed").Feeds[0]; f.RolledBack != nil || f.Outcome == api.Failed {
		t.Errorf("mended: %+v", f)
	}
	drops("mended", 0)
	d.stop()
}
