package loader

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"weir/loader/kernelerr"
	"weir/loader/netif"
)

// deviceEntry is an entry of a device map; its program is a file descriptor when it is put there,
// and a number when it is looked up.
type deviceEntry struct{ Index, Program uint32 }

// partMap returns a map that a part has in the generation.
func (g *Generation) partMap(name string) (*ebpf.Map, error) {
	if a := g.maps[name]; a != nil {
		return a.m, nil
	}
	return nil, fmt.Errorf("the generation has no map %s", name)
}

// Device returns the index of the interface that is an entry of a device map, 0 for none.
func (g *Generation) Device(devices string, entry int) (index int, err error) {
	m, err := g.partMap(devices)
	if err != nil {
		return 0, err
	}
	var now deviceEntry
	if err := m.Lookup(uint32(entry), &now); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, kernelerr.Permission(err)
	}
	return int(now.Index), nil
}

// ClearDevice leaves an entry of a device map without an interface.
func (g *Generation) ClearDevice(devices string, entry int) error {
	m, err := g.partMap(devices)
	if err != nil {
		return err
	}
	if err := m.Delete(uint32(entry)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return kernelerr.Permission(err)
	}
	return nil
}

// SetDevice makes an interface in the target's network namespace an entry of a device map. What
// programs redirect there goes through the object's program for that, with these constants and
// those of parts. The kernel drops an interface that has gone by itself.
func (g *Generation) SetDevice(devices string, entry int, t netif.Target, i *netif.Iface, constants map[string]any) error {
	m, err := g.partMap(devices)
	if err != nil {
		return err
	}
	p, err := g.loadEgress(constants)
	if err != nil {
		return kernelerr.Permission(err)
	}
	defer p.Close() // the map has a reference
	device := deviceEntry{uint32(i.Index), uint32(p.FD())}
	return kernelerr.Permission(t.In(func(inode uint64) error { // in which the kernel looks up its index
		if err := i.In(inode); err != nil {
			return err
		}
		return m.Put(uint32(entry), &device)
	}))
}

// loadEgress loads the program that redirected packets go through.
func (g *Generation) loadEgress(constants map[string]any) (*ebpf.Program, error) {
	spec := g.spec.Copy()
	replacements, err := g.connect(spec, nil, 1)
	if err != nil {
		return nil, err
	}
	for _, p := range g.config.Parts {
		if err := setConstants(spec, p.Constants(netif.Target{}, Seed{})); err != nil {
			return nil, err
		}
	}
	if err := setConstants(spec, constants); err != nil {
		return nil, err
	}
	var program struct {
		Egress *ebpf.Program `ebpf:"weir_egress"`
	}
	err = spec.LoadAndAssign(&program, &ebpf.CollectionOptions{MapReplacements: replacements})
	return program.Egress, err
}
