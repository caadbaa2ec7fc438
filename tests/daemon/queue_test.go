package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/control/api"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/seed"
)

// queues runs a command, which must be queued.
func (h *host) queues(args ...string) {
	h.t.Helper()
	out, code := h.command(append(args, "--socket", h.path("weir.sock"))...)
	if code != 0 || !strings.HasPrefix(out, "queued for list ") {
		h.t.Fatalf("weir %q: exit code %d, %s", args, code, out)
	}
}

// emptied waits until no change waits any more.
func (h *host) emptied() {
	h.t.Helper()
	h.eventually("the queue is empty", func() bool {
		waiting, err := filepath.Glob(h.path("state/queue/*.json"))
		return err == nil && len(waiting) == 0
	})
}

// Changes that are given while no daemon runs are made when one starts, in their order, as
// if they had been made at once; what would cut off the host is refused then.
func TestChangesWaitForTheDaemon(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {jail: {}, always: {%s}}\n", h.feed(10))
	own := h.own()
	d := h.start(releases[0])
	h.succeeds("", "block", "192.0.2.1")
	h.succeeds("", "block", "192.0.2.2")
	d.kill()

	given := time.Now()
	h.queues("unblock", "192.0.2.1")
	h.queues("block", "192.0.2.3")
	h.queues("unblock", "192.0.2.3")
	h.queues("unblock", "192.0.2.4")
	h.queues("block", "--ttl", "1h", "--reason", "ssh", "192.0.2.4")
	h.queues("block", "--ttl", "10ms", "192.0.2.2") // is gone when the daemon comes
	h.queues("block", own)
	h.queues("block", "--list", "none", "192.0.2.5")
	h.queues("allow", address(feedBlock, 0).String())
	var done api.Changed
	out, code := h.command("block", "--socket", h.path("weir.sock"), "--list", "jail", "--json", "192.0.2.6", "192.0.2.7")
	if err := json.Unmarshal([]byte(out), &done); err != nil || code != 0 || !done.Queued || done.List != "jail" || done.Added != 0 {
		t.Errorf("exit code %d, %v: %s", code, err, out)
	}
	queued := time.Now()
	if out, code := h.command("status", "--socket", h.path("weir.sock"), "--pins", string(h.pins)); code != 4 || !strings.Contains(out, "QUEUED: 10 changes wait") {
		t.Errorf("status: exit code %d, %s", code, out)
	}

	d = h.start(releases[0])
	h.emptied()
	for text, list := range map[string]string{"192.0.2.4": "manual", "192.0.2.6": "jail", "192.0.2.7": "jail"} {
		e := h.entry(list, text)
		if e == nil || e.Added.Before(given.Truncate(time.Millisecond)) || e.Added.After(queued) || e.UID == nil || *e.UID != 0 {
			t.Errorf("%s in list %s: %+v, given between %v and %v", text, list, e, given, queued)
		}
	}
	if e := h.entry("manual", "192.0.2.4"); e != nil && (e.Expires == nil || e.Expires.Sub(e.Added) != time.Hour || e.Reason != "ssh") {
		t.Errorf("%+v", e)
	}
	for _, gone := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.5", own} {
		if e := h.entry("manual", gone); e != nil {
			t.Errorf("%s is blocked: %+v", gone, e)
		}
	}
	if a := address(feedBlock, 0).String(); h.entry("manual-allow", a) == nil {
		t.Errorf("%s is not allowed", a)
	}
	d.await(0, "a change that was given while no daemon answered is refused: "+fmt.Sprintf("%q", own))
	d.await(0, "a change that was given while no daemon answered is refused: no such list")
	audit, err := h.api.Audit(t.Context(), 100)
	if err != nil {
		t.Fatal(err)
	}
	refused, made := 0, 0
	for _, r := range audit.Changes {
		switch {
		case r.Given == nil:
		case r.Given.Before(given) || r.Given.After(queued) || r.Time.Before(queued) || r.UID == nil:
			t.Errorf("%+v", r)
		case r.Error != "":
			refused++
		default:
			made++
		}
	}
	if made != 8 || refused != 2 {
		t.Errorf("the audit has %d changes that waited, and %d that were refused; want 8 and 2: %+v", made, refused, audit)
	}
}

// own returns an address of the interface, which must not be blocked.
func (h *host) own() string {
	h.t.Helper()
	var own string
	h.B.Do(func() error {
		i, err := net.InterfaceByName(h.B.Iface)
		if err != nil {
			return err
		}
		all, err := i.Addrs()
		for _, a := range all {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
				own = n.IP.String()
			}
		}
		return err
	})
	if own == "" {
		h.ip("-n", h.B.Netns, "addr", "add", "198.51.100.77/24", "dev", h.B.Iface)
		own = "198.51.100.77"
	}
	return own
}

func (h *host) ip(args ...string) {
	h.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		h.t.Fatalf("ip %q: %v\n%s", args, err, out)
	}
}

// What is in the queue and was not written by weir is reported, set aside, and holds up
// nothing.
func TestBadChangesInTheQueue(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {jail: {}}\n")
	h.start(releases[0]).kill()
	h.queues("block", "192.0.2.1")
	good, err := filepath.Glob(h.path("state/queue/*.json"))
	if err != nil || len(good) != 1 {
		t.Fatal(good, err)
	}
	text, err := os.ReadFile(good[0])
	if err != nil {
		t.Fatal(err)
	}
	name := func(n int) string { return h.path(fmt.Sprintf("state/queue/%019d-x.json", n)) }
	put := func(n int, text []byte) {
		must.Write(t, name(n), text)
	}
	put(1, nil)
	put(2, text[:len(text)/2])
	put(3, []byte(strings.Replace(string(text), `"version":1`, `"version":2`, 1)))
	put(4, []byte(strings.Replace(string(text), `"action":"block"`, `"action":"drop"`, 1)))
	put(5, make([]byte, 100))
	put(6, nil)
	if err := os.Truncate(name(6), 1<<40); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", name(7)); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(name(8), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(name(9), 0o700); err != nil {
		t.Fatal(err)
	}
	put(10, text)
	if err := os.Chown(name(10), 12345, 12345); err != nil {
		t.Fatal(err)
	}
	put(11, []byte(strings.Repeat("[", 1<<20)))
	h.queues("block", "192.0.2.2")
	d := h.start(releases[0])
	h.emptied()
	for _, a := range []string{"192.0.2.1", "192.0.2.2"} {
		if h.entry("manual", a) == nil {
			t.Errorf("%s is not blocked", a)
		}
	}
	set, err := filepath.Glob(h.path("state/queue/*.bad"))
	if err != nil || len(set) != 11 {
		t.Errorf("set aside: %q, want 11", set)
	}
	line := 0
	for range 11 {
		line = d.await(line, "a change that was given while no daemon answered cannot be read")
	}
}

// While a daemon starts, weir status says so, and a change waits.
func TestStartingDaemon(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	// What it reads does not end before the test wants that.
	pipe := h.path("slow.txt")
	h.configure(h.B.Iface, "lists: {slow: {sources: [{file: %s}], required: true}, jail: {}}\n", pipe)
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	d := h.begin(releases[0])
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0) // waits for the reader
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	h.eventually("the status says that the daemon is starting", func() bool {
		out, code := h.status()
		return code == 4 && strings.Contains(out, fmt.Sprintf("STARTING: weir (PID %d, ", d.process.Pid))
	})
	h.queues("block", "192.0.2.1")
	var bad *api.BadRequest
	if _, err := h.change("", false, "192.0.2.1", "192.0.2.1/33"); !errors.As(err, &bad) || bad.Entry == nil || *bad.Entry != 1 {
		t.Errorf("a wrong entry: %v", err)
	}
	if out, code := h.command("lists", "--socket", h.path("weir.sock")); code != 1 || !strings.Contains(out, "the daemon is starting (PID ") {
		t.Errorf("lists: exit code %d, %s", code, out)
	}
	if _, err := fmt.Fprintln(w, "203.0.113.1"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	d.ready()
	h.emptied()
	if h.entry("manual", "192.0.2.1") == nil {
		t.Error("what was blocked meanwhile is not blocked")
	}
	h.explain("203.0.113.1", true)
}

// A daemon that is killed at any moment while it makes the changes that wait neither loses
// nor repeats one.
func TestKillsAmongWaitingChanges(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	random := seed.New(t)
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {jail: {}}\n")
	h.start(releases[0]).kill()
	rounds, each := long.Rounds(3, 5, 20), long.Or(20, 40)
	want := make(map[string]time.Duration) // the TTL of an address that is blocked
	for range rounds {
		for range each {
			a := address(commandBlock, random.IntN(each)).String()
			if _, there := want[a]; there && random.IntN(2) == 0 {
				h.queues("unblock", "--list", "jail", a)
				delete(want, a)
			} else {
				want[a] = time.Duration(1+random.IntN(1000)) * time.Hour
				h.queues("block", "--list", "jail", "--ttl", want[a].String(), a)
			}
		}
		for range 3 {
			d := h.begin(releases[0])
			d.await(0, "filtering")
			time.Sleep(time.Duration(random.Int64N(int64(80 * time.Millisecond))))
			d.kill()
		}
	}
	h.start(releases[0])
	h.emptied()
	page, err := h.api.Entries(t.Context(), api.EntriesQuestion{List: "jail", Limit: api.MaxPage})
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]time.Duration)
	for _, e := range page.Entries {
		got[e.Entry] = e.Expires.Sub(e.Added)
	}
	for a, ttl := range want {
		if got[a] != ttl {
			t.Errorf("%s is blocked for %v, want %v", a, got[a], ttl)
		}
	}
	for a := range got {
		if _, ok := want[a]; !ok {
			t.Errorf("%s is blocked, although it was unblocked last", a)
		}
	}
}
