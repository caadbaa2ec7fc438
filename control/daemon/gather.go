package daemon

import (
	"slices"
	"sync"
	"time"

	"weir/control/api"
	"weir/control/journal"
	"weir/control/lists"
)

// Bounds of the changes that share a write of the journal.
const (
	maxTogether        = 256 // requests
	maxEntriesTogether = 4096
)

// pending is a change of entries that waits for a turn of the loop.
type pending struct {
	change  api.Change
	list    string
	entries lists.Parsed
	bad     error         // why these cannot be parsed
	made    chan struct{} // closed once the following is final
	batch   []journal.Change
	changed api.Changed
	err     error
}

// direct reports whether the change was never queued.
func (p *pending) direct() bool { return p.change.Given.IsZero() }

// gathered are the changes that wait for a turn. The first turn makes all of them, so that a storm
// of commands takes one sync of the disk, not one each.
type gathered struct {
	mu      sync.Mutex
	waiting []*pending
}

func (g *gathered) add(p *pending) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, p)
}

// remove takes a change back, and reports whether it was still waiting.
func (g *gathered) remove(p *pending) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := len(g.waiting)
	g.waiting = slices.DeleteFunc(g.waiting, func(of *pending) bool { return of == p })
	return len(g.waiting) < n
}

func (g *gathered) take() []*pending {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := g.waiting
	g.waiting = nil
	return all
}

// makeGathered makes the changes that wait, in their order, unless others were queued before.
func (r *changer) makeGathered() {
	all := r.take()
	if slices.ContainsFunc(all, (*pending).direct) && r.queued.Some() {
		all = slices.DeleteFunc(all, func(p *pending) bool {
			if p.direct() {
				p.finish(0, errOthersWait)
			}
			return p.direct()
		})
	}
	for len(all) > 0 {
		all = all[r.makeTogether(all):]
	}
}

// makeTogether makes the first of some changes, and returns how many. They are independent of each
// other: one that is refused because of those before it, or is of an entry of theirs, is left.
func (r *changer) makeTogether(all []*pending) (n int) {
	var group []*pending
	var joint []journal.Change
	touched := make(map[entryID]bool)
	for _, p := range all {
		if len(group) == maxTogether || len(group) > 0 && len(joint)+len(p.change.Entries) > maxEntriesTogether {
			break
		}
		batch, err := r.prepare(p, joint)
		if len(group) > 0 && (err != nil || slices.ContainsFunc(batch, func(c journal.Change) bool { return touched[idOf(c)] })) {
			break
		}
		n++
		if err != nil {
			p.finish(0, err)
			continue
		}
		for _, c := range batch {
			touched[idOf(c)] = true
		}
		p.batch = batch
		p.changed.Monitor = p.change.Action == api.Block && !p.change.Remove && r.active.attach.Metadata().Monitor
		group, joint = append(group, p), append(joint, batch...)
	}
	switch len(group) {
	case 0:
	case 1:
		k, err := r.change(group[0].batch)
		group[0].finish(k, err)
	default:
		r.changeAll(group, joint)
	}
	return n
}

// changeAll is change for several independent changes, which joint has together.
func (r *changer) changeAll(group []*pending, joint []journal.Change) {
	before := r.before(joint)
	if err := r.journal.Apply(joint); err != nil {
		for _, p := range group {
			p.finish(0, unrecorded{err})
		}
		return
	}
	r.antiLockout.lookAgain = time.Time{} // an entry that allowed something may have gone
	var rest []*pending                   // which need another engine
	var batch []journal.Change
	for _, p := range group {
		if k, err := r.filter.applyInPlace(r.active.prepared.ChangesOf(p.batch)); err == nil {
			p.finish(k, nil)
		} else {
			rest, batch = append(rest, p), append(batch, p.batch...)
		}
	}
	if len(rest) == 0 {
		return
	}
	_, err := r.filter.enforce(batch)
	if err != nil {
		err = r.undo(batch, before, err)
	}
	for _, p := range rest {
		k := 0
		for _, c := range p.batch {
			if before[idOf(c)].Remove != c.Remove { // it was not there and is, or the other way round
				k++
			}
		}
		p.finish(k, err)
	}
}

// finish ends a change, with the number of entries that have changed, or why none has.
func (p *pending) finish(n int, err error) {
	p.err = err
	if err == nil {
		p.changed.Unchanged = len(p.batch) - n
		if p.changed.Added = n; p.change.Remove {
			p.changed.Added, p.changed.Removed = 0, n
		}
	}
	close(p.made)
}

// prepare returns the changes of the journal that a request asks for, or why it is refused, once
// others are made.
func (r *changer) prepare(p *pending, others []journal.Change) ([]journal.Change, error) {
	r.loop.Doing("entries are changed", p.list)
	l, err := r.active.prepared.ByName.Find(p.list)
	if err != nil {
		return nil, err
	}
	batch, err := r.batch(l, p, others)
	if err == nil && !p.change.Force {
		err = r.antiLockout.refuseCutOff(l, p.change, slices.Concat(others, batch))
	}
	return batch, err
}
