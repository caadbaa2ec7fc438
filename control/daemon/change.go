package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/journal"
	"weir/control/list"
	"weir/filter/key"
)

// Change implements [server.Daemon]. Changes that were given before come first.
func (d *Daemon) Change(ctx context.Context, c api.Change) (api.Changed, error) {
	d.queued.take(ctx)
	changed, err := d.carryOut(ctx, c)
	if errors.Is(err, errStopped) {
		if queued, err := d.queued.Queue(ctx, c); err == nil {
			return queued, nil
		}
	}
	return changed, err
}

// listOf returns the list that a change is for.
func listOf(c api.Change) string {
	if c.List != "" {
		return c.List
	}
	return map[string]string{api.Block: DefaultBlock, api.Allow: DefaultAllow}[c.Action]
}

// carryOut makes a change of entries, or refuses it.
func (d *Daemon) carryOut(ctx context.Context, c api.Change) (changed api.Changed, err error) {
	name := listOf(c)
	changed.List = name
	p := &pending{change: c, list: name, changed: changed, made: make(chan struct{})}
	d.gathered.add(p)
	err = d.loop.Do(ctx, func() error { d.makeGathered(); return nil })
	if err == nil || !d.gathered.remove(p) { // another one's turn may have taken it
		<-p.made
		changed, err = p.changed, p.err
	}
	if errors.Is(err, errBuilding) {
		p = &pending{change: c, list: name, changed: api.Changed{List: name}, made: make(chan struct{})}
		err = d.loop.doAlone(ctx, func() error { d.makeTogether([]*pending{p}); return p.err })
		changed = p.changed
	}
	switch {
	case err == nil:
		d.audit.Record(audit.Changed(ctx, c, changed, firstKeys(p.batch)))
	case !c.Given.IsZero() && waits(err):
	default:
		d.notifier.refusedChange(c, name, err)
		d.audit.Refused(audit.Changed(ctx, c, api.Changed{List: name}, c.Entries[:min(len(c.Entries), audit.MaxFirst)]), err)
	}
	return changed, err
}

// batch returns the changes of the journal that a request asks for, once others are made.
func (d *Daemon) batch(l *managedList, c api.Change, others []journal.Change) ([]journal.Change, error) {
	now := time.Now()
	added := now
	if !c.Given.IsZero() && c.Given.Before(now) { // not in the future, as after the clock was set back
		added = c.Given
	}
	each := journal.Entry{
		List: l.Name, Allow: l.Action == config.Allow, Added: added, Reason: c.Reason, UID: c.UID,
		Expires: expires(added, time.Duration(c.TTL*float64(time.Second))),
	}
	// What has expired while it waited would have replaced what was there, and be gone.
	remove := c.Remove || !each.Expires.IsZero() && !each.Expires.After(now)
	var entries []list.Entries
	total := 0
	for i, text := range c.Entries {
		e, err := list.ParseEntry(text)
		if err != nil {
			return nil, &api.BadRequest{Entry: &i, Text: text, Err: err}
		}
		if total += e.Len(); total > api.MaxChange {
			return nil, &api.BadRequest{Entry: &i, Text: text, Err: api.ErrMaxChange}
		}
		entries = append(entries, e)
	}
	var batch []journal.Change
	seen := make(map[key.Key]bool) // a bulk may say the same twice
	for _, e := range entries {
		meant := keys(l.rule(), e)
		if c.Remove {
			meant = append(meant, d.formerKeys(l, e)...)
		}
		for _, each.Key = range meant {
			if !seen[each.Key] {
				seen[each.Key] = true
				batch = append(batch, journal.Change{Remove: remove, Entry: each})
			}
		}
	}
	manual := d.active.prepared.contents(l.manual)
	var more []key.Key
	for _, of := range others {
		if !of.Remove && of.List == l.Name {
			more = append(more, of.Key)
		}
	}
	if len(more) > 0 {
		manual = list.Union(manual, list.SetOf(more...))
	}
	refusal := func(n int) error { // of the first entries
		var all list.Entries
		for _, e := range entries[:n] {
			all.V4, all.V6, all.Flows = append(all.V4, e.V4...), append(all.V6, e.V6...), append(all.Flows, e.Flows...)
		}
		// Manual entries are kept by side.
		together := list.Union(manual, list.SetOf(keys(l.rule(), all)...))
		return cmp.Or(tooWide(d.active.prepared.config, l.List, together), coversFailsafe(d.active.prepared.config, l.List, all.Set()))
	}
	if !c.Remove && refusal(len(entries)) != nil {
		i := sort.Search(len(entries), func(i int) bool { return refusal(i+1) != nil }) // the first that is too much
		return nil, &api.BadRequest{Entry: &i, Text: c.Entries[i], Err: refusal(i + 1)}
	}
	return batch, nil
}

// formerKeys returns the keys of entries that were added when the list had
// another direction.
func (d *Daemon) formerKeys(l *managedList, e list.Entries) []key.Key {
	both := l.rule()
	both.Direction = engine.Both
	return slices.DeleteFunc(keys(both, e), func(k key.Key) bool {
		_, has := d.journal.Get(l.Name, k)
		return !has
	})
}

// unrecorded is why the journal could not take changes.
type unrecorded struct{ error }

func (e unrecorded) Unwrap() error { return e.error }

// change makes changes durable, then active. It returns the number of entries that
// changed. When it fails, nothing has changed.
func (d *Daemon) change(batch []journal.Change) (int, error) {
	before := d.before(batch)
	if err := d.journal.Apply(batch); err != nil {
		return 0, unrecorded{err}
	}
	n, err := d.enforce(batch)
	if err != nil {
		return 0, d.undo(batch, before, err)
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
func (d *Daemon) before(batch []journal.Change) map[entryID]journal.Change {
	all := make(map[entryID]journal.Change, len(batch))
	for _, c := range batch {
		e, had := d.journal.Get(c.List, c.Key)
		if e.List, e.Key = c.List, c.Key; !had {
			e.Allow = c.Allow
		}
		all[idOf(c)] = journal.Change{Remove: !had, Entry: e}
	}
	return all
}

// undo takes a recorded batch back that could not be made active, and returns why, which err is.
func (d *Daemon) undo(batch []journal.Change, before map[entryID]journal.Change, err error) error {
	var back []journal.Change
	for _, c := range batch {
		back = append(back, before[idOf(c)])
	}
	if err := d.journal.Apply(back); err != nil {
		d.o.Log.Error("entries that are not active are recorded, and will be active after a restart: " + err.Error())
	}
	return fmt.Errorf("nothing was changed: %w", err)
}
