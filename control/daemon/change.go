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
	"weir/control/audit"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/lists"
	"weir/control/ruleset"
	"weir/filter/key"
)

// changer makes changes of manual entries. Change and Flush are safe for concurrent use; what they
// call in turns of the loop is for Run's goroutine.
type changer struct {
	gathered
	loop        *loop
	active      *active
	filter      filter
	journal     *journal.Journal
	antiLockout *antiLockout
	queued      *queuedChanges
	audit       *audit.Log
	notifier    *notices
	log         *slog.Logger
}

// filter enforces what the journal has. It is for Run's goroutine.
type filter interface {
	// enforce makes changes of the journal active, and returns the number of entries that change.
	enforce([]journal.Change) (int, error)

	// applyInPlace is enforce for changes of lists, where they have room.
	applyInPlace([]engine.Change) (int, error)
}

// Change implements [server.Changer]. Changes that were given before come first.
func (r *changer) Change(ctx context.Context, c api.Change) (changed api.Changed, err error) {
	err = r.afterOthers(ctx, func() error {
		changed, err = r.CarryOut(ctx, c)
		return err
	})
	if !errors.Is(err, errStopped) && !errors.Is(err, errOthersWait) {
		return changed, err
	}
	queued, bad := r.queued.Queue(ctx, c)
	if bad == nil {
		return queued, nil
	}
	if errors.Is(err, errOthersWait) {
		err = fmt.Errorf("%w; %w", err, bad)
	}
	return changed, err
}

// errOthersWait is why a change is not made yet.
var errOthersWait = errors.New("changes that were given before cannot be made yet")

// afterOthers calls fn once the changes that were given before are made. fn fails with
// errOthersWait where its turn of the loop finds more of them: a command that gave up while the
// loop was busy has queued its change meanwhile.
func (r *changer) afterOthers(ctx context.Context, fn func() error) error {
	err := errOthersWait
	for range 10 { // more at once are no coincidence
		if r.queued.Take(ctx) && ctx.Err() == nil {
			return errOthersWait
		}
		if err = fn(); !errors.Is(err, errOthersWait) {
			break
		}
	}
	return err
}

// Flush implements [server.Changer].
func (r *changer) Flush(ctx context.Context, name string, c api.FlushChange) (changed api.Changed, err error) {
	changed.List = name
	var batch []journal.Change
	flush := func() error {
		if r.queued.Some() {
			return errOthersWait
		}
		l, err := r.active.prepared.ByName.Find(name)
		if err != nil {
			return err
		}
		batch = nil
		for k := range r.active.prepared.Contents(l.ManualNumber).All() {
			batch = append(batch, journal.Change{Remove: true, Entry: journal.Entry{List: name, Key: k, Allow: l.Action == config.Allow}})
		}
		if len(batch) == 0 {
			return nil
		}
		if !c.Force {
			if err := r.antiLockout.cutsOff(batch, callers(c.SSH, c.Connection)...); err != nil {
				return &api.BadRequest{Err: fmt.Errorf("%w: %s", err, orForce)}
			}
		}
		changed.Removed, err = r.change(batch)
		return err
	}
	err = r.afterOthers(ctx, func() error { return r.loop.doEntries(ctx, flush) })
	r.audit.AttemptBy(ctx, audit.Record{Change: audit.Flush, List: name, Entries: len(batch), Changed: changed.Removed, First: firstKeys(batch)}, err)
	return changed, err
}

// nameIn returns the name of the list that a change is for.
func nameIn(c api.Change) string { return config.DefaultLists.Of(c.List, c.Action) }

// CarryOut implements [changeMaker].
func (r *changer) CarryOut(ctx context.Context, c api.Change) (changed api.Changed, err error) {
	name := nameIn(c)
	changed.List = name
	entries, bad := lists.Parse(c)
	next := func() *pending {
		return &pending{change: c, list: name, entries: entries, bad: bad, changed: api.Changed{List: name}, made: make(chan struct{})}
	}
	p := next()
	r.add(p)
	err = r.loop.Do(ctx, func() error { r.makeGathered(); return nil })
	if err == nil || !r.remove(p) { // another one's turn may have taken it
		<-p.made
		changed, err = p.changed, p.err
	}
	if errors.Is(err, errBuilding) {
		p = next()
		err = r.loop.doAlone(ctx, func() error {
			if p.direct() && r.queued.Some() {
				return errOthersWait
			}
			r.makeTogether([]*pending{p})
			return p.err
		})
		changed = p.changed
	}
	switch {
	case err == nil:
		r.audit.Record(audit.Changed(ctx, c, changed, firstKeys(p.batch)))
	case !c.Given.IsZero() && waitsForEngine(err), errors.Is(err, errOthersWait):
	default:
		r.notifier.RefusedChange(c, name, err)
		r.audit.RefusedChange(ctx, name, c, err)
	}
	return changed, err
}

// batch returns the changes of the journal that a request asks for, once others are made.
func (r *changer) batch(l *ruleset.List, p *pending, others []journal.Change) ([]journal.Change, error) {
	c := p.change
	now := time.Now()
	added := now
	if !c.Given.IsZero() && c.Given.Before(now) { // not in the future, as after the clock was set back
		added = c.Given
	}
	each, err := lists.Entry(l.Name, string(l.Action), c, added)
	if err = cmp.Or(err, p.bad); err != nil {
		return nil, err
	}
	// What has expired while it waited would have replaced what was there, and be gone.
	remove := c.Remove || !each.Expires.IsZero() && !each.Expires.After(now)
	var batch []journal.Change
	seen := make(map[key.Key]bool) // a bulk may say the same twice
	for _, e := range p.entries {
		meant := ruleset.Keys(l.EngineList(), e)
		if c.Remove {
			meant = append(meant, r.formerKeys(l, e)...)
		}
		for _, each.Key = range meant {
			if !seen[each.Key] {
				seen[each.Key] = true
				batch = append(batch, journal.Change{Remove: remove, Entry: each})
			}
		}
	}
	if c.Remove {
		return batch, nil
	}
	manual := r.active.prepared.Contents(l.ManualNumber)
	var more []key.Key
	for _, of := range others {
		if !of.Remove && of.List == l.Name {
			more = append(more, of.Key)
		}
	}
	if len(more) > 0 {
		manual = list.Union(manual, list.SetOf(more...))
	}
	return batch, lists.Refuse(c, p.entries, func(all list.Entries) error {
		// Manual entries are kept by side.
		together := list.Union(manual, list.SetOf(ruleset.Keys(l.EngineList(), all)...))
		return cmp.Or(l.TooWide(together, r.active.prepared.Config.MaxCoverage), ruleset.CoversFailsafe(r.active.prepared.Config, l.List, all.Set()))
	})
}

// formerKeys returns the keys of entries that were added when the list had
// another direction.
func (r *changer) formerKeys(l *ruleset.List, e list.Entries) []key.Key {
	both := l.EngineList()
	both.Direction = engine.Both
	return slices.DeleteFunc(ruleset.Keys(both, e), func(k key.Key) bool {
		_, has := r.journal.Get(l.Name, k)
		return !has
	})
}

// unrecorded is why the journal could not take changes.
type unrecorded struct{ error }

func (e unrecorded) Unwrap() error { return e.error }

// change makes changes durable, then active. It returns the number of entries that
// changed. When it fails, nothing has changed.
func (r *changer) change(batch []journal.Change) (int, error) {
	before := r.before(batch)
	if err := r.journal.Apply(batch); err != nil {
		return 0, unrecorded{err}
	}
	n, err := r.filter.enforce(batch)
	if err != nil {
		return 0, r.undo(batch, before, err)
	}
	return n, nil
}

// entryID identifies an entry of the journal.
type entryID struct {
	list string
	key  key.Key
}

func idOf(c journal.Change) entryID { return entryID{c.List, c.Key} }

// before returns the changes that bring back what there is instead of a batch's entries.
func (r *changer) before(batch []journal.Change) map[entryID]journal.Change {
	all := make(map[entryID]journal.Change, len(batch))
	for _, c := range batch {
		e, had := r.journal.Get(c.List, c.Key)
		if e.List, e.Key = c.List, c.Key; !had {
			e.Allow = c.Allow
		}
		all[idOf(c)] = journal.Change{Remove: !had, Entry: e}
	}
	return all
}

// undo takes a recorded batch back that could not be made active, and returns why, which err is.
func (r *changer) undo(batch []journal.Change, before map[entryID]journal.Change, err error) error {
	var back []journal.Change
	for _, c := range batch {
		back = append(back, before[idOf(c)])
	}
	if err := r.journal.Apply(back); err != nil {
		r.log.Error("entries that are not active are recorded, and will be active after a restart: " + err.Error())
	}
	return fmt.Errorf("nothing was changed: %w", err)
}

// firstKeys returns the first entries of a batch, as in a list.
func firstKeys(batch []journal.Change) (first []string) {
	for _, c := range batch[:min(len(batch), audit.MaxFirst)] {
		first = append(first, c.Key.String())
	}
	return first
}

// Untried implements [changeMaker].
func (r *changer) Untried(err error) bool {
	return errors.As(err, new(unrecorded)) || errors.Is(err, errStopped)
}

// Ended implements [changeMaker].
func (r *changer) Ended(err error) bool { return errors.Is(err, errStopped) }
