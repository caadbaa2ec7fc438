package node

import (
	"fmt"
	"testing"

	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/tests/wait"
)

// restore has a hub go on from an older version, and a stream that has no other.
func (h *hub) restore(at wire.Place) {
	h.t.Helper()
	if err := h.js.DeleteStream(wire.Stream); err != nil {
		h.t.Fatal(err)
	}
	h.addStream()
	h.at = at
	h.snapshot()
}

// A node whose versions the hub has lost takes the hub's from a snapshot that is older than
// its own version, whether the hub wants the same number, or a later one.
func TestHistoryLost(t *testing.T) {
	t.Parallel() // it waits a lot
	for _, c := range []struct{ before, after int }{{3, 3}, {3, 5}, {1, 4}} {
		t.Run(fmt.Sprintf("%d and %d", c.before, c.after), func(t *testing.T) {
			t.Parallel()
			h := newHub(t)
			h.ids = map[wire.Place]string{h.at: wire.NewID()}
			dir := t.TempDir()
			n := h.start(dir)
			have := func(name string, versions int) (all *list.Set) {
				entries := []string{"192.0.2.1"}
				for i := range versions {
					entries = append(entries, fmt.Sprintf("%s.%d", name, i))
					h.change(set(t, entries...))
				}
				return h.truth[h.at]
			}
			have("192.0.2", 1)
			h.snapshot()
			h.release()
			n.reaches(h)
			first := h.at
			have("198.51.100", c.before)
			h.release()
			n.reaches(h)
			if s := n.active(); s.ID != h.ids[h.at] {
				t.Fatalf("%+v, want ID %s", s, h.ids[h.at])
			}
			h.restore(first)
			want := have("203.0.113", c.after)
			h.release()
			wait.For(t, fmt.Sprintf("the hub's version %v %s; the node: %+v", h.at, h.ids[h.at], n.active()), func() bool {
				return n.active().ID == h.ids[h.at] && equal(n.has(name), want)
			})
			// What it has saved is that, too.
			n.stop()
			n = h.start(dir)
			wait.For(t, "the saved version", func() bool { return n.active().ID == h.ids[h.at] && equal(n.has(name), want) })
		})
	}
}
