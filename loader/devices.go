package loader

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"weir/loader/kernelerr"
	"weir/loader/netif"
)

// Devices are interfaces that a program knows, in the network namespace of its own.
type Devices struct {
	Names []string // and globs
	VLANs bool     // the VLAN devices above them belong to them
	Own   string   // variable of whether the program's own interface is one of them; "": it has none
}

// Follows reports whether a program knows other interfaces by their names.
func (g *Generation) Follows(t netif.Target) bool {
	for _, p := range g.config.Parts {
		for _, d := range p.Devices(t) {
			if len(d.Names) > 0 {
				return true
			}
		}
	}
	return false
}

// Follow writes which interfaces there are now of those that parts name into the memory of
// an interface's program, which counts in stats. Whether its own is one of them applies to programs
// that are loaded from now on. It fails where there are too many for a map, or where the kernel
// refuses, and then some may be written.
func (g *Generation) Follow(t netif.Target, stats *Stats) error {
	before, own := stats.devices(), make(ownDevices)
	var errs []error
	for _, p := range g.config.Parts {
		for name, d := range p.Devices(t) {
			is, found, err := d.find(t)
			if d.Own != "" {
				own[d.Own] = is
				if err != nil {
					own[d.Own] = before[d.Own]
				}
			}
			if errors.Is(err, netif.ErrNoNetns) {
				continue // the interface is gone with it
			}
			if err == nil {
				stats.read(func(k pinnedMaps) { err = setKeys(k[name].m, found) })
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("set the interfaces of %s: %w", name, kernelerr.Permission(err)))
			}
		}
	}
	stats.own.Store(&own)
	return errors.Join(errs...)
}

// find returns the indexes of the devices that exist, and whether the target is one of them.
func (d Devices) find(t netif.Target) (own bool, found []uint32, err error) {
	if len(d.Names) == 0 {
		return false, nil, nil
	}
	return t.Matching(d.Names, d.VLANs)
}

// ownDevices are the values of the variables [Devices.Own].
type ownDevices map[string]bool

// constants returns them as programs have them.
func (o ownDevices) constants() map[string]any {
	all := make(map[string]any)
	for name, is := range o {
		all[name] = Flag(is)
	}
	return all
}

// IsDevice reports whether programs that are loaded with the stats take their own interface for one
// of their devices, as Follow has found.
func (s *Stats) IsDevice() bool {
	for _, is := range s.devices() {
		if is {
			return true
		}
	}
	return false
}

// devices returns what Follow has found of the program's own interface.
func (s *Stats) devices() ownDevices {
	if own := s.own.Load(); own != nil {
		return *own
	}
	return nil
}

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
