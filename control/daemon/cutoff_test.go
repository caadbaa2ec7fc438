package daemon

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/tests/lab"
	"weir/tests/wait"
)

// lines is a log that is read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

// A list that blocks the server of a feed is logged once, whether it is the feed's own
// list or another.
func TestCutOff(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "192.0.2.0/24\n203.0.113.7")
	}))
	defer server.Close()
	url := strings.Replace(server.URL, "127.0.0.1", "0.0.0.0", 1) // which is this host, too, but no loopback address
	file := filepath.Join(t.TempDir(), "list")
	write(t, file, "0.0.0.0/8\n")
	var log lines
	d := startLists(t, lab.New(t), &log, fmt.Sprintf("lists: {far: {sources: [{url: \"%s\"}]}, near: {sources: [{file: %s}]}}", url, file))
	want := "list near blocks 0.0.0.0, from where list far reads " + url
	for deadline := wait.Deadline(); log.count(want) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not logged:\n%s", log.b.String())
		}
	}
	for _, c := range []struct{ addr, list string }{
		{"0.1.2.3", "near"}, {"192.0.2.1", "far"}, {"203.0.113.7", "far"}, {"203.0.113.8", ""}, {"127.0.0.1", ""}, {"2001:db8::1", ""},
	} {
		if err := d.loop.Do(t.Context(), func() error {
			if got := d.active.blocker(netip.MustParseAddr(c.addr)); got != c.list {
				t.Errorf("%s is blocked by %q, want %q", c.addr, got, c.list)
			}
			d.antiLockout.logCutOff()
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if n := log.count(want); n != 1 {
		t.Errorf("logged %d times", n)
	}
}
