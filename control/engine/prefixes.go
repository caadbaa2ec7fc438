package engine

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
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
	appendAddr([]byte) []byte // in network order
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

func (p prefix4) appendAddr(b []byte) []byte { return binary.BigEndian.AppendUint32(b, p.Addr()) }

// radixSort orders entries by prefix, then list: ten million of them in the time
// that a comparison sort needs for two.
func radixSort(e []entry[prefix4]) {
	from, to := e, make([]entry[prefix4], len(e))
	for shift := 0; shift < 56; shift += 8 { // list, length, address
		digit := func(e entry[prefix4]) byte {
			return byte((uint64(e.key.V4Prefix)<<16 | uint64(e.list)) >> shift)
		}
		var next [256]int
		for _, e := range from {
			next[digit(e)]++
		}
		if next[digit(from[0])] == len(from) {
			continue // all the same
		}
		sum := 0
		for i, n := range next {
			next[i], sum = sum, sum+n
		}
		for _, e := range from {
			d := digit(e)
			to[next[d]] = e
			next[d]++
		}
		from, to = to, from
	}
	copy(e, from)
}

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

func (p prefix6) appendAddr(b []byte) []byte { return append(b, p.Addr().AsSlice()...) }

// prefixes holds what all lists of one action say of one side of one family's
// packets, and at which levels it is stored.
type prefixes[P prefixType[P]] struct {
	listing[P]
	source bool // otherwise the destination
	levels prefix.Levels
}

// maxLevels leaves room for both sides of a family in a set's shapes.
const maxLevels = membership.MaxShapes / 2

// plan chooses the levels. Memory for probes: entries may grow by half, and by
// a few thousand in any case; where the lengths are too many for that, by
// maxGrowth. It gives the number of entries of each length.
func (s *prefixes[P]) plan() (*prefix.Histogram, error) {
	var h prefix.Histogram
	for e := range s.distinct {
		h[e.key.Bits()]++
	}
	n := h.Total()
	s.levels = prefix.Plan(&h, n+n/2+4096, maxLevels)
	if grown := s.levels.Expanded(&h); grown > maxGrowth*n+1<<20 {
		return nil, fmt.Errorf("%d prefixes have too many different lengths: at %d lengths, as many as a set can have, they are %d",
			n, maxLevels, grown)
	}
	return &h, nil
}

// maxGrowth bounds how many entries one prefix may become on average.
const maxGrowth = 16

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
func (s *prefixes[P]) key(p netip.Prefix) key.Key {
	if s.source {
		return key.Source(p)
	}
	return key.Destination(p)
}

// at gives the distinct keys of a level, each with its owner.
func (s *prefixes[P]) at(level int) iter[entry[P]] {
	below := s.below(level)
	return func(yield func(entry[P]) bool) {
		var expanded []entry[P]
		for e := range s.distinct {
			if bits := e.key.Bits(); below < bits && bits < level {
				for child := range e.key.children(level) {
					expanded = append(expanded, entry[P]{child, e.list})
				}
			}
		}
		// A prefix is expanded before the longer ones that it covers, so that
		// the last of equal keys is the most specific.
		slices.SortStableFunc(expanded, func(a, b entry[P]) int { return a.key.compare(b.key) })
		for e := range s.distinct {
			if e.key.Bits() != level {
				continue
			}
			for len(expanded) > 0 && expanded[0].key.compare(e.key) <= 0 {
				var c entry[P]
				if c, expanded = lastOfEqual(expanded); c.key != e.key && !yield(c) {
					return
				}
			}
			if !yield(e) {
				return
			}
		}
		for len(expanded) > 0 {
			var c entry[P]
			if c, expanded = lastOfEqual(expanded); !yield(c) {
				return
			}
		}
	}
}

func lastOfEqual[P prefixType[P]](e []entry[P]) (last entry[P], rest []entry[P]) {
	i := 0
	for i+1 < len(e) && e[i+1].key == e[0].key {
		i++
	}
	return e[i], e[i+1:]
}
