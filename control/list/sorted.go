package list

import (
	"iter"
	"slices"
	"sort"
)

// Ordered is a type with a total order.
type Ordered[K any] interface {
	comparable
	Compare(K) int
}

// Sorted is an immutable set of values in ascending order. The zero Sorted is
// empty.
//
// A Sorted and the results of apply share a large base and differ in a few
// values, so a small change of a large set is cheap.
type Sorted[K Ordered[K]] struct {
	base    []K
	added   []K // not in base
	removed []K // in base
}

// sorted returns the set of some values. It takes ownership of the slice.
func sorted[K Ordered[K]](all []K) Sorted[K] {
	if v4, ok := any(all).([]V4Prefix); ok {
		sortV4(v4)
	} else if !slices.IsSortedFunc(all, K.Compare) {
		slices.SortFunc(all, K.Compare)
	}
	all = slices.Compact(all)
	if cap(all)-len(all) > len(all)/8 { // it is long-lived
		all = Grown(all, len(all))
	}
	return Sorted[K]{base: all}
}

// Len returns the number of values.
func (s Sorted[K]) Len() int { return len(s.base) + len(s.added) - len(s.removed) }

// Has reports whether k is one of the values.
func (s Sorted[K]) Has(k K) bool {
	if has(s.added, k) {
		return true
	}
	return has(s.base, k) && !has(s.removed, k)
}

func has[K Ordered[K]](s []K, k K) bool {
	_, found := slices.BinarySearchFunc(s, k, K.Compare)
	return found
}

// All iterates over the values in ascending order.
func (s Sorted[K]) All() iter.Seq[K] {
	return func(yield func(K) bool) {
		if len(s.added)+len(s.removed) == 0 {
			for _, k := range s.base {
				if !yield(k) {
					return
				}
			}
			return
		}
		for {
			if k, ok := s.next(); !ok || !yield(k) {
				return
			}
		}
	}
}

// next removes and returns the first value.
func (s *Sorted[K]) next() (k K, ok bool) {
	for len(s.removed) > 0 && s.removed[0] == s.base[0] {
		s.removed, s.base = s.removed[1:], s.base[1:]
	}
	from := &s.base
	if len(s.added) > 0 && (len(s.base) == 0 || s.added[0].Compare(s.base[0]) < 0) {
		from = &s.added
	}
	if len(*from) == 0 {
		return k, false
	}
	k, *from = (*from)[0], (*from)[1:]
	return k, true
}

// first returns the first value.
func (s Sorted[K]) first() (K, bool) { return s.next() }

// Split returns the values before the first one that is after, and that one and
// all that follow. A value that follows one that is after must be so, too.
func (s Sorted[K]) Split(after func(K) bool) (low, high Sorted[K]) {
	split := func(s []K) (low, high []K) {
		i := sort.Search(len(s), func(i int) bool { return after(s[i]) })
		return s[:i], s[i:]
	}
	low.base, high.base = split(s.base)
	low.added, high.added = split(s.added)
	low.removed, high.removed = split(s.removed)
	return low, high
}

// apply returns the values without those to remove and with those to add, and
// the number of values that changed. A value to both add and remove is added.
func (s Sorted[K]) apply(add, remove Sorted[K]) (Sorted[K], int) {
	if s.Len() == 0 {
		return add, add.Len()
	}
	missing, present := s.without(add), s.among(remove)
	if len(present) > 0 {
		present = minus(present, add.Slice())
	}
	if len(missing)+len(present) == 0 {
		return s, 0
	}
	next := Sorted[K]{
		base:    s.base,
		added:   union(minus(s.added, present), minus(missing, s.removed)),
		removed: union(minus(s.removed, missing), minus(present, s.added)),
	}
	// Beyond this, copying the base once costs less than copying the changes
	// each time.
	if n := len(next.added) + len(next.removed); n*n > 256*len(s.base) {
		next = Sorted[K]{base: next.Slice()}
	}
	return next, len(missing) + len(present)
}

// Slice returns the values as a slice, which must not be changed.
func (s Sorted[K]) Slice() []K {
	if len(s.added)+len(s.removed) == 0 {
		return s.base
	}
	all := make([]K, 0, s.Len())
	for len(s.added)+len(s.removed) > 0 {
		adds := len(s.removed) == 0 || len(s.added) > 0 && s.added[0].Compare(s.removed[0]) < 0
		from := &s.removed
		if adds {
			from = &s.added
		}
		k := (*from)[0]
		*from = (*from)[1:]
		i, _ := slices.BinarySearchFunc(s.base, k, K.Compare)
		all = Append(all, s.base[:i])
		if adds {
			all = append(all, k)
		} else {
			i++
		}
		s.base = s.base[i:]
	}
	return Append(all, s.base)
}

// without returns those of the values that s does not have, and among those
// that it has.
func (s Sorted[K]) without(others Sorted[K]) []K { return s.filter(others, false) }
func (s Sorted[K]) among(others Sorted[K]) []K   { return s.filter(others, true) }

func (s Sorted[K]) filter(others Sorted[K], had bool) (kept []K) {
	const search = 16 // steps of a binary search, as long as a linear search of that many values
	walk, at := others.Len() > s.Len()/search, s
	next, more := at.next()
	for k := range others.All() {
		has := false
		if walk {
			for more && next.Compare(k) < 0 {
				next, more = at.next()
			}
			has = more && next == k
		} else {
			has = s.Has(k)
		}
		if has == had {
			kept = push(kept, k)
		}
	}
	return kept
}

// diff returns the values that s has and old has not, and the reverse.
func (s Sorted[K]) diff(old Sorted[K]) (added, removed Sorted[K]) {
	if len(s.base) > 0 && len(s.base) == len(old.base) && &s.base[0] == &old.base[0] {
		return Sorted[K]{base: union(minus(s.added, old.added), minus(old.removed, s.removed))},
			Sorted[K]{base: union(minus(s.removed, old.removed), minus(old.added, s.added))}
	}
	a, inNew := s.next()
	b, inOld := old.next()
	for inNew || inOld {
		order := 0
		switch {
		case !inOld:
			order = -1
		case !inNew:
			order = 1
		default:
			order = a.Compare(b)
		}
		if order < 0 {
			added.base = push(added.base, a)
		}
		if order > 0 {
			removed.base = push(removed.base, b)
		}
		if order <= 0 {
			a, inNew = s.next()
		}
		if order >= 0 {
			b, inOld = old.next()
		}
	}
	return added, removed
}

// union merges two disjoint sorted slices.
func union[K Ordered[K]](a, b []K) []K {
	all := make([]K, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if a[0].Compare(b[0]) < 0 {
			all, a = append(all, a[0]), a[1:]
		} else {
			all, b = append(all, b[0]), b[1:]
		}
	}
	return Append(Append(all, a), b)
}

// minus returns the values of a sorted slice that are not in another one.
func minus[K Ordered[K]](a, b []K) []K {
	if len(b) == 0 {
		return a
	}
	var rest []K
	for _, k := range a {
		for len(b) > 0 && b[0].Compare(k) < 0 {
			b = b[1:]
		}
		if len(b) == 0 || b[0] != k {
			rest = append(rest, k)
		}
	}
	return rest
}
