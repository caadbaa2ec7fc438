package engine

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"runtime"
	"slices"

	"weir/control/list"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/prefix"
)

// compiled has the parts from which a set is made.
type compiled struct {
	layout   membership.Layout
	columns  []membership.Column
	prefixes []iter.Seq[membership.Prefix] // of an exact set
	listed   membership.ClassCounts        // of an approximate set
}

// countClasses counts the keys of an approximate set in each class of networks.
func (c *compiled) countClasses() {
	for _, col := range c.columns {
		c.layout.CountClasses(&c.listed, col)
	}
}

// planClasses gives classes of networks bits in an approximate set.
func (c *compiled) planClasses(found *membership.Sightings) {
	all := 0
	for _, col := range c.columns {
		all += len(col.Lists)
	}
	if found != nil {
		c.layout.PlanClasses(&c.listed, found, all)
		c.layout.Sightings = found
	}
}

// plan plans the levels of all entries.
func (x *index) plan() error {
	if err := x.block.plan(); err != nil {
		return fmt.Errorf("block lists: %w", err)
	}
	if err := x.allow.plan(); err != nil {
		return fmt.Errorf("allow lists: %w", err)
	}
	return nil
}

func (e *entries) plan() error {
	return errors.Join(e.src4.plan(), e.dst4.plan(), e.src6.plan(), e.dst6.plan(), e.flows.plan())
}

// compile plans the layout of the entries' set, and serialises their keys, at the
// levels that were planned. highest is the highest number of a list, near the size
// of the cache for which to plan.
func (e *entries) compile(mode membership.Mode, bitsPerKey float64, secret *hash.Secret, highest, near int) (compiled, error) {
	var c compiled
	census := membership.Census{Keys: make(map[key.Shape]int), Highest: uint16(highest), NearCache: near}
	if mode == membership.Exact {
		c.addPrefixes(&e.src4, &census)
		c.addPrefixes(&e.dst4, &census)
		c.columns = e.others(nil)
	} else {
		c.columns = e.columns()
	}
	census.Prefixes = c.prefixes
	if b := e.src4.book; b != nil {
		census.Highest = b.reserve()
	}
	src, dst := membership.NewMarks4(), membership.NewMarks4()
	for _, col := range c.columns {
		census.Keys[col.Shape] += len(col.Lists)
		col.Touch4(src, dst)
	}
	census.MarkedSrc24, census.MarkedDst24 = src.Count(), dst.Count()

	var err error
	c.layout, err = membership.PlanLayout(census, mode, bitsPerKey, secret)
	return c, err
}

// columns serialises all keys, at the levels that were planned.
func (e *entries) columns() (all []membership.Column) {
	e.src4.compile(&all)
	e.dst4.compile(&all)
	return e.others(all)
}

// others appends the keys that no set has in a table of prefixes.
func (e *entries) others(columns []membership.Column) []membership.Column {
	e.src6.compile(&columns)
	e.dst6.compile(&columns)
	return e.flows.compile(columns)
}

// plan plans the levels of one side of one family. A prefix counts once for each
// list that has it.
func (s *side[P]) plan() error {
	var h prefix.Histogram
	for _, c := range s.relation {
		for _, p := range c.keys.Slice() {
			h[p.Bits()]++
		}
	}
	var err error
	s.levels, err = planPrefixes(&h)
	return err
}

// addPrefixes adds one side of IPv4 to what an exact set is made from.
func (c *compiled) addPrefixes(s *side[list.V4Prefix], census *membership.Census) {
	all := s.merged(s.book)
	if len(all.keys) == 0 {
		return
	}
	var levels lengths
	for _, level := range s.levels {
		levels |= 1 << level
	}
	var counts [33]int
	others := 0
	for _, p := range all.keys {
		counts[p.Bits()]++
		if !levels.has(p) {
			others++
		}
	}
	c.add(len(all.keys), func(i int) (membership.Prefix, bool) {
		p := all.keys[i]
		return membership.Prefix{Addr: p.Addr(), List: all.first(i), Bits: uint8(p.Bits()), Dst: !s.source}, levels.has(p)
	})
	if others > 0 {
		expanded := expandPrefixes(s, &all, levels)
		for _, e := range expanded {
			counts[e.prefix().Bits()]++
		}
		c.add(len(expanded), func(i int) (membership.Prefix, bool) {
			p := expanded[i].prefix()
			return membership.Prefix{Addr: p.Addr(), List: expanded[i].list(), Bits: uint8(p.Bits()), Dst: !s.source}, true
		})
	}
	for _, level := range s.levels {
		census.Keys[list.V4(0, level).Key(s.source).Shape] += counts[level]
	}
}

// lengths is a set of lengths of IPv4 prefixes, a bit for each.
type lengths uint64

func (l lengths) has(p list.V4Prefix) bool { return l>>(p.Bits()&63)&1 != 0 }

// add adds those of n prefixes of which at reports true, divided among the CPUs.
func (c *compiled) add(n int, at func(i int) (membership.Prefix, bool)) {
	const least = 1 << 14 // worth a goroutine
	chunks := min(runtime.GOMAXPROCS(0), 1+n/least)
	for chunk := range chunks {
		c.prefixes = append(c.prefixes, func(yield func(membership.Prefix) bool) {
			for i := chunk * n / chunks; i < (chunk+1)*n/chunks; i++ {
				if p, ok := at(i); ok && !yield(p) {
					return
				}
			}
		})
	}
}

// expandedPrefix is a prefix at a level that stands for an entry of another length: the
// prefix, the entry's length and list, from the highest bits down.
type expandedPrefix uint64

func (e expandedPrefix) prefix() list.V4Prefix { return list.V4Prefix(e >> 24) }
func (e expandedPrefix) list() uint16          { return uint16(e) }

func (e expandedPrefix) with(list uint16) expandedPrefix { return e&^0xffff | expandedPrefix(list) }

// expandPrefixes returns the prefixes at levels that stand for entries of other lengths, each
// with the list of the most specific one, except those that are entries themselves.
func expandPrefixes(s *side[list.V4Prefix], all *run[list.V4Prefix], levels lengths) []expandedPrefix {
	var children []expandedPrefix
	for i, p := range all.keys {
		if levels.has(p) {
			continue
		}
		level, _ := s.levels.Of(p.Bits()) // the longest length is always a level
		entry := expandedPrefix(p.Bits())<<16 | expandedPrefix(all.first(i))
		for child := range p.Children(level) {
			children = append(children, expandedPrefix(child)<<24|entry)
		}
	}
	slices.Sort(children) // most are
	expanded, keys := children[:0], all.keys
	for i, e := range children {
		p := e.prefix()
		if i+1 < len(children) && children[i+1].prefix() == p {
			children[i+1] = children[i+1].with(s.book.combine(children[i+1].list(), e.list()))
			continue // for a more specific entry
		}
		for len(keys) > 0 && keys[0] < p {
			keys = keys[1:]
		}
		if len(keys) == 0 || keys[0] != p {
			expanded = append(expanded, e)
		} else if s.book != nil {
			all.combine(len(all.keys)-len(keys), e.list(), s.book)
		}
	}
	return expanded
}

// compile appends a column for each level of one side of one family.
func (s *side[P]) compile(columns *[]membership.Column) {
	all := s.merged(s.book)
	if len(all.keys) == 0 {
		return
	}
	var h prefix.Histogram
	for _, p := range all.keys {
		h[p.Bits()]++
	}
	first := all.keys[0].Prefix().Addr()
	for _, level := range s.levels {
		k := key.Source(netip.PrefixFrom(first, level))
		if !s.source {
			k = key.Destination(netip.PrefixFrom(first, level))
		}
		c := membership.Column{Shape: k.Shape}
		c.Keys = make([]byte, 0, h[level]*c.Shape.KeyLen())
		c.Lists = make([]uint16, 0, h[level])
		head := k.Append(nil)[:key.HeadLen]
		for e := range s.at(level, &all) {
			c.Keys = e.key.AppendAddr(append(c.Keys, head...))
			c.Lists = append(c.Lists, e.list)
		}
		*columns = append(*columns, c)
	}
}

// at returns the distinct prefixes at a level that stand for entries, each with
// its owner, as the side's owner method returns it.
func (s *side[P]) at(level int, all *run[P]) iter.Seq[entry[P]] {
	below := s.below(level)
	return func(yield func(entry[P]) bool) {
		var expanded []entry[P]
		for e := range all.all() {
			if bits := e.key.Bits(); below < bits && bits < level {
				for child := range e.key.Children(level) {
					expanded = append(expanded, entry[P]{child, e.list})
				}
			}
		}
		// A prefix is expanded before the longer ones that it covers, so that
		// the last of equal keys is the most specific.
		slices.SortStableFunc(expanded, func(a, b entry[P]) int { return a.key.Compare(b.key) })
		for e := range all.all() {
			if e.key.Bits() != level {
				continue
			}
			for len(expanded) > 0 && expanded[0].key.Compare(e.key) <= 0 {
				var c entry[P]
				if c, expanded = lastOfEqual(expanded, s.book); c.key == e.key {
					e.list = s.book.combine(e.list, c.list)
				} else if !yield(c) {
					return
				}
			}
			if !yield(e) {
				return
			}
		}
		for len(expanded) > 0 {
			var c entry[P]
			if c, expanded = lastOfEqual(expanded, s.book); !yield(c) {
				return
			}
		}
	}
}

// lastOfEqual returns the last of equal entries, with the number of all of them.
func lastOfEqual[P list.Prefix[P]](e []entry[P], b *book) (last entry[P], rest []entry[P]) {
	last = e[0]
	i := 1
	for ; i < len(e) && e[i].key == last.key; i++ {
		last.list = b.combine(e[i].list, last.list)
	}
	return last, e[i:]
}
