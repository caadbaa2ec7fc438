package list

import "slices"

// Matched are the entries of a list that are matched against one side of packets.
type Matched struct {
	*Set
	Source   bool // otherwise destinations
	Directed bool // entries without a side match it
}

// Overlaps returns how many addresses and prefixes of each list other lists have, too, or a prefix
// around them: of the i-th list, those that the j-th one covers are [i][j]. It is a pass over all
// of them.
func Overlaps(all []Matched) [][]int {
	n := make([][]int, len(all))
	for i := range n {
		n[i] = make([]int, len(all))
	}
	for _, source := range []bool{true, false} {
		overlaps(n, all, source, v4Of)
		overlaps(n, all, source, v6Of)
	}
	return n
}

// overlaps counts those of one side and family.
func overlaps[P Prefix[P]](n [][]int, all []Matched, source bool, of func(*Set) *Prefixes[P]) {
	type part struct {
		list          int
		keys, removed []P
	}
	var parts []part // that have keys left, the one with the least key first
	insert := func(p part) {
		for len(p.removed) > 0 && len(p.keys) > 0 && p.removed[0] == p.keys[0] {
			p.keys, p.removed = p.keys[1:], p.removed[1:]
		}
		if len(p.keys) == 0 {
			return
		}
		i, _ := slices.BinarySearchFunc(parts, p, func(a, b part) int { return a.keys[0].Compare(b.keys[0]) })
		parts = slices.Insert(parts, i, p)
	}
	for i, l := range all {
		if l.Source != source {
			continue
		}
		for _, s := range of(l.Set).Side(source, l.Directed) {
			insert(part{i, s.base, s.removed})
			insert(part{i, s.added, nil})
		}
	}
	type cover struct {
		list int
		p    P
	}
	var around []cover // the widest prefix of each list around the present key
	var here []int     // lists that have it
	for len(parts) > 0 {
		k := parts[0].keys[0]
		around = slices.DeleteFunc(around, func(c cover) bool { return k.Bits() < c.p.Bits() || k.Cut(c.p.Bits()) != c.p })
		here = here[:0]
		for len(parts) > 0 && parts[0].keys[0] == k {
			p := parts[0]
			parts = slices.Delete(parts, 0, 1)
			if !slices.Contains(here, p.list) {
				here = append(here, p.list)
			}
			p.keys = p.keys[1:]
			insert(p)
		}
		for _, i := range here {
			if !slices.ContainsFunc(around, func(c cover) bool { return c.list == i }) {
				around = append(around, cover{i, k})
			}
		}
		for _, i := range here {
			for _, c := range around {
				if c.list != i {
					n[i][c.list]++
				}
			}
		}
	}
}
