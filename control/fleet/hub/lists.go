package hub

import (
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/feed"
	"weir/control/fleet/store"
	"weir/control/fleet/wire"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/lists"
	"weir/filter/key"
)

// managed is a list of the hub. Where its settings change, it is replaced by another.
type managed struct {
	config.List                  // never changed
	feed        *feed.Feed       // nil: it has manual entries only
	journal     *journal.Journal // of the manual entries of all lists
	history     *store.List
	source      *list.Set // what its feed has
	taken       uint64    // the version of its feed when its contents were last looked at
	unrecorded  error     // why the last change is not a version yet; nil: it is

	early map[key.Key]bool // named by commands before it was settled whether the history is an older copy

	// behind is why the list has not entered the store's epoch. Nodes keep what they have of it
	// until it has.
	behind lists.Retry

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

// lastPause is the longest time after which a list is tried again that is behind: its contents may
// be large.
const lastPause = time.Minute

// fill takes in what the list's feed has saved, as a configuration allows.
func (l *managed) fill(c *config.Hub, log *slog.Logger) {
	if l.feed == nil {
		return
	}
	had := lists.Public(l.history.Contents(), l.LeavesOutPrivate())
	l.taken = l.feed.Version() // before its contents, which may change
	l.source = lists.Public(l.feed.Contents(), l.LeavesOutPrivate())
	if l.refused = l.TooWide(l.source, c.MaxCoverage); l.refused != nil { // max_coverage was higher
		log.Error("what the feed had saved is refused, the last version stays: " + l.refused.Error())
		l.source = had
	}
	if !l.feed.Known() {
		l.unread = l.history.Contents().Len() == 0
		manual := list.SetOf(slices.Collect(maps.Keys(l.history.Expires()))...) // that no feed had
		l.kept, _ = had.Apply(list.Delta{Remove: manual})
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
func (l *managed) take(contents *list.Set, version uint64) {
	l.source, l.taken, l.refused = lists.Public(contents, l.LeavesOutPrivate()), version, nil
	if !l.feed.Known() {
		l.source = list.Union(l.source, l.kept)
	} else {
		l.kept = nil
	}
}

// nameEarly says that a command has named entries before it was settled whether the history is an older copy.
func (l *managed) nameEarly(set *list.Set) {
	if l.early == nil {
		l.early = make(map[key.Key]bool)
	}
	for k := range set.All() {
		l.early[k] = true
	}
}

// manual returns the manual entries, and when those expire that no feed has.
func (l *managed) manual() (*list.Set, map[key.Key]time.Time) {
	var all list.Entries
	expires := make(map[key.Key]time.Time)
	for e := range lists.Manual(l.journal, l.Name, l.Action == config.Allow) {
		all.Add(e.Key)
		if !e.Expires.IsZero() && !l.source.Has(e.Key) {
			expires[e.Key] = e.Expires
		}
	}
	return all.Set(), expires
}

// table has the lists of the hub. It belongs to [Hub.Run], but for history.
type table struct {
	all       []*managed // replaced, not changed, as byName
	byName    lists.ByName[*managed]
	histories atomic.Pointer[map[string]*store.List] // by name
}

// set replaces the lists.
func (a *table) set(all []*managed) {
	histories := make(map[string]*store.List)
	a.all, a.byName = all, make(lists.ByName[*managed])
	for _, l := range all {
		histories[l.Name], a.byName[l.Name] = l.history, l
	}
	a.histories.Store(&histories)
}

// history returns the history of a list, nil if there is no such list. It is safe for
// concurrent use, as some methods of the history are.
func (a *table) history(name string) *store.List { return (*a.histories.Load())[name] }

// names returns the names of the lists. It is safe for concurrent use.
func (a *table) names() []string { return slices.Sorted(maps.Keys(*a.histories.Load())) }

// get returns a list by name, nil if there is none.
func (a *table) get(name string) *managed { return a.byName[name] }
