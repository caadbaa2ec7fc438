package server

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"weir/control/api"
)

// FuzzChange holds that a change is either refused, in words and before the
// control is asked, or is one that the control can work with.
func FuzzChange(f *testing.F) {
	for _, seed := range []string{
		`{"action": "block", "entries": ["192.0.2.1"], "ttl_seconds": 3600, "reason": "scans", "list": "manual"}`,
		`{"action": "allow", "entries": ["2001:db8::/32", "> 198.51.100.7"]}`,
		`{"action": "block", "entries": [" "]}`,
		`{"action": "block", "entries": ["192.0.2.1\n192.0.2.2"]}`,
		`{"action": "block", "entries": null, "uid": 0}`,
		`{"action": "block", "entries": ["a"], "ttl_seconds": -0}`,
		`{"action": "block", "entries": ["a"], "entries": []}`,
		`{}{}`, `[1]`, `null`, `{"action": {}}`, ``,
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, body []byte, remove bool) {
		method := "POST"
		if remove {
			method = "DELETE"
		}
		c := &control{}
		r := httptest.NewRecorder()
		Handler(daemon{source{}, c}).ServeHTTP(r, httptest.NewRequest(method, api.EntriesPath, strings.NewReader(string(body))))
		if r.Code != 200 {
			var said api.Failure
			if err := json.Unmarshal(r.Body.Bytes(), &said); err != nil || r.Code != 400 || said.Error == "" || len(c.asked) > 0 {
				t.Fatalf("%d %s, %v; asked for %+v", r.Code, r.Body, err, c.asked)
			}
			return
		}
		asked := c.asked[0].(api.Change)
		if asked.Remove != remove || asked.UID != api.NoUID || len(asked.Entries) == 0 || !(asked.TTL >= 0 && asked.TTL <= api.MaxTTL) ||
			asked.Action != api.Block && asked.Action != api.Allow {
			t.Fatalf("%+v", asked)
		}
		for _, e := range asked.Entries {
			if strings.TrimSpace(e) == "" || strings.Contains(e, "\n") {
				t.Fatalf("entry %q", e)
			}
		}
		// Sent again, it is the same.
		again, err := json.Marshal(asked)
		if err != nil {
			t.Fatal(err)
		}
		r = httptest.NewRecorder()
		Handler(daemon{source{}, c}).ServeHTTP(r, httptest.NewRequest(method, api.EntriesPath, strings.NewReader(string(again))))
		if r.Code != 200 {
			t.Fatalf("%s: %d %s", again, r.Code, r.Body)
		}
	})
}
