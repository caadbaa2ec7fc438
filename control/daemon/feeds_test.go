package daemon

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"weir/control/feed"
	"weir/tests/lab"
	"weir/tests/wait"
)

// The usage of CrowdSec's decisions is reported when it is due, once, and no more to a
// local API that takes no reports.
func TestUsageIsReported(t *testing.T) {
	t.Parallel() // it waits a lot
	reports, status := make(chan string, 10), http.StatusCreated
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Method == http.MethodPost {
			body, _ := io.ReadAll(q.Body)
			w.WriteHeader(status)
			reports <- string(body)
			return
		}
		fmt.Fprint(w, `{"new":[{"duration":"1h","origin":"cscli","scenario":"x","scope":"Ip","type":"ban","value":"192.0.2.1"}],"deleted":null}`)
	}))
	defer s.Close()
	d := startLists(t, lab.New(t), io.Discard, fmt.Sprintf("lists: {crowdsec: {format: crowdsec, interval: 1h, sources: [{url: %q}]}}", s.URL))
	due := func() {
		t.Helper()
		for deadline := wait.Deadline(); ; time.Sleep(10 * time.Millisecond) {
			done := false
			if err := d.loop.Do(t.Context(), func() error {
				for _, u := range d.feeds.usage {
					if !u.asked && time.Since(u.at) < feed.UsageInterval {
						u.at, done = u.at.Add(-feed.UsageInterval), true
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if done {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal("no usage is kept")
			}
		}
	}
	report := func() string {
		t.Helper()
		select {
		case r := <-reports:
			return r
		case <-time.After(wait.Patience):
			t.Fatal("no report")
			return ""
		}
	}
	due()
	if r := report(); !strings.Contains(r, `"name":"active_decisions","unit":"ip","value":1`) || !strings.Contains(r, `"window_size_seconds":180`) {
		t.Error(r)
	}
	status = http.StatusNotFound
	due()
	report()
	select { // it stays due
	case r := <-reports:
		t.Errorf("after a refusal: %s", r)
	case <-time.After(2500 * time.Millisecond): // two turns
	}
}
