package engine

import (
	"errors"
	"net/netip"

	"weir/filter/key"
	"weir/filter/membership"
)

// compiled is what a set is made from.
type compiled struct {
	layout  membership.Layout
	columns []membership.Column
}

// compile sorts the entries, plans their levels and the set's layout, and
// gives its keys.
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
	c.columns = compileFlows(&e.flows, c.columns)

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

// compile appends a column for each level of one side of one family.
func (s *prefixes[P]) compile(columns *[]membership.Column) error {
	s.merge()
	s.sort()
	if len(s.sorted) == 0 {
		s.levels = nil
		return nil
	}
	count, err := s.plan()
	if err != nil {
		return err
	}
	first := s.sorted[0].key.prefix().Addr()
	for _, level := range s.levels {
		c := membership.Column{Shape: s.key(netip.PrefixFrom(first, level)).Shape}
		c.Keys = make([]byte, 0, count[level]*c.Shape.KeyLen())
		c.Lists = make([]uint16, 0, count[level])
		head := s.key(netip.PrefixFrom(first, level)).Append(nil)[:key.HeadLen]
		for e := range s.at(level) {
			c.Keys = e.key.appendAddr(append(c.Keys, head...))
			c.Lists = append(c.Lists, e.list)
		}
		*columns = append(*columns, c)
	}
	return nil
}

func compileFlows(flows *listing[flow], columns []membership.Column) []membership.Column {
	flows.merge()
	flows.sort()
	// The shape comes first in a serialised key, so each shape is one run.
	for e := range flows.distinct {
		if n := len(columns); n == 0 || columns[n-1].Shape != e.key.Shape {
			columns = append(columns, membership.Column{Shape: e.key.Shape})
		}
		c := &columns[len(columns)-1]
		c.Keys = e.key.Append(c.Keys)
		c.Lists = append(c.Lists, e.list)
	}
	return columns
}
