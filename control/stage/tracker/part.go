package tracker

import (
	"net/netip"
	"slices"

	"weir/control/engine"
	"weir/filter/blocked"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/penalty"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
)

// Counting is how programs count for a tracker. Its secret derives from the generation's seed.
type Counting struct {
	sketch.Tracker
	Punishes bool // its flows may have penalties
	Unexempt bool // it counts only packets that the lists are asked for

	Pairs *Pairs // nil: it counts every packet; otherwise it is a scan detector
}

// Pairs has the geometry of the pairs that a scan detector counts: see [verdict.ScanDetector].
type Pairs struct {
	V4, V6    key.Shape // of the tuple form
	Lines     uint32    // of the filter in a bank, 64 bytes each
	Ephemeral uint16    // the port from which on hosts connect; the same in all scan detectors
}

// Geometry is the size of the filter.
func (p *Pairs) Geometry() blocked.Geometry {
	return blocked.Geometry{Lines: p.Lines, Bits: verdict.PairBits}
}

// Part is the share of programs: trackers of incoming and of outgoing packets, at most
// loader.MaxTrackers of each, and one of dropped packets, which is the last.
type Part struct {
	engine.BasePart
	In, Out []Counting
}

// Constants returns none: the loader lays out the trackers, which [Part.Configure] sets.
func (*Part) Constants(netif.Target, loader.Seed) map[string]any { return nil }

// of returns the trackers of a direction, with secrets of their own, so that their hashes differ.
func (p *Part) of(out bool, seed hash.Seed) []Counting {
	all := p.In
	if out {
		all = p.Out
	}
	all = slices.Clone(all)
	for i, s := range hash.NewSecrets(seed, len(all)) {
		all[i].Secret = s
	}
	return all
}

// Configure implements [engine.Configurer].
func (p *Part) Configure(c *loader.Config, seed hash.Seed) {
	for _, t := range p.of(c.Out, seed) {
		of := loader.Tracker{
			Secret: engine.Secret(t.Secret), Lines: t.Lines, Buckets: t.Buckets, ColdShift: uint8(t.ColdShift()),
			ByBytes: loader.Flag(t.Unit == sketch.Bytes), Tuple: loader.Flag(t.V4.Tuple()), Punishes: loader.Flag(t.Punishes),
			Unexempt: loader.Flag(t.Unexempt), Dropped: loader.Flag(t.Dropped),
			V4: engine.Shape(t.V4), V6: engine.Shape(t.V6),
			Src4: engine.Shape(key.Shape{SrcBits: 32}),
			Src6: engine.Shape(key.Shape{Fields: key.FieldV6, SrcBits: 128}),
		}
		if t.Pairs != nil {
			of.Pairs, of.Pair4, of.Pair6 = t.Pairs.Lines, engine.Shape(t.Pairs.V4), engine.Shape(t.Pairs.V6)
			c.EphemeralPort = t.Pairs.Ephemeral
		}
		c.Trackers = append(c.Trackers, of)
	}
}

// Reference implements [engine.Configurer]: it makes trackers on the heap, without penalties.
func (p *Part) Reference(of *verdict.Program, seed hash.Seed) error {
	all := p.of(of.Out, seed)
	twin := &verdict.Trackers{Penalties: make([]*penalty.Table, len(all))}
	for _, t := range all {
		b, err := sketch.NewBank(t.Tracker, make([]uint64, t.LineWords()), make([]uint64, t.FlowWords()))
		if err != nil {
			return err
		}
		if t.Dropped {
			twin.Drops = b
			continue
		}
		twin.Banks, twin.Unexempt = append(twin.Banks, b), append(twin.Unexempt, t.Unexempt)
		twin.Detectors = append(twin.Detectors, t.detector(nil))
	}
	of.Tracked = twin
	return nil
}

// detector returns what makes the tracker count pairs, over memory or, if that is nil, on
// the heap. It is nil for a tracker of packets.
func (t Counting) detector(words []uint64) *verdict.ScanDetector {
	if t.Pairs == nil {
		return nil
	}
	g := &verdict.ScanDetector{V4: t.Pairs.V4, V6: t.Pairs.V6, Secret: t.Secret, Ephemeral: t.Pairs.Ephemeral, Sources: t.V4.SrcBits > 0}
	if words == nil {
		g.Pairs = blocked.New(t.Pairs.Geometry())
		return g
	}
	var err error
	if g.Pairs, err = blocked.FromWords(t.Pairs.Geometry(), words); err != nil {
		panic(err) // the memory has the scan detector's size
	}
	return g
}

// Of returns the trackers of a generation, with their secrets.
func Of(g *engine.Generation) []Counting {
	for _, p := range g.Parts {
		if of, is := p.(*Part); is {
			return of.of(g.Policy.Out, g.Seed())
		}
	}
	return nil
}

// Memory has the trackers of an interface, in the kernel.
type Memory struct {
	*loader.Trackers
	trackers []Counting
	banks    [][2][]*sketch.Bank // of each tracker, once they were asked for
}

// Open opens what the trackers of a generation count for the programs that were loaded
// with the stats. It fails with [loader.ErrNotRecorded] in a reference, and where
// the stats belong to other trackers.
func Open(g *engine.Generation, stats *loader.Stats) (*Memory, error) {
	if g.Kernel() == nil {
		return nil, loader.ErrNotRecorded
	}
	t, err := g.Kernel().OpenTrackers(stats)
	if err != nil {
		return nil, err
	}
	all := Of(g)
	return &Memory{Trackers: t, trackers: all, banks: make([][2][]*sketch.Bank, len(all))}, nil
}

// Banks returns bank 0 or 1 of a tracker on each CPU.
func (m *Memory) Banks(tracker, bank int) []*sketch.Bank {
	if known := m.banks[tracker][bank]; known != nil {
		return known
	}
	banks := make([]*sketch.Bank, m.CPUs)
	for cpu := range banks {
		lines, flows := m.Bank(tracker, cpu, bank)
		b, err := sketch.NewBank(m.trackers[tracker].Tracker, lines, flows)
		if err != nil {
			panic(err) // the memory has the tracker's sizes
		}
		banks[cpu] = b
	}
	m.banks[tracker][bank] = banks
	return banks
}

// Hash returns the hash of a flow of a tracker, under which penalties are stored.
func (m *Memory) Hash(tracker int, k key.Key) uint64 { return m.trackers[tracker].Hash(k) }

// SourceHash returns the hash under which a tracker spares the packets of a source.
func (m *Memory) SourceHash(tracker int, src netip.Addr) uint64 {
	return verdict.SourceHash(src, m.trackers[tracker].Secret)
}

// Pairs returns what a scan detector remembers in bank 0 or 1, nil for a tracker of packets.
func (m *Memory) Pairs(tracker, bank int) *blocked.Filter {
	if g := m.trackers[tracker].detector(m.PairWords(tracker, bank)); g != nil {
		return g.Pairs
	}
	return nil
}
