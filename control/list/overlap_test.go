package list

import (
	"slices"
	"testing"

	"weir/tests/seed"
)

// Overlaps are those that a comparison of each two entries finds.
func TestOverlaps(t *testing.T) {
	r := random{seed.New(t)}
	sum := 0
	for range 40 {
		all := make([]Matched, 2+r.IntN(4))
		for i := range all {
			var e, more, less Entries
			for range r.IntN(60) {
				m := r.member()
				m.entries([]*Entries{&e, &e, &more}[r.IntN(3)])
				if r.IntN(8) == 0 {
					m.entries(&less)
				}
			}
			s, _ := e.Set().Apply(Delta{Add: more.Set(), Remove: less.Set()})
			all[i] = Matched{s, r.IntN(2) == 0, r.IntN(4) > 0}
		}
		got := Overlaps(all)
		for i, a := range all {
			for j, b := range all {
				want := 0
				if i != j && a.Source == b.Source {
					want = covered(&a.V4, &b.V4, a, b) + covered(&a.V6, &b.V6, a, b)
				}
				if got[i][j] != want {
					t.Fatalf("%d entries of list %d are covered by list %d, want %d", got[i][j], i, j, want)
				}
				sum += want
			}
		}
	}
	if sum < 100 {
		t.Errorf("%d overlaps: the test is too narrow", sum)
	}
}

func covered[P Prefix[P]](a, b *Prefixes[P], of, by Matched) (n int) {
	entries := func(p *Prefixes[P], m Matched) (all []P) {
		for _, s := range p.Side(m.Source, m.Directed) {
			all = append(all, s.Slice()...)
		}
		slices.SortFunc(all, P.Compare)
		return slices.Compact(all)
	}
	others := entries(b, by)
	for _, k := range entries(a, of) {
		if slices.ContainsFunc(others, func(o P) bool { return o.Bits() <= k.Bits() && k.Cut(o.Bits()) == o }) {
			n++
		}
	}
	return n
}
