// Package receiver receives notifications in tests.
package receiver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"weir/control/notify"
)

// New returns a target that receives events until the test ends, and the events.
func New(t testing.TB) (notify.Target, <-chan notify.Event) {
	t.Helper()
	events := make(chan notify.Event, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		var e notify.Event
		if err := json.NewDecoder(q.Body).Decode(&e); err != nil {
			t.Error(err)
		}
		events <- e
	}))
	t.Cleanup(server.Close)
	target := notify.Target{Name: "pager", URL: notify.URL(server.URL)}
	target.SetDefaults()
	return target, events
}
