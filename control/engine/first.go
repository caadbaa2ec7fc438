package engine

import (
	"encoding/binary"
	"slices"

	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/recent"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
)

// FirstSeen looks for flows that were not seen lately: see [verdict.FirstSeen].
type FirstSeen struct {
	V4, V6 key.Shape
	Filter recent.Kind // what remembers flows
	Lines  uint32      // of each of two generations, or of half of the cells, 64 bytes each; 0: it is off
	Events int         // budget of a CPU, a second; 0: there are none

	// What makes a flow important, by its first packet.
	BySize, ByList bool
	Ports          []verdict.FailsafePort // of destinations, at most verdict.MaxFailsafe

	Stopped bool // time is what the memory says, for tests
}

// gap is the part of a CPU's budget that an event takes, in ns; 0: there are none.
func (f *FirstSeen) gap() uint64 {
	if f.Events == 0 {
		return 0
	}
	return 1e9 / uint64(f.Events)
}

// constants sets those of the program.
func (f *FirstSeen) constants(to *loader.Config, seed hash.Seed, lists []List) {
	if f.Lines == 0 {
		return
	}
	of := &to.First
	*of = loader.FirstSeen{
		Secret: Secret(hash.NewSecret(seed)),
		V4:     shape(membership.GatedShape{Shape: f.V4}), V6: shape(membership.GatedShape{Shape: f.V6}),
		Gap: f.gap(), Lines: f.Lines, Tuple: flag(f.V4.Tuple()),
		BySize: flag(f.BySize), ByList: flag(f.ByList), Stopped: flag(f.Stopped),
	}
	if f.Filter != recent.Bloom {
		of.Sinks = uint8(f.Filter.Sinks())
		for level := 1; level < len(of.Values); level++ {
			of.Values[level] = uint8(f.Filter.Value(level))
		}
	}
	for _, port := range f.Ports {
		to := &of.Ports[of.N_ports]
		var b [2]byte
		binary.BigEndian.PutUint16(b[:], port.Port)
		to.Port, to.Proto = binary.NativeEndian.Uint16(b[:]), port.Proto
		of.N_ports++
	}
	to.FirstSeed = loader.Seed(seed)
	if f.ByList {
		for _, importance := range importances(lists) {
			to.FirstLevels = append(to.FirstLevels, uint64(importance))
		}
	}
}

// Twin returns what the program does, in Go, under its seed and for its lists.
func (f *FirstSeen) Twin(seed hash.Seed, lists []List, now func() uint64) *verdict.FirstSeen {
	twin := &verdict.FirstSeen{
		Flow:  sketch.Tracker{V4: f.V4, V6: f.V6, Secret: hash.NewSecret(seed)},
		Known: recent.New(f.Lines), BySize: f.BySize, Ports: f.Ports, Gap: f.gap(), Now: now,
	}
	if f.Filter != recent.Bloom {
		twin.Known = recent.NewCells(f.Filter, 2*f.Lines)
	}
	if f.ByList {
		twin.Lists = importances(lists)
	}
	return twin
}

// importances returns the importance of the lists, by number from 1: the priorities of
// block lists are spread over 2 to the maximum, which a single priority has.
func importances(lists []List) []verdict.Importance {
	var priorities []int
	for _, l := range lists {
		if !l.Allow {
			priorities = append(priorities, l.Priority)
		}
	}
	slices.Sort(priorities)
	priorities = slices.Compact(priorities)
	all := make([]verdict.Importance, 1+len(lists))
	for i, l := range lists {
		if l.Allow {
			continue
		}
		all[i+1] = verdict.MaxImportance
		if most := len(priorities) - 1; most > 0 {
			rank, _ := slices.BinarySearch(priorities, l.Priority)
			all[i+1] = 2 + verdict.Importance(rank*int(verdict.MaxImportance-2)/most)
		}
	}
	return all
}

// OpenFirst opens the memory of first-seen flows of the programs that were loaded with
// the stats. It fails with [loader.ErrNotRecorded] in a reference, and where the stats are
// those of other flows, or of none.
func (g *Generation) OpenFirst(stats *loader.Stats) (*loader.FirstMemory, error) {
	if g.kernel == nil {
		return nil, loader.ErrNotRecorded
	}
	return g.kernel.OpenFirst(stats)
}
