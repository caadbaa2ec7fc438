package engine

import (
	"cmp"
	"slices"
)

// ordered is what can be listed: it has a total order.
type ordered[K any] interface {
	comparable
	compare(K) int
}

// entry is a key as a list has it.
type entry[K ordered[K]] struct {
	key  K
	list uint16
}

func (e entry[K]) compare(f entry[K]) int {
	if c := e.key.compare(f.key); c != 0 {
		return c
	}
	return cmp.Compare(e.list, f.list)
}

// listing is a relation of keys and the lists that have them. The bulk is
// sorted, at a few bytes an entry; changes since it was sorted are kept aside.
type listing[K ordered[K]] struct {
	sorted  []entry[K]
	changes map[K][]change
}

// change is the addition or removal of a key in a list.
type change struct {
	list  uint16
	added bool
}

// grow makes room for n more entries.
func (s *listing[K]) grow(n int) { s.sorted = slices.Grow(s.sorted, n) }

// append adds to the bulk, which is to be sorted before it is asked.
func (s *listing[K]) append(k K, list uint16) {
	s.sorted = append(s.sorted, entry[K]{k, list})
}

// sort orders the bulk and drops what a list says twice.
func (s *listing[K]) sort() {
	if !slices.IsSortedFunc(s.sorted, entry[K].compare) {
		if v4, ok := any(s.sorted).([]entry[prefix4]); ok {
			radixSort(v4)
		} else {
			slices.SortFunc(s.sorted, entry[K].compare)
		}
	}
	s.sorted = slices.Clip(slices.Compact(s.sorted))
}

// merge sorts the changes into the bulk.
func (s *listing[K]) merge() {
	if len(s.changes) == 0 {
		return
	}
	all := make([]entry[K], 0, len(s.sorted)+len(s.changes))
	for _, e := range s.sorted {
		if _, ok := s.changes[e.key]; !ok {
			all = append(all, e)
		}
	}
	for k := range s.changes {
		for _, l := range s.lists(k) {
			all = append(all, entry[K]{k, l})
		}
	}
	s.sorted, s.changes = all, nil
	s.sort()
}

// lists gives the numbers of the lists that have the key, ascending.
func (s *listing[K]) lists(k K) []uint16 {
	var lists []uint16
	i, _ := slices.BinarySearchFunc(s.sorted, entry[K]{k, 0}, entry[K].compare)
	for ; i < len(s.sorted) && s.sorted[i].key == k; i++ {
		lists = append(lists, s.sorted[i].list)
	}
	for _, c := range s.changes[k] {
		i, found := slices.BinarySearch(lists, c.list)
		switch {
		case c.added && !found:
			lists = slices.Insert(lists, i, c.list)
		case !c.added && found:
			lists = slices.Delete(lists, i, i+1)
		}
	}
	return lists
}

// change notes an addition or removal and reports whether it changes anything.
func (s *listing[K]) change(k K, list uint16, add bool) bool {
	if slices.Contains(s.lists(k), list) == add {
		return false
	}
	if s.changes == nil {
		s.changes = make(map[K][]change)
	}
	s.changes[k] = append(s.changes[k], change{list, add})
	return true
}

// distinct gives each key of the bulk once, with the lowest list number.
func (s *listing[K]) distinct(yield func(entry[K]) bool) {
	for i, e := range s.sorted {
		if (i == 0 || s.sorted[i-1].key != e.key) && !yield(e) {
			return
		}
	}
}
