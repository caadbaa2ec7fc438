package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"weir/control/api"
	"weir/control/feed"
	"weir/control/list"
	"weir/control/lists"
)

// feeds are the feeds of the hub's lists, as the owner of their reader. It belongs to [Hub.Run], but
// for methods that say otherwise.
type feeds struct {
	*loop
	lists    *table
	releases *releases
	dir      stateDir
	log      *slog.Logger
	watcher  *feed.Watcher // nil: files cannot be watched
}

// Feeds implements [lists.Owner].
func (f *feeds) Feeds(name string) (all []*feed.Feed, err error) {
	if name != "" {
		_, err = f.lists.byName.Find(name)
	}
	for _, l := range f.lists.all {
		if l.feed != nil && (name == "" || name == l.Name) {
			all = append(all, l.feed)
		}
	}
	return all, err
}

// CanRollBack implements [lists.Owner]. The contents go out as those that the source would have now.
func (f *feeds) CanRollBack(name string) error {
	if x := f.lists.get(name).released; x != nil && x.Rollout.active() {
		return &api.BadRequest{Err: fmt.Errorf("list %[1]s: the rollout of version %[2]v has not ended: weir fleet rollback %[1]s takes it back on all nodes", name, x.Rollout.To)}
	}
	return f.dir.room()
}

// errReplaced means that a reload has replaced a list, and follows its sources anew.
var errReplaced = errors.New("its settings were reloaded meanwhile")

// Take implements [lists.Owner]. It is safe for concurrent use. Contents are saved before they are a
// version, unlike in a daemon. A hub that ends in between publishes them when it starts. With the
// former contents, all nodes would go back.
func (f *feeds) Take(ctx context.Context, of *feed.Feed, _ feed.Outcome, news bool) error {
	of.Taking.Lock() // another reader could revert what is not yet a version
	defer of.Taking.Unlock()
	d := lists.Decision{List: of.Name, From: of, Version: of.Version()} // before its contents, which may change
	var contents *list.Set                                              // nil: those there are
	if news {
		contents = of.Contents()
		if d.Err = of.Refuse(contents, of.Accepted()); d.Err != nil { // its sources together
			contents = nil
		}
		d.Settle(f.log)
	}
	return errors.Join(d.Err, f.Do(ctx, func() error { return f.take(of, d.Version, contents) }))
}

// take takes in contents of a feed, nil: nothing new.
func (f *feeds) take(of *feed.Feed, version uint64, contents *list.Set) error {
	l := f.lists.get(of.Name)
	if l == nil || l.feed != of {
		return errReplaced
	}
	known := l.unread && tried(of)
	switch {
	case contents != nil && version > l.taken:
		l.take(contents, version)
	case known:
	case contents != nil: // another reader was first
		return cmp.Or(l.refused, l.unrecorded)
	default:
		return nil
	}
	if known {
		l.unread = false
		f.releases.wake()
	}
	err := f.dir.room()
	if err != nil {
		l.unrecorded = err
	} else {
		err = f.releases.commit(l)
	}
	if known {
		if l.since = l.history.Place(); err != nil {
			l.since.Version++
		}
	}
	if err != nil {
		return fmt.Errorf("it is published as soon as the hub can write its store: %w", err)
	}
	return nil
}

// tried reports whether each source of a feed was tried, and some was read.
func tried(f *feed.Feed) bool {
	all := f.Status().Sources
	return !slices.ContainsFunc(all, func(s feed.SourceStatus) bool {
		return s.Last.Ended.IsZero() || s.Last.Failure == feed.Damaged && s.Failures == 0
	}) && slices.ContainsFunc(all, func(s feed.SourceStatus) bool { return !s.Read.IsZero() })
}
