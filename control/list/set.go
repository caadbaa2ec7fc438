package list

import (
	"iter"
	"math/bits"
	"net/netip"
	"slices"

	"weir/filter/key"
)

// Set is the contents of a list: its distinct entries, sorted. A Set is
// immutable, so it is safe for concurrent use. A nil *Set is empty.
//
// An IPv4 entry takes 8 bytes, an IPv6 entry 24, a flow 56.
type Set struct {
	V4    Prefixes[V4Prefix]
	V6    Prefixes[V6Prefix]
	Flows Sorted[key.Key] // in tuple form
}

// Prefixes is a Set's addresses and prefixes of one family.
type Prefixes[P Prefix[P]] struct {
	// Plain is matched against the sides that the list's direction names, Src
	// and Dst against sources and destinations whatever the direction. A prefix
	// of no bits matches all packets on either side: it is in Src.
	Plain, Src, Dst Sorted[P]

	// Lengths includes the lengths of all prefixes, and may include others.
	Lengths Lengths
}

// Lengths is a set of prefix lengths, 0…128.
type Lengths [3]uint64

// Has reports whether a length is in the set.
func (l *Lengths) Has(bits int) bool { return l[bits>>6]>>(bits&63)&1 != 0 }

// Len returns the number of lengths.
func (l *Lengths) Len() int {
	return bits.OnesCount64(l[0]) + bits.OnesCount64(l[1]) + bits.OnesCount64(l[2])
}

// Add adds the lengths of another set.
func (l *Lengths) Add(m Lengths) {
	for i := range l {
		l[i] |= m[i]
	}
}

// Set returns the entries as a set. It takes ownership of e's slices.
func (e Entries) Set() *Set {
	s := &Set{}
	var src4, dst4 []V4Prefix
	var src6, dst6, plain6 []V6Prefix
	flows := e.Flows[:0]
	for _, k := range e.Flows {
		if k.Tuple() {
			flows = append(flows, k)
			continue
		}
		switch p, source := PrefixOf(k); {
		case source && p.Addr().Is4():
			src4 = append(src4, V4Of(p))
		case source:
			src6 = append(src6, V6Of(p))
		case p.Addr().Is4():
			dst4 = append(dst4, V4Of(p))
		default:
			dst6 = append(dst6, V6Of(p))
		}
	}
	if len(e.V6) > 0 {
		plain6 = make([]V6Prefix, len(e.V6))
		for i, p := range e.V6 {
			plain6[i] = V6Of(p)
		}
	}
	s.V4, s.V6 = newPrefixes(e.V4, src4, dst4), newPrefixes(plain6, src6, dst6)
	s.Flows = sorted(flows)
	return s
}

func newPrefixes[P Prefix[P]](plain, src, dst []P) (p Prefixes[P]) {
	p.Plain, p.Src, p.Dst = sorted(plain), sorted(src), sorted(dst)
	if all := p.Plain.base; len(all) > 0 && all[0].Bits() == 0 { // it sorts first
		p.Plain.base = all[1:]
		p.Src, _ = p.Src.apply(Sorted[P]{base: all[:1]}, Sorted[P]{})
	}
	for _, s := range []Sorted[P]{p.Plain, p.Src, p.Dst} {
		for k := range s.All() {
			bits := k.Bits()
			p.Lengths[bits>>6] |= 1 << (bits & 63)
		}
	}
	return p
}

// SetOf returns the set of the entries with exactly these keys.
func SetOf(keys ...key.Key) *Set { return Entries{Flows: slices.Clone(keys)}.Set() }

// Len returns the number of entries.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	return s.V4.Len() + s.V6.Len() + s.Flows.Len()
}

// Len returns the number of addresses and prefixes.
func (p *Prefixes[P]) Len() int { return p.Plain.Len() + p.Src.Len() + p.Dst.Len() }

// All iterates over the entries: addresses and prefixes first, in order by kind.
// One whose side is left to the list's direction is a source.
func (s *Set) All() iter.Seq[key.Key] {
	s = s.orEmpty()
	return func(yield func(key.Key) bool) {
		if !each(s.V4.Plain, true, yield) || !each(s.V6.Plain, true, yield) ||
			!each(s.V4.Src, true, yield) || !each(s.V4.Dst, false, yield) ||
			!each(s.V6.Src, true, yield) || !each(s.V6.Dst, false, yield) {
			return
		}
		s.Flows.All()(yield)
	}
}

func each[P Prefix[P]](prefixes Sorted[P], source bool, yield func(key.Key) bool) bool {
	for p := range prefixes.All() {
		if !yield(p.Key(source)) {
			return false
		}
	}
	return true
}

// ByShape iterates over the flows of each shape.
func ByShape(flows Sorted[key.Key]) iter.Seq2[key.Shape, Sorted[key.Key]] {
	return func(yield func(key.Shape, Sorted[key.Key]) bool) {
		for first, ok := flows.first(); ok; first, ok = flows.first() {
			var run Sorted[key.Key] // the order is by shape first
			run, flows = flows.Split(func(k key.Key) bool { return k.Shape.Compare(first.Shape) > 0 })
			if !yield(first.Shape, run) {
				return
			}
		}
	}
}

// Has reports whether the set has the entry of a key, including a plain address
// or prefix, whose side is left to the list's direction.
func (s *Set) Has(k key.Key) bool {
	if s == nil {
		return false
	}
	if k.Tuple() {
		return s.Flows.Has(k)
	}
	p, source := PrefixOf(k)
	if p.Addr().Is4() {
		return s.V4.has(V4Of(p), source)
	}
	return s.V6.has(V6Of(p), source)
}

func (p *Prefixes[P]) has(k P, source bool) bool {
	return p.Plain.Has(k) || source && p.Src.Has(k) || !source && p.Dst.Has(k)
}

// Has is like [Set.Has], for a few entries.
func (e Entries) Has(k key.Key) bool {
	if slices.Contains(e.Flows, k) {
		return true
	}
	if k.Tuple() {
		return false
	}
	p, _ := PrefixOf(k)
	if p.Addr().Is4() {
		return slices.Contains(e.V4, V4Of(p))
	}
	return slices.Contains(e.V6, p)
}

// Delta is a change of a list's contents. An entry that is both added and
// removed is added.
type Delta struct {
	Add, Remove *Set

	from, to *Set // the arguments of Diff; nil if made otherwise
}

// Len returns the number of entries that d adds and removes.
func (d Delta) Len() int { return d.Add.Len() + d.Remove.Len() }

// Diff returns the delta from old to s.
func (s *Set) Diff(old *Set) Delta {
	s, old = s.orEmpty(), old.orEmpty()
	d := Delta{Add: &Set{}, Remove: &Set{}, from: old, to: s}
	d.Add.V4, d.Remove.V4 = s.V4.diff(&old.V4)
	d.Add.V6, d.Remove.V6 = s.V6.diff(&old.V6)
	d.Add.Flows, d.Remove.Flows = s.Flows.diff(old.Flows)
	return d
}

func (p *Prefixes[P]) diff(old *Prefixes[P]) (add, remove Prefixes[P]) {
	add.Plain, remove.Plain = p.Plain.diff(old.Plain)
	add.Src, remove.Src = p.Src.diff(old.Src)
	add.Dst, remove.Dst = p.Dst.diff(old.Dst)
	add.Lengths, remove.Lengths = p.Lengths, old.Lengths
	return add, remove
}

// Apply returns the set with a delta applied, and the number of entries that
// changed. The delta may be that of another set.
func (s *Set) Apply(d Delta) (next *Set, changed int) {
	s = s.orEmpty()
	if s == d.from {
		return d.to, d.Len() // shares memory with the caller of Diff
	}
	add, remove := d.Add.orEmpty(), d.Remove.orEmpty()
	next = &Set{}
	var v4, v6 int
	next.V4, v4 = s.V4.apply(&add.V4, &remove.V4)
	next.V6, v6 = s.V6.apply(&add.V6, &remove.V6)
	next.Flows, changed = s.Flows.apply(add.Flows, remove.Flows)
	if changed += v4 + v6; changed == 0 {
		return s, 0
	}
	return next, changed
}

func (p *Prefixes[P]) apply(add, remove *Prefixes[P]) (next Prefixes[P], changed int) {
	next.Lengths = p.Lengths
	next.Lengths.Add(add.Lengths)
	for _, s := range []struct {
		to                *Sorted[P]
		from, add, remove Sorted[P]
	}{
		{&next.Plain, p.Plain, add.Plain, remove.Plain},
		{&next.Src, p.Src, add.Src, remove.Src},
		{&next.Dst, p.Dst, add.Dst, remove.Dst},
	} {
		var n int
		*s.to, n = s.from.apply(s.add, s.remove)
		changed += n
	}
	return next, changed
}

// Union returns the entries of all sets.
func Union(sets ...*Set) *Set {
	var all *Set
	for _, s := range sets {
		if all.Len() == 0 {
			all = s
		} else if s.Len() > 0 {
			all, _ = all.Apply(Delta{Add: s})
		}
	}
	return all.orEmpty()
}

var empty Set

// HasSources reports whether entries match sources whatever the list's direction, as
// "any 192.0.2.1:* > *:*" does.
func (s *Set) HasSources() bool {
	s = s.orEmpty()
	return hasSources(&s.V4) || hasSources(&s.V6)
}

// hasSources leaves out the prefix of no bits, which has no side.
func hasSources[P Prefix[P]](p *Prefixes[P]) bool {
	for k := range p.Src.All() {
		if k.Bits() > 0 {
			return true
		}
	}
	return false
}

func (s *Set) orEmpty() *Set {
	if s == nil {
		return &empty
	}
	return s
}

// Side returns what is matched against sources, or against destinations. directed
// says whether the list's direction covers that side.
func (p *Prefixes[P]) Side(source, directed bool) []Sorted[P] {
	var all []Sorted[P]
	if directed && p.Plain.Len() > 0 {
		all = append(all, p.Plain)
	}
	own := p.Dst
	if source {
		own = p.Src
	}
	if own.Len() > 0 {
		all = append(all, own)
	}
	return all
}

// IPv6 returns the addresses and prefixes of IPv6.
func (s *Set) IPv6() *Prefixes[V6Prefix] { return &s.orEmpty().V6 }

// Inside returns the addresses and prefixes of the set that other prefixes cover.
func (s *Set) Inside(prefixes ...netip.Prefix) *Set {
	s = s.orEmpty()
	var all []*Set
	for _, p := range prefixes {
		if p.Addr().Is4() {
			if in := s.V4.inside(V4Of(p)); in.Len() > 0 {
				all = append(all, &Set{V4: in})
			}
		} else if in := s.V6.inside(V6Of(p)); in.Len() > 0 {
			all = append(all, &Set{V6: in})
		}
	}
	return Union(all...)
}

func (p *Prefixes[P]) inside(outer P) Prefixes[P] {
	return Prefixes[P]{Plain: coveredBy(p.Plain, outer), Src: coveredBy(p.Src, outer), Dst: coveredBy(p.Dst, outer), Lengths: p.Lengths}
}

// coveredBy returns the prefixes that another one covers, which may be among them.
func coveredBy[P Prefix[P]](s Sorted[P], outer P) Sorted[P] {
	_, from := s.Split(func(k P) bool { return k.Compare(outer) >= 0 })
	in, _ := from.Split(func(k P) bool { return k.Bits() < outer.Bits() || k.Cut(outer.Bits()) != outer })
	return in
}
