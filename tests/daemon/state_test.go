package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/tests/long"
)

// empty removes all files of the state directory.
func (h *host) empty() {
	h.t.Helper()
	all, err := filepath.Glob(h.path("state/*"))
	if err != nil || len(all) == 0 {
		h.t.Fatal(all, err)
	}
	for _, path := range all {
		if err := os.RemoveAll(path); err != nil {
			h.t.Fatal(err)
		}
	}
}

// Files of the state directory that are removed while the daemon runs come back, with all
// that was acknowledged, by the next change or within ten seconds; where they cannot, the
// status says so.
func TestRemovedState(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {jail: {}}\n")
	d := h.start(releases[0])
	h.mustChange("jail", false, "192.0.2.1")
	h.empty()
	h.mustChange("jail", false, "192.0.2.2")
	d.await(0, "the journal was removed or replaced while weir ran")
	d.kill()
	d = h.start(releases[0])
	for _, a := range []string{"192.0.2.1", "192.0.2.2"} {
		h.explain(a, true)
	}

	// Without a change.
	h.succeeds("", "monitor", "on")
	h.empty()
	h.eventually("the files are written anew", func() bool {
		_, journal := os.Stat(h.path("state/entries"))
		_, monitor := os.Stat(h.path("state/monitor.json"))
		return journal == nil && monitor == nil
	})
	d.kill()
	d = h.start(releases[0])
	if out, _ := h.status(); !strings.HasPrefix(out, "MONITOR MODE") {
		t.Error(out)
	}
	h.succeeds("", "monitor", "off")
	for _, a := range []string{"192.0.2.1", "192.0.2.2"} {
		h.explain(a, true)
	}

	// There is no place for them.
	if err := os.Rename(h.path("state"), h.path("elsewhere")); err != nil {
		t.Fatal(err)
	}
	h.write("state", nil)
	if _, err := h.change("jail", false, "192.0.2.3"); err == nil {
		t.Error("a change is acknowledged that a restart would forget")
	}
	unsaved := func() bool {
		s, err := h.api.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s.Unsaved != ""
	}
	h.eventually("nothing can be saved", unsaved)
	if out, _ := h.status(); !strings.Contains(out, "UNSAVED: a restart would forget: ") {
		t.Error(out)
	}
	if err := os.Remove(h.path("state")); err != nil {
		t.Fatal(err)
	}
	h.mustChange("jail", false, "192.0.2.3")
	h.eventually("all is saved", func() bool { return !unsaved() })
	if out, _ := h.status(); strings.Contains(out, "UNSAVED") {
		t.Error(out)
	}
	d.kill()
	h.start(releases[0])
	for _, a := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"} {
		h.explain(a, true)
	}
}
