package engine

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
)

// flows relates flows to the lists that have them. In a set, they are stored at
// fewer shapes than they have where those would be too many: a flow from a /23 as
// two from a /24.
type flows struct {
	relation[key.Key]
	book   *book
	levels *flowLevels
}

// flowLevels says at which shape flows of another one are stored.
type flowLevels struct {
	stored map[key.Shape]key.Shape   // by the shape of the entry
	of     map[key.Shape][]key.Shape // by the stored shape, the most specific first
}

// Limits to the growth of flows whose shapes are merged. Finding the cheapest pairs
// among too many shapes takes long.
const (
	maxFlowGrowth  = 1 << 15 // or half of them
	maxFlowsShapes = 8 * membership.MaxShapes
)

// plan plans the levels. It fails where the flows have more shapes than a set can
// have, and would become too many at fewer.
func (f *flows) plan() error {
	stored, err := planFlows(f.shapes())
	if err != nil {
		return err
	}
	f.levels = newFlowLevels(stored)
	return nil
}

// planFlows returns at which shape flows of each shape are stored, given their number by
// shape. It fails as plan does.
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

func newFlowLevels(stored map[key.Shape]key.Shape) *flowLevels {
	l := &flowLevels{stored, make(map[key.Shape][]key.Shape)}
	for s, at := range stored {
		l.of[at] = append(l.of[at], s)
	}
	for _, of := range l.of {
		slices.SortFunc(of, func(a, b key.Shape) int {
			return cmp.Or(cmp.Compare(int(b.SrcBits)+int(b.DstBits), int(a.SrcBits)+int(a.DstBits)), cmp.Compare(b.SrcBits, a.SrcBits))
		})
	}
	return l
}

// shapes counts the flows of each shape. A flow counts once for each list that has
// it.
func (f *flows) shapes() map[key.Shape]int {
	counts := make(map[key.Shape]int)
	for _, c := range f.relation {
		countShapes(counts, c.keys)
	}
	return counts
}

func countShapes(counts map[key.Shape]int, keys list.Sorted[key.Key]) {
	for rest := keys.Slice(); len(rest) > 0; { // the order of keys is by shape first
		n := ofShape(rest)
		counts[rest[0].Shape] += n
		rest = rest[n:]
	}
}

// ofShape returns how many keys have the shape of the first.
func ofShape(keys []key.Key) int {
	return sort.Search(len(keys), func(i int) bool { return keys[i].Shape != keys[0].Shape })
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

func rarestFirst(counts map[key.Shape]int) []key.Shape {
	return slices.SortedFunc(maps.Keys(counts), func(a, b key.Shape) int {
		return cmp.Or(counts[a]-counts[b], a.Compare(b))
	})
}

// children returns the keys at a stored shape that stand for a flow.
func children(k key.Key, stored key.Shape) iter.Seq[key.Key] {
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

// cut returns the key of a less specific shape that covers k.
func cut(k key.Key, s key.Shape) key.Key {
	k, _ = s.Of(key.Tuple{Src: k.Src, Dst: k.Dst, Proto: k.Proto, HasPorts: true, SrcPort: k.SrcPort, DstPort: k.DstPort})
	return k
}

// owner returns the list to which a key at a stored shape is attributed: that of the
// most specific flow that stands for it, then the lowest number; with rules, see the method
// of side. It is 0 for a key that is not listed.
func (f *flows) owner(k key.Key) (n uint16) {
	for _, s := range f.levels.of[k.Shape] {
		n = f.book.combine(n, f.first(cut(k, s), f.book))
		if n != 0 && (f.book == nil || f.book.settled(n)) {
			return n
		}
	}
	return n
}

// compile appends a column for each stored shape.
func (f *flows) compile(columns []membership.Column) []membership.Column {
	all := f.merged(f.book)
	runs := make(map[key.Shape]run[key.Key]) // the order of keys is by shape first
	for from := 0; from < len(all.keys); {
		s := all.keys[from].Shape
		to := from + ofShape(all.keys[from:])
		r := run[key.Key]{keys: all.keys[from:to], list: all.list}
		if all.lists != nil {
			r.lists = all.lists[from:to]
		}
		runs[s], from = r, to
	}
	for _, stored := range slices.SortedFunc(maps.Keys(f.levels.of), key.Shape.Compare) {
		of := f.levels.of[stored]
		c := membership.Column{Shape: stored}
		for e := range atShape(stored, of, runs, f.book) {
			c.Keys = e.key.Append(c.Keys)
			c.Lists = append(c.Lists, e.list)
		}
		columns = append(columns, c)
	}
	return columns
}

// atShape returns the distinct keys at a stored shape that stand for flows, each
// with its owner.
func atShape(stored key.Shape, of []key.Shape, runs map[key.Shape]run[key.Key], b *book) iter.Seq[entry[key.Key]] {
	if len(of) == 1 && of[0] == stored {
		r := runs[stored]
		return r.all()
	}
	return func(yield func(entry[key.Key]) bool) {
		var all []entry[key.Key]
		for _, s := range of {
			r := runs[s]
			for e := range r.all() {
				for c := range children(e.key, stored) {
					all = append(all, entry[key.Key]{c, e.list})
				}
			}
		}
		// The first of equal keys is the most specific flow's.
		slices.SortStableFunc(all, func(a, b entry[key.Key]) int { return a.key.Compare(b.key) })
		for len(all) > 0 {
			e, n := all[0], 1
			for ; n < len(all) && all[n].key == e.key; n++ {
				e.list = b.combine(e.list, all[n].list)
			}
			if !yield(e) {
				return
			}
			all = all[n:]
		}
	}
}

// addFlowEdits appends what becomes of the keys that touched flows stand for.
func addFlowEdits(edits *[]edit, set *membership.Set, old, next, touched *flows) error {
	var keys []key.Key
	for _, k := range touched.merged(touched.book).keys {
		stored, ok := old.levels.stored[k.Shape]
		if !ok || expansion(k.Shape, stored) > maxExpansion {
			if slices.Equal(old.lists(k), next.lists(k)) {
				continue // it was not there to be removed
			}
			return membership.ErrNoRoom
		}
		keys = slices.AppendSeq(keys, children(k, stored))
		if len(keys) > maxEdits {
			return membership.ErrNoRoom
		}
	}
	slices.SortFunc(keys, key.Key.Compare)
	for _, k := range slices.Compact(keys) { // flows may overlap
		if before, after := old.owner(k), next.owner(k); before != after {
			*edits = append(*edits, edit{set: set, key: k, before: before, after: after})
		}
	}
	return nil
}

// Shapes returns the number of combinations of fields and prefix lengths of entries.
func Shapes(s *list.Set) int {
	if s.Len() == 0 {
		return 0
	}
	counts := make(map[key.Shape]int)
	countShapes(counts, s.Flows)
	return len(counts) + s.V4.Lengths.Len() + s.V6.Lengths.Len()
}
