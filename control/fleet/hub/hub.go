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
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/control/api"
	"weir/control/api/server"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/console"
	"weir/control/durable"
	"weir/control/engine"
	"weir/control/feed"
	"weir/control/fleet/authority"
	"weir/control/fleet/store"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/trial"
	"weir/filter/key"
)

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

	Listeners Listeners // nil: whether they fail is unknown

	Now func() time.Time // numbers catalogs and epochs; nil: [time.Now]
}

// Listeners are the addresses and sockets where a hub listens.
type Listeners interface {
	// All returns a line for each that fails.
	All() []string
}

// Hub is a hub. Its methods are safe for concurrent use.
type Hub struct {
	o       Options
	config  atomic.Pointer[config.Hub]
	dir     stateDir
	store   *store.Store
	journal *journal.Journal
	loop    *loop

	// Run's, but for methods that say otherwise.
	lists    *lists
	feeds    *feeds
	members  *members
	releases *releases
	trials   *trials

	broker    *dialer
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

// storeDir is the directory of the store, in that of the state.
const storeDir = "store"

// Open opens a hub's state.
func Open(o Options) (*Hub, error) {
	h := &Hub{o: o, dir: stateDir(o.Config.StateDir), lists: &lists{}, loop: newLoop(), nodes: newNodes(o.Log)}
	h.broker = &dialer{broker: o.Broker, authority: o.Authority, log: o.Log}
	h.members = &members{authority: o.Authority, nodes: h.nodes}
	h.config.Store(o.Config)
	if err := h.open(); err != nil {
		h.Close()
		return nil, err
	}
	if c := o.Config.Console; c.Listen != "" {
		h.console = console.NewHub(h, string(c.Listen), c.TLS != config.TLS{}, o.Version)
		if err := h.console.Keep(string(h.dir)); err != nil {
			o.Log.Warn(err.Error())
		}
	}
	return h, nil
}

func (h *Hub) open() (err error) {
	if err := durable.MkdirAll(string(h.dir)); err != nil {
		return err
	}
	h.audit = audit.New(string(h.dir), h.o.Log)
	if h.store, err = store.Open(h.dir.path(storeDir), h.o.Authority.Key()); err != nil {
		return err
	}
	if h.o.Now != nil {
		h.store.Now = h.o.Now
	}
	if h.journal, err = journal.Open(h.dir.path("journal"), h.o.Log); err != nil {
		return err
	}
	h.feeds = newFeeds(h.o.Version, h.o.Log)
	var lists []*managed
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
		lists = append(lists, l)
	}
	h.lists.set(lists)
	h.releases = &releases{log: h.o.Log, store: h.store, lists: h.lists, members: h.members, wake: func() {}}
	h.trials = &trials{dir: h.dir, lists: h.lists, members: h.members, audit: h.audit, wake: func() {}}
	h.trials.Keeper = trial.Keeper{Owner: h.trials, Path: h.dir.path(trial.File), Log: h.o.Log}
	h.trials.open()
	if err := h.releases.open(); err != nil {
		return err
	}
	for _, l := range h.lists.all {
		l.fill(float64(h.conf().MaxCoverage), h.o.Log)
		if err := h.releases.commit(l); durable.Full(err) { // which is tried again
			h.o.Log.Error("the disk is full: "+err.Error(), "list", l.Name)
		} else if err != nil {
			return err
		}
	}
	h.publisher = &publisher{
		progress: newProgress(h.nodes.mostHeard, h.loop.ended),
		log:      h.o.Log, conf: h.conf, authority: h.o.Authority, broker: h.broker, dir: h.dir, audit: h.audit, nodes: h.nodes,
		loop: h.loop, store: h.store, lists: h.lists, releases: h.releases,
	}
	h.releases.wake, h.trials.wake = h.publisher.wake, h.publisher.wake
	h.nodes.compare, h.nodes.found, h.nodes.heard = h.publisher.claims, h.publisher.history, h.publisher.wake
	all, err := h.members.read()
	if err != nil {
		return err
	}
	h.nodes.await(all)
	h.asker = newAsker(h.broker, h.origins)
	h.note()
	return nil
}

// openList opens a list of a configuration, with the feed that it may have, and without its
// history. It is safe for concurrent use.
func (h *Hub) openList(ctx context.Context, c config.List, of *config.Hub) (*managed, error) {
	f, err := h.feeds.open(ctx, c, of)
	if err != nil {
		return nil, err
	}
	return &managed{List: c, feed: f, journal: h.journal, plan: of.RolloutOf(c)}, nil
}

// Close closes a hub that does not run.
func (h *Hub) Close() {
	if h.feeds != nil {
		h.feeds.close()
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
	h.feeds.follow(ctx, h.lists.all, &all, h.fetched)
	all.Go(func() { h.publisher.run(ctx) })
	all.Go(func() { h.asker.run(ctx) })
	enrollments := newEnrollments(h.o.Authority, h.audit)
	all.Go(func() { enrollments.run(ctx) })
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var known authority.Stamp // by the broker: not what has changed since it was started
	for {
		select {
		case <-ctx.Done():
			return nil
		case fn := <-h.loop.requests:
			fn()
			if h.feeds.replaced {
				h.feeds.follow(ctx, h.lists.all, &all, h.fetched)
			}
		case now := <-tick.C:
			if h.dir.room() == nil {
				h.expire(now)
				h.releases.catchUp(now)
				h.releases.advance(now, time.Duration(h.conf().MaxAge))
				h.trials.end(now)
				h.trials.Keep(now)
			}
			h.note()
			h.refresh(&known)
		}
	}
}

// refresh hands the broker the nodes that are enrolled and revoked, if that has changed.
func (h *Hub) refresh(known *authority.Stamp) {
	next, err := h.o.Authority.Stamp()
	if err != nil || next == *known {
		return
	}
	text := ""
	if err := h.o.Broker.Refresh(); err != nil {
		text = "the broker does not know which nodes are enrolled and revoked: " + err.Error()
		if text != h.publisher.current().unrefreshed {
			h.o.Log.Error(text + ", retrying")
		}
	} else {
		*known = next
		h.publisher.wake()
	}
	h.publisher.note(func(s *publisherState) { s.unrefreshed = text })
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
		if refused = l.TooWide(contents, float64(h.conf().MaxCoverage)); refused != nil { // its sources together
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
		for _, l := range h.lists.all {
			if l.feed != nil && (name == "" || name == l.Name) {
				lists = append(lists, l)
			}
		}
		if name != "" && h.lists.get(name) == nil {
			return h.lists.missing(name)
		}
		return nil
	}); err != nil {
		if accept {
			h.audit.Attempt(audit.Accepted(ctx, name, nil), err)
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

// Versions implements [server.Hub].
func (h *Hub) Versions(ctx context.Context, name string) (api.ListVersions, error) {
	var l *managed
	err := h.Do(ctx, func() (err error) { l, err = h.lists.sourced(name); return err })
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
		if l, err = h.lists.sourced(name); err != nil {
			return err
		}
		if x := l.released; x != nil && x.Rollout.active() {
			return &api.BadRequest{Err: fmt.Errorf("list %[1]s: the rollout of version %[2]v has not ended: weir fleet rollback %[1]s takes it back on all nodes", name, x.Rollout.To)}
		}
		return h.dir.room()
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
	if h.lists.get(l.Name) != l {
		return errReplaced
	}
	known := l.unread && tried(l.feed)
	if contents == nil && !known {
		return nil
	}
	if contents != nil {
		l.take(contents)
	}
	if known {
		l.unread = false
		h.publisher.wake()
	}
	err := h.dir.room()
	if err != nil {
		l.unrecorded = err
	} else {
		err = h.releases.commit(l)
	}
	if known {
		if l.since = l.history.Place(); err != nil {
			l.since.Version++
		}
	}
	return err
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
	for _, l := range h.lists.all {
		if changed[l.Name] {
			if err := h.releases.commit(l); err != nil {
				h.o.Log.Error("expired entries: "+err.Error(), "list", l.Name)
			}
		}
	}
}

var _ server.Hub = (*Hub)(nil)

// Audit implements [server.Hub].
func (h *Hub) Audit(limit int) []api.AuditRecord { return h.audit.Last(limit) }

// Change implements [server.Hub]. When it returns without an error, that is
// durable, here and, unless Published is false, in the broker's stream.
func (h *Hub) Change(ctx context.Context, c api.Change) (changed api.FleetChanged, err error) {
	wait, err := h.change(ctx, c, &changed)
	h.audit.Attempt(audit.Changed(ctx, c, changed.Changed, c.Entries), err)
	if err != nil {
		return changed, err
	}
	changed.Published = h.publisher.wait(ctx, wait)
	if c.Action == api.Block && !c.Remove {
		changed.Warnings = leftOut(c.Entries, addresses(h.conf()))
	}
	return changed, nil
}

// change makes a change. The channel is closed when it is published.
func (h *Hub) change(ctx context.Context, c api.Change, changed *api.FleetChanged) (wait <-chan struct{}, err error) {
	name := config.FleetLists.Of(c.List, c.Action)
	changed.List = name
	now := time.Now()
	var entries list.Entries
	batch := make(map[key.Key]journal.Change)
	each := journal.Entry{List: name, Allow: c.Action == api.Allow, Added: now, Reason: c.Reason, UID: c.UID}
	if c.TTL > 0 {
		each.Expires = now.Add(time.Duration(c.TTL * float64(time.Second))).UTC().Truncate(time.Millisecond)
	}
	source := -1 // the first entry that is a source alone
	for i, text := range c.Entries {
		e, err := list.ParseEntry(text)
		if err != nil {
			return nil, &api.BadRequest{Entry: &i, Text: text, Err: err}
		}
		if source < 0 && e.Set().HasSources() {
			source = i
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
		if err := h.dir.room(); err != nil {
			return err
		}
		l := h.lists.get(name)
		switch {
		case l == nil:
			return h.lists.missing(name)
		case string(l.Action) != c.Action:
			return &api.BadRequest{Err: fmt.Errorf("list %s has action %s: name one with action %s", name, l.Action, c.Action)}
		case source >= 0 && l.Direction != engine.Source: // the journal has the key alone, as of an address
			return &api.BadRequest{Entry: &source, Text: c.Entries[source], Err: fmt.Errorf("list %s has direction %s, and takes no entries for sources alone: name one with direction src", name, l.Direction)}
		case l.unread && !c.Remove:
			return &api.BadRequest{Err: fmt.Errorf("the sources of list %s were not read yet, and nodes keep what they have of it until then: name no list, and the entries reach all nodes at once", name)}
		case l.released != nil && !c.Remove:
			return &api.BadRequest{Err: fmt.Errorf("changes of list %s reach the nodes in waves: name no list, and the entries reach all nodes at once", name)}
		}
		if !c.Remove {
			manual, _ := l.manual()
			if err := l.TooWide(list.Union(manual, entries.Set()), float64(h.conf().MaxCoverage)); err != nil {
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
		if err := h.releases.commit(l); err != nil {
			return fmt.Errorf("recorded, and to be published as soon as the hub can write its store: %w", err)
		}
		changed.Version = l.history.Place()
		wait = h.publisher.published(l.Name, changed.Version)
		return nil
	})
	return wait, err
}
