package hub

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/control/fleet/wire"
	"weir/tests/wait"
)

// While nodes are enrolled, the others get answers: the broker's account changes only
// when a node is revoked.
func TestEnrollDisturbsNoNode(t *testing.T) {
	f := newFleet(t)
	f.start("lists: {}\n")
	n, c := f.enroll("edge-1")
	w := f.follower(n, c)
	wait.Until(t, func() error {
		_, _, _, err := w.read("block")
		return err
	})
	var refreshed, ended atomic.Int64
	var refreshing sync.WaitGroup
	refreshing.Go(func() {
		for ; ended.Load() == 0; refreshed.Add(1) {
			if err := f.broker.Refresh(); err != nil {
				t.Error(err)
			}
		}
	})
	defer refreshing.Wait()
	defer ended.Store(1)
	for asked := 0; asked < 500 || refreshed.Load() < 50; asked++ {
		if m, err := w.stream.last(wire.CatalogSubject()); err != nil || m == nil {
			t.Fatalf("question %d: %v", asked, err)
		}
		time.Sleep(500 * time.Microsecond) // a node may not ask as often as it can
	}
}
