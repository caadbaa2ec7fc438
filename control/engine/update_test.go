package engine

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/verdict"
)

// randomEntries draws from a small world, so that lists overlap.
func randomEntries(r *rand.Rand, n int) list.Entries {
	var e list.Entries
	for range n {
		e.V4 = append(e.V4, list.V4(uint32(192<<24|2<<8|r.IntN(64)<<2)&^3, 30), list.V4(uint32(10<<24|r.IntN(256)), 32))
		a := netip.MustParseAddr("2001:db8::").As16()
		a[15] = byte(r.IntN(100))
		e.V6 = append(e.V6, netip.PrefixFrom(netip.AddrFrom16(a), 128))
		k, _ := key.Shape{Fields: key.FieldDstPort | key.FieldProto, SrcBits: 32}.Of(key.Tuple{
			Src: netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(64))}), Dst: netip.IPv4Unspecified(), Proto: 6, HasPorts: true, DstPort: uint16(r.IntN(3)),
		})
		e.Flows = append(e.Flows, k)
	}
	return e
}

// Whether in place or by a new generation, a list that is updated to other contents
// has them, the others keep theirs, and verdicts are as in a generation that never had
// anything else.
func TestUpdate(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	lists := []List{{Name: "a", Direction: Both}, {Name: "b"}, {Name: "c", Allow: true}}
	for i := range lists {
		lists[i].Contents = randomEntries(r, 50).Set()
	}
	g, err := Reference(lists, Config{})
	if err != nil {
		t.Fatal(err)
	}
	inPlace := 0
	for range 100 {
		i := r.IntN(len(lists))
		next := randomEntries(r, 5)
		for p := range lists[i].Contents.V4.Plain.All() {
			if r.IntN(3) > 0 {
				next.V4 = append(next.V4, p)
			}
		}
		was := lists[i].Contents
		lists[i].Contents = next.Set()
		change := []Change{{uint16(i + 1), lists[i].Contents.Diff(was)}}
		if _, err = g.Apply(change); err == nil {
			inPlace++
		} else if g, err = Reference(lists, Config{}); err != nil {
			t.Fatal(err)
		}
		want, err := Reference(lists, Config{})
		if err != nil {
			t.Fatal(err)
		}
		for j, l := range g.Lists() {
			if l.Contents != lists[j].Contents {
				t.Fatalf("list %s keeps another set than it was given", l.Name)
			}
		}
		for range 200 {
			p := key.Tuple{
				Src: netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(256))}), Dst: netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(256))}),
				Proto: 6, HasPorts: true, DstPort: uint16(r.IntN(4)),
			}
			gotList, gotBlock := g.Block.Match(p)
			wantList, wantBlock := want.Block.Match(p)
			_, gotAllow := g.Allow.Match(p)
			_, wantAllow := want.Allow.Match(p)
			if gotBlock != wantBlock || gotAllow != wantAllow || gotList != wantList {
				t.Fatalf("%+v: list %d %t, allowed %t; want %d %t, %t", p, gotList, gotBlock, gotAllow, wantList, wantBlock, wantAllow)
			}
		}
	}
	if inPlace < 10 {
		t.Errorf("%d of 100 updates in place", inPlace)
	}
}

// A change that needs more combinations of lists with rules than there is room for leaves room for one
// that needs none.
func TestApplyCombination(t *testing.T) {
	const n = 8
	source := func(i int) key.Key {
		return key.Source(netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}), 32))
	}
	lists := make([]List, n)
	for i := range lists {
		lists[i] = List{Name: string(rune('a' + i)), Rule: &verdict.Rule{VLANs: []uint16{uint16(i)}}, Contents: list.SetOf(source(1 << n))}
	}
	g, err := Reference(lists, Config{})
	if err != nil {
		t.Fatal(err)
	}
	for which := 1; err == nil; which++ {
		var changes []Change
		for i := range n {
			if which>>i&1 != 0 {
				changes = append(changes, add(uint16(i+1), source(which)))
			}
		}
		if len(changes) == 0 {
			t.Fatal("there is room for all")
		}
		_, err = g.Apply(changes)
	}
	if !errors.Is(err, membership.ErrNoRoom) {
		t.Fatal(err)
	}
	if n, err := g.Apply([]Change{add(1, source(1<<n+1))}); n != 1 || err != nil {
		t.Errorf("%d entries change, %v", n, err)
	}
}

// In a universe of six prefixes that cover each other, on both sides, every
// change from one of the 2^6 contents to another has the outcome of a fresh build,
// at every address.
func TestApplyEveryChange(t *testing.T) {
	universe := []string{"10.0.0.0/30", "10.0.0.0/31", "10.0.0.2/31", "10.0.0.0/32", "10.0.0.1/32"}
	contents := func(bits int) *list.Set {
		var e list.Entries
		for i, p := range universe {
			if bits>>i&1 != 0 {
				e.V4 = append(e.V4, list.V4Of(netip.MustParsePrefix(p)))
			}
		}
		if bits>>len(universe)&1 != 0 { // the other list's, which covers all but one
			e.Flows = append(e.Flows, key.Destination(netip.MustParsePrefix("10.0.0.0/31")))
		}
		return e.Set()
	}
	const all = 1 << 6
	var sets [all]*list.Set
	var fresh [all]*Generation
	// A list that nothing changes keeps the levels apart, and the shapes in use.
	fixed := list.SetOf(
		key.Source(netip.MustParsePrefix("192.0.2.1/32")), key.Destination(netip.MustParsePrefix("192.0.2.1/32")),
		key.Source(netip.MustParsePrefix("192.0.0.0/16")), key.Destination(netip.MustParsePrefix("192.0.0.0/16")),
	)
	lists := func(n int) []List {
		return []List{{Name: "fixed", Contents: fixed}, {Name: "varies", Direction: Both, Contents: sets[n]}}
	}
	for n := range all {
		sets[n] = contents(n)
		var err error
		if fresh[n], err = Reference(lists(n), Config{}); err != nil {
			t.Fatal(err)
		}
	}
	match := func(g *Generation, src, dst int) [2]int {
		a := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }
		n, ok := g.Block.Match(key.Tuple{Src: a(src), Dst: a(dst), Proto: 1})
		if !ok {
			return [2]int{}
		}
		return [2]int{1, n}
	}
	g, err := Reference(lists(0), Config{})
	if err != nil {
		t.Fatal(err)
	}
	now := 0
	keys := g.Block.Len()
	for step := range all {
		for from := range all {
			next := from ^ step // with the loop around it, each pair is reached
			for _, to := range []int{from, next} {
				d := sets[to].Diff(sets[now])
				if step%2 == 0 { // as one that is not known to come from the contents
					d = list.Delta{Add: d.Add, Remove: d.Remove}
				}
				if _, err := g.Apply([]Change{{2, d}}); err != nil {
					t.Fatal(err)
				}
				now = to
			}
			for src := range 5 {
				for dst := range 5 {
					if got, want := match(g, src, dst), match(fresh[now], src, dst); got != want {
						t.Fatalf("%08b to %08b: from %d to %d: %v, want %v", from, next, src, dst, got, want)
					}
				}
			}
		}
	}
	if _, err := g.Apply([]Change{{2, sets[0].Diff(sets[now])}}); err != nil || g.Block.Len() != keys {
		t.Errorf("%d keys are left of %d, %v", g.Block.Len(), keys, err)
	}
}

// The keys of a list are those that its entries have in its direction.
func TestKeysOfList(t *testing.T) {
	e := list.Entries{
		V4: []list.V4Prefix{list.V4(0, 0), list.V4(10<<24, 8)}, V6: []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")},
		Flows: []key.Key{key.Destination(netip.MustParsePrefix("192.0.2.1/32"))},
	}
	flow, _ := key.Shape{SrcBits: 32, Fields: key.FieldProto}.Of(key.Tuple{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.1"), Proto: 6})
	e.Flows = append(e.Flows, flow)
	for d := Source; d <= Both; d++ {
		l := List{Direction: d}
		want := slices.Clone(e.Flows)
		for _, p := range e.V4 {
			want = append(want, l.Keys(p.Prefix())...)
		}
		want = append(want, l.Keys(e.V6[0])...)
		l.Contents = list.Entries{V4: slices.Clone(e.V4), V6: e.V6, Flows: slices.Clone(e.Flows)}.Set()
		got := slices.Collect(l.All())
		slices.SortFunc(got, key.Key.Compare)
		slices.SortFunc(want, key.Key.Compare)
		if !slices.Equal(got, want) {
			t.Errorf("%v: %v, want %v", d, got, want)
		}
	}
	if _, err := Reference(make([]List, membership.MaxList+1), Config{}); err == nil {
		t.Error("more lists than a slot of the table can name")
	}
}
