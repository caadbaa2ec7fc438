package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"weir/control/api"
	"weir/control/attach"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/lists"
	"weir/control/ruleset"
	"weir/filter/key"
)

// maxLingering bounds the entries that an update may leave to their TTL: if more leave, the feed has
// become another, and the journal is not the place for the old one.
const maxLingering = 200_000

// take activates what a list's feed has read, where that is still to be done, and
// has it saved. It fails where the contents cannot be activated; the feed then
// returns to the last ones that could.
func (d *Daemon) take(ctx context.Context, name string, f ruleset.Source) error {
	var taken *lists.Decision
	err := d.loop.doBy(ctx, d.loop.taken, func() (err error) {
		l := d.active.prepared.List(name)
		if l == nil || l.From != f {
			return nil // another configuration is active
		}
		switch {
		case l.Undone(): // another reader was first
			err = l.Problem()
		case l.Unseen() || l.Rejected != nil:
			err = d.update(l)
		case l.Behind:
			err = errors.New("it was read before, and is not active yet: the log says why")
		default: // perhaps by another reader, and its decision is still to be settled
			err = l.Problem()
		}
		taken = l.Decision(err)
		return err
	})
	taken.Settle(d.o.Log)
	return err
}

// update activates the contents of a list's feed. Where it fails, the old ones stay
// active.
func (d *Daemon) update(l *ruleset.List) error {
	d.loop.Doing("what was read of a list is activated", l.Name)
	l.Begin()
	defer l.End()
	began, before, p := time.Now(), l.Left, d.active.prepared.Copy()
	var r ruleset.Reading
	d.loop.aside(func() { r = p.Reading(l) })
	if l.Consider(r); r.Refused != nil {
		d.observers.notifier.RefusedList(l)
		return fmt.Errorf("refused: %w", r.Refused)
	}
	delta := r.Delta
	changes := []engine.Change{{List: l.SourceNumber, Delta: delta}}
	var unrecorded error
	if l.TTL > 0 && r.Left.Len() > maxLingering {
		d.o.Log.Warn("entries that have left the feed do not stay for the list's TTL, since there are too many", "list", l.Name, "entries", r.Left.Len(), "most", maxLingering)
	} else if l.TTL > 0 {
		var stay engine.Change
		if stay, unrecorded = d.linger(l, r.Left, r.Read); unrecorded == nil {
			changes = append(changes, stay)
		} else {
			if !l.Stays() {
				d.o.Log.Error("entries that have left the feed stay, since their expiry could not be recorded: "+unrecorded.Error(), "list", l.Name)
			}
			d.loop.aside(func() { changes[0].Delta = p.Staying(l, r) })
		}
	}
	withMissed := func() []engine.Change {
		if !l.Behind {
			return changes
		}
		return slices.Concat(changes, d.active.prepared.Missed(l))
	}
	more, out := d.leaveOutWith(withMissed())
	if _, err := d.applyWith(withMissed(), more, out); err != nil {
		l.Fail(err, time.Now())
		return err
	}
	l.Activated(r)
	l.Stay(unrecorded, time.Now())
	l.LogLeftOut(d.o.Log, before)
	d.o.Log.Info("list updated", "list", l.Name, "entries", r.Contents.Len(), "changes", changes[0].Delta.Len(),
		"took", time.Since(began).Round(time.Microsecond).String())
	return nil
}

// linger keeps entries that have left a feed for the list's TTL: as manual
// entries, which outlast a restart. Those that the feed still has are left out for other reasons,
// such as whom they would cut off, and must not stay.
func (d *Daemon) linger(l *ruleset.List, left, read *list.Set) (stay engine.Change, err error) {
	now := time.Now()
	var batch []journal.Change
	var keys []key.Key
	rule := l.EngineList()
	rule.Contents = left
	for k := range rule.All() {
		if read.Has(k) {
			continue
		}
		e := journal.Entry{
			List: l.Name, Allow: l.Action == config.Allow, Key: k, Added: now, Expires: now.Add(time.Duration(l.TTL)), Reason: lists.ReasonLeft, UID: api.NoUID,
		}
		keys = append(keys, k)
		if by, ok := d.journal.Get(l.Name, k); ok && (by.Expires.IsZero() || by.Expires.After(e.Expires)) {
			continue // an operator wants it for longer
		}
		batch = append(batch, journal.Change{Entry: e})
	}
	stay = engine.Change{List: l.ManualNumber, Delta: list.Delta{Add: list.SetOf(keys...)}}
	return stay, d.journal.Apply(batch)
}

// tend does what is due each second: it removes expired entries, and tries again
// to activate what could not be. Beside the work on another engine only entries expire.
func (d *Daemon) tend(now time.Time) {
	d.clock.Follow()
	if d.loop.stage != idle {
		if err := d.expire(now); err != nil {
			d.backlog.report(err, d.o.Log)
		}
		return
	}
	if now.After(d.backlog.retry) {
		d.backlog.failed = d.catchUpAll(now)
	}
	err := errors.Join(d.backlog.failed, d.expire(now), d.monitor.end(now), d.policing.end(now), d.rollBack(now), d.trials.end(now))
	d.trials.follow(d.reloads.confirmation.done())
	d.followPeers(now)
	d.antiLockout.logCutOff()
	d.feeds.reportUsage(now)
	d.backlog.report(err, d.o.Log)
	d.replan(now)
}

// expire removes expired entries. They end also where that cannot be recorded: a
// restart will find them expired. Beside the work on another engine, those of allow lists stay: their
// end may require that block lists have less.
func (d *Daemon) expire(now time.Time) error {
	expired := func() []journal.Change {
		batch := d.journal.Expired(now)
		if d.loop.stage != idle {
			batch = slices.DeleteFunc(batch, func(c journal.Change) bool { return c.Allow })
		}
		return batch
	}
	more, out := d.leaveOutWith(d.active.prepared.ChangesOf(expired()))
	batch := expired() // a command may have renewed some meanwhile
	if len(batch) == 0 {
		return nil
	}
	unrecorded := d.journal.Apply(batch)
	if unrecorded != nil {
		unrecorded = fmt.Errorf("the expiry of entries could not be recorded: %w", unrecorded)
	}
	d.antiLockout.lookAgain = time.Time{}
	n, err := d.applyWith(d.active.prepared.ChangesOf(batch), more, out)
	if n > 0 {
		d.o.Log.Info("entries have expired", "entries", n)
	}
	if err != nil {
		var behind []*ruleset.List
		for _, c := range batch {
			if l := d.active.prepared.List(c.List); l != nil {
				behind = append(behind, l)
			}
		}
		err = d.backlog.late(err, behind...)
	}
	return errors.Join(unrecorded, err)
}

// enforce applies changes of the journal. It returns the number of entries that
// change.
func (d *Daemon) enforce(batch []journal.Change) (int, error) {
	d.antiLockout.lookAgain = time.Time{} // an entry may allow what was left out
	return d.apply(d.active.prepared.ChangesOf(batch))
}

// apply changes lists, in place where the changes fit, else with the next engine.
// It returns the number of entries that change. When it fails, nothing has changed.
func (d *Daemon) apply(changes []engine.Change) (n int, err error) {
	if n, err = d.applyInPlace(changes); err == nil {
		return n, nil
	}
	if d.loop.stage != idle {
		return 0, errors.Join(errBuilding, err)
	}
	d.o.Log.Debug("building the next engine: " + err.Error())
	next, last, applied := d.active.prepared.Copy(), kept{Generation: d.active.engine}, d.active.applied
	more := 0
	if changes, next.Derived, more, err = next.WithDerived(changes); err != nil {
		return 0, err
	}
	d.loop.aside(func() { next.Rules, n, err = engine.With(next.Rules, changes) })
	if err != nil {
		return 0, err
	}
	n -= more
	undo := next.MakeRoom()
	if err := d.activate(next, nil, applied, new(kept)); err != nil {
		undo()
		return 0, err
	}
	last.close(d.o.Log)
	return n, nil
}

// applyInPlace changes lists in the present engine. When it fails, as where there is no room,
// nothing has changed.
func (d *Daemon) applyInPlace(changes []engine.Change) (int, error) {
	changes, derived, more, err := d.active.prepared.WithDerived(changes)
	if err != nil {
		return 0, err
	}
	n, err := d.enactInPlace(changes)
	if err != nil {
		return 0, err
	}
	d.active.prepared.SettleDerived(derived, d.o.Log)
	return n - more, nil
}

// enactInPlace is applyInPlace where derived prefixes are among the changes.
func (d *Daemon) enactInPlace(changes []engine.Change) (int, error) {
	began := time.Now()
	d.active.applied++
	n, err := d.active.engine.Apply(changes)
	if err != nil {
		return 0, err
	}
	d.active.prepared.Rules = d.active.engine.Lists()
	d.active.changed = d.active.changed || n > 0
	d.observers.record.updates.Observe(time.Since(began))
	return n, nil
}

// backlog is the work of the last seconds that has failed, and is tried again. Run's goroutine owns it.
type backlog struct {
	retry   time.Time // when to try
	failed  error     // of the last attempt
	problem problem   // of the last second
}

// retryInterval is how soon a change that failed is tried again.
const retryInterval = 10 * time.Second

// report logs what has failed in the last second, once while it stays the same.
func (b *backlog) report(err error, log *slog.Logger) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	b.problem.log(text, log.Error)
}

// late notes that changes of lists have failed.
func (b *backlog) late(err error, lists ...*ruleset.List) error {
	for _, l := range lists {
		l.Behind = true
	}
	b.retry = time.Now().Add(retryInterval)
	return fmt.Errorf("the old contents stay active, retrying in %v: %w", retryInterval, err)
}

// catchUpAll tries again to change the lists that are behind, and to activate the
// contents that did not fit.
func (d *Daemon) catchUpAll(now time.Time) error {
	var errs []error
	for _, l := range d.active.prepared.Lists {
		var err error
		if l.Behind {
			more, out := d.leaveOutWith(d.active.prepared.Missed(l))
			if _, err = d.applyWith(d.active.prepared.Missed(l), more, out); err != nil {
				err = d.backlog.late(err, l)
			} else {
				l.Behind = false
			}
		}
		if rejected := l.Rejected != nil; err == nil && (rejected || l.Overdue(now)) {
			if err = d.update(l); err != nil {
				if rejected {
					d.backlog.retry = time.Now().Add(retryInterval)
				}
				err = fmt.Errorf("list %s: its contents are not active: %w", l.Name, err)
			}
			decision := l.Decision(err) // of now
			d.feeds.Go(func() { decision.Settle(d.o.Log) })
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// takeRead activates the contents of feeds that were read without that. It returns
// what has become of them.
func (d *Daemon) takeRead() (all []*lists.Decision) {
	for _, l := range d.active.prepared.Lists {
		if l.From == nil || !l.Unseen() {
			continue
		}
		err := d.update(l)
		if err != nil {
			d.o.Log.Error("feed read, but it is not active, the old contents stay: "+err.Error(), "list", l.Name)
		}
		all = append(all, l.Decision(err))
	}
	return all
}

// maxRebuilds bounds how often an engine is built anew since entries that changed meanwhile do
// not fit into it. The last time, nothing changes meanwhile.
const maxRebuilds = 3

// activate builds the engine of a configuration, unless one is kept, and swaps it in with
// one step for each interface: those of targets, or with nil the present ones. Its manual
// entries are those after a number of changes; later changes follow. The last engine is the
// caller's to close. When activate fails, that stays active everywhere, or the error says
// where it does not.
func (d *Daemon) activate(next *ruleset.Ruleset, targets []attach.Target, applied uint64, by *kept) (err error) {
	began := time.Now()
	defer func() {
		d.observers.record.loaded(true, began, err)
		d.note()
	}()
	defer func() { d.loop.still = false }()
	var e *engine.Generation
	var rollout *attach.Rollout
	changed := false
	for n := 1; rollout == nil; n++ {
		d.loop.still = n == maxRebuilds
		if e, rollout, err = d.builder.load(next, targets, by); err != nil {
			return err
		}
		if d.active.applied == applied {
			break
		}
		applied = d.active.applied
		missed, derived, _, err := next.WithDerived(next.Missed(next.Lists...))
		if err != nil {
			return errors.Join(err, rollout.Close(), e.Close())
		}
		if _, err := e.Apply(missed); err == nil {
			next.Rules, next.Derived, changed = e.Lists(), derived, true
			break
		}
		if err := errors.Join(rollout.Close(), e.Close()); err != nil {
			return err
		}
		rollout = nil
		if next.Rules, _, err = engine.With(next.Rules, missed); err != nil {
			return err
		}
		next.Derived = derived
	}
	d.observers.stages.Finish(next.Stages)
	if err := rollout.Commit(); err != nil {
		return errors.Join(err, e.Close())
	}
	d.observers.stages.Retire(d.active.engine)
	d.active.prepared, d.active.engine, d.active.changed = next, e, changed
	d.active.number++
	d.observers.listen() // at once: events have the numbers of its lists from now on
	d.observers.stages.Follow(next.Stages)
	d.observers.observe(next)
	d.observers.weigh(e)
	d.active.announce(d.o.Log, "reloaded", time.Since(began))
	return nil
}
