// Package daemon filters by a configuration, whose lists come from feeds and from
// commands, follows both, and loses nothing.
//
// One goroutine, that of [Daemon.Run], owns the state: lists, interfaces, the
// engine, what is observed, the journal. Others do slow work, such as fetching and
// parsing, and hand it their results, or read snapshots. [Daemon] has parts, each
// of which has a state of its own, and says who owns that.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"weir/control/api/server"
	"weir/control/attach"
	"weir/control/audit"
	"weir/control/clock"
	"weir/control/config"
	"weir/control/console"
	"weir/control/doctor"
	"weir/control/durable"
	"weir/control/engine"
	"weir/control/feed"
	"weir/control/fleet/node"
	"weir/control/history"
	"weir/control/journal"
	"weir/control/lists"
	"weir/control/observe"
	"weir/control/observe/events"
	"weir/control/observe/traffic"
	"weir/control/ruleset"
	"weir/control/serve"
	"weir/control/stages"
	"weir/loader"
)

// Options say how a daemon runs.
type Options struct {
	Config   config.Reader // read again at each reload
	File     string        // that it is read from, an absolute path; "": none
	Takeover bool          // replace another daemon that runs
	Version  string
	Log      *slog.Logger
	Progress *feed.Progress // of the sources that are read before it filters; may be nil

	// Logging, unless nil, is set to what a new configuration says of logging.
	Logging Logging

	// Before, unless nil, learns from [Start] that the lists are ready, before anything is attached.
	Before interface{ Attaching() }
}

// Logging is a logger's settings.
type Logging interface {
	Configure(config.Log)
	// Failed returns how many lines could not be written.
	Failed() uint64
}

// Daemon filters by a configuration. Run's goroutine owns its parts, but for those whose
// types say otherwise.
type Daemon struct {
	o           Options
	clock       *clock.Clock
	loop        *loop
	active      *active
	api         *API
	journal     *journal.Journal
	audit       *audit.Log
	service     service
	fleet       fleet
	antiLockout antiLockout
	builder     builder
	changes     changer
	monitor     override
	policing    policing
	trials      trials
	feeds       feeds
	backlog     backlog
	observers   observers
	readings    readings
	upkeep      upkeep
	reloads     reloads
}

// Start begins to filter by a configuration, with what is known of its lists:
// the saved contents of feeds, and manual entries. Where nothing is known, or a program
// that is attached already has a list that is not, sources are read first; lists of the
// fleet are waited for as long as it takes. When Start fails, nothing has changed.
func Start(ctx context.Context, o Options) (_ *Daemon, err error) {
	c, err := o.Config.Read()
	if err != nil {
		return nil, err
	}
	if !o.Takeover {
		if err := refuseAnother(ctx, c); err != nil {
			return nil, err
		}
	}
	if text := doctor.Realtime(); text != "" {
		o.Log.Warn(text)
	}
	c, rolledBack := confirmedConfig(c, o.Log)
	d := newDaemon(o, c)
	d.reloads.rolledBack = rolledBack
	if c.Console.Listen != "" {
		d.api.Console = console.New(d.api, string(c.Console.Listen), c.Console.TLS != config.TLS{}, o.Version)
	}
	member, err := openNode(c, d.clock, o.Version, false, o.Log)
	if err != nil {
		return nil, err
	}
	d.fleet.node.Store(member)
	if d.service.Manager, err = serve.DialManager(); err != nil {
		return nil, err
	}
	if c.StateDir != "" {
		if err := durable.MkdirAll(string(c.StateDir)); err != nil {
			o.Log.Error("the state directory cannot be made, nothing will be saved: " + err.Error())
		}
		if d.api.Console != nil {
			if err := d.api.Console.Keep(string(c.StateDir), d.clock); err != nil {
				o.Log.Warn(err.Error())
			}
		}
	}
	if d.journal, err = openJournal(ctx, c, journalPath(c), d.clock, o.Takeover, o.Log); err != nil {
		return nil, err
	}
	d.clock.Save()
	d.audit.Reread() // a daemon that was taken over from has recorded its stop
	d.builder.journal, d.observers.stages.Journal, d.changes.journal = d.journal, d.journal, d.journal
	d.feeds.watcher = lists.Watch(o.Log)
	if err := d.changes.queued.Open(c, o.File); err != nil {
		o.Log.Error("changes that were given while no daemon answered are not made: " + err.Error())
	}
	d.api.early = serveOf(c).Open(server.StartingHandler(&starter{d.changes.queued, o.Progress, &d.fleet, o.Version, time.Now()}), o.Log)
	defer func() {
		if err != nil {
			d.api.early.Close()
			err = errors.Join(err, d.feeds.watcher.Close(), d.journal.Close())
		}
	}()
	if err := d.journal.Apply(d.journal.Expired(time.Now())); err != nil {
		o.Log.Error("expired entries could not be removed from the journal: " + err.Error())
	}
	d.monitor.manual = loadMonitor(statePath(c, monitorFile), d.clock, time.Now(), o.Log)
	if c.StateDir != "" {
		if err := d.observers.floods.Keep(statePath(c, floodsFile), durable.WriteFile); err != nil {
			o.Log.Warn(err.Error())
		}
	}
	d.trials.Load()
	d.policing.load(c, time.Now())
	if err = d.start(ctx, c); err == nil && !rolledBack && !missing(rollbackPath(c)) {
		if err := forgetRollback(c); err != nil {
			o.Log.Error("a later start with an unconfirmed configuration would return to the one before it: " + err.Error())
		}
	}
	if err == nil {
		d.policing.begin(time.Now())
	}
	return d, err
}

// newDaemon returns the parts of a daemon, before it has a configuration.
func newDaemon(o Options, c *config.Config) *Daemon {
	d := &Daemon{
		o: o, clock: clock.Open(clock.This(), string(c.StateDir), o.Log), audit: audit.New(string(c.StateDir), o.Log),
		active: &active{attach: attach.NewManager(attach.Config{Pins: c.Pins, Takeover: o.Takeover, Log: o.Log})},
	}
	d.loop = newLoop(d.turnOf)
	hub, lends := events.NewHub(o.Log), hosting{d}
	d.service.log = o.Log
	d.observers = observers{
		active: d.active, readings: &d.readings, notifier: newNotices(o.Version, o.Log), log: o.Log,
		hub: hub, stages: stages.NewRunning(string(c.StateDir), hub, o.Log), drops: observe.NewDropRecorder(lends, o.Log), exports: observe.NewExports(hub, o.Log),
		collateral: observe.NewConversations(lends, o.Log), mistaken: make(chan struct{}, 1),
	}
	d.readings = readings{
		clock:  d.clock,
		lister: lister{loop: d.loop, active: d.active, meter: &d.observers.meter, collateral: d.observers.collateral},
		loop:   d.loop, meter: &d.observers.meter, hub: d.observers.hub, sampled: &d.observers.sampled, floods: &d.observers.floods, unsaved: &d.upkeep.unsaved, logging: o.Logging,
	}
	d.upkeep = upkeep{pins: pinned{loop: d.loop, active: d.active, readings: &d.readings, log: o.Log}, clock: d.clock, log: o.Log}
	d.fleet = fleet{
		service:    &d.service,
		rehearsals: &rehearsals{host: lends, hub: d.observers.hub, collateral: d.observers.collateral},
	}
	d.feeds = feeds{loop: d.loop, active: d.active, observers: &d.observers, activate: d.take, log: o.Log, usage: make(map[*feed.Feed]*usage)}
	d.feeds.Reader = lists.NewReader(&d.feeds, d.audit, o.Log)
	d.antiLockout = antiLockout{active: d.active, observers: &d.observers, readings: &d.readings, notifier: d.observers.notifier, exports: d.observers.exports, log: o.Log}
	d.changes = changer{
		loop: d.loop, active: d.active, filter: d, antiLockout: &d.antiLockout, audit: d.audit, notifier: d.observers.notifier, log: o.Log,
		queued: newQueuedChanges(&d.changes, d.audit, d.observers.notifier, o.Log),
	}
	d.monitor = override{clock: d.clock, loop: d.loop, active: d.active, audit: d.audit, note: d.note, log: o.Log}
	d.policing = policing{clock: d.clock, loop: d.loop, active: d.active, antiLockout: &d.antiLockout, reloads: &d.reloads.confirmation, audit: d.audit, activate: d.restage, note: d.note, log: o.Log, stood: make(map[string]time.Time)}
	d.observers.policing, d.observers.applied = &d.policing, make(map[string]time.Time)
	d.trials = trials{loop: d.loop, active: d.active, antiLockout: &d.antiLockout, collateral: d.observers.collateral, reloads: &d.reloads.confirmation, audit: d.audit, reassemble: d.reassemble, note: d.note}
	d.trials.TrialKeeper = lists.TrialKeeper{Owner: &d.trials, Clock: d.clock, Path: statePath(c, lists.TrialFile), Log: o.Log}
	d.builder = builder{
		loop: d.loop, active: d.active, observers: &d.observers, monitor: &d.monitor, rehearsals: d.fleet.rehearsals, queue: d.changes.queued,
		version: o.Version, log: o.Log,
	}
	d.api = &API{
		reconfigured: d, loop: d.loop, records: records{d.audit}, notices: d.observers.notifier, readings: &d.readings,
		changer: &d.changes, trials: &d.trials, override: &d.monitor, policing: &d.policing,
		TrafficHistory: &d.observers.history, DropRecorder: d.observers.drops, Conversations: d.observers.collateral, rehearsals: d.fleet.rehearsals,

		consoles:    consoles{audit: d.audit},
		stageRoutes: d.observers.stages.Routes(host{d.loop, d.active, d.audit}),
		Pages:       ruleset.NewPages(lends),
		Reader:      d.feeds.Reader,
		Explainer:   observe.NewExplainer(lends, &d.observers.meter, d.observers.drops, d.observers.stages, o.Version),
		Appraiser:   observe.NewAppraiser(lends, &d.observers.meter, d.observers.drops, &d.observers.history, d.observers.collateral),
	}
	return d
}

func (d *Daemon) start(ctx context.Context, c *config.Config) (err error) {
	began := time.Now()
	targets := targetsOf(c)
	defer d.active.attach.Forget()
	inherited, err := d.active.attach.Find(targets)
	if err != nil {
		return err
	}
	d.active.inherited = inherited.Programs
	d.observers.seed, d.observers.drops.Inherits = inherited.Seed, len(inherited.Programs) > 0
	if inherited.Unknown {
		for _, l := range c.Lists {
			inherited.Lists = append(inherited.Lists, l.Name)
		}
	}
	if err := d.fleet.Await(ctx, inherited.Lists); err != nil {
		return err
	}
	p, err := ruleset.Read(ctx, c, ruleset.Options{Log: d.o.Log, Version: d.o.Version, Journal: d.journal, Progress: d.o.Progress, Watcher: d.feeds.watcher, Shared: &d.fleet, Trials: d.trials.Decided(), Limits: d.policing.limits(c), Attached: inherited.Lists, RolledBack: d.reloads.rolledBack})
	if err != nil {
		return err
	}
	if p.Unopened != nil {
		d.o.Log.Error("weir drops cannot name systems or countries: " + p.Unopened.Error())
	}
	// The lists live long and are most of the memory: a heap of twice their size,
	// which the collector would allow otherwise, is a lot. GOGC says otherwise where memory
	// is plenty, as in tests, whose daemons have small lists and collect often.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25)
	}
	feed.BoundHeap()
	if err := d.observers.stages.Trackers.Open(); err != nil {
		return err
	}
	d.observers.stages.Prepare(p.Stages)
	e, err := d.startEngine(ctx, p, targets)
	// What filters already has more than what would be left.
	for cause := err; err != nil && len(inherited.Programs) == 0 && p.Shed(cause); {
		if e, err = d.startEngine(ctx, p, targets); err != nil {
			err = cause // rather than what is wrong with less
		}
	}
	if err != nil {
		d.observers.stages.Close()
		return err
	}
	p.LogAdvice(d.o.Log)
	p.LogFailures(d.o.Log, nil)
	d.active.began, d.active.prepared, d.active.engine, d.active.number = began, p, e, 1
	d.observers.stages.Follow(p.Stages)
	d.observers.observe(p)
	d.observers.history.Recorder = history.Open(statePath(c, "history"), time.Now(), d.o.Log)
	d.active.took = time.Since(began)
	d.observers.record.loaded(false, began, nil)
	d.observers.notifier.Reconfigure(p.Config)
	for _, l := range p.Lists {
		if l.Refused != nil {
			d.observers.notifier.RefusedList(l)
		}
	}
	d.note()
	lists.SettleAll(p.Decisions(), d.o.Log)
	return nil
}

// startEngine builds the first engine and attaches its program.
func (d *Daemon) startEngine(ctx context.Context, p *ruleset.Ruleset, targets []attach.Target) (*engine.Generation, error) {
	e, m, err := d.builder.build(p, new(kept))
	if err != nil {
		return nil, ruleset.Unbuilt{Err: err}
	}
	if d.o.Before != nil {
		d.o.Before.Attaching()
	}
	if ctx.Err() != nil {
		return nil, errors.Join(fmt.Errorf("stopped before the lists were active, nothing has changed: %w", ctx.Err()), e.Close())
	}
	if err := d.active.attach.Start(e, m, targets); err != nil {
		if err = errors.Join(err, e.Close()); loader.Rejected(err) {
			err = ruleset.Rejected{Err: err}
		}
		return nil, err
	}
	return e, nil
}

// Run filters, reads the feeds, and answers commands until ctx is done. Each
// value from reload makes it read the configuration again. Rates are sent at
// each interval, unless they cannot be received at once.
func (d *Daemon) Run(ctx context.Context, reload <-chan os.Signal, interval time.Duration, rates chan<- traffic.Rates) error {
	ctx, stop := context.WithCancel(ctx)
	d.loop.ctx = ctx
	var all sync.WaitGroup
	defer func() {
		stop()
		close(d.loop.ended) // before waiting, for some wait for this goroutine
		all.Wait()
		d.feeds.Wait()
	}()
	all.Go(func() { d.observers.hub.Run(ctx) })
	all.Go(d.serveConfig().Run(ctx, d.api, d.o.Log))
	if d.api.Console != nil {
		context.AfterFunc(ctx, d.api.Console.Close) // streams would hold up the server's end
	}
	// Before it is said: the next daemon knows by it what was filtered, even if this one is killed at once.
	if gone := d.audit.Started(d.active.attach.Names(), d.active.inherited, time.Now().Add(-clock.This().Ran())); len(gone) > 0 {
		d.o.Log.Warn("the program of the last daemon was gone: nothing was filtered here until now", "interfaces", gone)
	}
	d.active.announce(d.o.Log, "filtering", d.active.took) // and answering
	d.feeds.Follow(ctx)
	d.fleet.follow = func(n *node.Node) {
		all.Go(func() {
			if err := n.Run(ctx, d.api); err != nil {
				d.o.Log.Error("the fleet is not followed: " + err.Error())
			}
		})
	}
	if n := d.fleet.Node(); n != nil {
		d.fleet.follow(n)
	}
	all.Go(func() { d.observers.stages.Trackers.FollowWakes(ctx, d.loop.woken) })
	all.Go(func() { d.upkeep.follow(ctx, func() error { return d.checkState(ctx) }) })
	all.Go(func() { d.upkeep.pins.follow(ctx) })
	all.Go(func() { d.changes.queued.Follow(ctx, d.loop.seconds) })
	all.Go(func() { d.observers.collateral.Follow(ctx) })
	all.Go(func() { d.api.Appraiser.Follow(ctx) })
	now := time.Now()
	d.observers.record.config.Last, d.observers.record.config.LastDone, d.observers.record.config.Done = now, now, 1
	d.service.notified(d.service.Ready(d.active.prepared.Summary()))
	all.Go(func() { d.reloadOn(ctx, reload) })
	if err := d.active.attach.Follow(); err != nil {
		return err
	}

	d.loop.start(interval, rates)
	defer d.loop.stop()
	if w := d.service.Watchdog(); w > 0 {
		progress := func() uint64 { return d.loop.turns.Load() + d.active.attach.Steps() }
		all.Go(func() { d.service.feedWatchdog(ctx, w/4, progress) })
	}
	d.observers.history.Hits = d.observers.meter.Hits()
	d.observers.exports.Configure(d.active.prepared.Config.Export, now, d.observers.history.Hits)
	d.loop.snapshots, d.loop.showing = traffic.NewIntervals(&d.observers.meter), traffic.NewIntervals(&d.observers.meter)
	for more := true; more; {
		var err error
		if more, err = d.turnOf(ctx, nil); err == nil {
			err = d.loop.lost
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// followInterfaces follows interfaces that come and go.
func (d *Daemon) followInterfaces() error {
	err := d.active.attach.Follow()
	d.loop.follow(d.active.attach.IsWatching())
	d.noteStatus()
	d.observers.stages.Connect(d.active.engine)
	return err
}

// reloadOn reloads at each signal.
func (d *Daemon) reloadOn(ctx context.Context, reload <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-reload:
			d.o.Log.Info("reloading")
			if _, err := d.Reload(ctx); err != nil {
				d.o.Log.Error(err.Error())
			}
		}
	}
}

// exportGrace is how long collectors have for the last records when the daemon ends.
const exportGrace = 2 * time.Second

// Keeps reports whether the program stays attached after Stop.
func (d *Daemon) Keeps() bool { return d.active.prepared.Config.Keep }

// Stop ends the daemon. Unless the program is to be kept, it is detached.
func (d *Daemon) Stop() error {
	d.service.notified(d.service.Stopping())
	d.api.early.Close() // where Run has not
	defer d.observers.notifier.Close(notifyGrace)
	defer d.observers.exports.Close(exportGrace)
	d.observers.exports.Finish(time.Now(), d.active.attach.Metadata().Monitor, &d.observers.meter, d.active.attach.Attached())
	if u := d.reloads.unconfirmed; u != nil {
		u.kept.close(d.o.Log)
	}
	keep := d.Keeps()
	if keep {
		d.upkeep.pins.last()
	}
	d.changes.queued.TakeNotes()
	d.clock.Save()
	if err := d.observers.floods.Save(); err != nil {
		d.o.Log.Error("floods are not saved: " + err.Error())
	}
	d.audit.Stopped(d.active.attach.Names(), keep)
	if !keep {
		d.observers.stages.Finish(new(stages.Table))
	}
	defer d.observers.stages.Close()
	return errors.Join(d.active.attach.Stop(keep), d.active.engine.Close(), d.observers.stages.Trackers.Close(), d.observers.history.Close(), d.feeds.watcher.Close(), d.journal.Close())
}

// Metadata describes what is active. It is for Run's goroutine, or before Run.
func (d *Daemon) Metadata() attach.Metadata { return d.active.attach.Metadata() }

func (d *Daemon) serveConfig() serve.Config {
	s := serveOf(d.active.prepared.Config)
	s.Early, s.Problems = d.api.early, &d.readings.listeners
	if d.api.Console != nil {
		s.ConsoleHandler = d.api.Console
	}
	if p := d.active.prepared.Config.Console.Proxy; p.Socket != "" {
		s.Proxy, s.ProxyHandler = serve.Proxy{Socket: string(p.Socket), Group: p.Group}, d.api.Console.Proxy(p.UserHeader)
	}
	return s
}

// serveOf returns where a configuration says to listen.
func serveOf(c *config.Config) serve.Config {
	files := func(listen config.Address, t config.TLS) serve.TLS {
		return serve.TLS{Address: string(listen), Cert: string(t.Cert), Key: string(t.Key), ClientCA: string(t.ClientCA)}
	}
	return serve.Config{
		Socket: string(c.API.Socket), Group: c.API.Group, Metrics: string(c.Metrics.Listen),
		TLS: files(c.API.Listen, c.API.TLS), Console: files(c.Console.Listen, c.Console.TLS),
	}
}
