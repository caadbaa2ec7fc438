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
		eventually(t, func() error {
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
