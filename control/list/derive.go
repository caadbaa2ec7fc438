package list

import (
	"iter"
	"math"
	"net/netip"
	"slices"

	"weir/filter/key"
)

// Derivation says which prefixes a list has because of its single addresses.
type Derivation struct {
	// A prefix of this length is derived if At addresses or more are in it. 0: none of the
	// family.
	V4, V6, At int

	// Each IPv6 address that is widened derives the prefix of this length, which is above V6, and
	// those in the same one count once for a prefix of length V6. 0: none.
	Prefix6 int

	Src, Dst bool // the sides that an address without one matches
}

// On reports whether there may be any.
func (d Derivation) On() bool { return d.V4 > 0 || d.V6 > 0 || d.Prefix6 > 0 }

// Members are the sets whose addresses derive prefixes: all of a list, and those whose IPv6
// addresses are widened.
type Members struct{ All, Widened []*Set }

// count derives the prefixes of one length.
type count struct {
	Derivation
	bits    int // the length
	full    int // that of an address
	unit    int // addresses that are the same to this length are one member
	least   int // members
	widens  bool
	members []*Set
}

// counts returns the counts of a family.
func (d Derivation) counts(m Members, v6 bool) (all []count) {
	if !v6 {
		if d.V4 > 0 {
			all = append(all, count{d, d.V4, 32, 32, d.At, false, m.All})
		}
		return all
	}
	unit := 128
	if d.Prefix6 > 0 {
		unit = d.Prefix6
		all = append(all, count{d, d.Prefix6, 128, 128, 1, true, m.Widened})
	}
	if d.V6 > 0 {
		all = append(all, count{d, d.V6, 128, unit, d.At, false, m.All})
	}
	return all
}

func v4Of(s *Set) *Prefixes[V4Prefix] { return &s.orEmpty().V4 }
func v6Of(s *Set) *Prefixes[V6Prefix] { return &s.orEmpty().V6 }

// Prefixes returns the derived prefixes, in one pass over the members for each length.
func (d Derivation) Prefixes(m Members) *Set {
	return &Set{V4: derive(d.counts(m, false), v4Of), V6: derive(d.counts(m, true), v6Of)}
}

func derive[P Prefix[P]](all []count, of func(*Set) *Prefixes[P]) Prefixes[P] {
	var derived [2][]P
	for _, c := range all {
		for i, source := range []bool{true, false} {
			members := sides(c, c.members, of, source)
			if len(members) == 0 {
				continue
			}
			n := 0
			var p, last P
			end := func() {
				if n >= c.least {
					derived[i] = append(derived[i], p)
				}
			}
			for run := range runs(members) {
				for _, k := range run {
					if k.Bits() != c.full {
						continue
					}
					u := k
					if c.unit < c.full {
						u = k.Cut(c.unit)
					}
					if n > 0 && u == last {
						continue
					}
					last = u
					if q := k.Cut(c.bits); n == 0 || q != p {
						end()
						p, n = q, 0
					}
					n++
				}
			}
			end()
		}
	}
	return newPrefixes(nil, derived[0], derived[1])
}

// Change returns the derived prefixes after changes of members, given those before. It takes
// time for the entries that change, and not for all members.
func (d Derivation) Change(before *Set, now Members, changes ...*Set) *Set {
	before = before.orEmpty()
	v4, changed4 := rederive(&before.V4, d.counts(now, false), v4Of, changes)
	v6, changed6 := rederive(&before.V6, d.counts(now, true), v6Of, changes)
	if changed4+changed6 == 0 {
		return before
	}
	return &Set{V4: v4, V6: v6}
}

func rederive[P Prefix[P]](before *Prefixes[P], all []count, of func(*Set) *Prefixes[P], changes []*Set) (Prefixes[P], int) {
	var add, remove [2][]P
	for _, c := range all {
		for i, source := range []bool{true, false} {
			touched := make(map[P]bool)
			for _, s := range sides(c, changes, of, source) {
				for k := range s.All() {
					if k.Bits() == c.full {
						touched[k.Cut(c.bits)] = true
					}
				}
			}
			for p := range touched {
				if n, _ := within(c, of, source, p, c.least, 0); n >= c.least {
					add[i] = append(add[i], p)
				} else {
					remove[i] = append(remove[i], p)
				}
			}
		}
	}
	plus, minus := newPrefixes(nil, add[0], add[1]), newPrefixes(nil, remove[0], remove[1])
	return before.apply(&plus, &minus)
}

// Of returns for how many members a derived prefix stands, counted to a limit, the first of
// their addresses, and whether they are widened to it.
func (d Derivation) Of(m Members, k key.Key, most, named int) (n int, first []netip.Addr, widened bool) {
	p, source := PrefixOf(k)
	for _, c := range d.counts(m, p.Addr().Is6()) {
		if c.bits != p.Bits() {
			continue
		}
		if p.Addr().Is4() {
			n, first = within(c, v4Of, source, V4Of(p), most, named)
		} else {
			n, first = within(c, v6Of, source, V6Of(p), most, named)
		}
		return n, first, c.widens
	}
	return 0, nil, false
}

// within counts the members in a prefix, to a limit, and returns the first of their addresses.
func within[P Prefix[P]](c count, of func(*Set) *Prefixes[P], source bool, p P, most, named int) (n int, first []netip.Addr) {
	var inside []Sorted[P]
	for _, s := range sides(c, c.members, of, source) {
		if in := coveredBy(s, p); in.Len() > 0 {
			inside = append(inside, in)
		}
	}
	var last P
	for run := range runs(inside) {
		for _, k := range run {
			if n >= most {
				return n, first
			}
			if u := k.Cut(min(c.unit, k.Bits())); k.Bits() == c.full && (n == 0 || u != last) {
				n, last = n+1, u
				if len(first) < named {
					first = append(first, k.Prefix().Addr())
				}
			}
		}
	}
	return n, first
}

// sides returns the entries of some sets that match a side.
func sides[P Prefix[P]](c count, sets []*Set, of func(*Set) *Prefixes[P], source bool) (all []Sorted[P]) {
	directed := c.Dst
	if source {
		directed = c.Src
	}
	for _, s := range sets {
		all = append(all, of(s).Side(source, directed)...)
	}
	return all
}

// runs iterates over the values of all sets in ascending order, in runs. What several sets have
// comes as often.
func runs[K Ordered[K]](all []Sorted[K]) iter.Seq[[]K] {
	type part struct{ keys, removed []K }
	return func(yield func([]K) bool) {
		var parts []part
		for _, s := range all {
			parts = append(parts, part{s.base, s.removed}, part{s.added, nil})
		}
		for {
			parts = slices.DeleteFunc(parts, func(p part) bool { return len(p.keys) == 0 })
			if len(parts) == 0 {
				return
			}
			least := 0
			for i := range parts {
				if parts[i].keys[0].Compare(parts[least].keys[0]) < 0 {
					least = i
				}
			}
			p := &parts[least]
			n := len(p.keys)
			for i := range parts {
				if i != least && parts[i].keys[0].Compare(p.keys[n-1]) <= 0 {
					n, _ = slices.BinarySearchFunc(p.keys[:n], parts[i].keys[0], K.Compare)
					n = max(n, 1) // where several have the key
				}
			}
			skip := 0
			if len(p.removed) > 0 {
				if at, found := slices.BinarySearchFunc(p.keys[:n], p.removed[0], K.Compare); found {
					n, skip, p.removed = at, 1, p.removed[1:]
				}
			}
			if n > 0 && !yield(p.keys[:n]) {
				return
			}
			p.keys = p.keys[n+skip:]
		}
	}
}

// Around returns the entries of a derived set that cover a prefix.
func (d Derivation) Around(s *Set, p netip.Prefix) (all []key.Key) {
	for _, c := range d.counts(Members{}, p.Addr().Is6()) {
		if c.bits > p.Bits() {
			continue
		}
		outer := netip.PrefixFrom(p.Addr(), c.bits).Masked()
		for _, k := range []key.Key{key.Source(outer), key.Destination(outer)} {
			if s.Has(k) {
				all = append(all, k)
			}
		}
	}
	return all
}

// Share returns a bound of the share that derived prefixes cover of IPv4, or of the IPv6
// addresses that are allocated, whichever is more.
func (d Derivation) Share(s *Set) (most float64) {
	s = s.orEmpty()
	for _, c := range d.counts(Members{}, false) {
		most = math.Ldexp(float64(max(s.V4.Src.Len(), s.V4.Dst.Len())), -c.bits)
	}
	for _, c := range d.counts(Members{}, true) { // as if all were the shortest
		most = max(most, math.Ldexp(float64(max(s.V6.Src.Len(), s.V6.Dst.Len())), allocated.Bits()-c.bits))
	}
	return most
}
