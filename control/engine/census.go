package engine

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"weir/control/list"
	"weir/filter/key"
	"weir/filter/prefix"
)

// Census counts the entries of lists by what decides whether a set can have them: prefixes
// by length, and flows by shape. It counts the contents of a list once, so that it is cheap
// to ask what fits with other contents of one list.
type Census struct {
	lists    []List
	prefixes []*prefixCounts // by list; nil: to be counted
	flows    []shapeCounts   // likewise

	// Of all lists of a kind; none: to be added up.
	allPrefixes map[kind]*prefixCounts
	allFlows    map[kind]shapeCounts
}

// kind is a direction and an action, whose lists share a set.
type kind struct{ out, allow bool }

func kindOf(l List) kind { return kind{l.Direction == Out, l.Allow} }

// prefixCounts are the numbers of prefixes by length, of one or more lists.
type prefixCounts struct{ src4, dst4, src6, dst6 prefix.Histogram }

// add adds the counts of a list, or subtracts them with sign -1.
func (c *prefixCounts) add(one *prefixCounts, sign int) {
	for bits := range c.src4 {
		c.src4[bits] += sign * one.src4[bits]
		c.dst4[bits] += sign * one.dst4[bits]
		c.src6[bits] += sign * one.src6[bits]
		c.dst6[bits] += sign * one.dst6[bits]
	}
}

// shapeCounts are the numbers of flows by shape, of one or more lists.
type shapeCounts map[key.Shape]int

// add adds the counts of a list, or subtracts them with sign -1.
func (c shapeCounts) add(one shapeCounts, sign int) {
	for s, n := range one {
		if c[s] += sign * n; c[s] == 0 {
			delete(c, s)
		}
	}
}

// NewCensus returns a census of lists. List number n is lists[n-1].
func NewCensus(lists []List) *Census {
	return &Census{
		lists: slices.Clone(lists), prefixes: make([]*prefixCounts, len(lists)), flows: make([]shapeCounts, len(lists)),
		allPrefixes: make(map[kind]*prefixCounts), allFlows: make(map[kind]shapeCounts),
	}
}

// Set replaces the contents of list number n.
func (c *Census) Set(n uint16, contents *list.Set) {
	if c.lists[n-1].Contents == contents {
		return
	}
	c.count(n, -1)
	c.lists[n-1].Contents, c.prefixes[n-1], c.flows[n-1] = contents, nil, nil
	c.count(n, 1)
}

// count adds list number n to what is added up of all lists, or subtracts it.
func (c *Census) count(n uint16, sign int) {
	of := kindOf(c.lists[n-1])
	if all := c.allPrefixes[of]; all != nil {
		all.add(c.prefixesOf(int(n-1)), sign)
	}
	if all := c.allFlows[of]; all != nil {
		all.add(c.flowsOf(int(n-1)), sign)
	}
}

// Contents returns the contents of list number n.
func (c *Census) Contents(n uint16) *list.Set { return c.lists[n-1].Contents }

func (c *Census) prefixesOf(i int) *prefixCounts {
	if c.prefixes[i] == nil {
		l, n := c.lists[i], &prefixCounts{}
		if c.prefixes[i] = n; l.Contents.Len() == 0 {
			return n
		}
		countLengths(&n.src4, l.Contents.V4.Side(true, l.Covers(true)))
		countLengths(&n.dst4, l.Contents.V4.Side(false, l.Covers(false)))
		countLengths(&n.src6, l.Contents.V6.Side(true, l.Covers(true)))
		countLengths(&n.dst6, l.Contents.V6.Side(false, l.Covers(false)))
	}
	return c.prefixes[i]
}

func (c *Census) flowsOf(i int) shapeCounts {
	if c.flows[i] == nil {
		c.flows[i] = make(shapeCounts)
		if contents := c.lists[i].Contents; contents.Len() > 0 {
			countShapes(c.flows[i], contents.Flows)
		}
	}
	return c.flows[i]
}

func countLengths[P list.Prefix[P]](h *prefix.Histogram, all []list.Sorted[P]) {
	for _, s := range all {
		for p := range s.All() {
			h[p.Bits()]++
		}
	}
}

// flowsOfAll counts the flows of all lists of a kind.
func (c *Census) flowsOfAll(of kind) shapeCounts {
	if c.allFlows[of] == nil {
		all := make(shapeCounts)
		for i, l := range c.lists {
			if kindOf(l) == of && l.Contents.Len() > 0 {
				all.add(c.flowsOf(i), 1)
			}
		}
		c.allFlows[of] = all
	}
	return c.allFlows[of]
}

// prefixesOfAll counts the prefixes of all lists of a kind.
func (c *Census) prefixesOfAll(of kind) *prefixCounts {
	if c.allPrefixes[of] == nil {
		all := &prefixCounts{}
		for i, l := range c.lists {
			if kindOf(l) == of && l.Contents.Len() > 0 {
				all.add(c.prefixesOf(i), 1)
			}
		}
		c.allPrefixes[of] = all
	}
	return c.allPrefixes[of]
}

// Fits returns why no set could have the contents of the lists, nil if one can. It takes
// little time and memory compared with a build.
func (c *Census) Fits() error {
	for _, out := range []bool{false, true} {
		if err := c.fits(kind{out, false}); err != nil {
			return fmt.Errorf("block lists: %w", err)
		}
		if err := c.fits(kind{out, true}); err != nil {
			return fmt.Errorf("allow lists: %w", err)
		}
	}
	return nil
}

func (c *Census) fits(of kind) error {
	var errs []error
	n := c.prefixesOfAll(of)
	for _, h := range []*prefix.Histogram{&n.src4, &n.dst4, &n.src6, &n.dst6} {
		_, err := planPrefixes(h)
		errs = append(errs, err)
	}
	_, err := planFlows(c.flowsOfAll(of))
	return errors.Join(append(errs, err)...)
}

// Fits returns why no set could have the contents of lists, nil if one can.
func Fits(lists []List) error { return NewCensus(lists).Fits() }

// Spare returns flows of list number n without which those of all lists of its kind fit
// into a set: those of its rarest shapes, none if they fit with them, and all if they do
// not without. It costs nothing for a list without flows.
func (c *Census) Spare(n uint16) []key.Key {
	l := c.lists[n-1]
	if l.Contents.Len() == 0 || l.Contents.Flows.Len() == 0 {
		return nil
	}
	own, all := c.flowsOf(int(n-1)), c.flowsOfAll(kindOf(l))
	rarest := rarestFirst(own)
	fits := func(most int) bool { // without so many shapes
		left := maps.Clone(all)
		for _, s := range rarest[:most] {
			if left[s] -= own[s]; left[s] == 0 {
				delete(left, s)
			}
		}
		_, err := planFlows(left)
		return err == nil
	}
	least, most := 0, len(rarest)
	if fits(0) {
		return nil
	}
	for least < most {
		if half := (least + most) / 2; fits(half) {
			most = half
		} else {
			least = half + 1
		}
	}
	var spare []key.Key
	for s, flows := range list.ByShape(l.Contents.Flows) {
		if slices.Contains(rarest[:least], s) {
			spare = slices.AppendSeq(spare, flows.All())
		}
	}
	return spare
}
