// Package engine turns lists into what the kernel enforces, and keeps it
// in step with them.
//
// A Generation is built from the contents of lists: a program specialised to its
// filters, and the filters themselves, in the kernel's memory. Small changes go
// into a running generation in place; what does not fit becomes the next
// generation, built beside the running one.
//
// An entry comes as a [list.V4Prefix], a [list.V6Prefix] or, for a flow, a
// [key.Key]. It becomes the serialised key of a shape, then a hash, then bits of
// the cascade and a slot of the table.
package engine

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
)

// DefaultBitsPerKey is the size of the cascade in approximate mode.
const DefaultBitsPerKey = 16

// Config has the settings to which a generation is specialised, apart from its lists.
type Config struct {
	verdict.Policy
	Mode       membership.Mode
	BitsPerKey float64 // of the cascade in approximate mode; 0: DefaultBitsPerKey
	NearCache  int     // bytes of the cache that a CPU has for itself; 0: loader.NearCache of this host
	Hot        int     // elements that may have weights in the block set
	Demand     membership.Demand
	// Owner identifies who may adopt the filter of an approximate set: at any time, one
	// process may have it. "": no one.
	Owner  string
	Wakes  *loader.Wakes // what programs wake this process by; nil: they do not
	NoLean bool          // all packets take the program's general path, for comparison

	SampleClean bool // packets that match nothing have events, too: they take the general path

	Parts  []Part         // the shares of stages
	Seed   hash.Seed      // the secrets of parts derive from it whose memory outlives the generation
	Shared *loader.Shared // the maps that parts share with other generations

	Outgoing bool // outgoing packets are filtered, too
	TC       bool // programs for TC may be loaded, not only for XDP
}

// out returns the configuration of the part for outgoing packets.
func (c Config) out() Config {
	c.Hot, c.Demand, c.Outgoing, c.Owner = 0, membership.Demand{}, false, ""
	c.Policy.Out = true
	return c
}

// Part is the share that a stage has in a generation.
type Part interface {
	loader.Part
	// Twin makes the reference decide as the programs do.
	Twin(*verdict.Program)
}

// Listing is a part with maps of words that depend on the lists, by their names.
type Listing interface {
	Words(lists []List) map[string][]uint64
}

// Filler is a part with memory that a generation has anew. It is of one generation, and of both
// directions.
type Filler interface {
	// Maps returns the maps that it has for outgoing packets, or incoming ones, with their
	// entries. It fails where the kernel cannot do what the part is for, before any memory
	// that another generation uses is written.
	Maps(out bool) (map[string]int, error)
	// Fill makes the memory ready, before a program reads it.
	Fill(*loader.Generation, *hash.Secret) error
}

// Configurer is a part whose constants and memory the loader lays out. Secrets derive from the
// seed of the configuration.
type Configurer interface {
	// Configure adds to the configuration of programs.
	Configure(*loader.Config, hash.Seed)
	// Reference makes the memory of a reference, on the heap.
	Reference(*verdict.Program, hash.Seed) error
}

// BasePart has the methods of a part without any, but for constants.
type BasePart struct{}

// Devices returns no sets.
func (BasePart) Devices(netif.Target) map[string]loader.Devices { return nil }

// General says that packets may take the lean path.
func (BasePart) General(netif.Target) string { return "" }

// Twin changes nothing.
func (BasePart) Twin(*verdict.Program) {}

// Generation enforces lists. Its verdict.Program decides as the program in the
// kernel does, in the same memory. It is not safe for concurrent use.
//
// What it says of packets is of incoming ones. Outgoing ones have a generation of their
// own, [Generation.Out], of the same lists, which changes together with this one.
type Generation struct {
	verdict.Program
	*indexed
	kernel *loader.Generation // nil in a reference
	grace  func()             // waits until the programs that are running have ended

	out   *Generation // nil: outgoing packets are not filtered
	Parts []Part      // the shares of stages
	seed  hash.Seed   // of their secrets

	classes *membership.ClassCounts // of an approximate set, when it was built: its keys
}

// Replanned returns the predicted share of unlisted elements that the block set takes for listed ones, now
// and in a generation that is built by what is known of them. Both are 0 where that may not differ.
func (g *Generation) Replanned(d membership.Demand) (now, next float64) {
	if g.Block.Mode != membership.Approximate || d.Sightings == nil {
		return 0, 0
	}
	l := g.Block.Layout
	n := g.Block.Len()
	now = l.RateOf(d.Sightings, n)
	l.PlanClasses(g.classes, d.Sightings, n)
	return now, l.FalsePositiveRate(n)
}

// indexed is the index of the sets in memory, which generations share that share
// these.
type indexed struct{ index *index }

// Build returns a generation in the kernel.
func Build(lists []List, c Config) (*Generation, error) {
	return build(lists, c, true)
}

// Reference returns a generation on the heap, which needs no kernel.
func Reference(lists []List, c Config) (*Generation, error) {
	return build(lists, c, false)
}

// attempts bounds how often a generation is built. A table that is planned at
// membership.TableFill practically never becomes full.
const attempts = 4

func build(lists []List, c Config, inKernel bool) (*Generation, error) {
	if len(lists) > membership.MaxList {
		return nil, fmt.Errorf("build generation: %d lists, of at most %d", len(lists), membership.MaxList)
	}
	lists = slices.Clone(lists)
	g, err := buildSide(lists, c, inKernel)
	if err == nil {
		err = g.addOut(c, inKernel)
	}
	if err != nil {
		return nil, fmt.Errorf("build generation: %w", err)
	}
	return g, nil
}

// addOut builds the part for outgoing packets, if there is to be one. If it fails, it
// closes the generation.
func (g *Generation) addOut(c Config, inKernel bool) (err error) {
	if !c.Outgoing {
		return nil
	}
	if g.out, err = buildSide(g.index.lists, c.out(), inKernel); err != nil {
		return errors.Join(fmt.Errorf("outgoing packets: %w", err), g.Close())
	}
	return nil
}

// buildSide builds the generation of one direction.
func buildSide(lists []List, c Config, inKernel bool) (*Generation, error) {
	return attempt(func(seed hash.Seed) (*Generation, error) { return buildUnder(seed, lists, c, inKernel) })
}

// attempt builds a generation under another seed as long as a table is full.
func attempt(build func(hash.Seed) (*Generation, error)) (g *Generation, err error) {
	for range attempts {
		if g, err = build(hash.NewSeed()); err == nil {
			return g, nil
		}
		if !errors.Is(err, membership.ErrFull) {
			break
		}
	}
	return nil, err
}

func (c *Config) setDefaults() {
	if c.BitsPerKey == 0 {
		c.BitsPerKey = DefaultBitsPerKey
	}
	if c.NearCache == 0 {
		c.NearCache, _ = loader.NearCache()
	}
}

func buildUnder(seed hash.Seed, lists []List, c Config, inKernel bool) (*Generation, error) {
	c.setDefaults()
	x := newIndex(lists, c.Policy.Out)
	if x.book != nil && c.Mode != membership.Exact {
		return nil, errApproximate
	}
	if err := x.plan(); err != nil {
		return nil, err
	}
	block, err := x.block.compile(c.Mode, c.BitsPerKey, hash.NewSecret(seed), len(lists), c.NearCache)
	if err != nil {
		return nil, fmt.Errorf("block lists: %w", err)
	}
	if c.Mode == membership.Approximate {
		block.countClasses()
		block.planClasses(c.Demand.Sightings)
	}
	block.layout.PlanWeights(c.Hot, c.Demand)
	newKernel := loader.NewGeneration
	if !inKernel {
		newKernel = nil
	}
	return assemble(x, seed, &block, c, newKernel, (*compiled).set)
}

// assemble returns the generation of an index. newKernel returns its part in the kernel,
// nil for a generation in the heap; newBlock makes the block set in the memory of that.
func assemble(
	x *index, seed hash.Seed, block *compiled, c Config,
	newKernel func(loader.Config) (*loader.Generation, error),
	newBlock func(*compiled, membership.Memory) (*membership.Set, error),
) (_ *Generation, err error) {
	secret, lists := block.layout.Secret, x.lists
	g := &Generation{indexed: &indexed{x}, grace: loader.Grace, Program: verdict.Program{Policy: c.Policy, Rules: x.book.rules()}, seed: c.Seed, Parts: c.Parts}
	if block.layout.Mode == membership.Approximate {
		listed := block.listed // a pointer into block would keep its columns
		g.classes = &listed
	}
	for _, p := range c.Parts {
		p.Twin(&g.Program)
	}
	c.Policy = g.Policy // parts may have added to it
	defer func() {
		if err != nil {
			g.Close()
		}
	}()
	// Exact in any mode: a false positive would let through what is listed.
	allow, err := x.allow.compile(membership.Exact, 0, secret, len(lists), 0)
	if err != nil {
		return nil, fmt.Errorf("allow lists: %w", err)
	}
	allow.layout.PlanReach()
	if err := x.book.check(); err != nil {
		return nil, err
	}
	x.book.seal()
	var blockMemory, allowMemory membership.Memory
	if newKernel != nil {
		of := config(&block.layout, &allow.layout, secret, &c, len(lists))
		of.Wakes, of.Words, of.Maps = c.Wakes, make(map[string][]uint64), make(map[string]int)
		of.Shared = c.Shared
		for _, p := range c.Parts {
			of.Parts = append(of.Parts, p)
			if s, ok := p.(Configurer); ok {
				s.Configure(&of, c.Seed)
			}
			if l, ok := p.(Listing); ok {
				maps.Copy(of.Words, l.Words(lists))
			}
			if f, ok := p.(Filler); ok {
				more, err := f.Maps(of.Out)
				if err != nil {
					return nil, err
				}
				maps.Copy(of.Maps, more)
			}
		}
		if x.book != nil {
			of.Parts = append(of.Parts, rulePart{book: x.book})
			of.Rules, of.Words[loader.RuleWords] = x.book.lay()
		}
		g.kernel, err = newKernel(of)
		if err != nil {
			return nil, err
		}
		if x.book != nil {
			x.book.words = g.kernel.Words(loader.RuleWords)
		}
		blockMemory, allowMemory = membership.Memory(g.kernel.Block()), membership.Memory(g.kernel.Allow())
	} else {
		g.grace = func() {}
		blockMemory, allowMemory = block.layout.Alloc(), allow.layout.Alloc()
		for _, p := range c.Parts {
			if s, ok := p.(Configurer); ok {
				if err := s.Reference(&g.Program, c.Seed); err != nil {
					return nil, err
				}
			}
		}
	}
	if g.Block, err = newBlock(block, blockMemory); err != nil {
		return nil, err
	}
	// The index, unlike an approximate set, knows what is listed.
	g.Block.Listed = func(k key.Key) bool { return g.index.block.listed(k) }
	if g.Allow, err = allow.set(allowMemory); err != nil {
		return nil, err
	}
	if err := g.fillParts(secret); err != nil {
		return nil, err
	}
	return g, g.keep(seed, &c)
}

// fillParts makes the memory of parts ready, which those of a reference do not have.
func (g *Generation) fillParts(secret *hash.Secret) error {
	for _, p := range g.Parts {
		if f, ok := p.(Filler); ok && g.kernel != nil {
			if err := f.Fill(g.kernel, secret); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *compiled) set(m membership.Memory) (*membership.Set, error) {
	s, err := membership.NewSet(c.layout, m)
	if err != nil {
		return nil, err
	}
	return s, s.Fill(c.columns, c.prefixes...)
}

// WithMonitor returns a generation with the same sets, in the same memory, whose
// programs only count what they would drop, or drop it. Nothing is built. One of the
// two may be used from then on, and closed.
func (g *Generation) WithMonitor(on bool) (_ *Generation, err error) {
	next := *g
	next.Monitor = on
	if g.kernel != nil {
		if next.kernel, err = g.kernel.WithMonitor(on); err != nil {
			return nil, err
		}
	}
	if g.out != nil {
		next.out, err = g.out.WithMonitor(on)
	}
	return &next, err
}

// WithCleanSampled is WithMonitor for events of packets that match nothing.
func (g *Generation) WithCleanSampled(on bool) (_ *Generation, err error) {
	next := *g
	if g.kernel != nil {
		if next.kernel, err = g.kernel.WithCleanSampled(on); err != nil {
			return nil, err
		}
	}
	if g.out != nil {
		next.out, err = g.out.WithCleanSampled(on)
	}
	return &next, err
}

// SamplesClean reports whether packets that match nothing have events.
func (g *Generation) SamplesClean() bool { return g.kernel != nil && g.kernel.SamplesClean() }

// Lists returns the lists, with their contents after all changes.
func (g *Generation) Lists() []List { return slices.Clone(g.index.lists) }

// LendLists is Lists without a copy. They must not be changed, nor kept beyond a change.
func (g *Generation) LendLists() []List { return g.index.lists }

// Out is the part for outgoing packets, nil where they are not filtered.
func (g *Generation) Out() *Generation { return g.out }

// For returns the part for the packets that cross an interface in a direction, nil
// where they are not filtered.
func (g *Generation) For(t netif.Target) *Generation {
	if t.Out {
		return g.out
	}
	return g
}

// Load loads the generation's program for an interface.
func (g *Generation) Load(stats *loader.Stats) (*loader.Program, error) {
	return g.kernel.Load(stats)
}

// Kind is [loader.Generation.Kind] of the part for an interface.
func (g *Generation) Kind(t netif.Target) uint64 {
	if g = g.For(t); g == nil || g.kernel == nil {
		return 0
	}
	return g.kernel.Kind(t)
}

// Follows reports whether the program of an interface knows others by their names, so that
// Follow is to be called when interfaces come and go.
func (g *Generation) Follows(t netif.Target) bool {
	g = g.For(t)
	return g != nil && g.kernel.Follows(t)
}

// Follow is [loader.Generation.Follow] of the part for an interface.
func (g *Generation) Follow(t netif.Target, stats *loader.Stats) error {
	if g = g.For(t); g == nil {
		return nil
	}
	return g.kernel.Follow(t, stats)
}

// Continue is [loader.Generation.Continue] of the part for an interface.
func (g *Generation) Continue(t netif.Target, stats *loader.Stats, others func() bool) (continued bool, err error) {
	if g = g.For(t); g == nil || g.kernel == nil {
		return false, nil
	}
	return g.kernel.Continue(stats, others)
}

// Seed returns the seed of its configuration.
func (g *Generation) Seed() hash.Seed { return g.seed }

// Kernel returns the generation's part in the kernel, or nil for one in the heap.
func (g *Generation) Kernel() *loader.Generation { return g.kernel }

// General returns why all packets take the general path through the program, or
// nothing: plain IPv4 packets take the lean path.
func (g *Generation) General() []string {
	if g.kernel == nil {
		return nil
	}
	return g.kernel.General()
}

// KernelBytes returns the size of the generation's maps.
func (g *Generation) KernelBytes() int {
	if g.kernel == nil {
		return 0
	}
	n := g.kernel.MapBytes()
	if g.out != nil {
		n += g.out.KernelBytes()
	}
	return n
}

// Close releases the generation's memory. An attached program continues to filter.
func (g *Generation) Close() error {
	var errs []error
	if g.kernel != nil {
		errs = append(errs, g.kernel.Close())
	}
	if g.out != nil {
		errs = append(errs, g.out.Close())
	}
	return errors.Join(errs...)
}
