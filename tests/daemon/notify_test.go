package daemon

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/tests/long"
	"weir/tests/wait"
)

// notification has the fields of an event that the tests look at.
type notification struct {
	Version                         int
	ID, Kind, State, Severity, Text string
	Flow                            struct{ Flow, Action string }
	Feed                            struct{ List, Failure string }
	Interface                       struct{ Interface, State string }
	Change                          struct{ Change, List, User string }
	Drops                           struct{ Rate, Average float64 }
}

// about is the event in a few words.
func (n notification) about() string {
	return strings.Join(strings.Fields(fmt.Sprintln(n.Kind, n.State, n.Flow.Flow, n.Flow.Action, n.Feed.List, n.Feed.Failure,
		n.Interface.Interface, n.Interface.State, n.Change.Change, n.Change.List)), " ")
}

// webhook is a receiver of notifications.
type webhook struct {
	*httptest.Server
	mu     sync.Mutex
	status int
	all    []notification
	signed bool // all requests had a signature
}

func startWebhook(t *testing.T) *webhook {
	t.Helper()
	w := &webhook{status: http.StatusNoContent, signed: true}
	w.Server = httptest.NewServer(http.HandlerFunc(func(a http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		var n notification
		if err == nil {
			err = json.Unmarshal(body, &n)
		}
		if err != nil {
			t.Error(err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.signed = w.signed && q.Header.Get("Weir-Signature") != ""; w.status/100 == 2 {
			w.all = append(w.all, n)
		}
		a.WriteHeader(w.status)
	}))
	t.Cleanup(w.Close)
	return w
}

// has reports whether an event came, and how many came until then.
func (w *webhook) has(about string) (at int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, n := range w.all {
		if n.about() == about {
			return i, true
		}
	}
	return 0, false
}

func (w *webhook) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	for _, n := range w.all {
		fmt.Fprintf(&b, "%s: %s\n", n.about(), n.Text)
	}
	return b.String()
}

// The receivers are notified of all kinds of events, in the order in which they
// happen: of a flood, a penalty, a feed that fails and recovers, an interface that goes
// and returns, and changes that are refused.
func TestNotifications(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	h, w := newHost(t), startWebhook(t)
	h.write("feed.txt", []byte("203.0.113.0/24\n"))
	h.write("secret", []byte("0123456789abcdef0123456789abcdef\n"))
	script := h.write("script", []byte("#!/bin/sh\ncat >>"+h.path("refused.json")+"\n"))
	if err := os.Chmod(script, 0o700); err != nil {
		t.Fatal(err)
	}
	configuration := fmt.Sprintf(`
lists: {feed: {sources: [{file: %s}], interval: 24h}}
failsafe: {prefixes: [192.0.2.99]}
trackers:
  - {key: src, threshold: 1kpps, duration: 1s}
  - {key: src/24, threshold: 1kpps, action: block, duration: 1s}
notify:
  targets:
    pager: {url: "%s/T0K3N", secret_file: %s}
    script: {command: %s, events: [refused]}
  surge: {rate: 1kpps}
`, h.path("feed.txt"), w.URL, h.path("secret"), script)
	h.configure(h.B.Iface, "%s", configuration)
	d := h.start(releases[0])
	h.settled("feed")
	await := func(about string) int {
		t.Helper()
		at := 0
		deadline := wait.Deadline()
		for ok := false; !ok; time.Sleep(5 * time.Millisecond) {
			if at, ok = w.has(about); !ok && time.Now().After(deadline) {
				t.Fatalf("no event %q, but\n%s", about, w.text())
			}
		}
		return at
	}

	// A flood of a listed source: some 5,000 packets a second for 4 s.
	frame, tx := frameOf(h.Lab, listedKind, from(netip.MustParseAddr("203.0.113.7"))), h.A.Sender(t)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		each := time.NewTicker(time.Millisecond)
		defer each.Stop()
		for {
			select {
			case <-each.C:
				for range 5 {
					tx.TrySend(frame) // one that is lost is no matter
				}
			case <-stop:
				return
			}
		}
	}()
	began := await("heavy begin 203.0.113.7 report")
	await("penalty begin 203.0.113.0/24 block")
	await("surge begin")
	close(stop)
	<-stopped
	if ended := await("heavy end 203.0.113.7 report"); ended < began {
		t.Errorf("the end before the begin:\n%s", w.text())
	}
	await("penalty end 203.0.113.0/24 block")
	await("surge end")

	// Two failures in a row, and the recovery.
	if err := os.Rename(h.path("feed.txt"), h.path("elsewhere")); err != nil {
		t.Fatal(err)
	}
	refresh := func() {
		t.Helper()
		if _, err := h.api.Refresh(t.Context(), "feed"); err != nil {
			t.Fatal(err)
		}
	}
	refresh()
	refresh()
	failed := await("feed begin feed unreachable")
	if err := os.Rename(h.path("elsewhere"), h.path("feed.txt")); err != nil {
		t.Fatal(err)
	}
	refresh()
	if recovered := await("feed end feed"); recovered < failed {
		t.Errorf("the recovery before the failure:\n%s", w.text())
	}

	if _, err := h.change("", false, "192.0.2.0/24"); err == nil {
		t.Error("the failsafe prefix was blocked")
	}
	await("refused block manual")
	if _, err := h.change("", false, "not an entry"); err == nil {
		t.Error("not an entry was blocked")
	}
	h.write("weir.yaml", []byte("interfaces: []\n"))
	if _, err := h.api.Reload(t.Context()); err == nil {
		t.Error("a broken configuration was taken")
	}
	await("refused reload")
	h.configure(h.B.Iface, "%s", configuration)

	h.cut()
	await("interface begin " + h.B.Iface + " gone")
	h.Wire(t)
	await("interface end " + h.B.Iface + " filtered")

	text := w.text()
	if n := strings.Count(text, "refused block"); n != 1 || !w.signed {
		t.Errorf("signed %t, %d refused changes:\n%s", w.signed, n, text)
	}
	h.eventually("the command got both", func() bool {
		script, err := os.ReadFile(h.path("refused.json"))
		return err == nil && strings.Count(string(script), "\n") == 2 && strings.Contains(string(script), `"user":"root"`)
	})

	// weir notify test says what a receiver answers; nothing shows the secrets.
	out := h.succeeds("", "notify", "test", "pager")
	if !strings.Contains(out, "pager: delivered to "+w.URL+"/… in ") || !strings.Contains(out, "204 No Content") {
		t.Error(out)
	}
	w.mu.Lock()
	w.status = http.StatusInternalServerError
	w.mu.Unlock()
	c := exec.Command(releases[0].path, "notify", "test", "--socket", h.path("weir.sock"))
	failing, err := c.CombinedOutput()
	if err == nil || !strings.Contains(string(failing), "pager: FAILED: "+w.URL+"/… in ") || !strings.Contains(string(failing), "script: delivered to ") {
		t.Errorf("%s, %v", failing, err)
	}
	h.configure(h.B.Iface, "%s", strings.ReplaceAll(configuration, "T0K3N", "T0K3N2"))
	reloaded, err := h.api.Reload(t.Context())
	if shown := fmt.Sprint(reloaded); err != nil || !strings.Contains(shown, "notify.targets.pager.url") || strings.Contains(shown, "T0K3N") {
		t.Errorf("%s, %v", shown, err)
	}
	if log := d.tail(10_000); strings.Contains(log, "T0K3N") || strings.Contains(log, "0123456789abcdef") {
		t.Errorf("the log shows a secret:\n%s", log)
	}
}

// A receiver that hangs delays nothing: a thousand events later the daemon answers at
// once.
func TestNotificationsDelayNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	hang := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	defer s.Close()
	defer close(hang)
	h.configure(h.B.Iface, "failsafe: {prefixes: [192.0.2.99]}\nnotify: {targets: {dead: {url: %q, timeout: 5m}, slow: {command: /bin/sleep, arguments: [\"1000\"], timeout: 5m}}}\n", s.URL)
	d := h.start(releases[0])
	var longest time.Duration
	for range 50 {
		began := time.Now()
		if _, err := h.change("", false, "192.0.2.0/24"); err == nil {
			t.Fatal("the failsafe prefix was blocked")
		}
		h.mustChange("", false, "198.51.100.1")
		h.mustChange("", true, "198.51.100.1")
		longest = max(longest, time.Since(began))
	}
	if longest > time.Minute { // of the five that a receiver may take
		t.Errorf("three changes took %v", longest)
	}
	began := time.Now()
	d.stop()
	if took := time.Since(began); took > time.Minute {
		t.Errorf("the daemon ended after %v", took)
	}
}
