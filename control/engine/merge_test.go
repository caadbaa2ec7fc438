package engine

import (
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/verdict"
)

// naiveMerge is mergeShapes as it reads: it looks at all pairs before each merge.
func naiveMerge(counts map[key.Shape]int) (stored map[key.Shape]key.Shape, ok bool) {
	stored = make(map[key.Shape]key.Shape, len(counts))
	n, grown := 0, 0
	for s, c := range counts {
		stored[s] = s
		n += c
	}
	sizes := maps.Clone(counts)
	for len(sizes) > membership.MaxShapes {
		var a, b key.Shape
		least := math.MaxInt
		shapes := slices.SortedFunc(maps.Keys(sizes), key.Shape.Compare)
		for i, s := range shapes {
			for _, t := range shapes[i+1:] {
				if both := joint(s, t); s.Fields == t.Fields {
					if cost := growth(sizes[s], s, both) + growth(sizes[t], t, both); cost < least {
						a, b, least = s, t, cost
					}
				}
			}
		}
		if grown += least; least == math.MaxInt || grown > max(maxFlowGrowth, n/2) {
			return nil, false
		}
		both, size := joint(a, b), sizes[a]+sizes[b]+least
		delete(sizes, a)
		delete(sizes, b)
		sizes[both] += size
		for s, at := range stored {
			if at == a || at == b {
				stored[s] = both
			}
		}
	}
	return stored, true
}

// randomShapes returns n shapes with a number of flows each.
func randomShapes(rng *rand.Rand, n, fields, bits int) map[key.Shape]int {
	counts := make(map[key.Shape]int)
	for len(counts) < n {
		s := key.Shape{Fields: key.Fields(rng.IntN(fields)<<1) | key.FieldProto, SrcBits: uint8(rng.IntN(bits)), DstBits: uint8(rng.IntN(bits))}
		counts[s] = 1 + rng.IntN(1+rng.IntN(1000))
	}
	return counts
}

func TestMergeShapes(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	merged, known := 0, false
	for range 60 {
		counts := randomShapes(rng, 20+rng.IntN(60), 1+rng.IntN(7), 12+rng.IntN(21))
		want, wantOK := naiveMerge(counts)
		got, ok := mergeShapes(counts)
		if ok != wantOK || !maps.Equal(got, want) {
			t.Fatalf("%v: %t, want %t\n%v\nwant\n%v", counts, ok, wantOK, got, want)
		}
		for range 2 {
			made := plans.made
			if again, ok := plans.of(counts); ok != wantOK || !maps.Equal(again, want) {
				t.Fatalf("remembered: %v, %t", again, ok)
			}
			known = known || len(counts) > membership.MaxShapes && plans.made == made
		}
		if ok && len(counts) > membership.MaxShapes {
			merged++
		}
	}
	if merged == 0 {
		t.Error("nothing was merged")
	}
	if !known {
		t.Error("no plan is remembered")
	}
}

func BenchmarkMergeShapes(b *testing.B) {
	counts := make(map[key.Shape]int)
	for src := range uint8(16) {
		for dst := range uint8(16) {
			counts[key.Shape{Fields: key.FieldProto, SrcBits: 16 + src, DstBits: 16 + dst}] = 1
		}
	}
	for b.Loop() {
		mergeShapes(counts)
	}
}

// Where flows of several shapes are stored at one, a key belongs to the most specific flow that stands for
// it, of equal ones to that with the more specific source, and of the same one to the first list.
func TestOwnerOfMergedFlows(t *testing.T) {
	flow := func(src, dst uint8) key.Key {
		k, _ := key.Shape{Fields: key.FieldProto, SrcBits: src, DstBits: dst}.Of(key.Tuple{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("198.51.100.1"), Proto: 6})
		return k
	}
	stored := flow(32, 32)
	for _, c := range []struct {
		lists []key.Key // from 1 on
		owner uint16
	}{
		{[]key.Key{flow(30, 30), flow(32, 30)}, 2},
		{[]key.Key{flow(30, 30), flow(30, 32), flow(32, 30)}, 3},
		{[]key.Key{flow(32, 32), flow(30, 32), flow(32, 30)}, 1},
		{[]key.Key{flow(31, 31), flow(32, 30), flow(30, 32)}, 2},
		{[]key.Key{flow(30, 30), flow(30, 30)}, 1},
	} {
		f := &flows{levels: NewFlows(map[key.Shape]key.Shape{})}
		at := make(map[key.Shape]key.Shape)
		for i, k := range c.lists {
			f.relation = append(f.relation, contents[key.Key]{uint16(i + 1), list.SetOf(k).Flows})
			at[k.Shape] = stored.Shape
		}
		for range 10 { // the order of maps differs
			f.levels = NewFlows(at)
			column := f.compile(nil)[0]
			compiled := uint16(0)
			for i, serial := range slices.Collect(slices.Chunk(column.Keys, len(stored.Append(nil)))) {
				if slices.Equal(serial, stored.Append(nil)) {
					compiled = column.Lists[i]
				}
			}
			if got := f.owner(stored); got != c.owner || compiled != c.owner {
				t.Fatalf("%v: of list %d, compiled %d, want %d", c.lists, got, compiled, c.owner)
			}
		}
	}
}

// Where flows of lists with rules are stored at one shape, a key belongs to all lists that may decide: a
// more specific flow whose rule does not hold leaves the packet to the others.
func TestOwnerOfMergedFlowsWithRules(t *testing.T) {
	flow := func(src, dst uint8) key.Key {
		k, _ := key.Shape{Fields: key.FieldProto, SrcBits: src, DstBits: dst}.Of(key.Tuple{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("198.51.100.1"), Proto: 6})
		return k
	}
	stored := flow(32, 32)
	for _, c := range []struct {
		keys  []key.Key
		ports []uint16 // 0: the list has no rule
		want  []uint16 // lists
	}{
		{[]key.Key{flow(32, 30), flow(30, 30)}, []uint16{25, 0}, []uint16{2}},
		{[]key.Key{flow(32, 30), flow(30, 30)}, []uint16{0, 25}, []uint16{1}},
		{[]key.Key{flow(32, 30), flow(30, 30)}, []uint16{25, 80}, []uint16{1, 2}},
		{[]key.Key{flow(30, 30), flow(31, 31), flow(32, 30)}, []uint16{25, 80, 25}, []uint16{1, 2}},
		{[]key.Key{flow(30, 30), flow(31, 31), flow(32, 30)}, []uint16{0, 80, 25}, []uint16{1}},
	} {
		f, at := new(flows), make(map[key.Shape]key.Shape)
		lists := make([]List, len(c.keys))
		for i, k := range c.keys {
			f.relation = append(f.relation, contents[key.Key]{uint16(i + 1), list.SetOf(k).Flows})
			at[k.Shape] = stored.Shape
			if c.ports[i] != 0 {
				lists[i].Rule = &verdict.Rule{Ports: []verdict.PortRange{{Proto: 6, First: c.ports[i], Last: c.ports[i]}}}
			}
		}
		f.book, f.levels = newBook(lists), NewFlows(at)
		got := f.owner(stored)
		of := []uint16{got}
		if int(got) > len(lists) {
			of = f.book.chain(got)
		}
		if !slices.Equal(of, c.want) {
			t.Errorf("%v, ports %v: of lists %v, want %v", c.keys, c.ports, of, c.want)
		}
	}
}

// Flows grow by the keys that stand for them, less themselves, and only up to a limit.
func TestFlowGrowth(t *testing.T) {
	shape := func(src, dst uint8) key.Shape { return key.Shape{Fields: key.FieldProto, SrcBits: src, DstBits: dst} }
	for _, c := range []struct {
		n     int
		s, at key.Shape
		by    int
	}{
		{5, shape(24, 24), shape(24, 24), 0}, {5, shape(24, 24), shape(25, 26), 35}, {1, shape(0, 8), shape(20, 18), 1<<30 - 1},
		{1, shape(0, 8), shape(20, 19), 1 << 31}, {2, shape(0, 8), shape(20, 18), 1 << 31}, {1 << 30, shape(24, 24), shape(25, 24), 1 << 31},
	} {
		if got := growth(c.n, c.s, c.at); got != c.by {
			t.Errorf("%d of %v at %v: %d more, want %d", c.n, c.s, c.at, got, c.by)
		}
	}
}

// Lists are the same only where all that an engine is built from is.
func TestListEqual(t *testing.T) {
	set := new(list.Set)
	all := []List{
		{}, {Name: "a"}, {Name: "b"}, {Name: "a", Allow: true}, {Name: "a", Direction: Out}, {Name: "a", Priority: 1},
		{Name: "a", Rule: &verdict.Rule{Trial: true}}, {Name: "a", Contents: set}, {Name: "a", Contents: list.SetOf()},
	}
	for i, l := range all {
		for j, o := range all {
			if l.Equal(o) != (i == j) {
				t.Errorf("%+v and %+v: %t", l, o, l.Equal(o))
			}
		}
	}
}
