package attenuated

import (
	"weir/filter/bloom"
	"weir/filter/hash"
)

// Tree is a node of a rooted tree, or the tree below it, in which requests for
// resources are routed as by Czerwinski et al. (section 6.1). A node stores
// resources and keeps Bloom filters of its own resources, of each child's
// subtree and, as their union, of its own subtree. Concurrent finds are safe; a
// change must not run concurrently with anything else.
type Tree struct {
	parent    *Tree
	children  []*Tree
	resources map[string]struct{}
	own       *bloom.Filter
	unified   *bloom.Filter // the child's subtree, as seen by its parent
}

// NewTree returns a root without resources. All nodes have filters of geometry
// g; the seed selects their hash functions.
func NewTree(g bloom.Geometry, seed uint64) *Tree {
	return &Tree{
		resources: make(map[string]struct{}),
		own:       bloom.New(g, seed),
		unified:   bloom.New(g, seed),
	}
}

// AddChild adds a child without resources and returns it.
func (t *Tree) AddChild() *Tree {
	c := NewTree(t.own.Geometry, t.own.Seed())
	c.parent = t
	t.children = append(t.children, c)
	return c
}

// Add stores the resource b in the node and adds it to the filters on the
// path to the root.
func (t *Tree) Add(b []byte) {
	t.resources[string(b)] = struct{}{}
	h := hash.Sum(t.own.Seed(), b)
	t.own.AddHash(h)
	for n := t; n != nil; n = n.parent {
		n.unified.AddHash(h)
	}
}

// Remove deletes the resource b from the node and rebuilds the filters on the
// path to the root by OR. It reports false if the node does not store b.
func (t *Tree) Remove(b []byte) bool {
	if _, held := t.resources[string(b)]; !held {
		return false
	}
	delete(t.resources, string(b))
	t.own.Clear()
	for r := range t.resources {
		t.own.Add([]byte(r))
	}
	for n := t; n != nil; n = n.parent {
		n.unified = n.own.Clone()
		for _, c := range n.children {
			_ = n.unified.Union(c.unified) // cannot fail: all nodes share one geometry
		}
	}
	return true
}

// Route describes how a request travelled through a tree.
type Route struct {
	Holder *Tree // the node that stores the resource
	Hops   int   // edges crossed: up, down, and back after false positives
	Wasted int   // edges crossed downwards because of false positives
}

// Find routes a request for the resource b from this node: up to the first
// ancestor whose subtree appears to contain b, and from there down,
// backtracking after false positives. It finds every resource of the tree. It
// reports false, and Route.Holder is nil, if the tree does not contain b.
func (t *Tree) Find(b []byte) (route Route, ok bool) {
	s := search{resource: b, hash: hash.Sum(t.own.Seed(), b)}
	var below *Tree // searched already
	for n := t; n != nil; below, n = n, n.parent {
		if below != nil {
			s.Hops++
		}
		if s.down(n, below) {
			return s.Route, true
		}
	}
	return s.Route, false
}

type search struct {
	Route
	resource []byte
	hash     uint64
}

// down searches the subtree of n along positive filters, skipping one child.
func (s *search) down(n, except *Tree) bool {
	if !n.unified.ContainsHash(s.hash) {
		return false
	}
	if n.own.ContainsHash(s.hash) {
		if _, held := n.resources[string(s.resource)]; held {
			s.Holder = n
			return true
		}
	}
	for _, c := range n.children {
		if c == except || !c.unified.ContainsHash(s.hash) {
			continue
		}
		s.Hops++
		if s.down(c, nil) {
			return true
		}
		s.Hops++ // back
		s.Wasted++
	}
	return false
}
