package daemon

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"weir/tests/long"
	"weir/tests/seed"
)

// killed kills the daemon at some time within another, and starts the next one.
func (h *host) killed(d *daemon, within time.Duration) *daemon {
	h.t.Helper()
	time.Sleep(time.Duration(seed.New(h.t).Int64N(int64(within))))
	d.kill()
	return h.start(releases[0])
}

// Monitor mode is as acknowledged last, whenever the daemon is killed: after
// off, no listed packet passes.
func TestMonitorKills(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {always: {%s}}\n", h.feed(20_000))
	load := h.flood()
	listed := froms(addresses(feedBlock, 0, 20)...)
	d := h.start(releases[0])
	cut := 0 // switches that were cut off by a kill
	for round := range long.Rounds(4, 9, 36) {
		if _, err := h.api.SetMonitor(t.Context(), true, 0); err != nil {
			t.Fatal(err)
		}
		load.expect("monitor mode", true, listed...)
		if round%3 == 0 {
			d = h.killed(d, 20*time.Millisecond)
			load.expect("monitor mode after a kill", true, listed...)
		}
		if round%3 == 1 { // killed while it switches
			ctx, cancel := context.WithCancel(t.Context())
			off := make(chan error, 1)
			go func() {
				_, err := h.api.SetMonitor(ctx, false, 0)
				off <- err
			}()
			d = h.killed(d, 30*time.Millisecond)
			cancel()
			if err := <-off; err == nil { // then it is off
				load.expect("off, acknowledged before a kill", false, listed...)
			} else {
				cut++
			}
		}
		if _, err := h.api.SetMonitor(t.Context(), false, 0); err != nil {
			t.Fatal(err)
		}
		load.run()
		load.await(100)
		d = h.killed(d, 50*time.Millisecond)
		load.await(1000)
		load.pause()
	}
	t.Logf("%d switches were cut off", cut)
	load.finish()
}

// A configuration that was not confirmed is rolled back also where the daemon is
// killed, and one that was is not.
func TestConfirmKills(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	h := newHost(t)
	feed := h.feed(20_000)
	confirmed := func() { h.configure(h.B.Iface, "lists: {always: {%s}}\n", feed) }
	// Without the list, and with another one.
	extra := h.write("extra.txt", []byte("203.0.113.77\n"))
	unconfirmed := func() { h.configure(h.B.Iface, "lists: {extra: {sources: [{file: %s}]}}\n", extra) }
	confirmed()
	load := h.flood()
	listed := froms(addresses(feedBlock, 0, 20)...)
	other := from(netip.MustParseAddr("203.0.113.77"))
	d := h.start(releases[0])
	for round := range long.Or(2, 4) {
		unconfirmed()
		if _, err := h.api.ReloadUnconfirmed(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		load.expect("not confirmed", true, listed...)
		load.expect("not confirmed", false, other)
		if round%2 == 0 { // once more, which replaces the first one
			if _, err := h.api.ReloadUnconfirmed(t.Context(), time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		d = h.killed(d, 20*time.Millisecond)
		load.expect("rolled back", true, other)
		load.run()
		load.await(2000)
		if err := h.api.Confirm(t.Context()); err == nil {
			t.Error("what was rolled back is confirmed")
		}
		d = h.killed(d, 20*time.Millisecond) // and stays so
		load.await(1000)
		load.pause()
	}
	if _, err := h.api.ReloadUnconfirmed(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := h.api.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	d = h.killed(d, 20*time.Millisecond)
	load.expect("confirmed", true, listed...)
	load.expect("confirmed", false, other)
	confirmed()
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	load.run()
	load.await(1000)
	load.finish()
	d.stop()
}
