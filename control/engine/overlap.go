package engine

import (
	"net/netip"
	"slices"

	"weir/control/list"
	"weir/filter/key"
	"weir/filter/verdict"
)

// maxNamed bounds the entries of one kind that an answer names.
const maxNamed = 20

// overlap is the entries of one action that match packets of a question.
type overlap struct {
	covering []Found // match all the packets, the most specific of each side first

	// The rest matches some of them.

	inside  []Found // prefixes within that of the question, the first maxNamed
	within  int     // all of these
	flows   []Found // the first maxNamed
	flowing int     // all of these
	open    []open  // addresses of a side that the question leaves open
}

// open is a list with addresses of sources, or of destinations.
type open struct {
	list   uint16
	source bool
}

func (o *overlap) some() bool { return o.within+o.flowing+len(o.open) > 0 }

func (e *entries) overlap(k key.Key) overlap {
	o := overlap{covering: e.covering(k)}
	src, dst := netip.PrefixFrom(k.Src, int(k.SrcBits)), netip.PrefixFrom(k.Dst, int(k.DstBits))
	if k.V6() {
		e.src6.overlap(&o, list.V6Of(src))
		e.dst6.overlap(&o, list.V6Of(dst))
	} else {
		e.src4.overlap(&o, list.V4Of(src))
		e.dst4.overlap(&o, list.V4Of(dst))
	}
	for _, c := range e.flows.relation {
		o.addFlows(c, k)
	}
	return o
}

func (s *side[P]) overlap(o *overlap, p P) {
	var last contents[P] // a list's entries of both sides come before those of one
	for _, c := range s.relation {
		switch {
		case p.Bits() > 0:
			addInside(o, c, last, p, s.source)
		case c.list != last.list:
			o.open = append(o.open, open{c.list, s.source})
		}
		last = c
	}
}

// addInside adds the prefixes of a list that p covers, except for p, and for those
// that were added before.
func addInside[P list.Prefix[P]](o *overlap, c, before contents[P], p P, source bool) {
	_, from := c.keys.Split(func(k P) bool { return k.Compare(p) > 0 })
	in, _ := from.Split(func(k P) bool { return k.Cut(p.Bits()) != p })
	if c.list != before.list {
		o.within += in.Len()
	}
	for k := range in.All() {
		if c.list == before.list {
			if before.keys.Has(k) {
				continue
			}
			o.within++
		} else if len(o.inside) >= maxNamed {
			break
		}
		if len(o.inside) < maxNamed {
			o.inside = append(o.inside, Found{c.list, k.Key(source)})
		}
	}
}

// addFlows adds the flows of a list that match some of the packets.
func (o *overlap) addFlows(c contents[key.Key], k key.Key) {
	for rest := c.keys; rest.Len() > 0; {
		shape := first(rest).Shape
		var run list.Sorted[key.Key] // the order is by shape first
		run, rest = rest.Split(func(f key.Key) bool { return compareShapes(f.Shape, shape) > 0 })
		if shape.Within(k.Shape) {
			continue // those match all the packets, or none
		}
		for f := range run.All() {
			if !f.Overlaps(k) {
				continue
			}
			if o.flowing++; len(o.flows) < maxNamed {
				o.flows = append(o.flows, Found{c.list, f})
			}
		}
	}
}

func first(keys list.Sorted[key.Key]) (k key.Key) {
	for k = range keys.All() {
		break
	}
	return k
}

// Finder finds entries of lists that match packets of one direction.
type Finder struct{ index *index }

// NewFinder returns a finder of lists' present entries, for outgoing packets or for
// incoming ones. It copies nothing.
func NewFinder(lists []List, out bool) Finder { return Finder{newIndex(lists, out)} }

// Covering returns the entries that all packets of a key match: those of block lists
// first.
func (f Finder) Covering(k key.Key) []Found {
	return append(f.index.block.covering(k), f.index.allow.covering(k)...)
}

// Deciding is Covering for a packet, without the entries of lists that are not for it, or on trial.
func (f Finder) Deciding(t key.Tuple, w verdict.Where) []Found {
	return slices.DeleteFunc(f.Covering(t.Key()), func(found Found) bool {
		r := f.index.lists[found.List-1].Rule
		return r != nil && (r.Trial || !r.Matches(t, w))
	})
}

// covering returns the entries that all packets of a key match.
func (e *entries) covering(k key.Key) (found []Found) {
	src, dst := netip.PrefixFrom(k.Src, int(k.SrcBits)), netip.PrefixFrom(k.Dst, int(k.DstBits))
	if k.V6() {
		found = e.dst6.covering(list.V6Of(dst), e.src6.covering(list.V6Of(src), nil))
	} else {
		found = e.dst4.covering(list.V4Of(dst), e.src4.covering(list.V4Of(src), nil))
	}
	for _, c := range e.flows.relation {
		for rest := c.keys; rest.Len() > 0; {
			shape := first(rest).Shape
			var run list.Sorted[key.Key]
			run, rest = rest.Split(func(f key.Key) bool { return compareShapes(f.Shape, shape) > 0 })
			if !shape.Within(k.Shape) {
				continue
			}
			one, _ := shape.Of(key.Tuple{Src: k.Src, Dst: k.Dst, Proto: k.Proto, HasPorts: true, SrcPort: k.SrcPort, DstPort: k.DstPort})
			if run.Has(one) {
				found = append(found, Found{c.list, one})
			}
		}
	}
	return found
}
