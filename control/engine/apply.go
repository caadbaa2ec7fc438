package engine

import (
	"errors"
	"fmt"
	"slices"

	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
)

// Change is a change of a list's contents.
type Change struct {
	List uint16 // the list's number
	list.Delta
}

// With returns lists after changes, and the number of entries that change. The
// lists themselves stay as they are.
func With(lists []List, changes []Change) (next []List, n int, err error) {
	next = slices.Clone(lists)
	for _, c := range changes {
		if c.List == 0 || int(c.List) > len(next) {
			return nil, 0, fmt.Errorf("change of list %d: there are %d lists", c.List, len(next))
		}
		l := &next[c.List-1]
		var changed int
		l.Contents, changed = l.Contents.Apply(c.Delta)
		n += changed
	}
	return next, n, nil
}

// Apply changes lists in place, and returns the number of entries that change.
// No packet that is listed before and after passes meanwhile.
//
// Apply changes all or nothing. Where the changes do not fit, it fails with
// membership.ErrNoRoom or ErrFull, and the answer is to build the next generation,
// of [With] the changes.
func (g *Generation) Apply(changes []Change) (n int, err error) {
	all := 0
	for _, c := range changes {
		all += c.Len()
	}
	if all > maxEdits { // before much work on what hardly fits
		return 0, fmt.Errorf("%d changes: %w", all, membership.ErrNoRoom)
	}
	lists, n, err := With(g.index.lists, changes)
	if err != nil || n == 0 {
		return 0, err
	}
	var undo func() error
	if g.out != nil {
		if undo, err = g.out.apply(lists, changes); err != nil {
			return 0, err
		}
	}
	if _, err = g.apply(lists, changes); err != nil {
		if undo != nil {
			err = errors.Join(err, undo())
		}
		return 0, err
	}
	return n, nil
}

// apply makes the changes in the sets of one direction, and returns what undoes them.
func (g *Generation) apply(lists []List, changes []Change) (undo func() error, err error) {
	before, next := g.index, g.index.with(lists)
	edits, err := g.edits(next, changes)
	if err == nil {
		err = g.index.book.room()
	}
	if err != nil {
		return nil, err
	}
	err = g.enact(edits)
	if errors.Is(err, membership.ErrFull) {
		// Earlier changes may have left room that is scattered.
		block, allow := g.Block.Tidy(g.grace), g.Allow.Tidy(g.grace)
		if block || allow {
			err = g.enact(edits)
		}
	}
	if err != nil {
		return nil, err
	}
	g.index = next
	for _, set := range []*membership.Set{g.Block, g.Allow} {
		if set.NeedsCompaction() {
			set.Tidy(g.grace)
		}
	}
	return func() error {
		for i := range edits {
			edits[i].before, edits[i].after = edits[i].after, edits[i].before
		}
		g.index = before
		return g.enact(edits)
	}, nil
}

// edit is a change of a key's owner in a set. Owner 0 means that the key is not
// listed.
type edit struct {
	set           *membership.Set
	key           key.Key
	before, after uint16
	both          uint16 // of the lists before and after, meanwhile; 0: the key is added or removed
}

const (
	// maxEdits bounds the keys that change in place: beyond it, the next
	// generation is as quick, and other changes need not wait.
	maxEdits = 200_000

	// maxExpansion bounds, in bits, the keys that one prefix becomes in place.
	maxExpansion = 12
)

// edits returns what changes make of the sets, given the index after them: of
// the allow lists first.
func (g *Generation) edits(next *index, changes []Change) (edits []edit, err error) {
	var parts []List // what is added and removed, as lists of their own
	for _, c := range changes {
		l := g.index.lists[c.List-1]
		for _, l.Contents = range []*list.Set{c.Add, c.Remove} {
			parts = append(parts, l)
		}
	}
	touched := newIndexOf(parts, next.out, nil)
	for _, allow := range []bool{true, false} {
		set := g.Block
		if allow {
			set = g.Allow
		}
		old, next, touched := g.index.action(allow), next.action(allow), touched.action(allow)
		for _, add := range []func() error{
			func() error { return addEdits(&edits, set, &old.src4, &next.src4, &touched.src4) },
			func() error { return addEdits(&edits, set, &old.dst4, &next.dst4, &touched.dst4) },
			func() error { return addEdits(&edits, set, &old.src6, &next.src6, &touched.src6) },
			func() error { return addEdits(&edits, set, &old.dst6, &next.dst6, &touched.dst6) },
			func() error { return addFlowEdits(&edits, set, &old.flows, &next.flows, &touched.flows) },
		} {
			if err := add(); err != nil {
				return nil, err
			}
		}
	}
	if len(edits) > maxEdits {
		return nil, membership.ErrNoRoom
	}
	for i := range edits {
		if e := &edits[i]; e.before != 0 && e.after != 0 {
			e.both = next.book.combine(e.before, e.after)
		}
	}
	return edits, nil
}

// addEdits appends what becomes of the keys of one side that touched prefixes
// stand for.
func addEdits[P list.Prefix[P]](edits *[]edit, set *membership.Set, old, next, touched *side[P]) error {
	var keys []P
	for _, p := range touched.merged(touched.book).keys {
		level, ok := old.levels.Of(p.Bits())
		if !ok || level-p.Bits() > maxExpansion {
			if slices.Equal(old.lists(p), next.lists(p)) {
				continue // it was not there to be removed
			}
			return membership.ErrNoRoom
		}
		for k := range p.Children(level) {
			keys = append(keys, k)
		}
		if len(keys) > maxEdits {
			return membership.ErrNoRoom
		}
	}
	slices.SortFunc(keys, P.Compare)
	for _, k := range slices.Compact(keys) { // prefixes may overlap
		if before, after := old.owner(k), next.owner(k); before != after {
			*edits = append(*edits, edit{set: set, key: k.Key(old.source), before: before, after: after})
		}
	}
	return nil
}

// enact makes the edits, or none of them: additions first, then removals.
func (g *Generation) enact(edits []edit) error {
	var added []edit
	for _, e := range edits {
		if e.before != 0 {
			continue
		}
		if err := e.set.Add(e.key, e.after); err != nil {
			for _, e := range added {
				e.set.Remove(e.key)
			}
			return err
		}
		added = append(added, e)
	}
	for _, e := range edits {
		if e.both != e.before && e.both != 0 {
			e.set.SetList(e.key, e.both)
		}
	}
	if replaces(edits, g.index.book != nil) {
		// A program that runs may have missed what was added, and would miss what
		// is removed now: one key of the same packet, for the other.
		g.grace()
	}
	unblocked := false
	for _, e := range slices.Backward(edits) {
		switch {
		case e.after == 0:
			if unblocked && e.set == g.Allow {
				// A program that has found what was blocked asks the allow lists next.
				g.grace()
				unblocked = false
			}
			e.set.Remove(e.key)
			unblocked = unblocked || e.set == g.Block
		case e.before != 0 && e.both != e.after:
			e.set.SetList(e.key, e.after)
		}
	}
	return nil
}

// replaces reports whether edits may replace a key by one of another shape for the
// same packet. Of one shape, a packet has one key. With rules, a key of other lists may be
// added, or removed, for a packet.
func replaces(edits []edit, rules bool) bool {
	added, removed := make(map[key.Shape]bool), make(map[key.Shape]bool)
	for _, e := range edits {
		switch {
		case e.before != 0 && e.after != 0 && rules:
			added[e.key.Shape], removed[e.key.Shape] = true, true
		case e.before == 0:
			added[e.key.Shape] = true
		case e.after == 0:
			removed[e.key.Shape] = true
		}
	}
	for a := range added {
		for r := range removed {
			if a != r {
				return true
			}
		}
	}
	return false
}
