// Package attenuated implements resource routing with Bloom filters: attenuated
// Bloom filters, with which each router of an overlay network records what it
// can reach over each of its links and in how many hops, a tree in which each node
// records what its subtree contains, and a grid of squares with mobile hosts.
//
// Sections refer to Broder and Mitzenmacher, Network Applications of Bloom
// Filters: A Survey (Internet Mathematics 1, 2004).
//
// Attenuated filters are of Rhea and Kubiatowicz, "Probabilistic location and routing", 2002;
// the tree is of Czerwinski and others, "An architecture for a secure service discovery
// service", 1999; the grid is of Hsiao, "Geographical region summary service for geographical
// routing", 2001.
package attenuated

import (
	"slices"

	"weir/filter/bloom"
	"weir/filter/counting"
	"weir/filter/hash"
)

// Filter is the attenuated Bloom filter of Rhea and Kubiatowicz: an array of
// filters, the d-th of which contains what can be reached over a link in
// exactly d hops (section 6.2). The far end of the link is one hop away.
// Concurrent lookups are safe; a change must not run concurrently with anything
// else.
type Filter struct {
	seed   uint64
	levels []*bloom.Filter // levels[0] is one hop away
}

// New returns an empty filter of the given depth, in hops, with one filter of
// geometry g for each hop. The seed selects their hash functions.
func New(g bloom.Geometry, seed uint64, depth int) *Filter {
	f := &Filter{seed: seed, levels: make([]*bloom.Filter, depth)}
	for i := range f.levels {
		f.levels[i] = bloom.New(g, seed)
	}
	return f
}

// Depth returns the number of hops that the filter covers.
func (f *Filter) Depth() int { return len(f.levels) }

// Level returns the filter of the elements d hops away, 1 ≤ d ≤ Depth.
func (f *Filter) Level(d int) *bloom.Filter { return f.levels[d-1] }

// Lookup returns the smallest number of hops, 1…Depth, at which the element b
// may be reached, and false if it is out of reach. The result never exceeds the
// true distance; a false positive can make it smaller.
func (f *Filter) Lookup(b []byte) (hops int, ok bool) {
	return f.LookupHash(hash.Sum(f.seed, b))
}

// LookupHash is like [Filter.Lookup], for the element with the 64-bit hash h.
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

// Local is the link number that denotes the router itself.
const Local = -1

// Router is a node of an overlay network that stores elements and has an
// attenuated filter for each of its links (section 6.2). Its own elements are
// in a counting filter, so that they
// can be removed. All routers of a network share geometry, seed and depth. A
// Router is not safe for concurrent use.
//
// Routers announce changes to their neighbours. A change spreads over as many
// links as the depth; the network is stable when no Announce reports a change.
type Router struct {
	own   *counting.Filter
	depth int
	links []link
}

type link struct{ received, sent *Filter }

// NewRouter returns a router without elements and links that learns of elements
// up to depth hops away, depth ≥ 1. The seed selects the hash functions of its
// filters.
func NewRouter(g bloom.Geometry, seed uint64, depth int) *Router {
	return &Router{own: counting.New(g, seed), depth: depth}
}

// Add adds an element that the router has. One added twice must be removed twice.
func (r *Router) Add(b []byte) { r.own.Add(b) }

// Remove removes an element. It reports false, and changes nothing, if the router does not have
// it.
func (r *Router) Remove(b []byte) bool { return r.own.Remove(b) }

// AddLink adds a link to a neighbour of which nothing is known yet, and returns
// the link's number, counting from 0.
func (r *Router) AddLink() int {
	empty := New(r.own.Geometry, r.own.Seed(), r.depth)
	r.links = append(r.links, link{received: empty, sent: empty})
	return len(r.links) - 1
}

// Announce returns the filter to send to the neighbour on a link: what can be
// reached through this router, by distance from the neighbour. It reports false
// if the neighbour was sent the same filter last. The caller must not change
// the filter.
//
// What was learned from that neighbour is left out: no shortest path crosses a
// link and comes back over it.
func (r *Router) Announce(to int) (f *Filter, changed bool) {
	f = New(r.own.Geometry, r.own.Seed(), r.depth)
	f.levels[0] = r.own.Bits()
	for i, l := range r.links {
		if i == to {
			continue
		}
		for d := 1; d < r.depth; d++ {
			// cannot fail: Receive checked that they are compatible
			_ = f.levels[d].Union(l.received.levels[d-1])
		}
	}
	if f.Equal(r.links[to].sent) {
		return nil, false
	}
	r.links[to].sent = f
	return f, true
}

// Receive records the filter that the neighbour on a link announced. It returns
// bloom.ErrIncompatible, and changes nothing, if depth, geometry or seed differ
// from the router's.
func (r *Router) Receive(from int, f *Filter) error {
	if f.Depth() != r.depth {
		return bloom.ErrIncompatible
	}
	for _, l := range f.levels {
		if l.Geometry != r.own.Geometry || l.Seed() != r.own.Seed() {
			return bloom.ErrIncompatible
		}
	}
	r.links[from].received = f
	return nil
}

// Route returns the link over which the element b appears to be nearest and the
// distance in hops: Local and 0 if the router itself appears to have it. It
// reports false if b is out of reach of the filters; the caller then has to
// find it some other way, as for a query that has travelled further than the
// depth, which followed a false positive.
func (r *Router) Route(b []byte) (over, hops int, ok bool) {
	h := hash.Sum(r.own.Seed(), b)
	if r.own.ContainsHash(h) {
		return Local, 0, true
	}
	for i, l := range r.links {
		if d, found := l.received.LookupHash(h); found && (!ok || d < hops) {
			over, hops, ok = i, d, true
		}
	}
	return over, hops, ok
}
