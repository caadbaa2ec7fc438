package hub

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"weir/control/api"
	"weir/control/audit"
	"weir/tests/wait"
)

// A feed that shrinks is refused until an operator accepts it.
func TestRefresh(t *testing.T) {
	var body atomic.Pointer[string]
	serve := func(text string) { body.Store(&text) }
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, *body.Load())
	}))
	t.Cleanup(server.Close)
	serve("192.0.2.1\n192.0.2.2\n192.0.2.3\n192.0.2.4\n")
	f := newFleet(t)
	f.start(fmt.Sprintf("lists: {drop: {sources: [{url: %s}], interval: 24h}}", server.URL))
	refresh := func(accept bool) api.FetchOutcome {
		t.Helper()
		all, err := f.hub.Refresh(t.Context(), "drop", accept)
		if err != nil || len(all) != 1 {
			t.Fatalf("%+v, %v", all, err)
		}
		return all[0]
	}
	published := func(entries int) {
		t.Helper()
		wait.Until(t, func() error {
			s, err := f.hub.Fleet(t.Context())
			if err != nil {
				return err
			}
			if l := s.Lists[0]; l.Entries != entries || l.Published != l.Version {
				return fmt.Errorf("list %+v, want %d entries", l, entries)
			}
			return nil
		})
	}
	published(4)

	serve("192.0.2.1\n")
	if o := refresh(false); o.Outcome != api.Failed || o.Failure != "shrunk" || !strings.Contains(o.Error, "--accept") || o.Entries != 4 {
		t.Errorf("shrunken contents: %+v", o)
	}
	published(4)
	if o := refresh(true); o.Outcome == api.Failed || !o.Changed || o.Entries != 1 {
		t.Errorf("shrunken contents, accepted: %+v", o)
	}
	published(1)

	// What covers too much stays refused: nodes would refuse it, too.
	serve("0.0.0.0/1\n")
	if o := refresh(true); o.Outcome != api.Failed || o.Entries != 1 {
		t.Errorf("half of all addresses, accepted: %+v", o)
	}
	published(1)

	if _, err := f.hub.Refresh(t.Context(), "none", false); !errors.Is(err, api.ErrNoList) {
		t.Errorf("a list that is not there: %v", err)
	}
	if all, err := f.hub.Refresh(t.Context(), "block", false); err != nil || len(all) != 0 {
		t.Errorf("a list without sources: %+v, %v", all, err)
	}
}

// A list of a hub returns to what its source had before, on all nodes, over a restart, and what the source
// still has is refused until somebody accepts it.
func TestRollbackOfSource(t *testing.T) {
	t.Parallel() // it waits
	f := newFleet(t)
	f.reserve()
	lists := fmt.Sprintf("lists: {drop: {sources: [{file: %s}], max_growth: 100, max_shrink: 100%%, interval: 24h}}\n", f.feed("192.0.2.1"))
	f.start(lists)
	host := f.host("edge-1")
	host.becomes("drop", "192.0.2.1")
	refresh := func(accept bool) api.FetchOutcome {
		t.Helper()
		all, err := f.hub.Refresh(t.Context(), "drop", accept)
		if err != nil || len(all) != 1 {
			t.Fatalf("%+v, %v", all, err)
		}
		return all[0]
	}
	for i := range 7 {
		f.feed(fmt.Sprintf("192.0.2.%d", 2+i))
		refresh(false)
		host.becomes("drop", fmt.Sprintf("192.0.2.%d", 2+i))
	}
	versions := func(want int) {
		t.Helper()
		v, err := f.hub.Versions(t.Context(), "drop")
		if err != nil || v.List != "drop" || len(v.Sources) != 1 || len(v.Sources[0].Versions) != want {
			t.Fatalf("%+v, %v; want %d versions", v, err, want)
		}
	}
	versions(6) // the active one, and five before
	rollback := func(entry string) {
		t.Helper()
		if o, err := f.hub.Rollback(t.Context(), "drop"); err != nil || !o.Changed || o.List != "drop" || o.Entries != 1 {
			t.Fatalf("%+v, %v", o, err)
		}
		host.becomes("drop", entry)
		if r := f.lastRecord(); r.Change != audit.RollbackList || r.List != "drop" || r.Error != "" {
			t.Errorf("%+v", r)
		}
	}
	rollback("192.0.2.7")
	f.stop()
	f.start(lists)
	if o := refresh(false); o.Changed || o.Entries != 1 {
		t.Errorf("what was returned from: %+v", o)
	}
	if got := host.entry("drop"); got != "192.0.2.7" {
		t.Errorf("after a restart: %s", got)
	}
	rollback("192.0.2.6")
	if o := refresh(true); !o.Changed {
		t.Errorf("accepted: %+v", o)
	}
	host.becomes("drop", "192.0.2.8")
	for list, want := range map[string]string{"none": "no such list", "block": "has no sources"} {
		if _, err := f.hub.Rollback(t.Context(), list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", list, err)
		}
		if _, err := f.hub.Versions(t.Context(), list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", list, err)
		}
		if r := f.lastRecord(); r.Change != audit.RollbackList || r.Error == "" {
			t.Errorf("%s: %+v", list, r)
		}
	}
	// A rollout is taken back by its own command.
	f.stop()
	f.start(strings.Replace(lists, "lists:", "max_age: 2s\nrollout: {waves: [{labels: [canary], for: 1h}]}\nlists:", 1))
	f.feed("192.0.2.9")
	refresh(false)
	f.reaches(api.RolloutRunning)
	if _, err := f.hub.Rollback(t.Context(), "drop"); err == nil || !strings.Contains(err.Error(), "weir fleet rollback drop") {
		t.Errorf("beside a rollout: %v", err)
	}
}
