package daemon

import (
	"context"

	"weir/control/api"
	"weir/control/api/routing"
	"weir/control/audit"
	"weir/control/engine"
	"weir/control/explain"
	"weir/control/ruleset"
)

// stageRoutes are the routes of stages.
type stageRoutes []routing.Route

// Routes implements [server.Router].
func (r stageRoutes) Routes() []routing.Route { return r }

// host is the daemon, as the routes of stages need it. It implements [stage.Host].
type host struct {
	loop   *loop
	active *active
	audit  *audit.Log
}

// Do implements [stage.Host].
func (h host) Do(ctx context.Context, fn func(*engine.Generation) error) error {
	return h.loop.Do(ctx, func() error { return fn(h.active.engine) })
}

// DoAlone implements [stage.Host].
func (h host) DoAlone(ctx context.Context, fn func(*engine.Generation) error) error {
	return h.loop.doAlone(ctx, func() error { return fn(h.active.engine) })
}

// Attempt implements [stage.Host].
func (h host) Attempt(ctx context.Context, r api.AuditRecord, err error) {
	h.audit.AttemptBy(ctx, r, err)
}

// rules lends the rule set that filters. It implements [ruleset.Host].
type rules struct {
	loop   *loop
	active *active
}

// Lend implements [ruleset.Host].
func (r rules) Lend(ctx context.Context, fn func(ruleset.Active) error) error {
	return r.loop.Do(ctx, func() error { return fn(r.active.lent()) })
}

// lent returns the rule set that filters, with its engine. It is for Run's goroutine.
func (a *active) lent() ruleset.Active { return ruleset.Active{Ruleset: a.prepared, Engine: a.engine} }

// noting is the daemon, as parts need it that publish the lists or have programs report clean packets.
type noting struct {
	rules
	d *Daemon
}

// Note implements [partners.Host].
func (n noting) Note() { n.d.note() }

// LendAlone implements [rehearsal.Host].
func (n noting) LendAlone(ctx context.Context, fn func(ruleset.Active) error) error {
	return n.loop.doAlone(ctx, func() error { return fn(n.active.lent()) })
}

// SampleClean implements [rehearsal.Host].
func (n noting) SampleClean(on bool) error {
	if n.active.engine.SamplesClean() == on {
		return nil
	}
	next, err := n.active.engine.WithCleanSampled(on)
	if err != nil {
		return err
	}
	if err := n.active.swap(next, n.active.attach.Metadata()); err != nil {
		return err
	}
	n.d.note()
	return nil
}

// watching lends what filters and watches. It implements [explain.Host].
type watching struct {
	rules
	observers *observers
}

// LendWatched implements [explain.Host].
func (w watching) LendWatched(ctx context.Context, fn func(explain.Active) error) error {
	return w.loop.Do(ctx, func() error {
		return fn(explain.Active{Active: w.active.lent(), Heavy: w.observers.heavy, Stats: w.active.attach.Stats(false)})
	})
}
