package engine

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/prefix"
)

// compiled is what a set is made from.
type compiled struct {
	layout  membership.Layout
	columns []membership.Column
}

// compile plans the levels of the entries and the layout of their set, and
// serialises their keys.
func (e *entries) compile(mode membership.Mode, bitsPerKey float64, seed uint64) (compiled, error) {
	var c compiled
	err := errors.Join(
		e.src4.compile(&c.columns),
		e.dst4.compile(&c.columns),
		e.src6.compile(&c.columns),
		e.dst6.compile(&c.columns),
	)
	if err != nil {
		return c, err
	}
	c.columns = compileFlows(e.flows, c.columns)

	census := membership.Census{Keys: make(map[key.Shape]int)}
	src, dst := membership.NewMarks4(), membership.NewMarks4()
	for _, col := range c.columns {
		census.Keys[col.Shape] += len(col.Lists)
		col.Touch4(src, dst)
	}
	census.MarkedSrc24, census.MarkedDst24 = src.Count(), dst.Count()

	c.layout, err = membership.PlanLayout(census, mode, bitsPerKey, seed)
	return c, err
}

// maxLevels leaves room for both sides of a family in a set's shapes.
const maxLevels = membership.MaxShapes / 2

// maxGrowth bounds how many entries one prefix may become on average.
const maxGrowth = 16

// compile plans the levels of one side of one family, and appends a column for
// each.
func (s *side[P]) compile(columns *[]membership.Column) error {
	all := s.merged()
	if len(all.keys) == 0 {
		return nil
	}
	var h prefix.Histogram
	for _, p := range all.keys {
		h[p.Bits()]++
	}
	// Memory for probes: entries may grow by half, and by a few thousand in any
	// case; where the lengths are too many for that, by maxGrowth.
	n := h.Total()
	s.levels = prefix.Plan(&h, n+n/2+4096, maxLevels)
	if grown := s.levels.Expanded(&h); grown > maxGrowth*n+1<<20 {
		return fmt.Errorf("%d prefixes have too many different lengths: at %d lengths, as many as a set can have, they are %d",
			n, maxLevels, grown)
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
	return nil
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

func lastOfEqual[P list.Prefix[P]](e []entry[P]) (last entry[P], rest []entry[P]) {
	i := 0
	for i+1 < len(e) && e[i+1].key == e[0].key {
		i++
	}
	return e[i], e[i+1:]
}

func compileFlows(flows relation[key.Key], columns []membership.Column) []membership.Column {
	// The shape comes first in the order of keys, so each shape is one run.
	all := flows.merged()
	for e := range all.all() {
		if n := len(columns); n == 0 || columns[n-1].Shape != e.key.Shape {
			columns = append(columns, membership.Column{Shape: e.key.Shape})
		}
		c := &columns[len(columns)-1]
		c.Keys = e.key.Append(c.Keys)
		c.Lists = append(c.Lists, e.list)
	}
	return columns
}
