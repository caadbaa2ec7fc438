package loader

import (
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"

	"weir/bpf"
	"weir/loader/kernelerr"
	"weir/loader/netif"
)

// Part is the share that a stage has in the programs of a generation.
type Part interface {
	// Constants returns values of variables in the program of an interface, by name. An
	// entry without a variable does without its value. Secrets derive from the seed, which
	// a [Keeper] keeps.
	Constants(netif.Target, Seed) map[string]any
	// Devices returns sets of interfaces that the program of an interface knows, by the
	// names of their maps.
	Devices(netif.Target) map[string]Devices
	// General returns why no packet of an interface takes the lean path, "" if some do.
	General(netif.Target) string
}

// Keeper is a part with memory that outlives the programs of an interface.
type Keeper interface {
	// Keeps returns its maps, with their entries; nil where an interface needs none.
	Keeps(netif.Target) map[string]int
	// Head returns where the memory has its seed, and what identifies it.
	Head(Kept) (seed *Seed, identity *uint64)
	// Identity identifies what may go on in the same memory. It is not 0.
	Identity(netif.Target, Seed) uint64
	// Begin makes new memory ready.
	Begin(Kept)
}

// Kept are the maps that outlive the programs of an interface.
type Kept = pinnedMaps

// Entries returns the entries of a map, in the kernel's memory.
func Entries[T any](k Kept, name string) []T {
	a := k[name]
	return unsafe.Slice((*T)(unsafe.Pointer(&a.words[0])), a.entries())
}

// EntriesOf returns the entries of a map that a part has in a generation, in the kernel's memory.
func EntriesOf[T any](g *Generation, name string) []T { return Entries[T](g.maps, name) }

// Words returns the words of a map, in the kernel's memory.
func Words(k Kept, name string) []uint64 { return k[name].words }

// Bank returns which of two banks programs use, by its bit in the rows of CPUs: enum bank.
func Bank(k Kept, bit int) int {
	return int(atomic.LoadUint64(&Words(k, bpf.WeirMapReasonStats)[banksWord]) >> bit & 1)
}

// ExchangeBank makes programs use the other bank. Those under way may still use the former.
// It must not run concurrently with [Trackers.Exchange].
func ExchangeBank(k Kept, bit int) {
	(&Trackers{rows: Words(k, bpf.WeirMapReasonStats)}).exchange(bit)
}

// Read calls fn with the maps, unless the stats are closed. They are valid until it
// returns.
func (s *Stats) Read(fn func(Kept)) { s.read(fn) }

// For makes the programs that are loaded with the stats from now on have the parts of an
// interface.
func (s *Stats) For(t netif.Target) { s.target.Store(&t) }

// of returns what For has set.
func (s *Stats) of() (t netif.Target) {
	if of := s.target.Load(); of != nil {
		t = *of
	}
	return t
}

// makeParts creates the maps that parts have in the generation.
func (g *Generation) makeParts() (err error) {
	for name, spec := range g.spec.Maps {
		n := g.config.Maps[name]
		switch {
		case n > 0:
			spec.MaxEntries = uint32(n)
			if g.maps[name], err = newArray(spec); err != nil {
				delete(g.maps, name)
				return err
			}
		case spec.Type == ebpf.DevMap:
			// The program refers to it all the same, and kernels before 5.15 refuse one in
			// generic mode whose entries have room for a program.
			spec.ValueSize, spec.Value = 4, nil
		}
	}
	return nil
}

// Put sets an entry of a map that a part has in the generation.
func (g *Generation) Put(name string, key, value any) error {
	m, err := g.partMap(name)
	if err == nil {
		err = m.Update(key, value, ebpf.UpdateAny)
	}
	return kernelerr.Permission(err)
}

// Get reads an entry of a map that a part has in the generation, and reports whether there is one.
func (g *Generation) Get(name string, key, value any) (bool, error) {
	m, err := g.partMap(name)
	if err == nil {
		err = m.Lookup(key, value)
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	return err == nil, kernelerr.Permission(err)
}

// Remove removes an entry of a map that a part has in the generation, if there is one.
func (g *Generation) Remove(name string, key any) error {
	m, err := g.partMap(name)
	if err == nil {
		err = m.Delete(key)
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return kernelerr.Permission(err)
}

// Has reports whether a part has a map in the generation.
func (g *Generation) Has(name string) bool { return g.maps[name] != nil }

// outgrownParts creates the maps that must replace those that parts have in the stats.
func (g *Generation) outgrownParts(t netif.Target, present pinnedMaps) (pinnedMaps, error) {
	all := make(pinnedMaps)
	for _, p := range g.config.Parts {
		k, ok := p.(Keeper)
		if !ok || len(k.Keeps(t)) == 0 {
			continue
		}
		at, identity := k.Head(present)
		seed := *at
		if seed == (Seed{}) {
			_, _ = rand.Read(seed[:]) // never fails
		}
		id := k.Identity(t, seed)
		entries := k.Keeps(t)
		if id == *identity && present.haveSizes(entries) {
			continue
		}
		fresh, err := newPinnedMaps(entries)
		if err != nil {
			return nil, errors.Join(err, all.Close())
		}
		at, identity = k.Head(fresh)
		*at, *identity = seed, id
		k.Begin(fresh)
		maps.Copy(all, fresh)
	}
	return all, nil
}

// setParts sets the constants of the parts in the program that counts in stats, whose maps
// are to be these.
func (g *Generation) setParts(spec *ebpf.CollectionSpec, stats *Stats, kept pinnedMaps) error {
	t := stats.of()
	for _, p := range g.config.Parts {
		var seed Seed
		if k, ok := p.(Keeper); ok && len(k.Keeps(t)) > 0 {
			at, _ := k.Head(kept)
			seed = *at
		}
		constants := p.Constants(t, seed)
		if p.General(t) != "" {
			constants[bpf.WeirVarLean] = Flag(false)
		}
		if err := setConstants(spec, constants); err != nil {
			return err
		}
	}
	return setConstants(spec, stats.devices().constants())
}

// setConstants sets those constants that the programs have.
func setConstants(spec *ebpf.CollectionSpec, constants map[string]any) error {
	for name, value := range constants {
		if v := spec.Variables[name]; v == nil {
			continue
		} else if err := v.Set(value); err != nil {
			return err
		}
	}
	return nil
}

// Kind is the same for interfaces whose programs have the same constants of parts.
func (g *Generation) Kind(t netif.Target) uint64 {
	h := fnv.New64a()
	for _, p := range g.config.Parts {
		constants := p.Constants(t, Seed{})
		for _, name := range slices.Sorted(maps.Keys(constants)) {
			fmt.Fprint(h, name, constants[name])
		}
	}
	return h.Sum64()
}
