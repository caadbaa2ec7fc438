package hub

import (
	"testing"
	"time"

	"weir/control/fleet/wire"
)

// While nodes are enrolled, the others get answers: the broker's account changes only
// when a node is revoked.
func TestEnrollDisturbsNoNode(t *testing.T) {
	f := newFleet(t)
	f.start("lists: {}\n")
	n, c := f.enroll("edge-1")
	w := f.follower(n, c)
	eventually(t, func() error {
		_, _, _, err := w.read("block")
		return err
	})
	done := make(chan int)
	go func() {
		refreshed := 0
		for end := time.Now().Add(time.Second / 2); time.Now().Before(end); refreshed++ {
			if err := f.broker.Refresh(); err != nil {
				t.Error(err)
			}
		}
		done <- refreshed
	}()
	for asked := 0; ; asked++ {
		select {
		case refreshed := <-done:
			t.Logf("%d questions beside %d refreshes", asked, refreshed)
			if asked < 10 || refreshed < 10 {
				t.Error("too few for the test to say anything")
			}
			return
		default:
		}
		if m, err := w.stream.last(wire.CatalogSubject()); err != nil || m == nil {
			t.Fatalf("question %d: %v", asked, err)
		}
		time.Sleep(500 * time.Microsecond) // a node may not ask as often as it can
	}
}
