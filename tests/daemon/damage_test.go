package daemon

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/control/api"
	"weir/tests/must"
)

// flip changes a byte of the only file that a pattern matches.
func (h *host) flip(pattern string, at int) {
	h.t.Helper()
	all, err := filepath.Glob(h.path(pattern))
	if err != nil || len(all) != 1 {
		h.t.Fatal(all, err)
	}
	b := must.Read(h.t, all[0])
	b[at] ^= 1
	must.Write(h.t, all[0], b)
}

// unknown asks for an address that a list has whose source cannot be read: explain says so with a
// configuration, as does the daemon that starts with it, its status and its lists.
func (h *host) unknown(source, because string) *daemon {
	h.t.Helper()
	has := func(what, out string, texts ...string) {
		h.t.Helper()
		for _, text := range texts {
			if !strings.Contains(out, text) {
				h.t.Errorf("%s does not say %q:\n%s", what, text, out)
			}
		}
	}
	config := []string{"explain", "-c", h.path("weir.yaml"), source}
	out, code := h.command(config...)
	if code != 1 {
		h.t.Errorf("explain -c: exit code %d", code)
	}
	has("explain -c", out, "pass (clean, without what is not known)", "nothing is known of list always", because, "1 source that could not be read")
	answered := func(out string) {
		h.t.Helper()
		var e api.Explanation
		_, after, _ := strings.Cut(out, "{") // what comes before is for people
		if err := json.NewDecoder(strings.NewReader("{" + after)).Decode(&e); err != nil {
			h.t.Fatalf("%v: %s", err, out)
		}
		for _, a := range e.Answers {
			if a.Verdict != "pass" || len(a.Incomplete) != 1 || a.Incomplete[0].List != "always" || !strings.Contains(a.Incomplete[0].Problem, because) {
				h.t.Errorf("explain --json: %s", out)
			}
		}
		if len(e.Answers) == 0 {
			h.t.Errorf("no answer: %s", out)
		}
	}
	out, _ = h.command(append(config, "--json")...)
	answered(out)

	d := h.start(releases[0])
	socket := h.path("weir.sock")
	out, _ = h.command("explain", "--socket", socket, source)
	has("explain", out, "pass (clean, without what is not known)", "nothing is known of list always", because)
	out, _ = h.command("explain", "--socket", socket, "--json", source)
	answered(out)
	if out, code = h.status(); code != 4 {
		h.t.Errorf("status: exit code %d", code)
	}
	has("status", out, "NOT READY: list always has nothing of ", because)
	out, _ = h.command("lists", "--socket", socket)
	has("lists", out, "FAILED", because)
	has("the log", d.tail(1000), because)
	return d
}

// A list of which nothing is known, since what was saved is damaged and the source is away, or since
// there is neither, passes nothing in silence; once the source is back, all is as before.
func TestDamagedFeed(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {always: {%s}}\n", h.feed(1000))
	listed := address(feedBlock, 7).String()
	h.start(releases[0]).kill()
	h.flip("state/feeds/always/*", 40)
	if err := os.Rename(h.path("feed.txt"), h.path("away.txt")); err != nil {
		t.Fatal(err)
	}
	h.unknown(listed, "damaged").kill()
	if err := os.RemoveAll(h.path("state/feeds")); err != nil {
		t.Fatal(err)
	}
	d := h.unknown(listed, "no such file")
	if err := os.Rename(h.path("away.txt"), h.path("feed.txt")); err != nil {
		t.Fatal(err)
	}
	h.refresh("always", 1000)
	h.settled("always")
	h.explain(listed, true)
	if out, code := h.status(); code != 0 || strings.Contains(out, "NOT READY") {
		t.Errorf("status: exit code %d\n%s", code, out)
	}
	d.kill()
	if out, code := h.command("explain", "-c", h.path("weir.yaml"), listed); code != 0 || !strings.Contains(out, "drop") {
		t.Errorf("explain -c: exit code %d\n%s", code, out)
	}
}

// Manual entries that were lost, as the journal was cut, are said to be by the log and the status of
// the daemon that finds it, and by no other. The other entries count.
func TestDamagedJournal(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {jail: {}}\n")
	d := h.start(releases[0])
	h.mustChange("jail", false, "192.0.2.1", "192.0.2.2", "192.0.2.3")
	d.kill()
	d = h.start(releases[0])
	d.kill()
	cut := must.Read(t, h.path("state/entries"))
	record := (len(cut) - len("weir journal 1\n")) / 4 // three entries, and the length of the file
	cut = cut[:len(cut)-record]
	must.Write(t, h.path("state/entries"), cut)
	unknown := func(args ...string) (code int) {
		t.Helper()
		text, code := h.command(append(args, "192.0.2.3")...)
		object, _ := h.command(append(args, "192.0.2.3", "--json")...)
		_, object, _ = strings.Cut(object, "{") // what comes before is for people
		if !strings.Contains(text, "pass (clean, without what is not known)\n") || !strings.Contains(text, "\n  the file of manual entries is damaged: ") || !strings.Contains(object, `"problem": "damaged: `) {
			t.Errorf("%s: %s%s", args, text, object)
		}
		return code
	}
	if code := unknown("explain", "-c", h.path("weir.yaml")); code != 1 {
		t.Errorf("explain -c: exit code %d", code)
	}
	d = h.start(releases[0])
	if out, _ := h.status(); !strings.Contains(out, "DAMAGED: ") || !strings.Contains(out, "entries.damaged") {
		t.Error(out)
	}
	unknown("explain", "--socket", h.path("weir.sock"))
	d.await(0, "journal damaged")
	if kept, err := os.ReadFile(h.path("state/entries.damaged")); err != nil || string(kept) != string(cut) {
		t.Errorf("%d bytes are kept: %v", len(kept), err)
	}
	if c, err := h.change("jail", false, "192.0.2.1", "192.0.2.2", "192.0.2.3"); err != nil || c.Added != 1 || c.Unchanged != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	d.kill()
	d = h.start(releases[0])
	if out, _ := h.status(); strings.Contains(out, "DAMAGED") || strings.Contains(d.tail(1000), "damaged") {
		t.Errorf("said again: %s\n%s", out, d.tail(1000))
	}
	for _, a := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"} {
		h.explain(a, true)
	}
}
