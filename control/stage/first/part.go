package first

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"weir/bpf"
	"weir/control/engine"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/newflow"
	"weir/filter/recent"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
)

// The memory of an interface: two generations, or cells in their place, of lines.
const (
	banks     = 2
	line      = 64 // bytes
	lineWords = line / 8
)

// Part is the share of programs: see [newflow.Watcher].
type Part struct {
	engine.BasePart
	V4, V6 key.Shape
	Filter recent.Kind   // what remembers flows
	Lines  uint32        // of each of two generations, or of half of the cells
	Events int           // budget of a CPU, a second; 0: there are none
	Window time.Duration // after which a generation is forgotten

	// What makes a flow important, by its first packet.
	BySize, ByList bool
	Ports          []verdict.FailsafePort // of destinations, at most verdict.MaxFailsafe

	Stopped bool // the memory says the time, for tests
}

// gap is the part of a CPU's budget that an event takes, in ns; 0: there are none.
func (p *Part) gap() uint64 {
	if p.Events == 0 {
		return 0
	}
	return 1e9 / uint64(p.Events)
}

// Constants returns those of programs for incoming packets.
func (p *Part) Constants(t netif.Target, seed loader.Seed) map[string]any {
	all := make(map[string]any)
	if !t.Out {
		all[bpf.WeirVarFirstSeen] = p.constants(seed)
	}
	return all
}

func (p *Part) constants(seed loader.Seed) *bpf.WeirFirstConfig {
	c := &bpf.WeirFirstConfig{
		Secret: engine.Secret(hash.NewSecret(hash.Seed(seed))), V4: engine.Shape(p.V4), V6: engine.Shape(p.V6),
		Gap: p.gap(), Lines: p.Lines,
	}
	for flag, is := range map[*uint8]bool{&c.Tuple: p.V4.Tuple(), &c.BySize: p.BySize, &c.ByList: p.ByList, &c.Stopped: p.Stopped} {
		if is {
			*flag = 1
		}
	}
	if p.cells() {
		c.Sinks = uint8(p.Filter.Sinks())
		for level := 1; level < len(c.Values); level++ {
			c.Values[level] = uint8(p.Filter.Value(level))
		}
	}
	for _, port := range p.Ports {
		to := &c.Ports[c.N_ports]
		var b [2]byte
		binary.BigEndian.PutUint16(b[:], port.Port)
		to.Port, to.Proto = binary.NativeEndian.Uint16(b[:]), port.Proto
		c.N_ports++
	}
	return c
}

// cells reports whether cells remember flows, not two generations.
func (p *Part) cells() bool { return p.Filter != recent.Bloom }

// Words returns the importance of lists, by their numbers.
func (p *Part) Words(lists []engine.List) map[string][]uint64 {
	if !p.ByList {
		return nil
	}
	var words []uint64
	for _, importance := range importances(lists) {
		words = append(words, uint64(importance))
	}
	return map[string][]uint64{bpf.WeirMapFirstLevels: words}
}

// Keeps returns the maps of an interface's memory.
func (p *Part) Keeps(t netif.Target) map[string]int {
	if t.Out {
		return nil
	}
	return map[string]int{bpf.WeirMapFirstNow: 1, bpf.WeirMapFirstCpus: loader.CPUs(), bpf.WeirMapFirstLines: banks * int(p.Lines)}
}

// Head returns where the memory has its seed, and what identifies it.
func (p *Part) Head(k loader.Kept) (*loader.Seed, *uint64) {
	now := stateOf(k)
	return &now.Seed, &now.Identity
}

// Identity identifies what may be remembered in the same memory.
func (p *Part) Identity(_ netif.Target, seed loader.Seed) uint64 {
	h, c := fnv.New64a(), p.constants(seed)
	if p.cells() {
		fmt.Fprint(h, "cells of three bits, multilinear hash, four of one line", seed, c.V4, c.V6, c.Lines, c.Tuple, c.Sinks, c.Values)
	} else {
		fmt.Fprint(h, "two generations, multilinear hash, four bits of one line", seed, c.V4, c.V6, c.Lines, c.Tuple)
	}
	return h.Sum64() | 1 // 0 means none
}

// Begin leaves new memory as it is: no flow is remembered.
func (*Part) Begin(loader.Kept) {}

// Reference returns what the program does, in Go, under its seed and for its lists.
func (p *Part) Reference(seed loader.Seed, lists []engine.List, now func() uint64) *newflow.Watcher {
	twin := &newflow.Watcher{
		Flow:  sketch.Tracker{V4: p.V4, V6: p.V6, Secret: hash.NewSecret(hash.Seed(seed))},
		Known: recent.New(p.Lines), BySize: p.BySize, Ports: p.Ports, Gap: p.gap(), Now: now,
	}
	if p.cells() {
		twin.Known = recent.NewCells(p.Filter, banks*p.Lines)
	}
	if p.ByList {
		twin.Lists = importances(lists)
	}
	return twin
}

// importances returns the importance of the lists, by number from 1: the priorities of
// block lists are spread over 2 to the maximum, which a single priority has.
func importances(lists []engine.List) []newflow.Importance {
	var priorities []int
	for _, l := range lists {
		if !l.Allow {
			priorities = append(priorities, l.Priority)
		}
	}
	slices.Sort(priorities)
	priorities = slices.Compact(priorities)
	all := make([]newflow.Importance, 1+len(lists))
	for i, l := range lists {
		if l.Allow {
			continue
		}
		all[i+1] = newflow.MaxImportance
		if most := len(priorities) - 1; most > 0 {
			rank, _ := slices.BinarySearch(priorities, l.Priority)
			all[i+1] = 2 + newflow.Importance(rank*int(newflow.MaxImportance-2)/most)
		}
	}
	return all
}
