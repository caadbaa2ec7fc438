package loader

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"weir/bpf"
	"weir/loader/explain"
)

// SetEdges sets the interfaces that are the domain's edges, by their indexes.
// Whether the program's own is one applies to programs loaded from now on.
// SetEdges fails where there are too many for the map, or where the kernel
// refuses, and then some may be set.
func (s *Stats) SetEdges(own bool, edges []uint32) (err error) {
	s.edge.Store(own)
	s.read(func(k pinnedMaps) { err = setKeys(k[bpf.WeirMapLoopEdges].m, edges) })
	if err != nil {
		return fmt.Errorf("set the domain's edges: %w", explain.Permission(err))
	}
	return nil
}

// Edge reports whether SetEdges has made the program's own interface an edge.
func (s *Stats) Edge() bool { return s.edge.Load() }

// setKeys replaces the keys of a hash, additions first.
func setKeys(m *ebpf.Map, keys []uint32) error {
	if most := int(m.MaxEntries()); len(keys) > most {
		return fmt.Errorf("%d interfaces, where there is room for %d: name fewer", len(keys), most)
	}
	var gone []uint32
	var key, value uint32
	for all := m.Iterate(); all.Next(&key, &value); {
		if !slices.Contains(keys, key) {
			gone = append(gone, key)
		}
	}
	var errs []error
	for _, k := range keys {
		errs = append(errs, m.Put(k, uint32(1)))
	}
	for _, k := range gone {
		if err := m.Delete(k); !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
