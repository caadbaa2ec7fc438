package generation

import (
	"cmp"
	"net/netip"
	"slices"

	"weir/control/list"
	"weir/filter/key"
	"weir/filter/prefix"
)

// prefixType is what the two families' prefixes have in common. They are
// ordered by address, then length, so that a prefix stands before all that it
// covers.
type prefixType[P any] interface {
	ordered[P]
	Bits() int
	cut(bits int) P            // the covering prefix of that length
	children(bits int) iter[P] // the covered prefixes of that length, ascending
	prefix() netip.Prefix
}

type iter[P any] = func(yield func(P) bool)

type prefix4 struct{ list.V4Prefix }

func (p prefix4) compare(q prefix4) int { return cmp.Compare(p.V4Prefix, q.V4Prefix) }

func (p prefix4) cut(bits int) prefix4 {
	return prefix4{list.V4(uint32(uint64(p.Addr())&^(1<<(32-bits)-1)), bits)}
}

func (p prefix4) children(bits int) iter[prefix4] {
	return func(yield func(prefix4) bool) {
		for i := range uint64(1) << (bits - p.Bits()) {
			if !yield(prefix4{list.V4(p.Addr()+uint32(i<<(32-bits)), bits)}) {
				return
			}
		}
	}
}

func (p prefix4) prefix() netip.Prefix { return p.Prefix() }

type prefix6 struct{ netip.Prefix }

func (p prefix6) compare(q prefix6) int {
	if c := p.Addr().Compare(q.Addr()); c != 0 {
		return c
	}
	return cmp.Compare(p.Bits(), q.Bits())
}

func (p prefix6) cut(bits int) prefix6 {
	return prefix6{netip.PrefixFrom(p.Addr(), bits).Masked()}
}

func (p prefix6) children(bits int) iter[prefix6] {
	return func(yield func(prefix6) bool) {
		for i := range uint64(1) << (bits - p.Bits()) {
			a := p.Addr().As16()
			for b := bits - 1; i != 0; b, i = b-1, i>>1 { // i, shifted to end at that bit
				a[b/8] |= byte(i&1) << (7 - b%8)
			}
			if !yield(prefix6{netip.PrefixFrom(netip.AddrFrom16(a), bits)}) {
				return
			}
		}
	}
}

func (p prefix6) prefix() netip.Prefix { return p.Prefix }

// prefixes holds what all lists of one action say of one side of one family's
// packets, and at which levels it is stored.
type prefixes[P prefixType[P]] struct {
	listing[P]
	source bool // otherwise the destination
	levels prefix.Levels
}

// plan chooses the levels. Memory for probes: entries may grow by half, and by
// a few thousand in any case.
func (s *prefixes[P]) plan() {
	var h prefix.Histogram
	for e := range s.distinct {
		h[e.key.Bits()]++
	}
	n := h.Total()
	s.levels = prefix.Plan(&h, n+n/2+4096)
}

// owner gives the list to which a key at a level is attributed, by the longest
// prefix that stands for it, then the lowest list number; 0 if it is not listed.
func (s *prefixes[P]) owner(k P) uint16 {
	for bits := k.Bits(); bits > s.below(k.Bits()); bits-- {
		if lists := s.lists(k.cut(bits)); len(lists) > 0 {
			return lists[0]
		}
	}
	return 0
}

// below is the next level below one, or −1.
func (s *prefixes[P]) below(level int) int {
	i := slices.Index(s.levels, level)
	if i <= 0 {
		return -1
	}
	return s.levels[i-1]
}

// key is the key under which a prefix at a level is stored.
func (s *prefixes[P]) key(p P) key.Key {
	if s.source {
		return key.Source(p.prefix())
	}
	return key.Destination(p.prefix())
}

// at gives the distinct keys of a level, ascending, each with its owner.
func (s *prefixes[P]) at(level int) []entry[P] {
	below := s.below(level)
	var keys []entry[P]
	expanded := false
	for e := range s.distinct {
		switch bits := e.key.Bits(); {
		case bits > level || bits <= below: // of another level
		case bits == level:
			keys = append(keys, e)
		default:
			expanded = true
			for child := range e.key.children(level) {
				keys = append(keys, entry[P]{child, e.list})
			}
		}
	}
	if !expanded {
		return keys
	}
	// A prefix is expanded before the longer ones that it covers, so that the
	// last of equal keys is the most specific.
	slices.SortStableFunc(keys, func(a, b entry[P]) int { return a.key.compare(b.key) })
	distinct := keys[:0]
	for _, e := range keys {
		if n := len(distinct); n > 0 && distinct[n-1].key == e.key {
			distinct[n-1] = e
			continue
		}
		distinct = append(distinct, e)
	}
	return distinct
}
