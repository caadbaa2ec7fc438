package hub

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/feed"
	"weir/control/fleet/store"
	"weir/control/fleet/wire"
	"weir/control/journal"
	"weir/control/list"
	"weir/filter/key"
)

// managed is a list of the hub. Where its settings change, it is replaced by another.
type managed struct {
	config.List                  // never changed
	feed        *feed.Feed       // nil: it has manual entries only
	fetched     sync.Mutex       // what was read is taken in, in order
	journal     *journal.Journal // of the manual entries of all lists
	history     *store.List
	source      *list.Set // what its feed has
	unrecorded  error     // why the last change is not a version yet; nil: it is
	behind      behind

	// unread: neither the store nor the feed knows the contents yet. Nodes, which may have
	// them from before the hub's state was lost, keep what they have.
	unread bool
	// since is the first version after that: nodes keep what they have until it is
	// published, too.
	since wire.Place
	// kept has the contents of the last version until each source was read, since the saved
	// contents of some are lost; nil: each was read.
	kept *list.Set

	trial   *api.Trial // what the configuration or a command says of it; nil: the list is enforced, as configured
	overdue error      // why the trial does not end though its time has come; nil: it has not, or does

	refused error // why what the feed had saved is not in the list; nil: it is

	plan     *config.Rollout // of the next change; nil: it goes to all nodes at once
	released *released       // nil: all nodes are to have the last version
	waiting  bool            // there are contents that a rollout does not have yet
	gate     gate            // of the rollout, as of the last second
}

// behind says of a list that it has not entered the store's epoch. Nodes keep what they have of
// it until it has.
type behind struct {
	err   error // why; nil: it has entered
	pause time.Duration
	until time.Time // when it is tried again
}

// The first and the longest time after which a list is tried again that is behind: its contents may
// be large.
const (
	firstPause = time.Second
	lastPause  = time.Minute
)

// failed notes why the list stays behind.
func (b *behind) failed(err error, now time.Time) {
	b.err, b.pause = err, min(max(firstPause, 2*b.pause), lastPause)
	b.until = now.Add(b.pause)
}

// fill takes in what the list's feed has saved. most is the coverage that is allowed.
func (l *managed) fill(most float64, log *slog.Logger) {
	if l.feed == nil {
		return
	}
	l.source = l.feed.Contents()
	if l.refused = l.TooWide(l.source, most); l.refused != nil { // max_coverage was higher
		log.Error("what the feed had saved is refused, the last version stays: " + l.refused.Error())
		l.source = l.history.Contents()
	}
	if incomplete(l.feed) {
		l.unread = l.history.Contents().Len() == 0
		manual := list.SetOf(slices.Collect(maps.Keys(l.history.Expires()))...) // that no feed had
		l.kept, _ = l.history.Contents().Apply(list.Delta{Remove: manual})
		l.source = list.Union(l.source, l.kept)
	}
}

// change returns the contents of the next version, if they differ from those of the last one.
func (l *managed) change() store.Change {
	manual, expires := l.manual()
	next := store.Change{Contents: list.Union(l.source, manual), Expires: expires}
	if l.source.Len() < manual.Len() {
		next.Contents = list.Union(manual, l.source) // a small addition to a large set is cheap
	}
	return next
}

// take takes in what the list's feed has read.
func (l *managed) take(contents *list.Set) {
	l.source, l.refused = contents, nil
	if incomplete(l.feed) {
		l.source = list.Union(contents, l.kept)
	} else {
		l.kept = nil
	}
}

// manual returns the manual entries, and when those expire that no feed has.
func (l *managed) manual() (*list.Set, map[key.Key]time.Time) {
	var all list.Entries
	expires := make(map[key.Key]time.Time)
	for e := range l.journal.EntriesOf(l.Name) {
		all.Add(e.Key)
		if !e.Expires.IsZero() && !l.source.Has(e.Key) {
			expires[e.Key] = e.Expires
		}
	}
	return all.Set(), expires
}

// lists has the lists of the hub. It belongs to [Hub.Run], but for history.
type lists struct {
	all       []*managed                             // replaced, not changed
	histories atomic.Pointer[map[string]*store.List] // by name
}

// set replaces the lists.
func (a *lists) set(all []*managed) {
	histories := make(map[string]*store.List)
	for _, l := range all {
		histories[l.Name] = l.history
	}
	a.all = all
	a.histories.Store(&histories)
}

// history returns the history of a list, nil if there is no such list. It is safe for
// concurrent use, as some methods of the history are.
func (a *lists) history(name string) *store.List { return (*a.histories.Load())[name] }

// get returns a list by name, nil if there is none.
func (a *lists) get(name string) *managed {
	i := slices.IndexFunc(a.all, func(l *managed) bool { return l.Name == name })
	if i < 0 {
		return nil
	}
	return a.all[i]
}

// missing returns the error for the name of a list that does not exist.
func (a *lists) missing(name string) error {
	return api.NoListAmong(name, a.all, func(l *managed) string { return l.Name })
}

// sourced returns a list that has sources.
func (a *lists) sourced(name string) (*managed, error) {
	switch l := a.get(name); {
	case l == nil:
		return nil, a.missing(name)
	case l.feed == nil:
		return nil, &api.BadRequest{Err: fmt.Errorf("list %s has no sources, so that no versions of it are known", name)}
	default:
		return l, nil
	}
}
