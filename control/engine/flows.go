package engine

import (
	"iter"
	"maps"
	"slices"
	"sort"

	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
)

// flows relates flows to the lists that have them. In a set, they are stored at
// fewer shapes than they have where those would be too many: a flow from a /23 as
// two from a /24.
type flows struct {
	relation[key.Key]
	book   *book
	levels *Flows
}

// plan plans the levels. It fails where the flows have more shapes than a set can
// have, and would become too many at fewer.
func (f *flows) plan() error {
	stored, err := planFlows(f.shapes())
	if err != nil {
		return err
	}
	f.levels = NewFlows(stored)
	return nil
}

// shapes counts the flows of each shape. A flow counts once for each list that has
// it.
func (f *flows) shapes() map[key.Shape]int {
	counts := make(map[key.Shape]int)
	for _, c := range f.relation {
		countShapes(counts, c.keys)
	}
	return counts
}

// owner returns the list to which a key at a stored shape is attributed: that of the
// most specific flow that stands for it, then the lowest number; with rules, see the method
// of side. It is 0 for a key that is not listed.
func (f *flows) owner(k key.Key) (n uint16) {
	for _, s := range f.levels.Of[k.Shape] {
		n = f.book.combine(n, f.first(Cut(k, s), f.book))
		if n != 0 && (f.book == nil || f.book.settled(n)) {
			return n
		}
	}
	return n
}

// compile appends a column for each stored shape.
func (f *flows) compile(columns []membership.Column) []membership.Column {
	all := f.merged(f.book)
	runs := make(map[key.Shape]run[key.Key])
	for from := 0; from < len(all.keys); { // the order of keys is by shape first
		s := all.keys[from].Shape
		to := from + sort.Search(len(all.keys)-from, func(i int) bool { return all.keys[from+i].Shape != s })
		r := run[key.Key]{keys: all.keys[from:to], list: all.list}
		if all.lists != nil {
			r.lists = all.lists[from:to]
		}
		runs[s], from = r, to
	}
	for _, stored := range slices.SortedFunc(maps.Keys(f.levels.Of), key.Shape.Compare) {
		of := f.levels.Of[stored]
		c := membership.Column{Shape: stored}
		for e := range atShape(stored, of, runs, f.book) {
			c.Keys = e.key.Append(c.Keys)
			c.Lists = append(c.Lists, e.list)
		}
		columns = append(columns, c)
	}
	return columns
}

// atShape returns the distinct keys at a stored shape that stand for flows, each
// with its owner.
func atShape(stored key.Shape, of []key.Shape, runs map[key.Shape]run[key.Key], b *book) iter.Seq[entry[key.Key]] {
	if len(of) == 1 && of[0] == stored {
		r := runs[stored]
		return r.all()
	}
	return func(yield func(entry[key.Key]) bool) {
		var all []entry[key.Key]
		for _, s := range of {
			r := runs[s]
			for e := range r.all() {
				for c := range Children(e.key, stored) {
					all = append(all, entry[key.Key]{c, e.list})
				}
			}
		}
		// The first of equal keys is the most specific flow's.
		slices.SortStableFunc(all, func(a, b entry[key.Key]) int { return a.key.Compare(b.key) })
		for len(all) > 0 {
			e, n := all[0], 1
			for ; n < len(all) && all[n].key == e.key; n++ {
				e.list = b.combine(e.list, all[n].list)
			}
			if !yield(e) {
				return
			}
			all = all[n:]
		}
	}
}

// addFlowEdits appends what becomes of the keys that touched flows stand for.
func addFlowEdits(edits *[]edit, set *membership.Set, old, next, touched *flows) error {
	var keys []key.Key
	for _, k := range touched.merged(touched.book).keys {
		stored, ok := old.levels.Stored[k.Shape]
		if !ok || expansion(k.Shape, stored) > maxExpansion {
			if slices.Equal(old.lists(k), next.lists(k)) {
				continue // it was not there to be removed
			}
			return membership.ErrNoRoom
		}
		keys = slices.AppendSeq(keys, Children(k, stored))
		if len(keys) > maxEdits {
			return membership.ErrNoRoom
		}
	}
	slices.SortFunc(keys, key.Key.Compare)
	for _, k := range slices.Compact(keys) { // flows may overlap
		if before, after := old.owner(k), next.owner(k); before != after {
			*edits = append(*edits, edit{set: set, key: k, before: before, after: after})
		}
	}
	return nil
}

// Shapes returns the number of combinations of fields and prefix lengths of entries.
func Shapes(s *list.Set) int {
	if s.Len() == 0 {
		return 0
	}
	counts := make(map[key.Shape]int)
	countShapes(counts, s.Flows)
	return len(counts) + s.V4.Lengths.Len() + s.V6.Lengths.Len()
}
