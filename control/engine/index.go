package engine

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"weir/control/list"
	"weir/filter/key"
	"weir/filter/prefix"
	"weir/filter/verdict"
)

// Direction says which side of a packet a list's addresses are matched against.
// Flows name their sides themselves.
type Direction uint8

const (
	Source Direction = iota
	Destination
	Both
	Out // the destinations of outgoing packets; the others are of incoming ones
)

func (d Direction) String() string { return [...]string{"src", "dst", "both", "out"}[d] }

// Sides returns which addresses of a packet the direction covers.
func (d Direction) Sides() (src, dst bool) { return d == Source || d == Both, d != Source }

// MarshalText returns the direction's name.
func (d Direction) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText sets the direction by its name.
func (d *Direction) UnmarshalText(text []byte) error {
	switch string(text) {
	case "src":
		*d = Source
	case "dst":
		*d = Destination
	case "both":
		*d = Both
	case "out":
		*d = Out
	default:
		return fmt.Errorf("unknown direction %q: want src, dst, both or out", text)
	}
	return nil
}

// List is a named list whose entries are blocked or allowed. The number of a
// list among others is its index plus one.
type List struct {
	Name      string
	Allow     bool // otherwise its entries are blocked
	Direction Direction
	Priority  int           // makes flows that it matches important, to stages that ask
	Rule      *verdict.Rule // for which packets it is; nil: for all
	Contents  *list.Set
}

// Equal reports whether two lists are the same, with the same set as their contents.
func (l List) Equal(o List) bool {
	return l.Name == o.Name && l.Allow == o.Allow && l.Direction == o.Direction && l.Priority == o.Priority &&
		l.Rule.Equal(o.Rule) && l.Contents == o.Contents
}

// Covers reports whether the list's direction covers sources, or destinations.
func (l List) Covers(source bool) bool {
	src, dst := l.Direction.Sides()
	return source && src || !source && dst
}

// Keys returns the keys of a prefix in the list. One of no bits matches all
// packets of its family, whichever the side: that is one key.
func (l List) Keys(p netip.Prefix) []key.Key {
	var keys []key.Key
	if l.Covers(true) || p.Bits() == 0 {
		keys = append(keys, key.Source(p))
	}
	if l.Covers(false) && p.Bits() > 0 {
		keys = append(keys, key.Destination(p))
	}
	return keys
}

// All iterates over the keys of the list's entries.
func (l List) All() iter.Seq[key.Key] {
	return func(yield func(key.Key) bool) {
		e := newIndex([]List{l}, l.Direction == Out).action(l.Allow)
		_ = e.src4.each(yield) && e.dst4.each(yield) && e.src6.each(yield) && e.dst6.each(yield) && e.eachFlow(yield)
	}
}

func (s *side[P]) each(yield func(key.Key) bool) bool {
	for _, k := range s.merged(s.book).keys {
		if !yield(k.Key(s.source)) {
			return false
		}
	}
	return true
}

func (e *entries) eachFlow(yield func(key.Key) bool) bool {
	for _, k := range e.flows.merged(e.flows.book).keys {
		if !yield(k) {
			return false
		}
	}
	return true
}

// index has the entries of all lists, by action, side and family. It is immutable, but for
// the levels that a build plans; those of a change share the lists' contents.
type index struct {
	lists        []List
	out          bool // of the lists of outgoing packets, otherwise of the others
	block, allow entries
	book         *book // nil: no list has a rule
}

// entries has the entries of the lists of one action.
type entries struct {
	src4, dst4 side[list.V4Prefix]
	src6, dst6 side[list.V6Prefix]
	flows      flows
}

// side has the entries that the lists of one action match against one side of the packets of
// one family.
type side[P list.Prefix[P]] struct {
	relation[P]
	book    *book
	source  bool          // otherwise the destination
	lengths list.Lengths  // of the prefixes, and maybe others
	levels  prefix.Levels // the lengths at which prefixes are stored in a set
}

// relation relates keys to the lists that have them.
type relation[K list.Ordered[K]] []contents[K]

// contents is some keys of a list.
type contents[K list.Ordered[K]] struct {
	list uint16
	keys list.Sorted[K]
}

// newIndex returns an index of one direction, without levels.
func newIndex(lists []List, out bool) *index { return newIndexOf(lists, out, newBook(lists)) }

func newIndexOf(lists []List, out bool, b *book) *index {
	x := &index{lists: lists, out: out, book: b}
	for _, e := range []*entries{&x.block, &x.allow} {
		e.src4.book, e.dst4.book, e.src6.book, e.dst6.book, e.flows.book = b, b, b, b, b
	}
	x.block.src4.source, x.block.src6.source = true, true
	x.allow.src4.source, x.allow.src6.source = true, true
	for i, l := range lists {
		if l.Contents.Len() == 0 || (l.Direction == Out) != out {
			continue
		}
		n, e := uint16(i+1), x.action(l.Allow)
		e.src4.add(n, &l.Contents.V4, l)
		e.dst4.add(n, &l.Contents.V4, l)
		e.src6.add(n, &l.Contents.V6, l)
		e.dst6.add(n, &l.Contents.V6, l)
		if l.Contents.Flows.Len() > 0 {
			e.flows.relation = append(e.flows.relation, contents[key.Key]{n, l.Contents.Flows})
		}
	}
	return x
}

func (s *side[P]) add(n uint16, p *list.Prefixes[P], l List) {
	for _, keys := range p.Side(s.source, l.Covers(s.source)) {
		s.relation = append(s.relation, contents[P]{n, keys})
		s.lengths.Add(p.Lengths)
	}
}

func (x *index) action(allow bool) *entries {
	if allow {
		return &x.allow
	}
	return &x.block
}

// with returns the index after changes, with the same levels.
func (x *index) with(lists []List) *index {
	next := newIndexOf(lists, x.out, x.book)
	for _, allow := range []bool{false, true} {
		e, from := next.action(allow), x.action(allow)
		e.src4.levels, e.dst4.levels = from.src4.levels, from.dst4.levels
		e.src6.levels, e.dst6.levels = from.src6.levels, from.dst6.levels
		e.flows.levels = from.flows.levels
	}
	return next
}

// lists returns the numbers of the lists that have a key, ascending.
func (r relation[K]) lists(k K) (lists []uint16) {
	for _, c := range r {
		if c.keys.Has(k) && (len(lists) == 0 || lists[len(lists)-1] != c.list) {
			lists = append(lists, c.list)
		}
	}
	return lists
}

// first returns the first list that has a key, or the number of those that do where they have
// rules; 0 if none has it.
func (r relation[K]) first(k K, b *book) (n uint16) {
	for _, c := range r {
		if c.keys.Has(k) {
			if n = b.combine(n, c.list); b == nil || b.settled(n) {
				return n
			}
		}
	}
	return n
}

// entry is a key and what first returns of it.
type entry[K any] struct {
	key  K
	list uint16
}

// run is distinct keys in ascending order, each with what first returns of it.
type run[K list.Ordered[K]] struct {
	keys  []K
	lists []uint16 // nil: all are of list
	list  uint16
}

func (r *run[K]) first(i int) uint16 {
	if r.lists == nil {
		return r.list
	}
	return r.lists[i]
}

// combine makes the i-th key belong to another number, too.
func (r *run[K]) combine(i int, n uint16, b *book) {
	if r.lists == nil {
		r.lists = slices.Repeat([]uint16{r.list}, len(r.keys))
	}
	r.lists[i] = b.combine(r.lists[i], n)
}

// all iterates over the entries in ascending order.
func (r *run[K]) all() iter.Seq[entry[K]] {
	return func(yield func(entry[K]) bool) {
		for i, k := range r.keys {
			if !yield(entry[K]{k, r.first(i)}) {
				return
			}
		}
	}
}

// merged returns all keys. Those of one list are not copied.
func (r relation[K]) merged(b *book) run[K] {
	runs := make([]run[K], len(r))
	for i, c := range r {
		runs[i] = run[K]{keys: c.keys.Slice(), list: c.list}
	}
	for len(runs) > 1 { // neighbours, so that the first list of a key stays the first
		half := runs[:0]
		for pair := range slices.Chunk(runs, 2) {
			if len(pair) == 2 {
				pair[0] = merge(pair[0], pair[1], b)
			}
			half = append(half, pair[0])
		}
		runs = half
	}
	if len(runs) == 0 {
		return run[K]{}
	}
	return runs[0]
}

// merge merges two runs. Of equal keys, that of a stays, unless it has a rule.
func merge[K list.Ordered[K]](a, b run[K], of *book) run[K] {
	n := len(a.keys) + len(b.keys)
	all := run[K]{keys: make([]K, 0, n), lists: make([]uint16, 0, n)}
	for i, j := 0, 0; i < len(a.keys) || j < len(b.keys); {
		order := 1
		switch {
		case j == len(b.keys):
			order = -1
		case i < len(a.keys):
			order = a.keys[i].Compare(b.keys[j])
		}
		if order <= 0 {
			n := a.first(i)
			if order == 0 {
				n = of.combine(n, b.first(j))
			}
			all.keys, all.lists = append(all.keys, a.keys[i]), append(all.lists, n)
			i++
		} else {
			all.keys, all.lists = append(all.keys, b.keys[j]), append(all.lists, b.first(j))
		}
		if order >= 0 {
			j++
		}
	}
	return all
}

// owner returns the list to which a prefix at a level is attributed: that of the
// longest prefix that stands for it at this level, then the lowest number. Where that has a
// rule, it is a number of all of them, or the first one without a rule. It is 0 for a prefix
// that is not listed.
func (s *side[P]) owner(k P) (n uint16) {
	for bits := k.Bits(); bits > s.below(k.Bits()); bits-- {
		if !s.lengths.Has(bits) {
			continue
		}
		n = s.book.combine(n, s.first(k.Cut(bits), s.book))
		if n != 0 && (s.book == nil || s.book.settled(n)) {
			return n
		}
	}
	return n
}

// below returns the next level below one, or −1.
func (s *side[P]) below(level int) int {
	i := slices.Index(s.levels, level)
	if i <= 0 {
		return -1
	}
	return s.levels[i-1]
}

// listed reports whether a key of the shapes in use stands for an entry.
func (e *entries) listed(k key.Key) bool {
	if k.Tuple() {
		return e.flows.owner(k) != 0
	}
	p, source := list.PrefixOf(k)
	switch {
	case p.Addr().Is4() && source:
		return e.src4.owner(list.V4Of(p)) != 0
	case p.Addr().Is4():
		return e.dst4.owner(list.V4Of(p)) != 0
	case source:
		return e.src6.owner(list.V6Of(p)) != 0
	}
	return e.dst6.owner(list.V6Of(p)) != 0
}
