package daemon

import (
	"cmp"
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
	"weir/filter/key"
)

// maxLingering bounds the entries that an update may leave to their TTL: if more leave, the feed has
// become another, and the journal is not the place for the old one.
const maxLingering = 200_000

// manyEntries is from when on the contents of lists take memory that is worth giving back.
const manyEntries = 1 << 19

// remain says what a source has after a failure.
func remain(entries int) string {
	if entries == 0 {
		return "and it has no entries of before"
	}
	return "the old contents stay"
}

// take activates what a list's feed has read, where that is still to be done, and
// has it saved. It fails where the contents cannot be activated; the feed then
// returns to the last ones that could.
func (d *Daemon) take(ctx context.Context, name string, f source) error {
	var taken *lists.Decision
	err := d.loop.doBy(ctx, d.loop.taken, func() (err error) {
		l := d.active.prepared.list(name)
		if l == nil || l.from != f {
			return nil // another configuration is active
		}
		switch {
		case l.reverted() && l.rejected == nil && cmp.Or(l.refused, l.failed.Err) != nil: // another reader was first
			err = cmp.Or(l.refused, l.failed.Err)
		case l.seenVersion != f.Version() || l.rejected != nil:
			err = d.update(l)
		case l.retryPending:
			err = errors.New("it was read before, and is not active yet: the log says why")
		default: // perhaps by another reader, and its decision is still to be settled
			err = cmp.Or(l.refused, l.failed.Err)
		}
		taken = l.decision(err)
		return err
	})
	taken.Settle(d.o.Log)
	return err
}

func (l *managedList) decision(err error) *lists.Decision {
	return &lists.Decision{List: l.Name, From: l.from, Version: l.seenVersion, Err: err}
}

// update activates the contents of a list's feed. Where it fails, the old ones stay
// active.
func (d *Daemon) update(l *managedList) error {
	d.loop.doing("what was read of a list is activated", l.Name)
	l.seenVersion = l.from.Version() // before its contents, which may change
	defer func() { l.decided = l.seenVersion }()
	l.failed.Err = nil
	began, before, p := time.Now(), l.left, d.active.prepared.copied()
	var contents, read *list.Set
	var left leftOut
	var delta list.Delta
	var refused error
	var counted *derived
	d.loop.aside(func() {
		contents = l.from.Contents()
		if refused = refuseRead(p.config, l.List, contents, l.from.Accepted()); refused != nil {
			return
		}
		read = contents
		contents, left = p.admit(l, contents)
		delta = contents.Diff(p.contents(l.source))
		counted = p.countAhead(l, contents)
	})
	l.counted = counted
	defer func() { l.counted = nil }()
	if l.refused = refused; refused != nil {
		d.observers.notifier.refusedList(l)
		return fmt.Errorf("refused: %w", refused)
	}
	changes := []engine.Change{{List: l.source, Delta: delta}}
	if l.TTL > 0 && delta.Remove.Len() > maxLingering {
		d.o.Log.Warn("entries that have left the feed do not stay for the list's TTL, since there are too many", "list", l.Name, "entries", delta.Remove.Len(), "most", maxLingering)
	} else if l.TTL > 0 {
		if stay, err := d.linger(l, delta.Remove, read); err == nil {
			changes = append(changes, stay)
		} else {
			d.o.Log.Error("entries that have left the feed stay, since their expiry could not be recorded: "+err.Error(), "list", l.Name)
			changes[0].Delta = list.Delta{Add: delta.Add}
		}
	}
	withMissed := func() []engine.Change {
		if !l.retryPending {
			return changes
		}
		return slices.Concat(changes, d.active.prepared.missed(l))
	}
	more, out := d.leaveOutWith(withMissed())
	if _, err := d.applyWith(withMissed(), more, out); err != nil {
		l.failed.Fail(err, time.Now(), mostRetryInterval)
		if l.rejected != nil {
			l.rejected = err
		}
		return err
	}
	l.rejected, l.retryPending, l.left, l.read, l.failed = nil, false, left, read, lists.Retry{}
	l.logLeftOut(d.o.Log, before)
	d.o.Log.Info("list updated", "list", l.Name, "entries", contents.Len(), "changes", delta.Len(),
		"took", time.Since(began).Round(time.Microsecond).String())
	return nil
}

// linger keeps entries that have left a feed for the list's TTL: as manual
// entries, which outlast a restart. Those that the feed still has are left out for other reasons,
// such as whom they would cut off, and must not stay.
func (d *Daemon) linger(l *managedList, left, read *list.Set) (stay engine.Change, err error) {
	now := time.Now()
	var batch []journal.Change
	var keys []key.Key
	rule := l.rule()
	rule.Contents = left
	for k := range rule.All() {
		if read.Has(k) {
			continue
		}
		e := journal.Entry{
			List: l.Name, Allow: l.Action == config.Allow, Key: k, Added: now, Expires: now.Add(time.Duration(l.TTL)), Reason: reasonLeft, UID: api.NoUID,
		}
		keys = append(keys, k)
		if by, ok := d.journal.Get(l.Name, k); ok && (by.Expires.IsZero() || by.Expires.After(e.Expires)) {
			continue // an operator wants it for longer
		}
		batch = append(batch, journal.Change{Entry: e})
	}
	stay = engine.Change{List: l.manual, Delta: list.Delta{Add: list.SetOf(keys...)}}
	return stay, d.journal.Apply(batch)
}

// tend does what is due each second: it removes expired entries, and tries again
// to activate what could not be. Beside the work on another engine only entries expire.
func (d *Daemon) tend(now time.Time) {
	if d.loop.stage != idle {
		if err := d.expire(now); err != nil {
			d.backlog.report(err, d.o.Log)
		}
		return
	}
	if now.After(d.backlog.retry) {
		d.backlog.failed = d.catchUpAll(now)
	}
	err := errors.Join(d.backlog.failed, d.expire(now), d.monitor.end(now), d.rollBack(now), d.trials.end(now))
	d.trials.follow(d.reloads.confirmation.done())
	d.trials.Keep(now)
	d.followPeers(now)
	d.guards.logCutOff()
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
	more, out := d.leaveOutWith(d.active.prepared.changesOf(expired()))
	batch := expired() // a command may have renewed some meanwhile
	if len(batch) == 0 {
		return nil
	}
	unrecorded := d.journal.Apply(batch)
	if unrecorded != nil {
		unrecorded = fmt.Errorf("the expiry of entries could not be recorded: %w", unrecorded)
	}
	d.guards.lookAgain = time.Time{}
	n, err := d.applyWith(d.active.prepared.changesOf(batch), more, out)
	if n > 0 {
		d.o.Log.Info("entries have expired", "entries", n)
	}
	if err != nil {
		var behind []*managedList
		for _, c := range batch {
			if l := d.active.prepared.list(c.List); l != nil {
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
	d.guards.lookAgain = time.Time{} // an entry may allow what was left out
	return d.apply(d.active.prepared.changesOf(batch))
}

// changesOf returns the changes of lists that changes of the journal are.
func (p *Prepared) changesOf(batch []journal.Change) (changes []engine.Change) {
	type keys struct{ add, remove []key.Key }
	lists := make(map[uint16]*keys)
	for _, c := range batch {
		l := p.list(c.List)
		if l == nil { // of a list that is no longer configured
			continue
		}
		if lists[l.manual] == nil {
			lists[l.manual] = &keys{}
		}
		if k := lists[l.manual]; c.Remove {
			k.remove = append(k.remove, c.Key)
		} else {
			k.add = append(k.add, c.Key)
		}
	}
	for n, k := range lists {
		changes = append(changes, engine.Change{List: n, Delta: list.Delta{Add: list.SetOf(k.add...), Remove: list.SetOf(k.remove...)}})
	}
	return changes
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
	next, last, applied := d.active.prepared.copied(), kept{Generation: d.active.engine}, d.active.applied
	more := 0
	if changes, next.derived, more, err = next.withDerived(changes); err != nil {
		return 0, err
	}
	d.loop.aside(func() { next.rules, n, err = engine.With(next.rules, changes) })
	if err != nil {
		return 0, err
	}
	n -= more
	undo := next.makeRoom()
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
	changes, derived, more, err := d.active.prepared.withDerived(changes)
	if err != nil {
		return 0, err
	}
	n, err := d.enactInPlace(changes)
	if err != nil {
		return 0, err
	}
	d.settleDerived(derived)
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
	d.active.prepared.rules = d.active.engine.Lists()
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

// mostRetryInterval is the longest time after which contents of the fleet are tried again: each
// attempt may build an engine.
const mostRetryInterval = 5 * time.Minute

// overdue reports whether contents of the fleet are to be tried again: the hub does not send them
// again. A feed has returned to what it had, and reads its sources again.
func (l *managedList) overdue(now time.Time) bool {
	return l.failed.Err != nil && l.feed == nil && l.failed.Due(now)
}

// report logs what has failed in the last second, once while it stays the same.
func (b *backlog) report(err error, log *slog.Logger) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	b.problem.log(text, log.Error)
}

// late notes that changes of lists have failed.
func (b *backlog) late(err error, lists ...*managedList) error {
	for _, l := range lists {
		l.retryPending = true
	}
	b.retry = time.Now().Add(retryInterval)
	return fmt.Errorf("the old contents stay active, retrying in %v: %w", retryInterval, err)
}

// missed returns the changes to the manual entries of lists that the journal has. What has left a
// feed is active from then on, or was left out for whom it would cut off, so that it is not missed.
func (p *Prepared) missed(lists ...*managedList) (changes []engine.Change) {
	for _, l := range lists {
		active := p.contents(l.manual)
		keys := slices.DeleteFunc(manualKeys(p.journal, &l.List), func(k key.Key) bool {
			e, ok := p.journal.Get(l.Name, k)
			return ok && lingers(e) && !active.Has(k)
		})
		if delta := list.SetOf(keys...).Diff(active); delta.Len() > 0 {
			changes = append(changes, engine.Change{List: l.manual, Delta: delta})
		}
	}
	return changes
}

// copied returns a copy whose rules are its own: those of the active configuration change
// with each entry.
func (p *Prepared) copied() *Prepared {
	c := *p
	c.rules = slices.Clone(p.rules)
	return &c
}

// catchUpAll tries again to change the lists that are behind, and to activate the
// contents that did not fit.
func (d *Daemon) catchUpAll(now time.Time) error {
	var errs []error
	for _, l := range d.active.prepared.lists {
		var err error
		if l.retryPending {
			more, out := d.leaveOutWith(d.active.prepared.missed(l))
			if _, err = d.applyWith(d.active.prepared.missed(l), more, out); err != nil {
				err = d.backlog.late(err, l)
			} else {
				l.retryPending = false
			}
		}
		if rejected := l.rejected != nil; err == nil && (rejected || l.overdue(now)) {
			if err = d.update(l); err != nil {
				if rejected {
					d.backlog.retry = time.Now().Add(retryInterval)
				}
				err = fmt.Errorf("list %s: its contents are not active: %w", l.Name, err)
			}
			go l.decision(err).Settle(d.o.Log)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// takeRead activates the contents of feeds that were read without that. It returns
// what has become of them.
func (d *Daemon) takeRead() (all []*lists.Decision) {
	for _, l := range d.active.prepared.lists {
		if l.from == nil || l.seenVersion == l.from.Version() {
			continue
		}
		err := d.update(l)
		if err != nil {
			d.o.Log.Error("feed read, but it is not active, the old contents stay: "+err.Error(), "list", l.Name)
		}
		all = append(all, l.decision(err))
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
func (d *Daemon) activate(next *Prepared, targets []attach.Target, applied uint64, by *kept) (err error) {
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
		missed, derived, _, err := next.withDerived(next.missed(next.lists...))
		if err != nil {
			return errors.Join(err, rollout.Close(), e.Close())
		}
		if _, err := e.Apply(missed); err == nil {
			next.rules, next.derived, changed = e.Lists(), derived, true
			break
		}
		if err := errors.Join(rollout.Close(), e.Close()); err != nil {
			return err
		}
		rollout = nil
		if next.rules, _, err = engine.With(next.rules, missed); err != nil {
			return err
		}
		next.derived = derived
	}
	d.observers.stages.Finish(next.stages)
	if err := rollout.Commit(); err != nil {
		return errors.Join(err, e.Close())
	}
	d.observers.stages.Retire(d.active.engine)
	d.active.prepared, d.active.engine, d.active.changed = next, e, changed
	d.active.number++
	d.observers.listen() // at once: events have the numbers of its lists from now on
	d.observers.stages.Follow(next.stages)
	d.observers.observe(next)
	d.active.announce(d.o.Log, "reloaded", time.Since(began))
	return nil
}
