package explain

import (
	"net/netip"

	"weir/control/engine"
	"weir/control/list"
	"weir/filter/key"
)

// maxNamed bounds the entries of one kind that an answer names.
const maxNamed = 20

// overlap is the entries of one action that match packets of a question.
type overlap struct {
	covering []engine.Found // match all the packets, the most specific of each side first

	// The rest matches some of them.

	inside  []engine.Found // prefixes within that of the question, the first maxNamed
	within  int            // all of these
	flows   []engine.Found // the first maxNamed
	flowing int            // all of these
	open    []open         // addresses of a side that the question leaves open
}

// open is a list with addresses of sources, or of destinations.
type open struct {
	list   uint16
	source bool
}

func (o *overlap) some() bool { return o.within+o.flowing+len(o.open) > 0 }

// overlap returns the entries of one action that match packets of a key.
func (g *side) overlap(k key.Key, allow bool) overlap {
	o := overlap{covering: g.Covering(k, allow)}
	src, dst := netip.PrefixFrom(k.Src, int(k.SrcBits)), netip.PrefixFrom(k.Dst, int(k.DstBits))
	for _, source := range []bool{true, false} {
		p := dst
		if source {
			p = src
		}
		for i := range g.lists {
			switch l := &g.lists[i]; {
			case l.Allow != allow || l.Contents.Len() == 0 || (l.Direction == engine.Out) != g.Policy.Out:
			case k.V6():
				addSide(&o, uint16(i+1), l, &l.Contents.V6, list.V6Of(p), source)
			default:
				addSide(&o, uint16(i+1), l, &l.Contents.V4, list.V4Of(p), source)
			}
		}
	}
	for i := range g.lists {
		if l := &g.lists[i]; l.Allow == allow && l.Contents.Len() > 0 && (l.Direction == engine.Out) == g.Policy.Out {
			o.addFlows(uint16(i+1), l.Contents.Flows, k)
		}
	}
	return o
}

// addSide adds what the prefixes of a list match on one side.
func addSide[P list.Prefix[P]](o *overlap, n uint16, l *engine.List, prefixes *list.Prefixes[P], p P, source bool) {
	sides := prefixes.Side(source, l.Covers(source))
	switch {
	case len(sides) == 0:
	case p.Bits() == 0:
		o.open = append(o.open, open{n, source})
	default:
		addInside(o, n, sides, p, source)
	}
}

// addInside adds the prefixes of a list that p covers, except for p. The list may have a prefix
// with its direction's sides and for this side.
func addInside[P list.Prefix[P]](o *overlap, n uint16, sides []list.Sorted[P], p P, source bool) {
	for i, keys := range sides {
		_, from := keys.Split(func(k P) bool { return k.Compare(p) > 0 })
		in, _ := from.Split(func(k P) bool { return k.Cut(p.Bits()) != p })
		if i == 0 {
			o.within += in.Len()
		}
		for k := range in.All() {
			if i == 0 && len(o.inside) >= maxNamed {
				break
			}
			if i > 0 {
				if sides[0].Has(k) {
					continue
				}
				o.within++
			}
			if len(o.inside) < maxNamed {
				o.inside = append(o.inside, engine.Found{List: n, Key: k.Key(source)})
			}
		}
	}
}

// addFlows adds the flows of a list that match some of the packets.
func (o *overlap) addFlows(n uint16, flows list.Sorted[key.Key], k key.Key) {
	for shape, of := range list.ByShape(flows) {
		if shape.Within(k.Shape) {
			continue // those match all the packets, or none
		}
		for f := range of.All() {
			if !f.Overlaps(k) {
				continue
			}
			if o.flowing++; len(o.flows) < maxNamed {
				o.flows = append(o.flows, engine.Found{List: n, Key: f})
			}
		}
	}
}
