package engine

import (
	"slices"

	"weir/control/list"
	"weir/filter/key"
)

// Difference gives the changes that make a list hold just these entries. None
// of them is made: that is for [Generation.Apply]. It reports false where they
// are more than `most`, which is for [Store.Replace].
func (s *Store) Difference(n uint16, e list.Entries, most int) ([]Change, bool) {
	d := difference{list: n, most: most}
	has, wants := s.action(n), s.only(n, e)
	differPrefixes(&d, &has.src4, &wants.src4)
	differPrefixes(&d, &has.dst4, &wants.dst4)
	differPrefixes(&d, &has.src6, &wants.src6)
	differPrefixes(&d, &has.dst6, &wants.dst6)
	differ(&d, &has.flows, &wants.flows, func(f flow) key.Key { return f.Key })
	if len(d.changes) > most {
		return nil, false
	}
	return d.changes, true
}

// Replace makes a list hold just these entries. They are in force with the next
// generation that is built.
func (s *Store) Replace(n uint16, e list.Entries) {
	to := s.action(n)
	to.drop(n)
	to.add(s.lists[n-1], n, e)
	to.each(func(l sortable) { l.sort() }) // as changes that come before the build want it
}

// only gives the entries that a list is to hold, sorted.
func (s *Store) only(n uint16, e list.Entries) *entries {
	only := newEntries()
	only.add(s.lists[n-1], n, e)
	only.each(func(l sortable) { l.sort() })
	return only
}

// sortable is a listing, of whatever it is.
type sortable interface {
	sort()
	merge()
	drop(list uint16)
}

func (e *entries) each(fn func(sortable)) {
	for _, l := range []sortable{&e.src4, &e.dst4, &e.src6, &e.dst6, &e.flows} {
		fn(l)
	}
}

// drop removes all that a list has.
func (e *entries) drop(n uint16) { e.each(func(l sortable) { l.merge(); l.drop(n) }) }

func (s *listing[K]) drop(n uint16) {
	s.sorted = slices.DeleteFunc(s.sorted, func(e entry[K]) bool { return e.list == n })
}

// difference collects changes of a list, up to one more than are wanted.
type difference struct {
	list    uint16
	most    int
	changes []Change
}

// add adds a change, and reports whether more are of use.
func (d *difference) add(k key.Key, add bool) bool {
	d.changes = append(d.changes, Change{List: d.list, Add: add, Key: k})
	return len(d.changes) <= d.most
}

func differPrefixes[P prefixType[P]](d *difference, has, wants *prefixes[P]) {
	differ(d, &has.listing, &wants.listing, func(p P) key.Key { return has.key(p.prefix()) })
}

// differ walks both listings in their common order; wants holds the one list's
// keys alone.
func differ[K ordered[K]](d *difference, has, wants *listing[K], key func(K) key.Key) {
	has.merge()
	want := wants.sorted
	for _, e := range has.sorted {
		if e.list != d.list {
			continue
		}
		for len(want) > 0 && want[0].key.compare(e.key) < 0 {
			if !d.add(key(want[0].key), true) {
				return
			}
			want = want[1:]
		}
		if len(want) > 0 && want[0].key == e.key {
			want = want[1:]
		} else if !d.add(key(e.key), false) {
			return
		}
	}
	for _, e := range want {
		if !d.add(key(e.key), true) {
			return
		}
	}
}
