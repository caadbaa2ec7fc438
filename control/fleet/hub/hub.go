// Package hub keeps the lists of a fleet, and publishes them to its nodes.
//
// One goroutine, [Hub.Run], owns the lists, as in package daemon: what feeds read and
// what commands change becomes a version in the store, durably, before it is
// published. Another one, the publisher, brings the broker's stream up to the store,
// however far behind it is: after a crash, or when the stream was lost.
package hub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"weir/control/api"
	"weir/control/api/server"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/console"
	"weir/control/durable"
	"weir/control/feed"
	"weir/control/fleet/authority"
	"weir/control/fleet/store"
	"weir/control/fleet/wire"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/trial"
	"weir/filter/key"
)

// Broker is what the hub needs to know of the servers that nodes connect to.
type Broker interface {
	// Options returns how the hub connects.
	Options() []nats.Option
	// URL returns where, "" if the options say it.
	URL() string
	// Refresh takes in which nodes are enrolled and revoked, and disconnects the latter.
	Refresh() error
}

// guard knows what nodes do that they should not: the server inside the hub.
type guard interface {
	Problems() []string            // a line each
	Violations() map[string]uint64 // by node
	Misuse() (violations uint64, twice int, slow uint64)
}

// guard returns that, nil with a cluster.
func (h *Hub) guard() guard {
	g, _ := h.o.Broker.(guard)
	return g
}

// Options say what a hub does.
type Options struct {
	Config    *config.Hub
	Authority *authority.Authority
	Broker    Broker
	Log       *slog.Logger
	Version   string // of weir

	Reader config.HubReader // for a reload
	// Process follows reloads outside the hub; nil: nothing does.
	Process Process

	Now func() time.Time // numbers catalogs and epochs; nil: [time.Now]
}

// Hub is a hub. Its methods are safe for concurrent use.
type Hub struct {
	o        Options
	config   atomic.Pointer[config.Hub]
	store    *store.Store
	journal  *journal.Journal
	lists    []*managed                      // Run's, as all below; replaced, not changed
	feeds    map[*managed]context.CancelFunc // of those that are followed
	replaced bool                            // lists has other feeds than these
	watcher  *feed.Watcher
	members  *members

	trials      trial.Decisions // of commands
	retryTrials time.Time
	keptTrials  time.Time

	histories atomic.Pointer[map[string]*store.List] // those of lists, by name

	loop      *loop
	publisher *publisher
	nodes     *nodes
	asker     *asker
	noted     atomic.Pointer[noted] // each second
	console   *console.Console      // nil: none is served
	audit     *audit.Log

	reloading sync.Mutex
	reloaded  atomic.Pointer[api.FleetReload] // the last one; nil: none
}

// conf returns the configuration.
func (h *Hub) conf() *config.Hub { return h.config.Load() }

// managed is a list of the hub. Where its settings change, it is replaced by another.
type managed struct {
	config.List            // never changed
	feed        *feed.Feed // nil: it has manual entries only
	fetched     sync.Mutex // what was read is taken in, in order
	history     *store.List
	source      *list.Set // what its feed has
	unrecorded  error     // why the last change is not a version yet; nil: it is

	// unread: neither the store nor the feed knows the contents yet. Nodes, which may have
	// them from before the hub's state was lost, keep what they have.
	unread bool
	// since is the first version after that: nodes keep what they have until it is
	// published, too.
	since wire.Place
	// kept is what the last version had. It stays until each source was read: what some of
	// them have saved is lost. nil: each was.
	kept *list.Set

	trial   *api.Trial // what the configuration or a command says of it; nil: the list is enforced, as configured
	overdue error      // why the trial does not end though its time has come; nil: it has not, or does

	refused error // why what the feed had saved is not in the list; nil: it is

	plan     *config.Rollout // of the next change; nil: it goes to all nodes at once
	released *released       // nil: all nodes are to have the last version
	waiting  bool            // there are contents that a rollout does not have yet
	gate     gate            // of the rollout, as of the last second
}

// storeDir is the directory of the store, in that of the state.
const storeDir = "store"

// Open opens a hub's state.
func Open(o Options) (*Hub, error) {
	h := &Hub{o: o, loop: newLoop(), nodes: newNodes(o.Log), feeds: make(map[*managed]context.CancelFunc)}
	h.members = &members{authority: o.Authority, nodes: h.nodes, opened: time.Now()}
	h.config.Store(o.Config)
	if err := h.open(); err != nil {
		h.Close()
		return nil, err
	}
	if c := o.Config.Console; c.Listen != "" {
		h.console = console.NewHub(h, string(c.Listen), c.TLS != config.TLS{}, o.Version)
		if err := h.console.Keep(string(o.Config.StateDir)); err != nil {
			o.Log.Warn(err.Error())
		}
	}
	return h, nil
}

func (h *Hub) open() (err error) {
	dir := string(h.conf().StateDir)
	if err := durable.MkdirAll(dir); err != nil {
		return err
	}
	h.audit = audit.New(dir, h.o.Log)
	if h.store, err = store.Open(filepath.Join(dir, storeDir), h.o.Authority.Key()); err != nil {
		return err
	}
	if h.o.Now != nil {
		h.store.Now = h.o.Now
	}
	if h.journal, err = journal.Open(filepath.Join(dir, "journal"), h.o.Log); err != nil {
		return err
	}
	if h.watcher, err = feed.NewWatcher(h.o.Log); err != nil {
		h.o.Log.Warn("files cannot be watched, they are read at their intervals: " + err.Error())
		h.watcher = nil
	}
	for _, c := range h.conf().AllLists() {
		l, err := h.openList(context.Background(), c, h.conf())
		if err != nil {
			return err
		}
		var damaged error
		if l.history, damaged, err = h.store.List(c.Name); err != nil {
			return err
		}
		if damaged != nil {
			h.o.Log.Error("a new epoch begins: "+damaged.Error(), "epoch", h.store.Epoch())
		}
		h.lists = append(h.lists, l)
	}
	h.noteHistories()
	h.openTrials()
	if err := h.openRollouts(); err != nil {
		return err
	}
	for _, l := range h.lists {
		h.fill(l)
		if err := h.commit(l); durable.Full(err) { // which is tried again
			h.o.Log.Error("the disk is full: "+err.Error(), "list", l.Name)
		} else if err != nil {
			return err
		}
	}
	h.publisher = newPublisher(h)
	h.nodes.compare, h.nodes.found, h.nodes.heard = h.compare, h.publisher.history, h.publisher.wake
	all, err := h.members.read()
	if err != nil {
		return err
	}
	var members []string
	for name, m := range all {
		if m.Revoked.IsZero() {
			members = append(members, name)
		}
	}
	h.nodes.await(members)
	h.asker = newAsker(h)
	h.note()
	return nil
}

// openList opens a list of a configuration, with the feed that it may have, and without its
// history.
func (h *Hub) openList(ctx context.Context, c config.List, of *config.Hub) (*managed, error) {
	l := &managed{List: c, plan: of.RolloutOf(c)}
	if len(c.All()) == 0 {
		return l, nil
	}
	f, most := c.Feed(), float64(of.MaxCoverage)
	f.Watcher, f.Version, f.Hold = h.watcher, h.o.Version, true
	f.Refuse = func(e *list.Set, _ bool) error { return tooWide(c, e, most) }
	var err error
	l.feed, err = feed.Open(ctx, f, filepath.Join(string(of.StateDir), "feeds"))
	return l, err
}

// fill takes in what a list's feed has saved.
func (h *Hub) fill(l *managed) {
	if l.feed == nil {
		return
	}
	l.source = l.feed.Contents()
	if l.refused = h.tooWide(l.List, l.source); l.refused != nil { // max_coverage was higher
		h.o.Log.Error("what the feed had saved is refused, the last version stays: " + l.refused.Error())
		l.source = l.history.Contents()
	}
	if incomplete(l.feed) {
		l.unread = l.history.Contents().Len() == 0
		manual := list.SetOf(slices.Collect(maps.Keys(l.history.Expires()))...) // that no feed had
		l.kept, _ = l.history.Contents().Apply(list.Delta{Remove: manual})
		l.source = list.Union(l.source, l.kept)
	}
}

// noteHistories notes the histories of the lists there are.
func (h *Hub) noteHistories() {
	all := make(map[string]*store.List)
	for _, l := range h.lists {
		all[l.Name] = l.history
	}
	h.histories.Store(&all)
}

// history returns that of a list, nil if there is no such list. It is safe for concurrent
// use, as some methods of the history are.
func (h *Hub) history(name string) *store.List { return (*h.histories.Load())[name] }

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

// Close closes a hub that does not run.
func (h *Hub) Close() {
	if h.watcher != nil {
		h.watcher.Close()
	}
	if h.journal != nil {
		h.journal.Close()
	}
	if h.store != nil {
		h.store.Close()
	}
}

// Do calls fn in Run's goroutine, and waits for it.
func (h *Hub) Do(ctx context.Context, fn func() error) error { return h.loop.Do(ctx, fn) }

// Run follows feeds and publishes until ctx ends.
func (h *Hub) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer close(h.loop.ended)
	defer cancel()
	if h.console != nil {
		defer h.console.Close() // streams would hold up the server's end
	}
	h.followFeeds(ctx, &all)
	all.Go(func() { h.publisher.run(ctx) })
	all.Go(func() { h.asker.run(ctx) })
	enrollments := newEnrollments(h.o.Authority, h.audit)
	all.Go(func() { enrollments.run(ctx) })
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	stamp, _ := h.o.Authority.Stamp()
	for {
		select {
		case <-ctx.Done():
			return nil
		case fn := <-h.loop.requests:
			fn()
			if h.replaced {
				h.followFeeds(ctx, &all)
			}
		case now := <-tick.C:
			if h.room() == nil {
				h.expire(now)
				h.catchUp()
				h.advance(now)
				h.endTrials(now)
				h.keepTrials(now)
			}
			h.note()
			if next, err := h.o.Authority.Stamp(); err == nil && !next.Equal(stamp) {
				if err := h.o.Broker.Refresh(); err != nil {
					h.o.Log.Error("the broker does not know which nodes are enrolled and revoked, retrying: " + err.Error())
				} else {
					stamp = next
					h.publisher.wake()
				}
			}
		}
	}
}

// followFeeds follows the feeds of the lists there are, and no others.
func (h *Hub) followFeeds(ctx context.Context, running *sync.WaitGroup) {
	h.replaced = false
	for l, stop := range h.feeds {
		if h.list(l.Name) != l {
			stop()
			delete(h.feeds, l)
		}
	}
	for _, l := range h.lists {
		if l.feed == nil || h.feeds[l] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		h.feeds[l] = cancel
		running.Go(func() {
			defer cancel()
			l.feed.Run(ctx, func(o feed.Outcome) { _ = h.fetched(ctx, l, o) }) // which has logged it
		})
	}
}

// errReplaced means that a reload has replaced a list, and follows its sources anew.
var errReplaced = errors.New("its settings were reloaded meanwhile")

// fetched takes in the outcome of an attempt to read a source. The error says why the
// contents are not published.
func (h *Hub) fetched(ctx context.Context, l *managed, o feed.Outcome) error {
	l.fetched.Lock()
	defer l.fetched.Unlock()
	log := h.o.Log.With("list", l.Name, "source", o.Source, "entries", o.Entries)
	switch {
	case o.Result == feed.Failed:
		log.Error("feed failed, the old contents stay", "failure", o.Failure.String(), "error", o.Err)
	case o.Unsaved != nil:
		log.Error("feed read, but it could not be saved", "error", o.Unsaved)
	case o.Changed:
		log.Info("feed read", "took", o.Ended.Sub(o.Began).Round(time.Millisecond))
	}
	var contents *list.Set // nil: those there are
	var refused error
	if o.Changed {
		version := l.feed.Version()
		contents = l.feed.Contents()
		if refused = h.tooWide(l.List, contents); refused != nil { // its sources together
			contents = nil
			l.feed.Revert(version, refused)
			log.Error("feed refused, the old contents stay: " + refused.Error())
		} else if err := l.feed.Keep(version); err != nil {
			log.Error("feed read, but it could not be saved", "error", err)
		}
	}
	err := h.Do(ctx, func() error { return h.take(l, contents) })
	if err != nil && ctx.Err() == nil {
		log.Error("feed read, but it is not published, retrying: " + err.Error())
	}
	return errors.Join(refused, err)
}

// Refresh implements [server.Hub].
func (h *Hub) Refresh(ctx context.Context, name string, accept bool) (outcomes []api.FetchOutcome, err error) {
	var lists []*managed
	if err := h.Do(ctx, func() error {
		for _, l := range h.lists {
			if l.feed != nil && (name == "" || name == l.Name) {
				lists = append(lists, l)
			}
		}
		if name != "" && h.list(name) == nil {
			return h.noList(name)
		}
		return nil
	}); err != nil {
		if accept {
			h.audited(audit.Accepted(ctx, name, nil), err)
		}
		return nil, err
	}
	for _, l := range lists {
		fetch, before := l.feed.Fetch, len(outcomes)
		if accept {
			fetch = l.feed.Accept
		}
		all, err := fetch(ctx)
		for _, o := range all {
			outcomes = append(outcomes, o.API(l.Name, h.fetched(ctx, l, o)))
		}
		if accept {
			r := audit.Accepted(ctx, l.Name, outcomes[before:])
			r.Error = failure(outcomes[before:], err)
			h.audit.Record(r)
		}
		if err != nil {
			return outcomes, err
		}
	}
	return outcomes, nil
}

// sourced returns a list that has sources.
func (h *Hub) sourced(name string) (*managed, error) {
	switch l := h.list(name); {
	case l == nil:
		return nil, h.noList(name)
	case l.feed == nil:
		return nil, &api.BadRequest{Err: fmt.Errorf("list %s has no sources, so that no versions of it are known", name)}
	default:
		return l, nil
	}
}

// Versions implements [server.Hub].
func (h *Hub) Versions(ctx context.Context, name string) (api.ListVersions, error) {
	var l *managed
	err := h.Do(ctx, func() (err error) { l, err = h.sourced(name); return err })
	if err != nil {
		return api.ListVersions{}, err
	}
	return api.ListVersions{List: name, Sources: l.feed.Versions()}, nil
}

// Rollback implements [server.Hub]. The contents go out as those that the source would have now.
func (h *Hub) Rollback(ctx context.Context, name string) (out api.FetchOutcome, err error) {
	out.List = name
	var l *managed
	err = h.Do(ctx, func() (err error) {
		if l, err = h.sourced(name); err != nil {
			return err
		}
		if x := l.released; x != nil && x.Rollout.active() {
			return &api.BadRequest{Err: fmt.Errorf("list %[1]s: the rollout of version %[2]v has not ended: weir fleet rollback %[1]s takes it back on all nodes", name, x.Rollout.To)}
		}
		return h.room()
	})
	if err == nil {
		var o feed.Outcome
		if o, err = l.feed.Rollback(ctx); errors.Is(err, feed.ErrNoVersion) {
			err = &api.BadRequest{Err: fmt.Errorf("list %s: %w", name, err)}
		} else if err == nil {
			out = o.API(l.Name, h.fetched(ctx, l, o))
		}
	}
	r := audit.RolledBack(ctx, out)
	r.Error = failure([]api.FetchOutcome{out}, err)
	h.audit.Record(r)
	return out, err
}

// failure returns why sources were not read, or not accepted, "" if all were.
func failure(outcomes []api.FetchOutcome, err error) string {
	if err != nil {
		return err.Error()
	}
	for _, o := range outcomes {
		if o.Error != "" {
			return o.Source + ": " + o.Error
		}
	}
	return ""
}

// take takes in what a list's feed has after an attempt to read it, nil: nothing new.
func (h *Hub) take(l *managed, contents *list.Set) error {
	if h.list(l.Name) != l {
		return errReplaced
	}
	known := l.unread && tried(l.feed)
	if contents == nil && !known {
		return nil
	}
	if contents != nil {
		l.source, l.refused = contents, nil
		if incomplete(l.feed) {
			l.source = list.Union(contents, l.kept)
		} else {
			l.kept = nil
		}
	}
	if known {
		l.unread = false
		h.publisher.wake()
	}
	err := h.room()
	if err != nil {
		l.unrecorded = err
	} else {
		err = h.commit(l)
	}
	if known {
		if l.since = l.history.Place(); err != nil {
			l.since.Version++
		}
	}
	return err
}

// tooWide returns why a list must not have these entries, because of all that they cover.
func (h *Hub) tooWide(l config.List, e *list.Set) error {
	return tooWide(l, e, float64(h.conf().MaxCoverage))
}

func tooWide(l config.List, e *list.Set, most float64) error {
	if l.Action == config.Allow {
		return nil
	}
	if err := e.TooWide(most); err != nil {
		return fmt.Errorf("list %s: %w", l.Name, err)
	}
	return nil
}

// commit makes the list's entries a version, if they have changed.
func (h *Hub) commit(l *managed) error {
	if l.unread {
		return nil
	}
	manual, expires := h.manual(l)
	change := store.Change{Contents: list.Union(l.source, manual), Expires: expires}
	if l.source.Len() < manual.Len() {
		change.Contents = list.Union(manual, l.source) // a small addition to a large set is cheap
	}
	if l.released != nil {
		l.unrecorded = h.roll(l, change)
		return l.unrecorded
	}
	changed, err := l.history.Commit(change)
	if l.unrecorded = err; err != nil {
		return err
	}
	if !changed {
		return nil
	}
	h.rebase(l)
	if h.publisher != nil {
		h.publisher.wake()
	}
	return nil
}

// rebase makes the last version of a list the base if the log is large.
func (h *Hub) rebase(l *managed) {
	if !l.history.Bulky() {
		return
	}
	if err := l.history.Rebase(); err != nil {
		h.o.Log.Error("the log of a list keeps growing: "+err.Error(), "list", l.Name)
	}
}

// catchUp tries again to record what could not be.
func (h *Hub) catchUp() {
	for _, l := range h.lists {
		if l.unrecorded != nil {
			if err := h.commit(l); err == nil {
				h.o.Log.Info("list recorded", "list", l.Name)
			}
		}
	}
}

// manual returns a list's manual entries, and when those expire that no feed has.
func (h *Hub) manual(l *managed) (*list.Set, map[key.Key]time.Time) {
	var all list.Entries
	expires := make(map[key.Key]time.Time)
	for e := range h.journal.EntriesOf(l.Name) {
		all.Add(e.Key)
		if !e.Expires.IsZero() && !l.source.Has(e.Key) {
			expires[e.Key] = e.Expires
		}
	}
	return all.Set(), expires
}

// expire removes expired entries.
func (h *Hub) expire(now time.Time) {
	batch := h.journal.Expired(now)
	if len(batch) == 0 {
		return
	}
	if err := h.journal.Apply(batch); err != nil {
		h.o.Log.Error("the expiry of entries could not be recorded, nodes expire them: " + err.Error())
		return
	}
	changed := make(map[string]bool)
	for _, c := range batch {
		changed[c.List] = true
	}
	for _, l := range h.lists {
		if changed[l.Name] {
			if err := h.commit(l); err != nil {
				h.o.Log.Error("expired entries: "+err.Error(), "list", l.Name)
			}
		}
	}
}

// list returns a list by name, nil if there is none.
func (h *Hub) list(name string) *managed {
	i := slices.IndexFunc(h.lists, func(l *managed) bool { return l.Name == name })
	if i < 0 {
		return nil
	}
	return h.lists[i]
}

// noList is the error for the name of a list that does not exist.
func (h *Hub) noList(name string) error {
	exist := make([]string, 0, len(h.lists))
	for _, l := range h.lists {
		exist = append(exist, l.Name)
	}
	return api.NoList(name, exist)
}

// publishTimeout is how long a command waits for the broker.
const publishTimeout = 5 * time.Second

var _ server.Hub = (*Hub)(nil)

// Audit implements [server.Hub].
func (h *Hub) Audit(limit int) []api.AuditRecord { return h.audit.Last(limit) }

// audited records a change that was made, or failed.
func (h *Hub) audited(r audit.Record, err error) {
	if err != nil {
		r.Error = err.Error()
	}
	h.audit.Record(r)
}

// Change implements [server.Hub]. When it returns without an error, that is
// durable, here and, unless Published is false, in the broker's stream.
func (h *Hub) Change(ctx context.Context, c api.Change) (changed api.FleetChanged, err error) {
	wait, err := h.change(ctx, c, &changed)
	h.audited(audit.Changed(ctx, c, changed.Changed, c.Entries), err)
	if err != nil {
		return changed, err
	}
	changed.Published = h.waitFor(ctx, wait)
	if c.Action == api.Block && !c.Remove {
		changed.Warnings = leftOut(c.Entries, addresses(h.conf()))
	}
	return changed, nil
}

// waitFor waits until something is published, and reports whether it is. It does not wait
// long.
func (h *Hub) waitFor(ctx context.Context, published <-chan struct{}) bool {
	select {
	case <-published:
		return true
	case <-time.After(h.publisher.patience()):
	case <-ctx.Done():
	case <-h.loop.ended:
	}
	return false
}

// change makes a change. The channel is closed when it is published.
func (h *Hub) change(ctx context.Context, c api.Change, changed *api.FleetChanged) (wait <-chan struct{}, err error) {
	name := c.List
	if name == "" {
		name = map[string]string{api.Block: config.FleetBlock, api.Allow: config.FleetAllow}[c.Action]
	}
	changed.List = name
	now := time.Now()
	var entries list.Entries
	batch := make(map[key.Key]journal.Change)
	each := journal.Entry{List: name, Allow: c.Action == api.Allow, Added: now, Reason: c.Reason, UID: c.UID}
	if c.TTL > 0 {
		each.Expires = now.Add(time.Duration(c.TTL * float64(time.Second))).UTC().Truncate(time.Millisecond)
	}
	for i, text := range c.Entries {
		e, err := list.ParseEntry(text)
		if err != nil {
			return nil, &api.BadRequest{Entry: &i, Text: text, Err: err}
		}
		entries.Append(e)
		if entries.Len() > api.MaxChange {
			return nil, &api.BadRequest{Entry: &i, Text: text, Err: api.ErrMaxChange}
		}
		for each.Key = range e.Set().All() {
			batch[each.Key] = journal.Change{Remove: c.Remove, Entry: each}
		}
	}
	err = h.Do(ctx, func() error {
		if err := h.room(); err != nil {
			return err
		}
		l := h.list(name)
		switch {
		case l == nil:
			return h.noList(name)
		case string(l.Action) != c.Action:
			return &api.BadRequest{Err: fmt.Errorf("list %s has action %s: name one with action %s", name, l.Action, c.Action)}
		case l.unread && !c.Remove:
			return &api.BadRequest{Err: fmt.Errorf("the sources of list %s were not read yet, and nodes keep what they have of it until then: name no list, and the entries reach all nodes at once", name)}
		case l.released != nil && !c.Remove:
			return &api.BadRequest{Err: fmt.Errorf("changes of list %s reach the nodes in waves: name no list, and the entries reach all nodes at once", name)}
		}
		if !c.Remove {
			manual, _ := h.manual(l)
			if err := h.tooWide(l.List, list.Union(manual, entries.Set())); err != nil {
				return &api.BadRequest{Err: fmt.Errorf("with its manual entries, %w", err)}
			}
		}
		for k := range batch {
			_, had := h.journal.Get(name, k)
			switch {
			case had != c.Remove:
				changed.Unchanged++
			case c.Remove:
				changed.Removed++
			default:
				changed.Added++
			}
		}
		if err := h.journal.Apply(slices.Collect(maps.Values(batch))); err != nil {
			changed.Changed = api.Changed{List: name}
			return err
		}
		if err := h.commit(l); err != nil {
			return fmt.Errorf("recorded, and to be published as soon as the hub can write its store: %w", err)
		}
		changed.Version = l.history.Place()
		wait = h.publisher.published(l.Name, changed.Version)
		return nil
	})
	return wait, err
}
