package engine

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"

	"weir/filter/blocked"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/penalty"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
)

// seeded returns the trackers with secrets of their own, so that their hashes differ.
func seeded(trackers []Tracker, seed hash.Seed) []Tracker {
	trackers = slices.Clone(trackers)
	for i, s := range hash.NewSecrets(seed, len(trackers)) {
		trackers[i].Secret = s
	}
	return trackers
}

// newTracked returns trackers on the heap, without penalties.
func newTracked(trackers []Tracker) (*verdict.Trackers, error) {
	p := &verdict.Trackers{Penalties: make([]*penalty.Table, len(trackers))}
	for _, t := range trackers {
		b, err := sketch.NewBank(t.Tracker, make([]uint64, t.LineWords()), make([]uint64, t.FlowWords()))
		if err != nil {
			return nil, err
		}
		if t.Dropped {
			p.Drops = b
			continue
		}
		p.Banks, p.Unexempt = append(p.Banks, b), append(p.Unexempt, t.Unexempt)
		p.Guards = append(p.Guards, t.guard(nil))
	}
	return p, nil
}

// guard returns what makes the tracker count pairs, over memory or, if that is nil, on
// the heap. It is nil for a tracker of packets.
func (t Tracker) guard(words []uint64) *verdict.Guard {
	if t.Pairs == nil {
		return nil
	}
	g := &verdict.Guard{V4: t.Pairs.V4, V6: t.Pairs.V6, Secret: t.Secret, Ephemeral: t.Pairs.Ephemeral, Sources: t.V4.SrcBits > 0}
	if words == nil {
		g.Pairs = blocked.New(t.Pairs.Geometry())
		return g
	}
	var err error
	if g.Pairs, err = blocked.FromWords(t.Pairs.Geometry(), words); err != nil {
		panic(err) // the memory has the guard's size
	}
	return g
}

// Trackers returns the generation's trackers, with their secrets.
func (g *Generation) Trackers() []Tracker { return g.trackers }

// Continue is [loader.Generation.Continue] of the part for an interface.
func (g *Generation) Continue(t loader.Target, stats *loader.Stats, others func() bool) (continued bool, err error) {
	if g = g.For(t); g == nil || g.kernel == nil {
		return false, nil
	}
	return g.kernel.Continue(stats, others)
}

// Trackers are the trackers of an interface, in the kernel's memory.
type Trackers struct {
	*loader.Trackers
	trackers []Tracker
	banks    [][2][]*sketch.Bank // of each tracker, once they were asked for
}

// OpenTrackers opens what the trackers count for the programs that were loaded
// with the stats. It fails with [loader.ErrNotRecorded] in a reference, and where
// the stats belong to other trackers.
func (g *Generation) OpenTrackers(stats *loader.Stats) (*Trackers, error) {
	if g.kernel == nil {
		return nil, loader.ErrNotRecorded
	}
	t, err := g.kernel.OpenTrackers(stats)
	if err != nil {
		return nil, err
	}
	return &Trackers{Trackers: t, trackers: g.trackers, banks: make([][2][]*sketch.Bank, len(g.trackers))}, nil
}

// Banks returns bank 0 or 1 of a tracker on each CPU.
func (t *Trackers) Banks(tracker, bank int) []*sketch.Bank {
	if known := t.banks[tracker][bank]; known != nil {
		return known
	}
	banks := make([]*sketch.Bank, t.CPUs)
	for cpu := range banks {
		lines, flows := t.Bank(tracker, cpu, bank)
		b, err := sketch.NewBank(t.trackers[tracker].Tracker, lines, flows)
		if err != nil {
			panic(err) // the memory has the tracker's sizes
		}
		banks[cpu] = b
	}
	t.banks[tracker][bank] = banks
	return banks
}

// Hash returns the hash of a flow of a tracker, under which penalties are stored.
func (t *Trackers) Hash(tracker int, k key.Key) uint64 { return t.trackers[tracker].Hash(k) }

// SourceHash returns the hash under which a tracker spares the packets of a source.
func (t *Trackers) SourceHash(tracker int, src netip.Addr) uint64 {
	return verdict.SourceHash(src, t.trackers[tracker].Secret)
}

// Pairs returns what a guard remembers in bank 0 or 1, nil for a tracker of packets.
func (t *Trackers) Pairs(tracker, bank int) *blocked.Filter {
	if g := t.trackers[tracker].guard(t.PairWords(tracker, bank)); g != nil {
		return g.Pairs
	}
	return nil
}

// TupleOf returns the fields of a packet that keys match.
func TupleOf(s *loader.Packet) key.Tuple {
	t := key.Tuple{Src: AddrOf(s.Family, s.Src), Dst: AddrOf(s.Family, s.Dst), Proto: s.Proto, HasPorts: s.HasPorts != 0}
	var ports [4]byte
	binary.NativeEndian.PutUint32(ports[:], s.Ports)
	t.SrcPort, t.DstPort = binary.BigEndian.Uint16(ports[:]), binary.BigEndian.Uint16(ports[2:])
	return t
}

// AddrOf returns an address as programs have it.
func AddrOf(family uint8, words [4]uint32) netip.Addr {
	var b [16]byte
	for i, w := range words {
		binary.NativeEndian.PutUint32(b[4*i:], w)
	}
	if family == 4 {
		return netip.AddrFrom4([4]byte(b[:]))
	}
	return netip.AddrFrom16(b)
}

// EphemeralPort returns the lowest port that this host connects from. Others are assumed
// to do the same.
var EphemeralPort = sync.OnceValue(func() uint16 {
	const usual = 32768
	first, err := loader.Target{}.EphemeralPort()
	if err != nil {
		return usual
	}
	return first
})
