package engine

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
)

// Flows has the shapes at which flows of others are stored.
type Flows struct {
	Stored map[key.Shape]key.Shape   // by the shape of the entry
	Of     map[key.Shape][]key.Shape // by the stored shape, the most specific first
}

// Limits to the growth of flows whose shapes are merged. Finding the cheapest pairs
// among too many shapes takes long.
const (
	maxFlowGrowth  = 1 << 15 // or half of them
	maxFlowsShapes = 8 * membership.MaxShapes
)

// planFlows returns at which shape flows of each shape are stored, given their number by
// shape. It fails where there are more shapes than a set can have, and the flows would become
// too many at fewer.
func planFlows(counts map[key.Shape]int) (map[key.Shape]key.Shape, error) {
	stored := make(map[key.Shape]key.Shape)
	for _, v6 := range []bool{false, true} {
		of := maps.Clone(counts)
		maps.DeleteFunc(of, func(s key.Shape, _ int) bool { return s.V6() != v6 })
		merged, ok := plans.of(of)
		if !ok {
			return nil, tooManyShapes(of, v6)
		}
		maps.Copy(stored, merged)
	}
	return stored, nil
}

// NewFlows returns the levels of flows, given the stored shape of each.
func NewFlows(stored map[key.Shape]key.Shape) *Flows {
	l := &Flows{stored, make(map[key.Shape][]key.Shape)}
	for s, at := range stored {
		l.Of[at] = append(l.Of[at], s)
	}
	for _, of := range l.Of {
		slices.SortFunc(of, func(a, b key.Shape) int {
			return cmp.Or(cmp.Compare(int(b.SrcBits)+int(b.DstBits), int(a.SrcBits)+int(a.DstBits)), cmp.Compare(b.SrcBits, a.SrcBits))
		})
	}
	return l
}

// countShapes adds the numbers of flows by their shape.
func countShapes(counts map[key.Shape]int, flows list.Sorted[key.Key]) {
	for s, of := range list.ByShape(flows) {
		counts[s] += of.Len()
	}
}

// joint returns the least specific shape at which flows of both can be stored. Both
// have the same fields.
func joint(a, b key.Shape) key.Shape {
	a.SrcBits, a.DstBits = max(a.SrcBits, b.SrcBits), max(a.DstBits, b.DstBits)
	return a
}

// growth returns by how many n flows of a shape grow when they are stored at
// another, at most a number that is too many and can be added up.
func growth(n int, s, stored key.Shape) int {
	bits := expansion(s, stored)
	if bits > 30 || n > 1<<30>>bits {
		return 1 << 31
	}
	return n<<bits - n
}

// expansion returns, in bits, how many keys of a stored shape one of s becomes.
func expansion(s, stored key.Shape) int {
	return int(stored.SrcBits-s.SrcBits) + int(stored.DstBits-s.DstBits)
}

func tooManyShapes(counts map[key.Shape]int, v6 bool) error {
	family := "IPv4"
	if v6 {
		family = "IPv6"
	}
	var examples []string
	for _, s := range rarestFirst(counts)[:3] {
		examples = append(examples, fmt.Sprintf("%v (%d entries)", s, counts[s]))
	}
	return fmt.Errorf("%d combinations of fields and prefix lengths are in use by %s flows, the limit is %d, and too few can be merged; the rarest are %s",
		len(counts), family, membership.MaxShapes, strings.Join(examples, ", "))
}

// rarestFirst returns the shapes in ascending order of the number of their flows.
func rarestFirst(counts map[key.Shape]int) []key.Shape {
	return slices.SortedFunc(maps.Keys(counts), func(a, b key.Shape) int {
		return cmp.Or(counts[a]-counts[b], a.Compare(b))
	})
}

// Children returns the keys at a stored shape that stand for a flow.
func Children(k key.Key, stored key.Shape) iter.Seq[key.Key] {
	return func(yield func(key.Key) bool) {
		if k.Shape == stored {
			yield(k)
			return
		}
		for src := range addresses(k.Src, k.SrcBits, stored.SrcBits) {
			for dst := range addresses(k.Dst, k.DstBits, stored.DstBits) {
				c := k
				c.Shape, c.Src, c.Dst = stored, src, dst
				if !yield(c) {
					return
				}
			}
		}
	}
}

// addresses returns the first addresses of the prefixes of a length that a prefix
// covers.
func addresses(a netip.Addr, from, to uint8) iter.Seq[netip.Addr] {
	p := netip.PrefixFrom(a, int(from))
	return func(yield func(netip.Addr) bool) {
		if a.Is4() {
			for c := range list.V4Of(p).Children(int(to)) {
				if !yield(c.Prefix().Addr()) {
					return
				}
			}
			return
		}
		for c := range list.V6Of(p).Children(int(to)) {
			if !yield(c.Prefix().Addr()) {
				return
			}
		}
	}
}

// Cut returns the key of a less specific shape that covers k.
func Cut(k key.Key, s key.Shape) key.Key {
	k, _ = s.Of(key.Tuple{Src: k.Src, Dst: k.Dst, Proto: k.Proto, HasPorts: true, SrcPort: k.SrcPort, DstPort: k.DstPort})
	return k
}
