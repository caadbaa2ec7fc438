package daemon

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"weir/control/config"
	"weir/control/feed"
	"weir/control/lists"
	"weir/control/ruleset"
	"weir/filter/membership"
	"weir/loader"
)

// feeds are the feeds of the active lists, as the owner of their reader. Take is safe for concurrent
// use; all else is for Run's goroutine.
type feeds struct {
	*lists.Reader
	*loop

	active    *active
	observers *observers
	activate  func(ctx context.Context, list string, f ruleset.Source) error // what a list's feed has read
	log       *slog.Logger

	watcher *feed.Watcher // of files; nil: none
	usage   map[*feed.Feed]*usage
}

// Feeds implements [lists.Owner]. They are in the order of the configuration.
func (s *feeds) Feeds(name string) (all []*feed.Feed, err error) {
	p := s.active.prepared
	if name != "" {
		_, err = p.ByName.Find(name)
	}
	for _, c := range p.Config.Lists {
		if f := p.List(c.Name).FromFeed; f != nil && (name == "" || name == c.Name) {
			all = append(all, f)
		}
	}
	return all, err
}

// CanRollBack implements [lists.Owner].
func (s *feeds) CanRollBack(string) error { return nil }

// Take implements [lists.Owner]. Contents are saved once they are active, unlike at a hub: those that
// the engine cannot have are forgotten.
func (s *feeds) Take(ctx context.Context, f *feed.Feed, o feed.Outcome, news bool) error {
	s.observers.notifier.Fetched(f.Name, o)
	if !news {
		return nil
	}
	return s.activate(ctx, f.Name, f)
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
	for _, l := range s.active.prepared.Lists {
		if l.FromFeed == nil || l.Format.Kind != feed.CrowdSec {
			continue
		}
		counters, _ := s.observers.meter.Counters()
		is := usage{at: now, processed: counters.Packets(), matched: s.observers.meter.Hits()[s.active.prepared.Rules[l.SourceNumber-1].Name]}
		last := s.usage[l.FromFeed]
		if last == nil {
			s.usage[l.FromFeed] = &is
			continue
		}
		if last.asked || last.refused || now.Sub(last.at) < feed.UsageInterval {
			continue
		}
		u := feed.Usage{Began: last.at, Ended: now, Started: s.active.began, Processed: is.processed - last.processed}
		if l.Action == config.Block && !s.active.engine.Monitor && s.active.prepared.Config.Mode == membership.Exact {
			u.Dropped, u.DroppedBytes = is.matched.Packets-last.matched.Packets, is.matched.Bytes-last.matched.Bytes
		}
		last.asked = true
		s.Go(func() {
			err := l.FromFeed.ReportUsage(s.loop.ctx, u)
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
		})
	}
	for f := range s.usage {
		if _, runs := s.Running[f]; !runs {
			delete(s.usage, f)
		}
	}
}
