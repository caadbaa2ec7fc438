package loop

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir/control/observe/events"
	"weir/control/stage"
	"weir/filter/key"
	"weir/filter/verdict"
)

// A loop is logged once, unless digests have found it, and only while loops are looked for.
func TestLog(t *testing.T) {
	var out bytes.Buffer
	hub := events.NewHub(slog.New(slog.DiscardHandler))
	l := NewLog(hub, slog.New(slog.NewTextHandler(&out, nil)))
	addr := netip.MustParseAddr
	looped := events.Event{Reason: verdict.Looped, Tuple: key.Tuple{Src: addr("192.0.2.1"), Dst: addr("192.0.2.2")}}
	byDigest := events.Event{Reason: verdict.Looped, FirstTTL: 64, Tuple: key.Tuple{Src: addr("192.0.2.3"), Dst: addr("192.0.2.4")}}
	for n, step := range []struct {
		looking bool
		lines   int
		next    time.Duration
	}{{false, 0, stage.Idle}, {true, 1, time.Second}, {true, 0, time.Second}, {false, 0, stage.Idle}} {
		out.Reset()
		l.Follow(step.looking)
		hub.Report(byDigest)
		hub.Report(looped)
		hub.Report(looped)
		if next := l.Tick(time.Now()); next != step.next || strings.Count(out.String(), "\n") != step.lines {
			t.Errorf("step %d: next in %v, %q", n, next, &out)
		}
	}
}
