package daemon

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"weir/control/api"
	"weir/tests/long"
	"weir/tests/wait"
)

// history returns what was recorded in the last minutes.
func (h *host) history() *api.History {
	h.t.Helper()
	all, err := h.api.History(h.t.Context(), api.HistoryQuestion{Since: 10 * time.Minute, Step: api.MinHistoryStep})
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

// The history has the packets that were counted, packet for packet, also after the
// daemon was killed and the file was damaged.
func TestHistory(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	h := newHost(t)
	listed := netip.MustParseAddr("198.51.100.7")
	h.write("feed.txt", []byte(listed.String()+"\n"))
	h.configure(h.B.Iface, "lists: {feed: {sources: [{file: %s}], interval: 24h}}\n", h.path("feed.txt"))
	d := h.start(releases[0])
	send := func(packets int) {
		t.Helper()
		tx := h.A.Sender(t)
		frame := frameOf(h.Lab, listedKind, from(listed))
		for range packets {
			if err := tx.SendAll(frame); err != nil {
				t.Fatal(err)
			}
		}
	}
	// dropped waits until the history has a number of dropped packets.
	dropped := func(want uint64) {
		t.Helper()
		for deadline := wait.Deadline(); ; time.Sleep(50 * time.Millisecond) {
			all := h.history()
			n := slices.IndexFunc(all.Total.Lists, func(l api.HistoryList) bool { return l.List == "feed" })
			if all.Total.Dropped >= want || time.Now().After(deadline) {
				if all.Total.Dropped != want || n < 0 || all.Total.Lists[n].Packets != want || all.Total.DroppedBytes != want*uint64(len(frameOf(h.Lab, listedKind, from(listed)))) {
					t.Fatalf("%+v, want %d dropped by the feed", all.Total, want)
				}
				return
			}
		}
	}
	send(1000)
	dropped(1000)
	send(500)
	dropped(1500)
	d.stop() // which writes the last seconds
	d = h.start(releases[0])
	dropped(1500)
	send(100)
	dropped(1600)
	d.kill()
	path := filepath.Join(h.path("state"), "history")
	if err := os.Truncate(path, 1234); err != nil {
		t.Fatal(err)
	}
	d = h.start(releases[0])
	send(10)
	dropped(10)
	d.stop()
}
