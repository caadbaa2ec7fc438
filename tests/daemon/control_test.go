package daemon

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/tests/wait"
)

// directory makes a directory with a file.
func (h *host) directory(name, file, text string) string {
	h.t.Helper()
	if err := os.MkdirAll(h.path(name), 0o700); err != nil {
		h.t.Fatal(err)
	}
	if file != "" {
		h.write(name+"/"+file, []byte(text))
	}
	return h.path(name)
}

// Explain names the source of an entry, the file of a directory, and the line,
// of the active contents.
func TestExplainNamesTheLine(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	first := h.write("first.txt", []byte("# a list\n192.0.2.1\n192.0.2.2\n198.51.100.0/24\n"))
	second := h.directory("second", "b.txt", "192.0.2.2\n203.0.113.1-203.0.113.6\n> 192.0.2.9\n2001:db8::/32\n")
	h.configure(h.B.Iface, "lists: {both: {sources: [{file: %s}, {directory: %s}], direction: both}}\n", first, second)
	h.start(releases[0])
	h.settled("both")
	h.mustChange("", false, "192.0.2.3")
	h.write("first.txt", []byte("!!\n!!\n!!\n192.0.2.1\n")) // which is refused
	for _, c := range []struct {
		question, source string
		line             int
	}{
		{"192.0.2.1", first, 2},
		{"192.0.2.2", first, 3},
		{"198.51.100.77", first, 4},
		{"> 198.51.100.77", first, 4},
		{"203.0.113.5", second + "/b.txt", 2},
		{"> 192.0.2.9", second + "/b.txt", 3},
		{"2001:db8:7::1", second + "/b.txt", 4},
		{"192.0.2.3", "", 0},
	} {
		e, err := h.api.Explain(t.Context(), c.question)
		if err != nil {
			t.Fatal(err)
		}
		if m := e.Answers[0].Matches; len(m) == 0 || m[0].Source != c.source || m[0].Line != c.line {
			t.Errorf("explain %s: %+v, want %s:%d", c.question, m, c.source, c.line)
		}
	}
}

// The command that an answer names lets the packets pass.
func TestUndoIsDone(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {always: {%s}}\n", h.feed(10))
	h.start(releases[0])
	run := func(args ...string) (string, int) {
		return h.command(append(args, "--socket", h.path("weir.sock"))...)
	}
	listed, manual := address(feedBlock, 0).String(), "192.0.2.0/24"
	if out, code := run("block", manual); code != 0 {
		t.Fatalf("exit code %d\n%s", code, out)
	}
	for _, question := range []string{listed, "192.0.2.7"} {
		out, _ := run("explain", question)
		_, command, ok := strings.Cut(out, "  undo: weir ")
		command, _, _ = strings.Cut(command, "\n")
		command, _, _ = strings.Cut(command, ", or ")
		if !ok || !strings.Contains(out, ": drop (blocked") {
			t.Fatalf("explain %s:\n%s", question, out)
		}
		if out, code := run(strings.Fields(command)...); code != 0 {
			t.Errorf("weir %s: exit code %d\n%s", command, code, out)
		}
		if out, _ := run("explain", question); !strings.HasPrefix(out, "from "+question+": pass (") {
			t.Errorf("after weir %s:\n%s", command, out)
		}
	}
}

// Without a daemon, the command answers from the saved state, and prints the socket and how to start one.
func TestExplainWithoutTheDaemon(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {always: {%s}}\n", h.feed(10))
	d := h.start(releases[0])
	explain := func() (string, error) {
		out, err := exec.Command(releases[0].path, "explain", "--socket", h.path("weir.sock"), address(feedBlock, 0).String()).CombinedOutput()
		return string(out), err
	}
	if out, err := explain(); err != nil || !strings.Contains(out, "list always") {
		t.Errorf("while the daemon runs: %v\n%s", err, out)
	}
	d.kill()
	out, err := explain()
	for _, says := range []string{h.path("weir.sock"), "from the saved state", "systemctl start weir", "list always"} {
		if err != nil || !strings.Contains(out, says) {
			t.Errorf("while none runs: %v, without %q\n%s", err, says, out)
		}
	}
}

// Allowed packets and those of approximate mode are not counted by list, and
// not reported as zero.
func TestPacketsOfLists(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "mode: approx\nlists: {always: {%s}}\n", h.feed(10))
	h.start(releases[0])
	reportsLists := func(counted bool) {
		t.Helper()
		for _, name := range []string{"always", "manual", "manual-allow"} {
			if l := h.list(name); (l.Packets != nil) != (counted && l.Action == api.Block) {
				t.Errorf("%+v, counted: %t", l, counted)
			}
		}
		question := address(feedBlock, 0).String()
		if e, err := h.api.Explain(t.Context(), question); err != nil || len(e.Answers[0].Matches) != 1 || (e.Answers[0].Matches[0].Packets != nil) != counted {
			t.Errorf("explain %s: %+v, %v, counted: %t", question, e, err, counted)
		}
		for deadline := wait.Deadline(); ; time.Sleep(10 * time.Millisecond) {
			if top, err := h.api.Top(t.Context()); err == nil && (len(top.Filter.Lists) > 0) == counted {
				return
			} else if time.Now().After(deadline) {
				t.Fatalf("top: %+v, %v, counted: %t", top, err, counted)
			}
		}
	}
	reportsLists(false)
	h.configure(h.B.Iface, "lists: {always: {%s}}\n", h.feed(10))
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	reportsLists(true)
}

// A batch that is refused says which of its entries is the reason.
func TestRefusedEntry(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "failsafe: {prefixes: [10.9.9.0/24]}\nlists: {always: {%s}}\n", h.feed(10))
	h.start(releases[0])
	for _, c := range []struct {
		entries []string
		want    int
	}{
		{[]string{"10.0.0.7", "10.9.9.0/24", "10.0.0.8"}, 1},
		{[]string{"10.0.0.7", "64.0.0.0/3", "2001:db8::1", "96.0.0.0/3", "192.0.2.1"}, 3}, // together more than 25 %
		{[]string{"10.0.0.7", "128.0.0.0/1"}, 1},
	} {
		_, err := h.change("", false, c.entries...)
		var bad *api.BadRequest
		if !errors.As(err, &bad) || bad.Entry == nil || *bad.Entry != c.want || !strings.Contains(err.Error(), c.entries[c.want]) {
			t.Errorf("%v: refused as %+v (%v), want entry %d", c.entries, bad, err, c.want)
		}
	}
	if l := h.list("manual"); l.Entries != 0 {
		t.Errorf("refused batches have left %d entries", l.Entries)
	}
}

// An allow list's directory may be empty at first; once it had entries, an
// empty one is a failure.
func TestEmptyDirectory(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	dir, blocks := h.directory("allow.d", "", ""), h.directory("block.d", "", "")
	h.configure(h.B.Iface, "lists:\n  always: {%s}\n  ours: {action: allow, sources: [{directory: %s}], interval: 24h}\n", h.feed(10), dir)
	d := h.start(releases[0])
	h.settled("ours")
	line := d.await(0, "the source is empty")
	if r, err := h.api.Refresh(t.Context(), "ours"); err != nil || r.Sources[0].Outcome != "unchanged" {
		t.Errorf("refreshed: %+v, %v", r, err)
	}
	h.directory("allow.d", "one", address(feedBlock, 0).String()+"\n")
	h.refresh("ours", 1)
	h.explain(address(feedBlock, 1).String(), true)
	if e, err := h.api.Explain(t.Context(), address(feedBlock, 0).String()); err != nil || e.Drops() {
		t.Errorf("allowed, but %+v, %v", e, err)
	}
	if d.after(line, "the source is empty") != 0 {
		t.Errorf("the log says more than once that the list is empty:\n%s", d.tail(20))
	}
	d.complain()
	if err := os.Remove(h.path("allow.d/one")); err != nil {
		t.Fatal(err)
	}
	if r, err := h.api.Refresh(t.Context(), "ours"); err != nil || r.Sources[0].Failure != "empty" || r.Sources[0].Entries != 1 {
		t.Errorf("emptied: %+v, %v", r, err)
	}

	h.configure(h.B.Iface, "lists: {always: {sources: [{directory: %s}], interval: 24h}}\n", blocks)
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l := h.list("always"); l.Feeds[0].Failure != "empty" {
		t.Errorf("a block list without entries: %+v", l)
	}
}

// Entries that are written in the configuration are enforced from the start, and replaced by
// a reload.
func TestWrittenEntries(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	const text = "lists: {few: {entries: [%s, 198.51.100.0/24]}}\n"
	h.configure(h.B.Iface, text, "192.0.2.1")
	h.start(releases[0])
	h.explain("192.0.2.1", true)
	h.explain("198.51.100.9", true)
	h.explain("192.0.2.2", false)
	e, err := h.api.Explain(t.Context(), "198.51.100.9")
	if err != nil {
		t.Fatal(err)
	}
	if m := e.Answers[0].Matches[0]; m.List != "few" || m.Source != "the configuration" || m.Line != 2 {
		t.Errorf("explained by %+v", m)
	}
	h.configure(h.B.Iface, text, "192.0.2.2")
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.explain("192.0.2.1", false)
	h.explain("192.0.2.2", true)
	h.explain("198.51.100.9", true)
}

// After a reload, level and format of the log follow the configuration.
func TestLogFollows(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	feed := h.feed(10)
	configure := func(level string) {
		t.Helper()
		h.configure(h.B.Iface, "log: {level: %s}\nlists: {always: {%s}}\n", level, feed)
	}
	reload := func(level string) {
		t.Helper()
		configure(level)
		if _, err := h.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	configure("info")
	d := h.start(releases[0])
	h.settled("always")
	logs := func(level string, wait time.Duration) bool {
		t.Helper()
		from := time.Now() // earlier lines may still be on their way
		if _, err := h.api.Refresh(t.Context(), "always"); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(wait); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			d.mu.Lock()
			for _, e := range d.log {
				if e.Level == level && e.Time.After(from) {
					d.mu.Unlock()
					return true
				}
			}
			d.mu.Unlock()
		}
		return false
	}
	for _, level := range []string{"debug", "info", "debug"} {
		reload(level)
		wait := wait.Patience
		if level != "debug" {
			wait = 300 * time.Millisecond
		}
		if got := logs("DEBUG", wait); got != (level == "debug") {
			t.Errorf("level %s: logs debugging %t", level, got)
		}
	}
}
