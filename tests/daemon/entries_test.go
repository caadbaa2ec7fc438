package daemon

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
)

// entryTexts are the entries of all pages.
func (h *host) entryTexts(asked api.EntriesQuestion) (all []string) {
	h.t.Helper()
	for {
		page, err := h.api.Entries(h.t.Context(), asked)
		if err != nil {
			h.t.Fatal(err)
		}
		for _, e := range page.Entries {
			all = append(all, e.List+" "+e.Entry)
		}
		if page.Next == "" {
			return all
		}
		asked.After = page.Next
	}
}

// succeeds runs a command of weir that must succeed, and returns what it prints.
func (h *host) succeeds(stdin string, args ...string) string {
	h.t.Helper()
	c := exec.Command(releases[0].path, append(args, "--socket", h.path("weir.sock"))...)
	c.Stdin = strings.NewReader(stdin)
	out, err := c.CombinedOutput()
	if err != nil {
		h.t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return string(out)
}

// Manual entries are shown with who added them and why, page by page; they leave
// and come back by export, flush and import, and the audit has it all.
func TestEntriesAreVisible(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.write("feed.txt", []byte("203.0.113.0/24\n"))
	h.configure(h.B.Iface, "lists: {feed: {sources: [{file: %s}]}, sides: {direction: both}}\n", h.path("feed.txt"))
	d := h.start(releases[0])
	h.settled("feed")
	began := time.Now()
	h.succeeds("", "block", "192.0.2.1", "192.0.2.2", "--ttl", "30m", "--reason", "scans ssh")
	h.succeeds("", "block", "192.0.2.3", "2001:db8::/32", "--list", "feed")
	h.succeeds("", "block", "192.0.2.4", "--list", "sides")
	h.succeeds("", "allow", "192.0.2.5", "--ttl", "2d")

	want := []string{"feed 192.0.2.3", "feed 2001:db8::/32", "manual 192.0.2.1", "manual 192.0.2.2", "manual-allow 192.0.2.5", "sides 192.0.2.4", "sides > 192.0.2.4"}
	for _, limit := range []int{0, 1, 2, 3, len(want)} {
		got := h.entryTexts(api.EntriesQuestion{Limit: limit})
		if len(got) != len(want) || !reflect.DeepEqual(slices.Sorted(slices.Values(got)), want) {
			t.Errorf("in pages of %d: %q", limit, got)
		}
	}
	if got := h.entryTexts(api.EntriesQuestion{Expiring: time.Hour}); !reflect.DeepEqual(got, want[2:4]) {
		t.Errorf("expiring: %q", got)
	}
	if got := h.entryTexts(api.EntriesQuestion{List: "sides"}); len(got) != 2 {
		t.Errorf("of a list: %q", got)
	}
	page, err := h.api.Entries(t.Context(), api.EntriesQuestion{List: "manual"})
	if err != nil || len(page.Entries) != 2 {
		t.Fatalf("%+v, %v", page, err)
	}
	e := page.Entries[0]
	if e.Reason != "scans ssh" || e.User != "root" || *e.UID != 0 || !e.Manual || e.Action != api.Block ||
		e.Added.Before(began.Add(-time.Second)) || e.Expires.Sub(e.Added) != 30*time.Minute {
		t.Errorf("got %+v", e)
	}
	if out := h.succeeds("", "entries", "manual"); !strings.Contains(out, "root (0)  scans ssh\n") {
		t.Errorf("got %s", out)
	}

	// What leaves in one format comes back from it.
	if out := h.succeeds("", "export", "feed"); out != "203.0.113.0/24\n192.0.2.3\n2001:db8::/32\n" {
		t.Errorf("the export is %q", out)
	}
	for _, format := range []struct{ name, sets string }{{"plain", ""}, {"ipset", "sides-4"}, {"nft", "sides-4"}} {
		text := h.succeeds("", "export", "sides", "--format", format.name)
		if out := h.succeeds("", "flush", "sides"); out != "removed from list sides: 2\n" {
			t.Errorf("flush: %s", out)
		}
		h.explain("192.0.2.4", false)
		args := []string{"import", "sides", "-", "--format", format.name, "--reason", "again"}
		if format.sets != "" {
			args = append(args, "--set", format.sets)
		}
		h.succeeds(text, args...)
		h.explain("192.0.2.4", true)
		if got := h.entryTexts(api.EntriesQuestion{List: "sides"}); len(got) != 2 {
			t.Errorf("after %s: %q", format.name, got)
		}
	}
	h.succeeds("", "flush", "feed")
	h.explain("192.0.2.3", false)
	h.explain("203.0.113.7", true) // of the feed
	h.succeeds("", "reload")

	text, err := os.ReadFile(h.path("state/audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	var changes []string
	for line := range bytes.Lines(text) {
		var r struct {
			Change, List, Reason, User, Source string
			Entries, Changed                   int
			First                              []string
		}
		err := json.Unmarshal(line, &r)
		if r.Change == "start" {
			continue // of the daemon
		}
		if err != nil || r.User != "root" || r.Source != "socket" {
			t.Errorf("%s: %v", line, err)
		}
		changes = append(changes, strings.TrimSpace(r.Change+" "+r.List))
		if r.Change == "block" && r.List == "manual" && (r.Entries != 2 || r.Changed != 2 || r.Reason != "scans ssh" || len(r.First) != 2 || r.First[0] != "192.0.2.1") {
			t.Errorf("got %s", line)
		}
	}
	if got, want := strings.Join(changes, ", "), "block manual, block feed, block sides, allow manual-allow, "+
		strings.Repeat("flush sides, import sides, ", 3)+"flush feed, reload"; got != want {
		t.Errorf("the audit has %s\nwant %s", got, want)
	}
	// What is acknowledged is there after a crash.
	before := h.entryTexts(api.EntriesQuestion{})
	d.complain()
	d.kill()
	d = h.start(releases[0])
	if after := h.entryTexts(api.EntriesQuestion{}); !reflect.DeepEqual(after, before) {
		t.Errorf("%q after a crash, %q before", after, before)
	}
	d.complain()
}
