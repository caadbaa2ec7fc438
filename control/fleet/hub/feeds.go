package hub

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"

	"weir/control/config"
	"weir/control/feed"
	"weir/control/list"
)

// feeds has the feeds that are followed. It belongs to [Hub.Run].
type feeds struct {
	version  string        // of weir
	watcher  *feed.Watcher // nil: files cannot be watched
	followed map[*managed]context.CancelFunc
	replaced bool // the lists have other feeds than these
}

func newFeeds(version string, log *slog.Logger) *feeds {
	watcher, err := feed.NewWatcher(log)
	if err != nil {
		log.Warn("files cannot be watched, they are read at their intervals: " + err.Error())
		watcher = nil
	}
	return &feeds{version: version, watcher: watcher, followed: make(map[*managed]context.CancelFunc)}
}

func (f *feeds) close() {
	if f.watcher != nil {
		f.watcher.Close()
	}
}

// open opens the feed of a list of a configuration, nil if it has no sources. It is safe for
// concurrent use.
func (f *feeds) open(ctx context.Context, c config.List, of *config.Hub) (*feed.Feed, error) {
	if len(c.All()) == 0 {
		return nil, nil
	}
	o, most := c.Feed(), float64(of.MaxCoverage)
	o.Watcher, o.Version, o.Hold = f.watcher, f.version, true
	o.Refuse = func(e *list.Set, _ bool) error { return c.TooWide(e, most) }
	return feed.Open(ctx, o, filepath.Join(string(of.StateDir), "feeds"))
}

// follow follows the feeds of lists, and no others. taken is called with each outcome.
func (f *feeds) follow(ctx context.Context, lists []*managed, running *sync.WaitGroup, taken func(context.Context, *managed, feed.Outcome) error) {
	f.replaced = false
	for l, stop := range f.followed {
		if !slices.Contains(lists, l) {
			stop()
			delete(f.followed, l)
		}
	}
	for _, l := range lists {
		if l.feed == nil || f.followed[l] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		f.followed[l] = cancel
		running.Go(func() {
			defer cancel()
			l.feed.Run(ctx, func(o feed.Outcome) { _ = taken(ctx, l, o) }) // which has logged it
		})
	}
}

// incomplete reports whether some source of a feed was never read, nor saved before.
func incomplete(f *feed.Feed) bool {
	return slices.ContainsFunc(f.Status().Sources, func(s feed.SourceStatus) bool { return s.Read.IsZero() })
}

// tried reports whether each source of a feed was tried, and some was read.
func tried(f *feed.Feed) bool {
	all := f.Status().Sources
	return !slices.ContainsFunc(all, func(s feed.SourceStatus) bool { return s.Last.Ended.IsZero() || s.Last.Failure == feed.Damaged }) &&
		slices.ContainsFunc(all, func(s feed.SourceStatus) bool { return !s.Read.IsZero() })
}
