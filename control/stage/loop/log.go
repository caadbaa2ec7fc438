package loop

import (
	"log/slog"
	"time"

	"weir/control/observe/events"
	"weir/control/stage"
	"weir/filter/verdict"
)

// Log logs which packets programs have found in a loop, for the life of a daemon. Its methods
// are not safe for concurrent use.
type Log struct {
	hub *events.Hub
	log *slog.Logger

	found    <-chan events.Event // nil: loops are not looked for
	end      func()
	reported stage.Reported
}

// NewLog returns a log of events of the hub.
func NewLog(hub *events.Hub, log *slog.Logger) *Log { return &Log{hub: hub, log: log} }

// Follow begins or ends to follow programs that look for loops.
func (l *Log) Follow(looking bool) {
	switch {
	case looking && l.found == nil:
		l.found, l.end = l.hub.Subscribe(events.Want{Reasons: []events.Reason{verdict.Looped}})
	case !looking && l.found != nil:
		l.end()
		l.found = nil
	}
}

// Tick logs what was found since the last call, and returns how soon it is to be called again.
func (l *Log) Tick(now time.Time) time.Duration {
	if l.found == nil {
		return stage.Idle
	}
	for {
		var e events.Event
		select {
		case found, ok := <-l.found:
			if !ok {
				return stage.Idle // the hub has ended
			}
			e = found
		default:
			return time.Second
		}
		if e.FirstTTL != 0 {
			continue // another stage has found and logged it
		}
		if src, dst := e.Tuple.Src, e.Tuple.Dst; src.IsValid() && l.reported.Report(src, dst, now) {
			l.log.Warn("a packet runs in a loop: it has come here again",
				"src", src, "dst", dst, "interface", e.Target.String(), "dropped", e.Dropped)
		}
	}
}
