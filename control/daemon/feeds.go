package daemon

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"weir/control/config"
	"weir/control/feed"
	"weir/filter/membership"
	"weir/loader"
)

// feeds are the feeds that run. Run's goroutine owns them.
type feeds struct {
	loop      *loop
	active    *active
	observers *observers
	log       *slog.Logger

	watcher *feed.Watcher // of files; nil: none
	running map[*feed.Feed]context.CancelFunc
	usage   map[*feed.Feed]*usage
}

// follow runs the feeds of the active lists, and no others. fetched takes in what they read.
func (s *feeds) follow(fetched func(ctx context.Context, list string, f *feed.Feed, o feed.Outcome) error) {
	wanted := make(map[*feed.Feed]string)
	for _, l := range s.active.prepared.lists {
		if l.feed != nil {
			wanted[l.feed] = l.Name
		}
	}
	for f, cancel := range s.running {
		if _, ok := wanted[f]; !ok {
			cancel()
			delete(s.running, f)
		}
	}
	for f, name := range wanted {
		if s.running[f] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(s.loop.ctx)
		s.running[f] = cancel
		go f.Run(ctx, func(o feed.Outcome) { _ = fetched(ctx, name, f, o) }) // it is in the log
	}
}

// usage holds the figures of the last report on a list of CrowdSec's decisions.
type usage struct {
	at        time.Time
	processed uint64
	matched   loader.Counter
	asked     bool // a report is under way
	refused   bool // by an API that takes none
}

// reportUsage reports the usage of CrowdSec's decisions, where that is due. What a
// report that failed had is in the next one.
func (s *feeds) reportUsage(now time.Time) {
	for _, l := range s.active.prepared.lists {
		if l.feed == nil || l.Format.Kind != feed.CrowdSec {
			continue
		}
		counters, _ := s.observers.meter.Counters()
		is := usage{at: now, processed: counters.Packets(), matched: s.observers.meter.Hits()[s.active.prepared.rules[l.source-1].Name]}
		last := s.usage[l.feed]
		if last == nil {
			s.usage[l.feed] = &is
			continue
		}
		if last.asked || last.refused || now.Sub(last.at) < feed.UsageInterval {
			continue
		}
		u := feed.Usage{Began: last.at, Ended: now, Started: s.active.began, Processed: is.processed - last.processed}
		if l.Action == config.Block && !s.active.engine.Monitor && s.active.prepared.config.Mode == membership.Exact {
			u.Dropped, u.DroppedBytes = is.matched.Packets-last.matched.Packets, is.matched.Bytes-last.matched.Bytes
		}
		last.asked = true
		go func() {
			err := l.feed.ReportUsage(s.loop.ctx, u)
			_ = s.loop.Do(s.loop.ctx, func() error {
				switch last.asked = false; {
				case errors.Is(err, feed.ErrNoUsage):
					last.refused = true
					s.log.Debug(err.Error(), "list", l.Name)
				case err != nil:
					last.at = now // not to try each second; the counters stay
					s.log.Warn(err.Error(), "list", l.Name)
				default:
					*last = is
				}
				return nil
			})
		}()
	}
	for f := range s.usage {
		if _, runs := s.running[f]; !runs {
			delete(s.usage, f)
		}
	}
}
