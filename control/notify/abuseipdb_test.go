package notify

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"weir/tests/lab"
	"weir/tests/must"
)

// The command of the page reports an address once in 15 minutes, and no more than the day's
// budget.
func TestAbuseIPDB(t *testing.T) {
	for _, tool := range []string{"curl", "jq", "flock"} {
		lab.Tool(t, tool)
	}
	page := must.Read(t, "../../docs/notifications.md")
	m := regexp.MustCompile("(?s)```sh\n(#!/bin/sh\n.*?)```").FindSubmatch(page)
	if m == nil {
		t.Fatal("the page has no script")
	}
	dir := t.TempDir()
	script, key, state := filepath.Join(dir, "abuseipdb"), filepath.Join(dir, "key"), filepath.Join(dir, "state")
	for path, text := range map[string][]byte{script: m[1], key: []byte("S3CRET\n")} {
		if err := os.WriteFile(path, text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex // guards what follows
	var reports []url.Values
	status := http.StatusOK
	answer := func(with int) {
		mu.Lock()
		defer mu.Unlock()
		status = with
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(reports)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if err := q.ParseForm(); err != nil || q.Method != http.MethodPost || q.Header.Get("Key") != "S3CRET" {
			t.Errorf("%s, key %q: %v", q.Method, q.Header.Get("Key"), err)
		}
		mu.Lock()
		defer mu.Unlock()
		reports = append(reports, q.PostForm)
		w.WriteHeader(status)
	}))
	defer server.Close()
	report := func(flow string, s State, code, sent int) {
		t.Helper()
		text, err := json.Marshal(Event{Kind: Penalty, State: s, Flow: &FlowEvent{Flow: flow, Packets: 5000, Interval: 1}})
		if err != nil {
			t.Fatal(err)
		}
		f := filepath.Join(dir, "event")
		must.Write(t, f, text)
		in, err := os.Open(f)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		c := exec.Command(script, key, "4,15", "4", state, server.URL)
		c.Stdin, c.Env = in, []string{"PATH=" + os.Getenv("PATH")}
		before := count()
		out, _ := c.CombinedOutput()
		if n := count() - before; c.ProcessState.ExitCode() != code || n != sent {
			t.Errorf("%s: exit code %d, %d reports, want %d, %d\n%s", flow, c.ProcessState.ExitCode(), n, code, sent, out)
		}
	}
	report("192.0.2.1", Begin, 0, 1)
	mu.Lock()
	r := reports[0]
	mu.Unlock()
	if r.Get("ip") != "192.0.2.1" || r.Get("categories") != "4,15" || r.Get("comment") != "5000 packets in 1 s" {
		t.Errorf("%v", r)
	}
	report("192.0.2.1", Begin, 0, 0)
	report("2001:db8::1", Begin, 0, 1)
	report("192.0.2.2", End, 0, 0)
	report("192.0.2.0/24", Begin, 0, 0)
	report("tcp 192.0.2.2:1 > 192.0.2.3:2", Begin, 0, 0)

	age := func(by time.Duration) {
		t.Helper()
		then := time.Now().Add(-by)
		if err := os.Chtimes(filepath.Join(state, "ip-192.0.2.1"), then, then); err != nil {
			t.Fatal(err)
		}
	}
	age(14*time.Minute + 30*time.Second)
	report("192.0.2.1", Begin, 0, 0)
	age(15*time.Minute + 5*time.Second)
	report("192.0.2.1", Begin, 0, 1)

	answer(http.StatusBadGateway)
	report("192.0.2.4", Begin, 75, 1)
	answer(http.StatusUnauthorized)
	report("192.0.2.4", Begin, 1, 1)
	answer(http.StatusTooManyRequests)
	report("192.0.2.5", Begin, 0, 1)
	report("192.0.2.5", Begin, 0, 0)
	answer(http.StatusOK)
	report("192.0.2.4", Begin, 0, 1) // the fourth of the day
	report("192.0.2.6", Begin, 0, 0)
}
