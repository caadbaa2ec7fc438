package attenuated

import (
	"math/rand/v2"
	"testing"

	"weir/filter/bloom"
)

// grow returns a random tree of n nodes, the root first.
func grow(g bloom.Geometry, n int, rng *rand.Rand) []*Tree {
	nodes := []*Tree{NewTree(g, seed)}
	for len(nodes) < n {
		nodes = append(nodes, nodes[rng.IntN(len(nodes))].AddChild())
	}
	return nodes
}

func (t *Tree) depth() int {
	if t.parent == nil {
		return 0
	}
	return t.parent.depth() + 1
}

// distance returns the true number of edges between two nodes.
func distance(a, b *Tree) int {
	switch da, db := a.depth(), b.depth(); {
	case a == b:
		return 0
	case da > db:
		return 1 + distance(a.parent, b)
	case db > da:
		return 1 + distance(a, b.parent)
	}
	return 2 + distance(a.parent, b.parent)
}

// Every resource is found from every node, by the direct path plus the detours
// that false positives cost, with large and with small filters.
func TestTreeFindsAll(t *testing.T) {
	const nodes, resources = 60, 300
	for _, c := range []struct {
		g      bloom.Geometry
		astray bool // detours are expected
	}{{standard(16*resources, 11), false}, {standard(resources, 2), true}} {
		rng := newRand(t)
		tree := grow(c.g, nodes, rng)
		holder := make([]*Tree, resources)
		for i := range holder {
			holder[i] = tree[rng.IntN(nodes)]
			holder[i].Add(resource(i))
		}
		hops, astray := 0, 0
		for _, n := range tree {
			for i, h := range holder {
				r, ok := n.Find(resource(i))
				if !ok || r.Holder != h {
					t.Fatalf("resource %d is not found in its node", i)
				}
				if want := distance(n, h) + 2*r.Wasted; r.Hops != want {
					t.Fatalf("resource %d takes %d hops, want %d, %d of them wasted", i, r.Hops, want, 2*r.Wasted)
				}
				hops += r.Hops
				astray += r.Wasted
			}
		}
		t.Logf("%d bits: %d hops, %d wasted", c.g.M(), hops, astray)
		if c.astray != (astray > hops/100) {
			t.Errorf("%d bits: %d of %d hops wasted", c.g.M(), astray, hops)
		}
	}
}

// A request for an absent resource ends at the root, even if the filters are
// full, and crosses no edge downwards twice.
func TestTreeAbsent(t *testing.T) {
	for _, m := range []uint32{8, 100} {
		rng := newRand(t)
		tree := grow(standard(m, 1), 50, rng)
		for _, n := range tree {
			for i := range 100 {
				n.Add(resource(i))
			}
		}
		for _, n := range tree {
			r, ok := n.Find([]byte("absent"))
			if ok || r.Holder != nil {
				t.Fatal("found an absent resource")
			}
			if want := n.depth() + 2*r.Wasted; r.Hops != want {
				t.Errorf("%d hops, want %d", r.Hops, want)
			}
			if edges := len(tree) - 1 - n.depth(); r.Wasted > edges || m == 8 && r.Wasted != edges {
				t.Errorf("%d of %d edges wasted", r.Wasted, edges)
			}
		}
	}
}

// Of several nodes with the resource, the one in the smallest subtree around
// the start is found.
func TestTreeNearHolderFirst(t *testing.T) {
	root := NewTree(standard(1000, 5), seed)
	a, b := root.AddChild(), root.AddChild()
	near, start := a.AddChild(), a.AddChild()
	b.Add(resource(0))
	near.Add(resource(0))
	root.Add(resource(0))
	if r, ok := start.Find(resource(0)); !ok || r.Holder != near || r.Hops != 2 {
		t.Errorf("%+v, %v", r, ok)
	}
}

func TestTreeRemove(t *testing.T) {
	const resources = 300
	rng := newRand(t)
	g := standard(16*resources, 11)
	tree := grow(g, 40, rng)
	holder := make([]*Tree, resources)
	for i := range holder {
		holder[i] = tree[rng.IntN(len(tree))]
		holder[i].Add(resource(i))
	}
	for i := 0; i < resources; i += 2 {
		if !holder[i].Remove(resource(i)) {
			t.Fatalf("resource %d cannot be removed", i)
		}
	}
	if holder[0].Remove(resource(0)) {
		t.Error("it was removed a second time")
	}
	want := bloom.New(g, seed)
	for i, h := range holder {
		r, ok := tree[0].Find(resource(i))
		if removed := i%2 == 0; ok == removed || !removed && r.Holder != h {
			t.Errorf("resource %d: found %v, removed %v", i, ok, removed)
		}
		if i%2 == 1 {
			want.Add(resource(i))
		}
	}
	if !tree[0].unified.Equal(want) {
		t.Error("the root's filter has other than the remaining elements")
	}
}

func BenchmarkTree(b *testing.B) {
	const resources = 10_000
	rng := newRand(b)
	tree := grow(standard(16*resources, 11), 100, rng)
	leaf := tree[len(tree)-1]
	for i := range resources {
		tree[rng.IntN(len(tree))].Add(resource(i))
	}
	b.Run("op=insert", func(b *testing.B) {
		e := resource(0)
		for b.Loop() {
			leaf.Add(e)
		}
	})
	b.Run("op=query", func(b *testing.B) {
		e := resource(1)
		for b.Loop() {
			leaf.Find(e)
		}
	})
}
