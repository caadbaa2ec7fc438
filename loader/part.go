package loader

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
)

// Part is the share that a stage has in the programs of a generation.
type Part interface {
	// Constants returns values of variables in the program of an interface, by name. An
	// entry without a variable does without its value.
	Constants(Target) map[string]any
	// Devices returns sets of interfaces that the program of an interface reads, by the
	// names of their maps: names and globs, in the interface's network namespace.
	Devices(Target) map[string][]string
}

// For makes the programs that are loaded with the stats from now on have the parts of an
// interface.
func (s *Stats) For(t Target) { s.target.Store(&t) }

// of returns what For has set.
func (s *Stats) of() (t Target) {
	if of := s.target.Load(); of != nil {
		t = *of
	}
	return t
}

// setParts sets the constants of the parts in the program that counts in stats.
func (g *Generation) setParts(spec *ebpf.CollectionSpec, stats *Stats) error {
	for _, p := range g.config.Parts {
		for name, value := range p.Constants(stats.of()) {
			if v := spec.Variables[name]; v == nil {
				continue
			} else if err := v.Set(value); err != nil {
				return err
			}
		}
	}
	return nil
}

// Kind is the same for interfaces whose programs have the same constants of parts.
func (g *Generation) Kind(t Target) uint64 {
	h := fnv.New64a()
	for _, p := range g.config.Parts {
		constants := p.Constants(t)
		for _, name := range slices.Sorted(maps.Keys(constants)) {
			fmt.Fprint(h, name, constants[name])
		}
	}
	return h.Sum64()
}

// Follows reports whether a program knows other interfaces by their names.
func (g *Generation) Follows(t Target) bool {
	for _, p := range g.config.Parts {
		for _, names := range p.Devices(t) {
			if len(names) > 0 {
				return true
			}
		}
	}
	return false
}

// Follow writes which interfaces there are now of those that parts name into the memory of
// the program that counts in stats. It fails where there are too many for a map, or where
// the kernel refuses, and then some may be written.
func (g *Generation) Follow(stats *Stats) error {
	for _, p := range g.config.Parts {
		t := stats.of()
		for name, patterns := range p.Devices(t) {
			var devices []uint32
			var err error
			if len(patterns) > 0 {
				devices, err = t.Matching(patterns)
			}
			if errors.Is(err, ErrNoNetns) {
				return nil // the interface is gone with it
			}
			if err == nil {
				stats.read(func(k pinnedMaps) { err = setKeys(k[name].m, devices) })
			}
			if err != nil {
				return fmt.Errorf("set the interfaces of %s: %w", name, explainPermission(err))
			}
		}
	}
	return nil
}
