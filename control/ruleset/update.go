package ruleset

import (
	"cmp"
	"slices"
	"time"

	"weir/control/config"
	"weir/control/engine"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/lists"
	"weir/filter/key"
)

// Inherit has the feeds take over contents that feeds of a later configuration have read, unless this
// configuration refuses them.
func (p *Ruleset) Inherit(later *Ruleset) {
	for name, f := range p.Feeds() {
		l := later.List(name)
		if l == nil || l.FromFeed == nil || l.FromFeed == f {
			continue
		}
		if RefuseRead(p.Config, p.List(name).List, l.FromFeed.Contents(), l.FromFeed.Accepted()) == nil {
			f.Inherit(l.FromFeed, false)
		}
	}
}

// reverted reports whether the feed has returned to the contents that are active, since later ones could
// not be.
func (l *List) reverted() bool { return l.FromFeed != nil && l.FromFeed.Reverted() }

// Reading has the contents of a list's sources, as they are to be activated.
type Reading struct {
	Refused  error     // why it must not be; nil: it may
	Read     *list.Set // all of it
	Contents *list.Set // without what is left out
	left     LeftOut
	Delta    list.Delta // of the contents to the active ones
	Left     *list.Set  // what that removes, without what an operator has undone
	counted  *derived
}

// Reading returns what the sources of a list have now. With millions of entries it takes long: it is
// called of a copy of the active configuration.
func (p *Ruleset) Reading(l *List) (r Reading) {
	var undone *list.Set
	if l.FromFeed != nil && l.TTL > 0 {
		r.Read, undone = l.FromFeed.ContentsUndone()
	} else {
		r.Read = l.From.Contents()
	}
	// A feed has asked this of each of its sources: none that is refused replaces what it had. Here
	// they are together, which may cover more. Contents of the fleet, or that were saved under
	// another max_coverage, come here first.
	if r.Refused = RefuseRead(p.Config, l.List, r.Read, l.From.Accepted()); r.Refused != nil {
		return r
	}
	r.Contents, r.left = p.Admit(l, r.Read)
	r.Delta = r.Contents.Diff(p.Contents(l.SourceNumber))
	if r.Left = r.Delta.Remove; undone != nil {
		r.Left = r.Left.Diff(undone).Add
	}
	r.counted = p.countAhead(l, r.Contents)
	return r
}

// Staying returns the change of a reading without the removal of entries that have left the sources. Those
// that would cut off a peer, or the like, are removed all the same, and so are those that an operator has
// undone. Like Reading, it takes long.
func (p *Ruleset) Staying(l *List, r Reading) list.Delta {
	left, _ := p.Admit(l, r.Left.Diff(r.Read).Add)
	return list.Delta{Add: r.Delta.Add, Remove: r.Delta.Remove.Diff(left).Add}
}

// Begin begins to activate what the sources have.
func (l *List) Begin() {
	l.seenVersion = l.From.Version() // before its contents, which may change
	l.failed.Err = nil
}

// End ends that, whatever has become of it.
func (l *List) End() { l.decided, l.counted = l.seenVersion, nil }

// Consider notes what the sources have, and whether it is refused, before it is activated.
func (l *List) Consider(r Reading) { l.Refused, l.counted = r.Refused, r.counted }

// Fail notes why it could not be activated.
func (l *List) Fail(err error, now time.Time) {
	l.failed.Fail(err, now, mostRetryInterval)
	if l.Stays() { // still
		l.stays.Fail(err, now, mostRetryInterval)
	}
	if l.Rejected != nil {
		l.Rejected = err
	}
}

// Activated notes that it is active.
func (l *List) Activated(r Reading) {
	l.Rejected, l.Behind, l.Left, l.read, l.failed = nil, false, r.left, r.Read, lists.Retry{}
}

// Unseen reports whether the sources have a version that was neither activated nor refused.
func (l *List) Unseen() bool { return l.seenVersion != l.From.Version() }

// Problem returns why the last version that was seen is not active, nil if it is.
func (l *List) Problem() error { return cmp.Or(l.Refused, l.failed.Err) }

// Undone reports whether the feed has returned to the active contents since later ones could not be
// activated.
func (l *List) Undone() bool {
	return l.reverted() && l.Rejected == nil && l.Problem() != nil
}

// Keep keeps what was decided before on later contents, where the feed has returned to the active
// ones: those are still not active.
func (l *List) Keep(before *List) {
	if l.reverted() {
		l.Refused, l.failed, l.seenVersion = before.Refused, before.failed, before.seenVersion
	}
}

// Decision returns what was decided about the version that was seen last.
func (l *List) Decision(err error) *lists.Decision {
	return &lists.Decision{List: l.Name, From: l.From, Version: l.seenVersion, Err: err}
}

// ChangesOf returns the changes of lists that changes of the journal are.
func (p *Ruleset) ChangesOf(batch []journal.Change) (changes []engine.Change) {
	type keys struct{ add, remove []key.Key }
	lists := make(map[uint16]*keys)
	for _, c := range batch {
		l := p.List(c.List)
		if l == nil { // of a list that is no longer configured
			continue
		}
		if lists[l.ManualNumber] == nil {
			lists[l.ManualNumber] = &keys{}
		}
		if k := lists[l.ManualNumber]; c.Remove {
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

// mostRetryInterval is the longest time after which contents of the fleet are tried again: each
// attempt may build an engine.
const mostRetryInterval = 5 * time.Minute

// Overdue reports whether contents of the fleet are to be tried again: the hub does not send them
// again. A feed has returned to what it had, and reads its sources again. In any list, entries that
// stay because their expiry could not be recorded are tried again, too: its sources may have nothing new for long.
func (l *List) Overdue(now time.Time) bool {
	if l.Stays() && !l.Unseen() && l.Refused == nil && l.stays.Due(now) {
		return true
	}
	return l.failed.Err != nil && l.FromFeed == nil && l.failed.Due(now)
}

// stay keeps the entries that have left a list's sources, and whose expiry the list could not record in
// the last configuration. It returns the contents of the list with them.
func (l *List) stay(contents *list.Set, last *Ruleset) *list.Set {
	old := last.List(l.Name)
	if old == nil || !old.Stays() || l.TTL == 0 || !l.IsLike(&old.List) {
		return contents
	}
	l.stays = old.stays
	return list.Union(contents, last.Contents(old.SourceNumber).Diff(old.read).Add)
}

// Stay notes why the expiry of entries that have left the sources could not be recorded, so that they stay;
// nil: nothing stays.
func (l *List) Stay(err error, now time.Time) {
	if err == nil {
		l.stays = lists.Retry{}
		return
	}
	l.stays.Fail(err, now, mostRetryInterval)
}

// Stays reports whether entries stay because their expiry could not be recorded.
func (l *List) Stays() bool { return l.stays.Err != nil }

// Missed returns the changes to the manual entries of lists that the journal has. What has left a
// feed is active from then on, or was left out for whom it would cut off, so that it is not missed.
func (p *Ruleset) Missed(all ...*List) (changes []engine.Change) {
	for _, l := range all {
		active := p.Contents(l.ManualNumber)
		keys := slices.DeleteFunc(lists.ManualKeys(p.Journal, l.Name, l.Action == config.Allow), func(k key.Key) bool {
			e, ok := p.Journal.Get(l.Name, k)
			return ok && lists.Lingers(e) && !active.Has(k)
		})
		if delta := list.SetOf(keys...).Diff(active); delta.Len() > 0 {
			changes = append(changes, engine.Change{List: l.ManualNumber, Delta: delta})
		}
	}
	return changes
}

// Copy returns a copy whose rules are its own: those of the active configuration change
// with each entry.
func (p *Ruleset) Copy() *Ruleset {
	c := *p
	c.Rules = slices.Clone(p.Rules)
	return &c
}
