// Package attenuated has resource routing with Bloom filters: attenuated
// filters, by which a router of an overlay network knows what lies how many
// hops away behind each of its links, and a tree whose nodes know what lies
// below them.
//
// Sections refer to Broder and Mitzenmacher, Network Applications of Bloom
// Filters: A Survey (Internet Mathematics 1, 2004).
package attenuated

import (
	"slices"

	"weir/filter/bloom"
	"weir/filter/counting"
	"weir/filter/hash"
)

// Filter is an attenuated Bloom filter of Rhea and Kubiatowicz: an array of
// filters, the d-th of which holds what can be reached over a link in d hops
// (section 6.2). The far end of the link is one hop away. It is safe for
// concurrent lookups, not for changes beside them.
type Filter struct {
	seed   uint64
	levels []*bloom.Filter // levels[0] is one hop away
}

// New makes an empty attenuated filter that reaches depth hops, with a filter
// of geometry g for each. The seed selects their hash functions.
func New(g bloom.Geometry, seed uint64, depth int) *Filter {
	f := &Filter{seed: seed, levels: make([]*bloom.Filter, depth)}
	for i := range f.levels {
		f.levels[i] = bloom.New(g, seed)
	}
	return f
}

// Depth is the number of hops that the filter reaches.
func (f *Filter) Depth() int { return len(f.levels) }

// Level is the filter of what is d hops away, 1 ≤ d ≤ Depth.
func (f *Filter) Level(d int) *bloom.Filter { return f.levels[d-1] }

// Lookup is the least number of hops at which the element b may be reached,
// 1…Depth. It reports false where b is not within reach. It is never larger
// than the true distance; a false positive makes it smaller.
func (f *Filter) Lookup(b []byte) (hops int, ok bool) {
	return f.LookupHash(hash.Sum(f.seed, b))
}

// LookupHash is Lookup of the element with the 64-bit hash h.
func (f *Filter) LookupHash(h uint64) (hops int, ok bool) {
	for i, l := range f.levels {
		if l.ContainsHash(h) {
			return i + 1, true
		}
	}
	return 0, false
}

// Equal reports whether both filters have the same depth, geometry, seed and
// bits.
func (f *Filter) Equal(o *Filter) bool {
	return slices.EqualFunc(f.levels, o.levels, (*bloom.Filter).Equal)
}

// Local is the link number that stands for the router itself.
const Local = -1

// Router is a node of an overlay network that holds elements and has an
// attenuated filter for each of its links (section 6.2). What it holds is in a
// counting filter, so that elements can be deleted; Insert and Delete are that
// filter's. The routers of a network share geometry, seed and depth. A Router
// is not safe for concurrent use.
//
// Routers tell their neighbours what changes, and so on over as many links as
// the depth, until no Announce has anything new.
type Router struct {
	*counting.Filter
	depth int
	links []link
}

type link struct{ received, sent *Filter }

// NewRouter makes a router that holds nothing, has no links, and knows of
// elements up to depth hops away, depth ≥ 1. The seed selects the hash
// functions of its filters.
func NewRouter(g bloom.Geometry, seed uint64, depth int) *Router {
	return &Router{Filter: counting.New(g, seed), depth: depth}
}

// AddLink adds a link to a neighbour, behind which nothing is known yet, and
// returns its number: 0, 1, 2 and so on.
func (r *Router) AddLink() int {
	empty := New(r.Geometry, r.Seed(), r.depth)
	r.links = append(r.links, link{received: empty, sent: empty})
	return len(r.links) - 1
}

// Announce is what the neighbour behind a link has to be told: what can be
// reached through this router, by distance from the neighbour. It reports false
// where that is what it was told last. The filter must not be changed.
//
// What was learned from the neighbour itself is left out. No shortest path
// leads over a link and back, so nothing is missed.
func (r *Router) Announce(to int) (f *Filter, changed bool) {
	f = New(r.Geometry, r.Seed(), r.depth)
	f.levels[0] = r.Bits()
	for i, l := range r.links {
		if i == to {
			continue
		}
		for d := 1; d < r.depth; d++ {
			// Receive made sure that these are compatible.
			_ = f.levels[d].Union(l.received.levels[d-1])
		}
	}
	if f.Equal(r.links[to].sent) {
		return nil, false
	}
	r.links[to].sent = f
	return f, true
}

// Receive takes what the neighbour behind a link announces. It fails with
// bloom.ErrIncompatible, changing nothing, for a filter of another depth,
// geometry or seed.
func (r *Router) Receive(from int, f *Filter) error {
	if f.Depth() != r.depth {
		return bloom.ErrIncompatible
	}
	for _, l := range f.levels {
		if l.Geometry != r.Geometry || l.Seed() != r.Seed() {
			return bloom.ErrIncompatible
		}
	}
	r.links[from].received = f
	return nil
}

// Route is the link over which the element b seems nearest and how many hops
// away it is then: Local and 0 where the router itself seems to hold it. It
// reports false where b is not within reach of the filters, and another way to
// find it is needed. The same holds for a query that has taken more hops than
// the depth: it follows a false positive.
func (r *Router) Route(b []byte) (over, hops int, ok bool) {
	h := hash.Sum(r.Seed(), b)
	if r.ContainsHash(h) {
		return Local, 0, true
	}
	for i, l := range r.links {
		if d, found := l.received.LookupHash(h); found && (!ok || d < hops) {
			over, hops, ok = i, d, true
		}
	}
	return over, hops, ok
}
