package reconcile

import (
	"cmp"
	"iter"
	"slices"

	"weir/filter/bloom"
	"weir/filter/hash"
)

// Tree is the reconciliation tree of a set (Byers, Considine and Mitzenmacher, "Fast
// approximate reconciliation of set differences", 2002; section 5.2): a trie over the
// hashes of the elements, in which each node has the sum of the hashes below it. Two sets
// have the same node where they have the same elements below it, up to collisions. A
// Tree cannot change.
type Tree struct {
	seed   uint64
	leaves []leaf // in the order of their positions
	sums   []uint64
}

type leaf struct {
	element  []byte
	position uint64 // in the trie, from the highest bit on
	value    uint64 // independent of position
}

// NewTree returns the tree of a set, whose elements are different. Both sides have the
// same seed.
func NewTree(seed uint64, set iter.Seq[[]byte]) *Tree {
	t := &Tree{seed: seed}
	for b := range set {
		h := hash.Sum(seed, b)
		t.leaves = append(t.leaves, leaf{b, hash.Nth(h, 1), hash.Nth(h, 2)})
	}
	slices.SortFunc(t.leaves, func(a, b leaf) int { return cmp.Compare(a.position, b.position) })
	t.sums = make([]uint64, len(t.leaves)+1)
	for i, l := range t.leaves {
		t.sums[i+1] = t.sums[i] + l.value
	}
	return t
}

// Summary is the message of one side to the other: two filters, one of the nodes of its tree
// with more than one element below them, and one of the elements.
type Summary struct{ Inner, Leaves *bloom.Filter }

// node is a subtree: the elements from to to of the order, alike in depth bits.
type node struct{ from, to, depth int }

func (t *Tree) root() node { return node{0, len(t.leaves), 0} }

// sum returns the checksum of the elements below a node.
func (t *Tree) sum(n node) uint64 {
	// A chain of nodes with one child each is one node.
	return hash.Nth(t.sums[n.to]-t.sums[n.from], 3)
}

// children returns the two subtrees below the last bit that all of a node's elements have
// in common, and false for a node of equal positions.
func (t *Tree) children(n node) (left, right node, ok bool) {
	for ; n.depth < 64; n.depth++ {
		bit := uint64(1) << (63 - n.depth)
		first := t.leaves[n.from].position
		at, _ := slices.BinarySearchFunc(t.leaves[n.from:n.to], first&^(bit-1)|bit, func(l leaf, p uint64) int {
			return cmp.Compare(l.position, p)
		})
		if at += n.from; at > n.from && at < n.to {
			return node{n.from, at, n.depth + 1}, node{at, n.to, n.depth + 1}, true
		}
	}
	return node{}, node{}, false
}

// Summary returns the summary for a peer, in filters of the geometries: one of the inner
// nodes, of which there are as many as elements less one, and one of the elements.
func (t *Tree) Summary(inner, leaves bloom.Geometry) Summary {
	s := Summary{bloom.New(inner, t.seed), bloom.New(leaves, t.seed)}
	var add func(node)
	add = func(n node) {
		if n.to-n.from > 1 {
			s.Inner.AddHash(t.sum(n))
		}
		left, right, ok := t.children(n)
		if n.to-n.from > 1 && ok {
			add(left)
			add(right)
			return
		}
		for _, l := range t.leaves[n.from:n.to] {
			s.Leaves.AddHash(l.value)
		}
	}
	if len(t.leaves) > 0 {
		add(t.root())
	}
	return s
}

// Missing yields elements that are missing in the set that a summary is of: none that is
// there, but, as filters have false positives, not all. It descends where it finds
// differences only, and leaves a subtree once correction+1 nodes in a row, from its root
// down, match the filter of inner nodes: a correction of 0 takes the first match as final,
// larger ones go past false positives. It sets visited, if that is not nil, to the number
// of nodes visited.
func (t *Tree) Missing(theirs Summary, correction int, visited *int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		nodes := 0
		var search func(n node, matches int) bool
		search = func(n node, matches int) bool {
			nodes++
			if n.to-n.from > 1 {
				if !theirs.Inner.ContainsHash(t.sum(n)) {
					matches = 0
				} else if matches++; matches > correction {
					return true
				}
				if left, right, ok := t.children(n); ok {
					return search(left, matches) && search(right, matches)
				}
			}
			for _, l := range t.leaves[n.from:n.to] {
				if !theirs.Leaves.ContainsHash(l.value) && !yield(l.element) {
					return false
				}
			}
			return true
		}
		if len(t.leaves) > 0 {
			search(t.root(), 0)
		}
		if visited != nil {
			*visited = nodes
		}
	}
}
