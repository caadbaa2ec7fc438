package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/feed"
	"weir/control/ruleset"
)

// confirmation is the state of a configuration that somebody is to confirm. Run's goroutine
// owns it.
type confirmation struct {
	unconfirmed *unconfirmed // nil: the configuration need not be confirmed
	retry       time.Time    // where returning to the previous one failed
	failed      error        // why it did
	rolledBack  bool         // the configuration is not the one that Options.Config reads
}

// done reports whether the configuration is the one that Options.Config reads, for good.
func (c *confirmation) done() bool { return c.unconfirmed == nil && !c.rolledBack }

// unconfirmed is a configuration that is active until a time, unless somebody
// confirms it.
type unconfirmed struct {
	previous *ruleset.Ruleset // to return to
	kept     kept             // its engine, so that a rollback builds none
	until    time.Time
}

// kept is the engine of an earlier configuration, with filters as they were. The zero
// value has none.
type kept struct {
	*engine.Generation
	by *ruleset.Ruleset // what it was built from
}

func (k *kept) close(log *slog.Logger) {
	if k.Generation == nil {
		return
	}
	if err := k.Close(); err != nil {
		log.Error("close the last engine: " + err.Error())
	}
	*k = kept{}
}

// fits reports whether the engine can serve a configuration, which is the one that it
// was built from with what its lists contain now.
func (k kept) fits(p *ruleset.Ruleset) bool {
	if k.Generation == nil || p.Config.TakesCommands() {
		return false // what they change may have changed
	}
	same := func(a, b engine.List) bool { a.Contents, b.Contents = nil, nil; return a.Equal(b) }
	return slices.EqualFunc(k.Lists(), p.Rules, same) && k.by.Stages.Trackers.Equal(&p.Stages.Trackers)
}

// engineFor returns the kept engine with the contents of a configuration's lists, and
// nil where it has to be built. Then it is closed.
func (k *kept) engineFor(p *ruleset.Ruleset, c engine.Config, log *slog.Logger) *engine.Generation {
	defer k.close(log)
	if !k.fits(p) {
		return nil
	}
	if err := k.catchUp(p, c); err != nil {
		log.Debug("building the previous engine anew: " + err.Error())
		return nil
	}
	e := k.Generation
	k.Generation = nil
	return e
}

// catchUp brings the engine to the contents of a configuration's lists, and to the modes
// of c.
func (k *kept) catchUp(p *ruleset.Ruleset, c engine.Config) error {
	var changes []engine.Change
	for i, l := range k.Lists() {
		if now := p.Rules[i].Contents; now != l.Contents {
			changes = append(changes, engine.Change{List: uint16(i + 1), Delta: now.Diff(l.Contents)})
		}
	}
	if _, err := k.Apply(changes); err != nil {
		return err
	}
	p.Rules = k.Lists()
	e := k.Generation
	if e.Monitor != c.Monitor {
		next, err := e.WithMonitor(c.Monitor)
		if err != nil {
			return err
		}
		e = next
	}
	if e.SamplesClean() != c.SampleClean {
		next, err := e.WithCleanSampled(c.SampleClean)
		if err != nil {
			return err
		}
		e = next
	}
	k.Generation = e
	return nil
}

// ReloadUnconfirmed implements [server.Reloader].
func (d *Daemon) ReloadUnconfirmed(ctx context.Context, within time.Duration) (api.Reloaded, error) {
	d.reloads.reading.Lock()
	defer d.reloads.reading.Unlock()
	return d.reload(ctx, within)
}

// Confirm implements [server.Reloader].
func (d *Daemon) Confirm(ctx context.Context) error {
	d.reloads.reading.Lock()
	defer d.reloads.reading.Unlock()
	err := d.loop.doAlone(ctx, func() error {
		if d.reloads.unconfirmed == nil {
			return &api.BadRequest{Err: errors.New("no reload is to be confirmed: it was confirmed before, or rolled back (the log says when)")}
		}
		if err := forgetRollback(d.active.prepared.Config); err != nil {
			return fmt.Errorf("not confirmed, a restart would roll back: %w", err)
		}
		d.reloads.unconfirmed.kept.close(d.o.Log)
		d.reloads.unconfirmed = nil
		d.note()
		return nil
	})
	d.audit.AttemptBy(ctx, audit.Record{Change: audit.Confirm}, err)
	return err
}

// reconfigureUnconfirmed is reconfigure for a configuration that is to be confirmed
// within a time; 0: it need not be.
func (d *Daemon) reconfigureUnconfirmed(c *config.Config, feeds map[string]*feed.Feed, within time.Duration) (r api.Reloaded, err error) {
	d.updateLingering()
	before, last := d.active.prepared, kept{d.active.engine, d.active.prepared}
	switch u := d.reloads.unconfirmed; {
	case u == nil:
	case within == 0:
		return r, &api.BadRequest{Err: fmt.Errorf("the last reload is to be confirmed until %s: weir confirm, or weir reload --confirm again", u.until.Format(time.TimeOnly))}
	default:
		before = u.previous
	}
	next, err := d.assembleNew(c, feeds)
	if err != nil {
		return r, err
	}
	if within > 0 {
		if err := saveRollback(before.Config, c); err != nil {
			return r, fmt.Errorf("a restart could not roll back: %w", err)
		}
	}
	var by *kept // the present engine may go on
	if within > 0 || d.reloads.unconfirmed != nil {
		by = new(kept) // it is the way back
	}
	if r, err = d.reconfigure(next, by); err != nil {
		switch {
		case within == 0, d.reloads.rolledBack: // a restart still begins with the one before
		case d.reloads.unconfirmed != nil:
			err = errors.Join(err, saveRollback(before.Config, d.active.prepared.Config))
		default:
			err = errors.Join(err, forgetRollback(before.Config))
		}
		return r, err
	}
	d.reloads.rolledBack = false
	if last.Generation == d.active.engine {
		last = kept{}
	}
	if u := d.reloads.unconfirmed; u != nil {
		last.close(d.o.Log)
		last = u.kept
	}
	if within == 0 {
		last.close(d.o.Log)
		if err := forgetRollback(c); err != nil {
			d.o.Log.Error("a restart would return to the configuration before: " + err.Error())
		}
		return r, nil
	}
	if !maps.Equal(c.Shared(), before.Config.Shared()) {
		last.close(d.o.Log) // its maps would lack what was added meanwhile
	}
	d.reloads.unconfirmed = &unconfirmed{before, last, time.Now().Add(within)}
	d.o.Log.Warn("the configuration is active until it is confirmed: weir confirm", "until", d.reloads.unconfirmed.until)
	return r, nil
}

// rollBack returns to the previous configuration where the active one was not
// confirmed in time.
func (d *Daemon) rollBack(now time.Time) error {
	u := d.reloads.unconfirmed
	switch {
	case u == nil || now.Before(u.until):
		return nil
	case now.Before(d.reloads.retry):
		return d.reloads.failed
	}
	d.updateLingering()
	last, began, feeds := d.active.engine, time.Now(), u.previous.Feeds()
	d.loop.aside(func() { u.previous.Inherit(d.active.prepared) })
	r, err := d.reconfigure(d.assemble(u.previous.Config, u.previous.Stages, feeds), &u.kept)
	if err != nil {
		d.reloads.retry = now.Add(retryInterval)
		d.reloads.failed = fmt.Errorf("the configuration was not confirmed, and the previous one cannot be activated, retrying in %v: %w", retryInterval, err)
		return d.reloads.failed
	}
	(&kept{Generation: last}).close(d.o.Log)
	d.reloads.unconfirmed, d.reloads.rolledBack = nil, true
	d.o.Log.Warn("the configuration was not confirmed in time: the previous one is active again",
		"took", time.Since(began).Round(time.Millisecond).String())
	d.note()
	d.audit.Record(audit.Record{Change: audit.Rollback, Entries: len(r.Changes), Changed: len(r.Changes), First: r.Changes, Source: "expiry"})
	return nil
}

// check makes a restart return to the previous configuration, where the file that
// does so is missing.
func (c *confirmation) check(active *config.Config, log *slog.Logger) error {
	u := c.unconfirmed
	if u == nil {
		return nil
	}
	return restoreDecisions(rollbackPath(u.previous.Config), "the configuration to return to", func() error { return saveRollback(u.previous.Config, active) }, log)
}
