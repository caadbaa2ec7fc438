// Package hub keeps the lists of a fleet, and publishes them to its nodes.
//
// One goroutine, [Hub.Run], owns the lists, as in package daemon: what feeds read and
// what commands change becomes a version in the store, durably, before it is
// published. Another one, the publisher, brings the broker's stream up to the store,
// however far behind it is: after a crash, or when the stream was lost.
package hub

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/control/api"
	"weir/control/api/server"
	"weir/control/audit"
	"weir/control/clock"
	"weir/control/config"
	"weir/control/console"
	"weir/control/durable"
	"weir/control/engine"
	"weir/control/fleet/authority"
	"weir/control/fleet/store"
	"weir/control/fleet/wire"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/lists"
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

	Backup Backup // for standbys; nil: there are none

	Now func() time.Time // numbers catalogs and epochs; nil: [time.Now]
}

// Listeners are the addresses and sockets where a hub listens.
type Listeners interface {
	// All returns a line for each that fails.
	All() []string
}

// Backup writes the keys and the state of a hub.
type Backup interface{ Backup(io.Writer) error }

// Hub is a hub. Its methods are safe for concurrent use.
type Hub struct {
	*lists.Reader // of the feeds

	o       Options
	config  atomic.Pointer[config.Hub]
	dir     stateDir
	store   *store.Store
	journal *journal.Journal
	clock   *clock.Clock
	loop    *loop

	// Run's, but for methods that say otherwise.
	lists    *table
	feeds    *feeds
	members  *members
	batches  map[string]*batch // by list
	releases *releases
	trials   *trials
	patterns *patterns

	broker    *dialer
	publisher *publisher
	nodes     *nodes
	asker     *asker
	noted     atomic.Pointer[noted] // each second
	console   *console.Console      // nil: none is served
	audit     *audit.Log
	lost      *lostChanges
	assigner  *assigner
	rotation  *rotation

	reloading sync.Mutex
	reloaded  atomic.Pointer[api.FleetReload] // the last one; nil: none
}

// conf returns the configuration.
func (h *Hub) conf() *config.Hub { return h.config.Load() }

// take takes in a configuration.
func (h *Hub) take(c *config.Hub) {
	h.config.Store(c)
	h.o.Authority.SetTerms(Terms(c))
}

// Terms returns what nodes are granted by a configuration.
func Terms(c *config.Hub) authority.Terms {
	return authority.Terms{Life: time.Duration(c.Certificates), Join: c.JoinURL()}
}

// storeDir is the directory of the store, in that of the state.
const storeDir = "store"

// Open opens a hub's state.
func Open(o Options) (*Hub, error) {
	h := &Hub{o: o, dir: stateDir(o.Config.StateDir), lists: &table{}, batches: make(map[string]*batch), loop: newLoop(), nodes: newNodes(o.Log)}
	h.broker = &dialer{broker: o.Broker, authority: o.Authority, log: o.Log}
	h.members = &members{authority: o.Authority, nodes: h.nodes}
	h.take(o.Config)
	if err := h.open(); err != nil {
		h.Close()
		return nil, err
	}
	if c := o.Config.Console; c.Listen != "" {
		h.console = console.NewHub(h, string(c.Listen), c.TLS != config.TLS{}, o.Version)
		if err := h.console.Keep(string(h.dir), h.clock); err != nil {
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
	h.clock = clock.Open(clock.This(), string(h.dir), h.o.Log)
	if h.journal, err = journal.Open(h.dir.path("journal"), h.clock, h.o.Log); err != nil {
		return err
	}
	h.clock.Save()
	h.feeds = &feeds{loop: h.loop, lists: h.lists, dir: h.dir, log: h.o.Log, watcher: lists.Watch(h.o.Log)}
	h.Reader = lists.NewReader(h.feeds, h.audit, h.o.Log)
	var opened []*managed
	for _, c := range h.conf().AllLists() {
		l, err := h.openList(context.Background(), c, h.conf(), nil)
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
		opened = append(opened, l)
	}
	h.lists.set(opened)
	h.releases = &releases{log: h.o.Log, store: h.store, lists: h.lists, members: h.members, wake: func() {}}
	h.feeds.releases = h.releases
	h.trials = &trials{lists: h.lists, members: h.members, audit: h.audit, wake: func() {}}
	h.trials.TrialKeeper = lists.TrialKeeper{Owner: h.trials, Clock: h.clock, Path: h.dir.path(lists.TrialFile), Log: h.o.Log}
	h.trials.open()
	h.patterns = &patterns{path: h.dir.path(patternsFile), clock: h.clock}
	if err := h.patterns.open(); err != nil {
		h.o.Log.Error(err.Error())
	}
	if err := h.releases.open(); err != nil {
		return err
	}
	for _, l := range h.lists.all {
		l.fill(h.conf(), h.o.Log)
		if err := h.releases.commit(l); durable.Full(err) { // which is tried again
			h.o.Log.Error("the disk is full: "+err.Error(), "list", l.Name)
		} else if err != nil {
			return err
		}
	}
	h.publisher = &publisher{
		progress: newProgress(h.nodes.mostHeard, newContest(h.store.Claim()), h.loop.ended),
		log:      h.o.Log, conf: h.conf, authority: h.o.Authority, broker: h.broker, dir: h.dir, audit: h.audit, nodes: h.nodes,
		loop: h.loop, store: h.store, lists: h.lists, releases: h.releases, patterns: h.patterns, before: newBefore(),
	}
	h.releases.wake, h.trials.wake = h.publisher.wake, h.publisher.wake
	h.nodes.compare, h.nodes.found, h.nodes.heard = h.publisher.claims, h.publisher.history, h.publisher.wake
	all, err := h.members.read()
	if err != nil {
		return err
	}
	h.nodes.await(all)
	h.asker = newAsker(h.broker, h.origins, h.renew)
	h.assigner = &assigner{
		log: h.o.Log, authority: h.o.Authority, asker: h.asker, nodes: h.nodes,
		servers: func() []string { return h.conf().Servers }, all: make(map[string]*assigning),
	}
	h.rotation = &rotation{log: h.o.Log, authority: h.o.Authority, audit: h.audit, nodes: h.nodes}
	h.lost = openLost(h.dir.path(lostFile), h.o.Log)
	h.publisher.asker, h.publisher.listed = h.asker, h.lost
	h.note()
	return nil
}

// openList opens a list of a configuration, with the feed that it may have, and without its
// history. former is the list by former settings, nil if there was none. It is safe for concurrent
// use.
func (h *Hub) openList(ctx context.Context, c config.List, of *config.Hub, former *managed) (*managed, error) {
	l := &managed{List: c, journal: h.journal, plan: of.RolloutOf(c)}
	if len(c.All()) == 0 {
		return l, nil
	}
	former = cmp.Or(former, new(managed))
	var err error
	from := c.Feed()
	from.Watcher, from.Version, from.Hold, from.Clock = h.feeds.watcher, h.o.Version, true, h.clock
	// Also what an operator has accepted: nodes would refuse it, too.
	from.Refuse = func(e *list.Set, _ bool) error {
		return c.TooWide(lists.Public(e, c.LeavesOutPrivate()), of.MaxCoverage)
	}
	l.feed, err = lists.Open(ctx, from, string(of.StateDir), former.feed, c.IsLike(&former.List))
	return l, err
}

// Close closes a hub that does not run.
func (h *Hub) Close() {
	if h.feeds != nil {
		h.feeds.watcher.Close()
	}
	if h.journal != nil {
		h.clock.Save()
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
	defer h.Reader.Wait()
	defer close(h.loop.ended)
	defer cancel()
	if h.console != nil {
		defer h.console.Close() // streams would hold up the server's end
	}
	h.loop.ctx = ctx
	h.Follow(ctx)
	all.Go(func() { h.publisher.run(ctx) })
	all.Go(func() { h.publisher.seek(ctx) })
	all.Go(func() { h.asker.run(ctx) })
	all.Go(func() { h.tidy(ctx) })
	all.Go(func() { h.assign(ctx) })
	enrollments := newEnrollments(h.o.Authority, h.audit)
	enrollments.record()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var known authority.Stamp // by the broker: not what has changed since it was started
	for {
		select {
		case <-ctx.Done():
			return nil
		case fn := <-h.loop.requests:
			fn()
		case now := <-tick.C:
			if h.dir.room() == nil {
				h.expire(now)
				h.releases.catchUp(now)
				h.releases.advance(now, time.Duration(h.conf().MaxAge))
				h.trials.end(now)
				h.clock.Follow()
			}
			h.note()
			h.refresh(&known)
			enrollments.record()
		}
	}
}

// tidyInterval is how often revocations are forgotten that matter no more.
const tidyInterval = 24 * time.Hour

// tidy forgets such revocations, until ctx is done.
func (h *Hub) tidy(ctx context.Context) {
	for {
		now := time.Now()
		if steady := h.clock.Steady(now); steady.Before(now) { // a clock that is ahead ends nothing
			now = steady
		}
		if err := h.o.Authority.Tidy(now); err != nil {
			h.o.Log.Warn("revocations that have ended are not forgotten: " + err.Error())
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(tidyInterval):
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
	wait, recorded, err := h.change(ctx, c, &changed)
	if r := audit.Changed(ctx, c, changed.Changed, c.Entries); recorded && err != nil {
		r.Error = err.Error()
		h.audit.Record(r)
	} else {
		h.audit.Attempt(r, err)
	}
	if err != nil {
		return changed, err
	}
	changed.Published = h.publisher.wait(ctx, wait)
	h.enforcing(ctx, &changed, c)
	if c.Action == api.Block && !c.Remove {
		changed.Warnings = leftOut(c.Entries, addresses(h.conf()))
	}
	return changed, nil
}

// enforcing counts the nodes that enforce a change by their reports. Where the change says so, it waits
// for those that may report that yet, as long as for a publication.
func (h *Hub) enforcing(ctx context.Context, changed *api.FleetChanged, c api.Change) {
	ctx, cancel := context.WithTimeout(ctx, h.publisher.patience())
	defer cancel()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	history := h.publisher.lists.history(changed.List)
	if history == nil {
		return // it was removed meanwhile
	}
	if stamp, err := h.o.Authority.Stamp(); err == nil && stamp != h.noted.Load().stamp { // a node was enrolled, or revoked
		_ = h.Do(ctx, func() error { h.note(); return nil })
	}
	for {
		var pending int
		changed.Nodes, changed.Enforcing, pending = h.nodes.enforcing(h.noted.Load().members, changed, history, c, time.Duration(h.conf().MaxAge), time.Now())
		if pending == 0 || !c.Await || !changed.Published {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// change makes a change, and returns whether it is recorded. The channel is closed when it is
// published.
func (h *Hub) change(ctx context.Context, c api.Change, changed *api.FleetChanged) (wait <-chan struct{}, recorded bool, err error) {
	name := config.FleetLists.Of(c.List, c.Action)
	changed.List = name
	parsed, err := lists.Parse(c)
	if err != nil {
		return nil, false, err
	}
	source := slices.IndexFunc(parsed, func(e list.Entries) bool { return lists.Parsed{e}.First(1).Set().HasSources() }) // alone
	set := parsed.First(len(parsed)).Set()
	var tooWide func(list.Entries) error // nil: all entries together are not
	var with *batch
	err = h.command(ctx, func() error {
		l, err := h.lists.byName.Find(name)
		if err != nil {
			return err
		}
		each, err := lists.Entry(l.Name, string(l.Action), c, time.Now())
		switch {
		case err != nil:
			return err
		case source >= 0 && l.Direction != engine.Source: // the journal has the key alone, as of an address
			return &api.BadRequest{Entry: &source, Text: c.Entries[source], Err: fmt.Errorf("list %s has direction %s, and takes no entries for sources alone: name one with direction src", name, l.Direction)}
		case l.unread && !c.Remove:
			return &api.BadRequest{Err: fmt.Errorf("the sources of list %s were not read yet, and nodes keep what they have of it until then: name no list, and the entries reach all nodes at once", name)}
		case l.released != nil && !c.Remove:
			return &api.BadRequest{Err: fmt.Errorf("changes of list %s reach the nodes in waves: name no list, and the entries reach all nodes at once", name)}
		}
		if !c.Remove {
			manual, _ := l.manual()
			most := h.conf().MaxCoverage
			if err := l.TooWide(list.Union(manual, set), most); err != nil {
				tooWide = func(some list.Entries) error { return l.TooWide(list.Union(manual, some.Set()), most) }
				return err
			}
		}
		var batch []journal.Change
		for each.Key = range set.All() {
			batch = append(batch, journal.Change{Remove: c.Remove, Entry: each})
			e, had := h.journal.Current(name, each.Key)
			had = had && (c.Remove || e.Allow == (l.Action == config.Allow))
			switch {
			case had != c.Remove:
				changed.Unchanged++
			case c.Remove:
				changed.Removed++
			default:
				changed.Added++
			}
		}
		if err := h.journal.Apply(batch); err != nil {
			changed.Changed = api.Changed{List: name}
			return err
		}
		recorded = true
		if !h.publisher.decided() {
			l.nameEarly(set)
		}
		with = h.batch(l.Name)
		return nil
	})
	if tooWide != nil { // outside of the turn: it takes many attempts to find the entry
		err = lists.Blame(c, parsed, tooWide)
	}
	if err != nil {
		return nil, recorded, err
	}
	select {
	case <-with.made:
	case <-ctx.Done():
		return nil, recorded, ctx.Err()
	}
	if with.err != nil {
		return nil, recorded, fmt.Errorf("recorded, and to be published as soon as the hub can write its store: %w", with.err)
	}
	changed.Version = with.version
	return with.published, recorded, nil
}

// batchTime is how long the changes of a list become one version: each one goes to all nodes.
const batchTime = 50 * time.Millisecond

// batch is a version of a list that is to be made of changes by commands.
type batch struct {
	made chan struct{} // closed when it is; then there are:

	version   wire.Place
	published <-chan struct{} // closed when it is
	err       error
}

// batch returns the next version of a list.
func (h *Hub) batch(name string) *batch {
	if b := h.batches[name]; b != nil {
		return b
	}
	b := &batch{made: make(chan struct{})}
	h.batches[name] = b
	time.AfterFunc(batchTime, func() {
		defer close(b.made)
		b.err = h.Do(context.Background(), func() error {
			delete(h.batches, name)
			l, err := h.lists.byName.Find(name)
			if err == nil {
				err = h.releases.commit(l)
			}
			if err != nil {
				return err
			}
			b.version = l.history.Place()
			b.published = h.publisher.published(name, b.version)
			return nil
		})
	})
	return b
}
