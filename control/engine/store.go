package engine

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"

	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
)

// Direction says which side of a packet a list's addresses are held against.
// Flows say it themselves.
type Direction uint8

const (
	Source Direction = iota
	Destination
	Both
)

func (d Direction) String() string { return [...]string{"src", "dst", "both"}[d] }

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
	default:
		return fmt.Errorf("unknown direction %q: want src, dst or both", text)
	}
	return nil
}

// List is a named list whose entries are blocked or allowed.
type List struct {
	Name      string
	Allow     bool // otherwise its entries are blocked
	Direction Direction
}

// sides says which sides of a packet a prefix of the list is held against. One
// of no bits matches every packet of its family, whichever the side: that is
// one key, which counts as a source.
func (l List) sides(bits int) (src, dst bool) {
	return l.Direction != Destination || bits == 0, l.Direction != Source && bits > 0
}

// Keys gives the keys that a prefix stands for in the list.
func (l List) Keys(p netip.Prefix) []key.Key {
	var keys []key.Key
	src, dst := l.sides(p.Bits())
	if src {
		keys = append(keys, key.Source(p))
	}
	if dst {
		keys = append(keys, key.Destination(p))
	}
	return keys
}

// Store holds the entries of all lists as they were given: what a generation
// is built from, and what says whether a key is still listed when one of its
// entries goes. It is not safe for concurrent use.
type Store struct {
	lists        []List
	block, allow entries
	plan         int // counts how often the levels of entries were planned
}

// entries is all that the lists of one action hold.
type entries struct {
	src4, dst4 prefixes[prefix4]
	src6, dst6 prefixes[prefix6]
	flows      listing[flow]
}

type flow struct{ key.Key }

func (f flow) compare(g flow) int {
	var a, b [key.MaxLen]byte
	return bytes.Compare(f.Append(a[:0]), g.Append(b[:0]))
}

// NewStore makes an empty store.
func NewStore() *Store {
	return &Store{block: *newEntries(), allow: *newEntries()}
}

func newEntries() *entries {
	e := &entries{}
	e.src4.source, e.src6.source = true, true
	return e
}

// Lists gives the lists; the number of a list is its index plus one.
func (s *Store) Lists() []List { return s.lists }

// Len is the number of entries in the lists of an action, as many times as
// lists have them.
func (s *Store) Len(allow bool) int {
	e := &s.block
	if allow {
		e = &s.allow
	}
	return len(e.src4.sorted) + len(e.dst4.sorted) + len(e.src6.sorted) + len(e.dst6.sorted) + len(e.flows.sorted)
}

// AddList adds a list with its entries and gives its number. The entries are in
// force with the next generation that is built.
func (s *Store) AddList(l List, e list.Entries) (uint16, error) {
	if len(s.lists) == membership.MaxList {
		return 0, fmt.Errorf("list %s: more than %d lists", l.Name, membership.MaxList)
	}
	s.lists = append(s.lists, l)
	n := uint16(len(s.lists))
	s.action(n).add(l, n, e)
	return n, nil
}

// add adds the entries of a list.
func (e *entries) add(l List, n uint16, from list.Entries) {
	addPrefixes(l, n, &e.src4, &e.dst4, from.V4, func(p list.V4Prefix) prefix4 { return prefix4{p} })
	addPrefixes(l, n, &e.src6, &e.dst6, from.V6, func(p netip.Prefix) prefix6 { return prefix6{p} })
	for _, k := range from.Flows {
		e.route(k, appender{n})
	}
}

// addPrefixes adds the prefixes of list n to the sides that it is held against.
func addPrefixes[P prefixType[P], Q any](l List, n uint16, src, dst *prefixes[P], from []Q, prefix func(Q) P) {
	if l.Direction != Destination {
		src.grow(len(from))
	}
	for _, q := range from {
		p := prefix(q)
		toSrc, toDst := l.sides(p.Bits())
		if toSrc {
			src.append(p, n)
		}
		if toDst {
			dst.append(p, n)
		}
	}
}

func (s *Store) action(list uint16) *entries {
	if s.lists[list-1].Allow {
		return &s.allow
	}
	return &s.block
}

// visitor is called with where a key belongs.
type visitor interface {
	prefix4(*prefixes[prefix4], prefix4)
	prefix6(*prefixes[prefix6], prefix6)
	flow(*listing[flow], flow)
}

// route finds where a key belongs: an address alone is a prefix of one side,
// all else is a flow.
func (e *entries) route(k key.Key, v visitor) {
	a, bits, side4, side6 := k.Src, k.SrcBits, &e.src4, &e.src6
	if k.DstBits > 0 {
		a, bits, side4, side6 = k.Dst, k.DstBits, &e.dst4, &e.dst6
	}
	switch p := netip.PrefixFrom(a, int(bits)); {
	case k.Tuple():
		v.flow(&e.flows, flow{k})
	case k.V6():
		v.prefix6(side6, prefix6{p})
	default:
		v.prefix4(side4, prefix4{list.V4(addr4(a), int(bits))})
	}
}

func addr4(a netip.Addr) uint32 {
	b := a.As4()
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

// appender adds a key to the bulk.
type appender struct{ list uint16 }

func (a appender) prefix4(s *prefixes[prefix4], p prefix4) { s.append(p, a.list) }
func (a appender) prefix6(s *prefixes[prefix6], p prefix6) { s.append(p, a.list) }
func (a appender) flow(s *listing[flow], f flow)           { s.append(f, a.list) }

// asker asks whether a key is listed.
type asker struct{ listed bool }

func (a *asker) prefix4(s *prefixes[prefix4], p prefix4) { a.listed = s.owner(p) != 0 }
func (a *asker) prefix6(s *prefixes[prefix6], p prefix6) { a.listed = s.owner(p) != 0 }
func (a *asker) flow(s *listing[flow], f flow)           { a.listed = len(s.lists(f)) > 0 }

// listed reports whether a key of the shapes in use stands for an entry.
func (e *entries) listed(k key.Key) bool {
	var a asker
	e.route(k, &a)
	return a.listed
}

// Found is an entry that a packet matches.
type Found struct {
	List uint16
	Key  key.Key
}

// Find gives the entries of all lists that a packet matches, as they were
// given: those of blocked lists first, the most specific of each side first.
func (g *Generation) Find(t key.Tuple) (found []Found) {
	for _, of := range []struct {
		*entries
		set *membership.Set
	}{{&g.store.block, g.Block}, {&g.store.allow, g.Allow}} {
		found = append(found, of.find(t)...)
		for _, s := range slices.Concat(of.set.V4Flow, of.set.V6Flow) {
			if k, ok := s.Of(t); ok {
				for _, n := range of.flows.lists(flow{k}) {
					found = append(found, Found{n, k})
				}
			}
		}
	}
	return found
}

// find gives the prefixes that a packet matches.
func (e *entries) find(t key.Tuple) (found []Found) {
	if t.Src.Is4() {
		found = findPrefixes(&e.src4, prefix4{list.V4(addr4(t.Src), 32)}, found)
		return findPrefixes(&e.dst4, prefix4{list.V4(addr4(t.Dst), 32)}, found)
	}
	found = findPrefixes(&e.src6, prefix6{netip.PrefixFrom(t.Src, 128)}, found)
	return findPrefixes(&e.dst6, prefix6{netip.PrefixFrom(t.Dst, 128)}, found)
}

func findPrefixes[P prefixType[P]](s *prefixes[P], address P, found []Found) []Found {
	for bits := address.Bits(); bits >= 0; bits-- {
		p := address.cut(bits)
		for _, n := range s.lists(p) {
			found = append(found, Found{n, s.key(p.prefix())})
		}
	}
	return found
}

// Has reports whether a list has an entry as it was given.
func (s *Store) Has(n uint16, k key.Key) bool {
	h := has{list: n}
	s.action(n).route(k, &h)
	return h.has
}

// has asks whether a list has a key.
type has struct {
	list uint16
	has  bool
}

func (h *has) prefix4(s *prefixes[prefix4], p prefix4) { h.has = slices.Contains(s.lists(p), h.list) }
func (h *has) prefix6(s *prefixes[prefix6], p prefix6) { h.has = slices.Contains(s.lists(p), h.list) }
func (h *has) flow(s *listing[flow], f flow)           { h.has = slices.Contains(s.lists(f), h.list) }
