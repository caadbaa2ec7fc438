// Package engine turns lists into what the kernel enforces, and keeps it
// in step with them.
//
// A Store holds the entries of all lists. A Generation is built from it: a
// program specialised to its filters, and the filters themselves, in the
// kernel's memory. Small changes go into a running generation in place; what
// does not fit becomes the next generation, built beside the running one.
package engine

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"weir/filter/digest"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/multicast"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
)

// DefaultBitsPerKey is the size of the cascade in approximate mode.
const DefaultBitsPerKey = 16

// Config is what, besides the lists, a generation is specialised to.
type Config struct {
	verdict.Policy
	Mode       membership.Mode
	BitsPerKey float64 // of the cascade in approximate mode; 0: DefaultBitsPerKey
	Watching
	Multicast Multicast // without ports, nothing is forwarded
}

// Watching is what a generation sees of the traffic besides verdicts. It changes
// none of them, but for the penalties that are imposed on heavy flows, and for
// packets in a loop.
type Watching struct {
	Trackers    []Tracker // of heavy flows, at most loader.MaxTrackers
	TrackerSeed uint64    // secret: whence the seeds of the trackers come
	Hot         int       // elements that may have weights in the block set
	Loop        Loop      // looks for packets in a loop, and may drop them

	Digests     digest.Geometry // of what passes: the filter of a slice; without lines: none
	DigestSeed  uint64          // secret
	DigestSlice time.Duration   // length of a slice of time
}

// Tracker is a tracker of heavy flows. Its seed is for the generation to set.
type Tracker struct {
	sketch.Tracker
	Punishes bool // its flows may have penalties
}

// Generation enforces a store's lists. Its verdict.Program answers just what
// the program in the kernel does, over the same memory.
type Generation struct {
	verdict.Program
	store  *Store
	kernel *loader.Generation // nil in a reference
	grace  func()             // waits until every program has ended that is running
	plan   int                // the store's, by which the keys were chosen
	behind bool               // the store has changes that are not in the sets

	trackers []Tracker

	multicast *multicast.Table // nil: nothing is forwarded
	ports     []loader.Target
}

// Build makes a generation in the kernel.
func Build(s *Store, c Config) (*Generation, error) {
	return build(s, c, true)
}

// Reference makes a generation on the heap, which needs no kernel: the Go
// engine.
func Reference(s *Store, c Config) (*Generation, error) {
	return build(s, c, false)
}

// seeds bounds how often a build is begun anew after a collision, which is to
// be expected once in hundreds of thousands of builds with 10M entries.
const seeds = 4

func build(s *Store, c Config, inKernel bool) (*Generation, error) {
	var err error
	for range seeds {
		var g *Generation
		if g, err = buildUnder(newSeed(), s, c, inKernel); err == nil {
			return g, nil
		}
		if !errors.Is(err, membership.ErrCollision) && !errors.Is(err, membership.ErrFull) {
			break
		}
	}
	return nil, fmt.Errorf("build generation: %w", err)
}

func newSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

func buildUnder(seed uint64, s *Store, c Config, inKernel bool) (_ *Generation, err error) {
	if c.BitsPerKey == 0 {
		c.BitsPerKey = DefaultBitsPerKey
	}
	g := &Generation{store: s, grace: loader.Grace, Program: verdict.Program{Policy: c.Policy, Loop: c.Loop.Node}, trackers: seeded(c.Trackers, c.TrackerSeed)}
	c.Trackers = g.trackers
	defer func() {
		if err != nil {
			g.Close()
		}
	}()
	s.plan++
	g.plan = s.plan
	block, err := s.block.compile(c.Mode, c.BitsPerKey, seed)
	if err != nil {
		return nil, fmt.Errorf("block lists: %w", err)
	}
	block.layout.PlanHot(c.Hot)
	// Exact in any mode: its mistakes would let through what is listed.
	allow, err := s.allow.compile(membership.Exact, 0, seed)
	if err != nil {
		return nil, fmt.Errorf("allow lists: %w", err)
	}
	groups := layMulticast(c.Multicast)
	var blockMemory, allowMemory membership.Memory
	if inKernel {
		of := config(&block.layout, &allow.layout, seed, &c, len(s.lists))
		of.Multicast = loader.Multicast{
			Ports: uint32(groups.Ports), Lines: groups.Lines, First: uint32(groups.First), Rest: uint32(groups.Rest),
		}
		g.kernel, err = loader.NewGeneration(of)
		if err != nil {
			return nil, err
		}
		blockMemory, allowMemory = membership.Memory(g.kernel.Block()), membership.Memory(g.kernel.Allow())
	} else {
		g.grace = func() {}
		blockMemory, allowMemory = block.layout.Alloc(), allow.layout.Alloc()
		if g.Policer, err = newPolicer(g.trackers); err != nil {
			return nil, err
		}
	}
	if g.Block, err = block.set(blockMemory); err != nil {
		return nil, err
	}
	// The store, unlike an approximate set, knows what it lists. After it was
	// planned anew, its levels are not this set's: then all may be listed.
	g.Block.Listed = func(k key.Key) bool { return g.plan != s.plan || s.block.listed(k) }
	if g.Allow, err = allow.set(allowMemory); err != nil {
		return nil, err
	}
	return g, g.fillMulticast(groups, c.Multicast, seed)
}

func (c *compiled) set(m membership.Memory) (*membership.Set, error) {
	s, err := membership.NewSet(c.layout, m)
	if err != nil {
		return nil, err
	}
	return s, s.Fill(c.columns)
}

// Load loads the generation's program for an interface.
func (g *Generation) Load(stats *loader.Stats) (*loader.Program, error) {
	return g.kernel.Load(stats)
}

// Kernel returns the generation's part in the kernel, or nil for one in the heap.
func (g *Generation) Kernel() *loader.Generation { return g.kernel }

// KernelBytes is the memory of the generation's maps.
func (g *Generation) KernelBytes() int {
	if g.kernel == nil {
		return 0
	}
	return g.kernel.MapBytes()
}

// Close lets go of the generation's memory. A program that is attached goes on
// filtering.
func (g *Generation) Close() error {
	if g.kernel == nil {
		return nil
	}
	return g.kernel.Close()
}

// Change is an entry that a list gains or loses.
type Change struct {
	List uint16 // the list's number
	Add  bool   // otherwise it is removed
	Key  key.Key
}

// Apply makes changes in the store and, in place, in the generation:
// additions first, and in an order in which no packet ever slips through that
// is listed before and after. It gives the number of entries that changed.
//
// An error, such as membership.ErrNoRoom, says that some changes are not in
// force: all are in the store, and the answer is to build the next generation.
// Until then this one takes additions that fit, removes nothing, and goes on to
// say that it is behind. So does one from whose store another has been built.
func (g *Generation) Apply(changes []Change) (n int, err error) {
	g.behind = g.behind || g.plan != g.store.plan
	for _, add := range []bool{true, false} {
		if !add && n > 0 && mixed(changes) {
			// A program under way may have missed what was added, and would miss
			// what is removed now: one key of the same packet, for the other.
			g.grace()
		}
		for _, c := range changes {
			if c.Add != add {
				continue
			}
			if int(c.List) > len(g.store.lists) || c.List == 0 {
				return n, fmt.Errorf("change of %v: there is no list %d", c.Key, c.List)
			}
			e := changer{Change: c, generation: g, set: g.Block}
			if g.store.lists[c.List-1].Allow {
				e.set = g.Allow
			}
			g.store.action(c.List).route(c.Key, &e)
			if e.changed {
				n++
			}
			if e.err != nil {
				g.behind = true
				err = cmp.Or(err, e.err) // the first of maybe very many
			}
		}
	}
	if g.behind && err == nil {
		err = membership.ErrNoRoom
	}
	return n, err
}

// mixed tells whether changes may remove keys of another shape than they add: of one
// shape, a packet has one key.
func mixed(changes []Change) bool {
	shapes := make(map[bool]key.Shape)
	for _, c := range changes {
		if s, ok := shapes[c.Add]; ok && s != c.Key.Shape {
			return true
		}
		shapes[c.Add] = c.Key.Shape
	}
	return len(shapes) == 2 && shapes[true] != shapes[false]
}

// changer brings one change into the store and the set.
type changer struct {
	Change
	generation *Generation
	set        *membership.Set
	changed    bool
	err        error
}

func (c *changer) prefix4(s *prefixes[prefix4], p prefix4) { changePrefix(c, s, p) }
func (c *changer) prefix6(s *prefixes[prefix6], p prefix6) { changePrefix(c, s, p) }

func (c *changer) flow(s *listing[flow], f flow) {
	before := s.lists(f)
	if c.changed = s.change(f, c.List, c.Add); c.changed {
		after := s.lists(f)
		c.update(f.Key, first(before), first(after))
	}
}

// maxInPlace bounds the keys that one prefix may expand to in place.
const maxInPlace = 12 // bits

func changePrefix[P prefixType[P]](c *changer, s *prefixes[P], p P) {
	level, ok := s.levels.Of(p.Bits())
	if !ok || level-p.Bits() > maxInPlace {
		c.changed = s.change(p, c.List, c.Add)
		if c.changed {
			c.err = membership.ErrNoRoom
		}
		return
	}
	var before []uint16
	for k := range p.children(level) {
		before = append(before, s.owner(k))
	}
	if c.changed = s.change(p, c.List, c.Add); !c.changed {
		return
	}
	i := 0
	for k := range p.children(level) {
		c.update(s.key(k.prefix()), before[i], s.owner(k))
		i++
	}
}

func first(lists []uint16) uint16 {
	if len(lists) == 0 {
		return 0
	}
	return lists[0]
}

// update brings a key from one owner to another; owner 0 is none.
func (c *changer) update(k key.Key, before, after uint16) {
	switch {
	case c.err != nil || before == after:
	case before == 0:
		c.err = c.set.Add(k, after)
	case after == 0:
		// What the store lists may never have come into the set, and taking it
		// from there would take bits that other keys share.
		if !c.generation.behind {
			c.set.Remove(k)
		}
	default:
		c.set.SetList(k, after)
	}
}
