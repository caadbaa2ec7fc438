package attenuated

import (
	"errors"

	"weir/filter/bloom"
	"weir/filter/hash"
)

// ErrNotHeld says that a resource to be removed is not held by the node.
var ErrNotHeld = errors.New("attenuated: resource is not held by the node")

// Tree is a node of a rooted tree, or the tree of which it is the root, in
// which requests for resources are routed as Czerwinski et al. do (section
// 6.1). A node holds resources, and knows by Bloom filters which it holds,
// which are in the subtree of each child, and which are in its own: the union
// of these. It is safe for concurrent finds, not for changes beside them.
type Tree struct {
	parent    *Tree
	children  []*Tree
	resources map[string]struct{}
	own       *bloom.Filter
	unified   *bloom.Filter // what the parent knows of this child
}

// NewTree makes the root of a tree, holding nothing. All nodes have filters of
// the geometry g; the seed selects their hash functions.
func NewTree(g bloom.Geometry, seed uint64) *Tree {
	return &Tree{
		resources: make(map[string]struct{}),
		own:       bloom.New(g, seed),
		unified:   bloom.New(g, seed),
	}
}

// AddChild adds a child that holds nothing.
func (t *Tree) AddChild() *Tree {
	c := NewTree(t.own.Geometry, t.own.Seed())
	c.parent = t
	t.children = append(t.children, c)
	return c
}

// Insert puts the resource b into the node. The path to the root learns of it.
func (t *Tree) Insert(b []byte) {
	t.resources[string(b)] = struct{}{}
	h := hash.Sum(t.own.Seed(), b)
	t.own.AddHash(h)
	for n := t; n != nil; n = n.parent {
		n.unified.AddHash(h)
	}
}

// Remove takes the resource b out of the node. The filters on the path to the
// root are made anew, by OR. It fails with ErrNotHeld.
func (t *Tree) Remove(b []byte) error {
	if _, held := t.resources[string(b)]; !held {
		return ErrNotHeld
	}
	delete(t.resources, string(b))
	t.own.Clear()
	for r := range t.resources {
		t.own.Add([]byte(r))
	}
	for n := t; n != nil; n = n.parent {
		n.unified = n.own.Clone()
		for _, c := range n.children {
			_ = n.unified.Union(c.unified) // of one tree, so compatible
		}
	}
	return nil
}

// Route is the way of a request through a tree.
type Route struct {
	Holder *Tree // the node that holds the resource
	Hops   int   // edges passed, up, down, and back from where it is not
	Astray int   // edges passed downwards in vain, after false positives
}

// Find routes a request for the resource b that starts in the node: up to the
// first node whose subtree seems to hold it, and there down to the holder, with
// backtracking after false positives. It finds every resource of the tree; it
// reports false where there is none, and then Holder is nil.
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

// down searches the subtree of n, where the filters lead, except for one child.
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
		s.Astray++
	}
	return false
}
