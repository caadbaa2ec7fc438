package attenuated

import (
	"fmt"

	"weir/filter/bloom"
	"weir/filter/counting"
	"weir/filter/hash"
)

// Grid is a square region in which messages to mobile hosts are routed by where the hosts
// are, as by Hsiao (section 6.3). It is divided into four squares, each of these into
// four, and so on; a square of each level has a filter of the hosts in it. A node knows
// the filters of its own square and of that square's three siblings at each level. All
// nodes of a square know the same, so that the grid keeps its filters once. Concurrent
// lookups are safe; a change must not run concurrently with anything else.
type Grid struct {
	seed   uint64
	levels [][]*counting.Filter // levels[0] has the smallest squares
	hosts  map[string]Place
}

// Place is a smallest square, by its column and row.
type Place struct{ X, Y int }

// NewGrid returns a grid without hosts, of as many levels as there are geometries: that of
// the filters of the smallest squares first. It has 2 to the number of levels smallest
// squares on a side.
func NewGrid(seed uint64, levels ...bloom.Geometry) *Grid {
	g := &Grid{seed: seed, hosts: make(map[string]Place)}
	for i, of := range levels {
		side := 1 << (len(levels) - i)
		squares := make([]*counting.Filter, side*side)
		for j := range squares {
			squares[j] = counting.New(of, seed)
		}
		g.levels = append(g.levels, squares)
	}
	return g
}

// Side returns the number of smallest squares on a side.
func (g *Grid) Side() int { return 1 << len(g.levels) }

// square returns the filter of the square of a level that a place is in.
func (g *Grid) square(level int, at Place) *counting.Filter {
	side := g.Side() >> level
	return g.levels[level][at.Y>>level*side+at.X>>level]
}

// Move puts a host into a place, from wherever it was. It fails for a place outside.
func (g *Grid) Move(host []byte, to Place) error {
	if side := g.Side(); to.X < 0 || to.Y < 0 || to.X >= side || to.Y >= side {
		return fmt.Errorf("attenuated: place %+v is outside of a grid of %d by %d", to, side, side)
	}
	g.Leave(host)
	for level := range g.levels {
		g.square(level, to).Add(host)
	}
	g.hosts[string(host)] = to
	return nil
}

// Leave takes a host out of the grid, if it is there.
func (g *Grid) Leave(host []byte) {
	from, ok := g.hosts[string(host)]
	if !ok {
		return
	}
	for level := range g.levels {
		g.square(level, from).Remove(host)
	}
	delete(g.hosts, string(host))
}

// Journey describes how a message travelled through a grid.
type Journey struct {
	To       Place // where the host is
	Hops     int   // squares that the message was forwarded to, and back
	Distance int   // sides of smallest squares that it crossed
	Wasted   int   // hops because of false positives
}

// Find routes a message for a host from a place: to the sibling of the smallest square
// around it that appears to contain the host, at that square's centre, and from there
// into smaller ones, back after false positives. It finds every host of the grid, and
// reports false if there is none.
func (g *Grid) Find(host []byte, from Place) (j Journey, ok bool) {
	f := find{grid: g, host: host, hash: hash.Sum(g.seed, host), at: from}
	if f.enter(0, from) {
		return f.Journey, true
	}
	for level := range g.levels {
		own := Place{from.X >> level, from.Y >> level}
		for i := range 4 {
			s := Place{own.X&^1 | i&1, own.Y&^1 | i>>1}
			if s != own && f.look(level, s) {
				return f.Journey, true
			}
		}
	}
	return f.Journey, false
}

type find struct {
	Journey
	grid *Grid
	host []byte
	hash uint64
	at   Place // of the message
}

// look forwards the message into a square of a level, if that appears to contain the host,
// and back if it does not.
func (f *find) look(level int, square Place) bool {
	corner := Place{square.X << level, square.Y << level}
	if !f.grid.square(level, corner).ContainsHash(f.hash) {
		return false
	}
	before := f.at
	centre := Place{corner.X + 1<<level>>1, corner.Y + 1<<level>>1}
	f.forward(centre)
	if f.enter(level, corner) {
		return true
	}
	f.forward(before)
	f.Wasted += 2
	return false
}

// enter searches the square of a level that the message is in.
func (f *find) enter(level int, corner Place) bool {
	if level == 0 {
		if at, ok := f.grid.hosts[string(f.host)]; ok && at == corner && f.grid.square(0, corner).ContainsHash(f.hash) {
			f.To = at
			return true
		}
		return false
	}
	for i := range 4 {
		if f.look(level-1, Place{corner.X>>(level-1) | i&1, corner.Y>>(level-1) | i>>1}) {
			return true
		}
	}
	return false
}

func (f *find) forward(to Place) {
	f.Hops++
	f.Distance += max(f.at.X-to.X, to.X-f.at.X) + max(f.at.Y-to.Y, to.Y-f.at.Y)
	f.at = to
}
