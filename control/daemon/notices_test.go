package daemon

import (
	"errors"
	"log/slog"
	"testing"

	"weir/control/attach"
	"weir/control/config"
	"weir/control/feed"
	"weir/control/notify"
	"weir/loader/netif"
	"weir/tests/wait"
)

// What begins ends, also where the configuration no longer names it.
func TestIncidentsEnd(t *testing.T) {
	n := newNotices("", slog.New(slog.DiscardHandler))
	t.Cleanup(func() { n.Close(0) })
	events := notified(t, n)
	next := func(kind notify.Kind, state notify.State, what string) {
		t.Helper()
		wait.For(t, what, func() bool { return len(events) > 0 })
		if e := <-events; e.Kind != kind || e.State != state {
			t.Errorf("%s: %+v", what, e)
		}
	}
	lists := []config.List{{Name: "feed"}}
	lists[0].Sources = []feed.Source{{URL: "https://192.0.2.1/list?key=a"}, {URL: "https://192.0.2.1/list?key=b"}}
	for range 2 {
		n.Fetched("feed", feed.Outcome{Result: feed.Failed, Source: lists[0].SourceNames()[1], Err: errors.New("gone")})
	}
	next(notify.Feed, notify.Begin, "a source that fails")
	n.endSources(lists)
	lists[0].Sources = lists[0].Sources[:1]
	n.endSources(lists)
	next(notify.Feed, notify.End, "another source instead")

	target := netif.Target{Iface: "eth1"}
	n.Follow([]attach.State{{Target: target, Condition: attach.Gone}}, []netif.Target{target})
	next(notify.Interface, notify.Begin, "an interface that is gone")
	n.Follow(nil, nil)
	next(notify.Interface, notify.End, "it is no longer configured")
}
