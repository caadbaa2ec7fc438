package loader

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"weir/bpf"
)

// SetEdges sets the interfaces that are the domain's edges, by their indexes.
// Whether the program's own is one applies to programs loaded from now on.
// SetEdges fails where there are too many for the map, or where the kernel
// refuses, and then some may be set.
func (s *Stats) SetEdges(own bool, edges []uint32) (err error) {
	s.edge.Store(own)
	s.read(func(k pinnedMaps) { err = setKeys(k[bpf.WeirMapLoopEdges].m, edges) })
	if err != nil {
		return fmt.Errorf("set the domain's edges: %w", explainPermission(err))
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

// Matching returns the indexes of the interfaces in the target's network namespace whose names
// match one of the patterns, with *, ? and [ ]. It fails on a malformed pattern.
func (t Target) Matching(patterns []string) (found []uint32, err error) {
	err = t.in(func(uint64) error {
		links, err := listLinks()
		if err != nil {
			return err
		}
		for _, l := range links {
			match, err := matchAny(patterns, l.Attrs().Name)
			if err != nil {
				return err
			}
			if match {
				found = append(found, uint32(l.Attrs().Index))
			}
		}
		return nil
	})
	return found, err
}

// Edges returns the indexes of the interfaces in the target's network namespace
// whose names match one of the patterns, with *, ? and [ ], and of the VLAN
// devices above them; own is whether the target is one, or would be by its name.
// It fails on a malformed pattern.
func (t Target) Edges(patterns []string) (own bool, edges []uint32, err error) {
	err = t.in(func(uint64) error {
		links, err := listLinks()
		if err != nil {
			return err
		}
		own, edges, err = edgesOf(links, patterns, t.Iface)
		return err
	})
	return own, edges, err
}

func edgesOf(links []netlink.Link, patterns []string, name string) (own bool, edges []uint32, err error) {
	if own, err = matchAny(patterns, name); err != nil {
		return false, nil, err
	}
	for _, l := range links {
		edge, err := matchAny(patterns, l.Attrs().Name)
		if err != nil {
			return false, nil, err
		}
		if edge {
			edges = append(edges, uint32(l.Attrs().Index))
		}
	}
	for grown := true; grown; { // tags in tags
		grown = false
		for _, l := range links {
			index, below := uint32(l.Attrs().Index), uint32(l.Attrs().ParentIndex)
			if l.Type() == "vlan" && slices.Contains(edges, below) && !slices.Contains(edges, index) {
				edges, grown = append(edges, index), true
				own = own || l.Attrs().Name == name
			}
		}
	}
	return own, edges, nil
}

// matchAny reports whether an interface's name matches one of the patterns. It
// fails on a malformed one.
func matchAny(patterns []string, name string) (bool, error) {
	for _, p := range patterns {
		if ok, err := path.Match(p, name); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}
