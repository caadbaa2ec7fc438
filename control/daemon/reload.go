package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/feed"
	"weir/control/fleet/node"
	"weir/control/lists"
	"weir/control/ruleset"
	"weir/control/stages"
)

// Reload reads the configuration again, with its files and directories, and
// activates all of it or nothing. Calls that wait while another reload goes on
// share the next one.
func (d *Daemon) Reload(ctx context.Context) (api.Reloaded, error) {
	s, first := d.reloads.join(ctx)
	if first {
		go func() {
			d.reloads.reading.Lock()
			defer d.reloads.reading.Unlock()
			defer close(s.done)
			defer s.cancel()
			if d.reloads.begin(s) {
				s.r, s.err = d.reload(s.ctx, 0)
			}
		}()
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		if !d.reloads.leave(s) {
			return api.Reloaded{}, ctx.Err()
		}
		<-s.done // soon, since its context has ended
		if errors.Is(s.err, context.Canceled) {
			return api.Reloaded{}, ctx.Err()
		}
	}
	if !first {
		d.audit.Reloaded(ctx, nil, s.err) // the record of the first caller has the changes
	}
	return s.r, s.err
}

// reloads are the reloads of the configuration. Callers that ask while one is under way wait for the
// same next one. It is safe for concurrent use, but for the confirmation.
type reloads struct {
	confirmation // Run's goroutine owns it

	reading sync.Mutex // held while the configuration is read again

	mu   sync.Mutex
	next *sharedReload // nil: no caller waits
}

// sharedReload is a reload that several callers wait for.
type sharedReload struct {
	ctx     context.Context
	cancel  context.CancelFunc
	waiting int           // callers
	done    chan struct{} // closed when the following are set
	r       api.Reloaded
	err     error
}

// join returns the reload to wait for, and whether the caller is the first and has to do it.
// It has the values of the first caller's context, and goes on while one of them waits.
func (a *reloads) join(ctx context.Context) (s *sharedReload, first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if first = a.next == nil; first {
		a.next = &sharedReload{done: make(chan struct{})}
		a.next.ctx, a.next.cancel = context.WithCancel(context.WithoutCancel(ctx))
	}
	a.next.waiting++
	return a.next, first
}

// begin has the calls from now on wait for another reload, since this one is about to read
// the configuration. It returns false where all callers have left.
func (a *reloads) begin(s *sharedReload) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.next != s {
		return false
	}
	a.next = nil
	return true
}

// leave ends the wait of a caller, and the reload when the last one leaves. It reports
// whether there is an end to wait for.
func (a *reloads) leave(s *sharedReload) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.waiting--; s.waiting > 0 {
		return false
	}
	s.cancel()
	begun := a.next != s
	if !begun {
		a.next = nil
	}
	return begun
}

// reload reloads a configuration that is to be confirmed within a time; 0: it need
// not be. The caller holds d.reloads.reading.
func (d *Daemon) reload(ctx context.Context, within time.Duration) (r api.Reloaded, err error) {
	var last *ruleset.Ruleset
	var warnings []string
	known := make(map[*feed.Feed]uint64)
	if err := d.loop.Do(ctx, func() error { last = d.active.prepared; return nil }); err != nil {
		return r, err
	}
	for _, l := range last.Lists {
		if l.FromFeed != nil {
			known[l.FromFeed] = l.FromFeed.Version()
		}
	}
	d.service.notified(d.service.Reloading())
	d.upkeep.pins.check(ctx)
	// Sources may take their time, which Run's goroutine does not have.
	var feeds map[string]*feed.Feed
	var read []*lists.Decision
	how := ruleset.Options{Log: d.o.Log, Version: d.o.Version, Journal: d.journal, Last: last, Reload: true, Progress: d.o.Progress, Watcher: d.feeds.watcher}
	c, err := d.o.Config.Read()
	if err == nil {
		_, _, err = ruleset.OpenGeo(c)
	}
	if err == nil {
		feeds, err = ruleset.OpenFeeds(ctx, c, how)
	}
	var member *node.Node
	if err == nil {
		member, err = d.joins(last.Config, c, within)
	}
	if bad := d.loop.doAlone(context.WithoutCancel(ctx), func() error { // the service manager waits for it
		if err == nil {
			if member != nil {
				d.fleet.node.Store(member)
			}
			r, err = d.reconfigureUnconfirmed(c, feeds, within)
			switch {
			case member == nil:
			case err == nil:
				d.fleet.follow(member)
			default:
				d.fleet.node.Store(nil)
			}
		}
		if err == nil {
			r.Changes = append(r.Changes, d.trials.follow(d.reloads.confirmation.done())...)
			r.Changes = append(r.Changes, d.policing.follow()...)
			r.Changes = append(r.Changes, d.fleet.reread(c)...)
		}
		record := &d.observers.record.config
		record.Last, record.Failed = time.Now(), err != nil
		if err != nil {
			record.Refused++
			read = d.takeRead() // the old configuration has the same files
		} else {
			record.Done++
			record.LastDone = record.Last
			read = d.active.prepared.Decisions()
			for _, problem := range d.active.prepared.Problems() {
				warnings = append(warnings, problem.Err.Error())
			}
			warnings = append(warnings, d.active.prepared.NewWarnings(known)...)
			d.active.prepared.LogAdvice(d.o.Log)
			d.active.prepared.LogFailures(d.o.Log, known)
		}
		d.note()
		d.service.notified(d.service.Ready(d.active.prepared.Summary()))
		return nil
	}); bad != nil {
		return r, bad
	}
	d.upkeep.pins.check(ctx)
	lists.SettleAll(read, d.o.Log)
	if err != nil {
		d.observers.notifier.RefusedReload(ctx, err)
		d.audit.Reloaded(ctx, nil, err)
		return r, fmt.Errorf("reload, the old configuration stays active: %w", err)
	}
	for _, line := range r.Changes {
		d.o.Log.Info("configuration", "change", line)
	}
	for _, line := range r.Unfiltered {
		d.o.Log.Error("the configuration is active, but " + line)
	}
	d.audit.Reloaded(ctx, slices.Concat(r.Changes, r.Unfiltered), nil)
	r.Changes = append(r.Changes, warnings...)
	return r, nil
}

// joins returns the node that a host becomes by a reload, nil if it was one, or becomes none.
func (d *Daemon) joins(old, c *config.Config, within time.Duration) (*node.Node, error) {
	if old.Fleet.On() || !c.Fleet.On() {
		return nil, nil
	}
	if within > 0 {
		return nil, errors.New("fleet comes with a reload for good: weir reload without --confirm")
	}
	return openNode(c, d.clock, d.o.Version, false, d.o.Log)
}

// reassembly is a configuration that was put together after the active one.
type reassembly struct {
	*ruleset.Ruleset
	applied uint64 // the changes of entries before that
}

// assemble puts together a configuration with its stages. A list keeps its
// contents where new ones are refused.
func (d *Daemon) assemble(c *config.Config, of *stages.Table, feeds map[string]*feed.Feed) reassembly {
	d.loop.Doing("a configuration is activated", "")
	last, decided := d.active.prepared.Copy(), d.trials.Decided()
	next := reassembly{applied: d.active.applied}
	d.loop.aside(func() { next.Ruleset = ruleset.Assemble(c, of, d.journal, feeds, &d.fleet, last, decided) })
	return next
}

// assembleNew puts together a configuration that was read. It fails where a reload cannot activate
// it, or what was read of one of its lists is refused.
func (d *Daemon) assembleNew(c *config.Config, feeds map[string]*feed.Feed) (next reassembly, err error) {
	old := d.active.prepared.Config
	if c.StateDir != old.StateDir || c.Pins != old.Pins || c.API != old.API || c.Metrics != old.Metrics || c.Console != old.Console {
		return next, errors.New("state_dir, pins, api, metrics and console change with a restart only")
	}
	if old.Fleet.On() && c.Fleet != old.Fleet {
		return next, errors.New("fleet changes, and ends, with a restart only")
	}
	var of *stages.Table
	limits := d.policing.limits(c)
	d.loop.aside(func() { of, err = c.Stages(limits) }) // which reads files
	if err != nil {
		return next, err
	}
	next = d.assemble(c, of, feeds)
	return next, next.FirstRefused()
}

// reconfigure activates a configuration, by an engine that is kept of it if there is one. With
// nil, the present engine may go on, with changes in place; else the last one is the caller's to
// close.
func (d *Daemon) reconfigure(next reassembly, by *kept) (r api.Reloaded, err error) {
	c, old := next.Config, d.active.prepared.Config
	if by != nil || !d.activateInPlace(next.Ruleset, next.applied) {
		if err := d.replaceEngine(next.Ruleset, next.applied, cmp.Or(by, new(kept))); err != nil {
			return r, err
		}
	}
	_ = d.followInterfaces() // Run ends where nothing is left
	d.feeds.Follow(d.loop.ctx)
	d.observers.notifier.Reconfigure(c)
	d.observers.exports.Configure(c.Export, time.Now(), d.observers.meter.Hits())
	if d.o.Logging != nil {
		d.o.Logging.Configure(c.Log)
	}
	return api.Reloaded{Changes: config.Diff(old, c), Unfiltered: d.active.attach.Problems()}, nil
}

// updateLingering activates what was read of lists with a TTL, so that what has left their sources
// stays, whether the feed or a reload reads them first. It comes before a configuration is
// activated, since it may replace the engine.
func (d *Daemon) updateLingering() {
	for _, l := range d.active.prepared.Lists {
		if l.TTL > 0 && l.From != nil && (l.Unseen() || l.Stays()) {
			if err := d.update(l); err != nil {
				d.o.Log.Error(err.Error(), "list", l.Name)
			}
		}
	}
}

// replaceEngine activates a configuration by another engine.
func (d *Daemon) replaceEngine(next *ruleset.Ruleset, applied uint64, by *kept) error {
	d.observers.stages.Prepare(next.Stages)
	err := d.activate(next, targetsOf(next.Config), applied, by)
	if err != nil {
		d.observers.stages.Follow(d.active.prepared.Stages) // as before
	}
	return err
}
