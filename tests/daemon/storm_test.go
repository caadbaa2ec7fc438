package daemon

import (
	"sync"
	"testing"
	"time"
)

// Many commands at once are all made, and are on disk when they return.
func TestStormOfCommands(t *testing.T) {
	t.Parallel()
	const clients, each = 32, 8
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {jail: {}}\n")
	d := h.start(releases[0])
	began := time.Now()
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for n := range each {
				if _, err := h.change("jail", false, address(commandBlock, i*each+n).String()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	t.Logf("%d commands of %d clients: %v, %.0f a second", clients*each, clients, took.Round(time.Millisecond), clients*each/took.Seconds())
	d.kill()
	h.start(releases[0])
	if n := h.list("jail").Manual; n != clients*each {
		t.Errorf("%d entries after kill -9, want %d", n, clients*each)
	}
}
