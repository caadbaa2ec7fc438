package loader

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir/bpf"
)

// Multicast is the number of egress interfaces and the geometry of their filters,
// constants of the program. Without ports, nothing is forwarded.
type Multicast = bpf.WeirMulticastFilters

// ActionRedirect is XDP_REDIRECT.
const ActionRedirect = 4

// Copies counts the answers of a filter of groups.
type Copies struct {
	Listed   Counter // that were sent on
	Unlisted Counter // dropped by a port; of the filter of any port, left to the stack
}

// port is the interface at a port.
type port struct {
	index int // 0: none
	mac   []byte
	mtu   int
}

// devmapEntry is an entry of the map of devices; its program is a file descriptor
// when it is put there, and a number when it is looked up.
type devmapEntry struct{ Index, Program uint32 }

const rowCounters = int(unsafe.Sizeof(bpf.WeirMulticastRow{})) / 8

func (c *Config) validateMulticast() error {
	m := &c.Multicast
	switch {
	case m.Ports == 0:
		return nil
	case m.Lines == 0 || uint64(m.Ports+1)*uint64(m.Lines) > maxEntries:
		return fmt.Errorf("%d ports with filters of %d lines: not 1 … %d lines together", m.Ports, m.Lines, maxEntries)
	case m.First < 1 || m.First > maxBits || m.Rest > maxBits:
		return fmt.Errorf("%d and %d bits in a line: not in 1 … %d and 0 … %d", m.First, m.Rest, maxBits, maxBits)
	}
	return nil
}

// makeMulticast creates the filters of groups and the device map.
func (g *Generation) makeMulticast() error {
	m := &g.config.Multicast
	if m.Ports == 0 {
		// The program refers to the device map all the same, and kernels before
		// 5.15 refuse one in generic mode whose entries have room for a program.
		devices := g.spec.Maps[bpf.WeirMapMulticastDevices]
		devices.ValueSize, devices.Value = 4, nil
		return nil
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	if err := haveBroadcast(); err != nil {
		return err
	}
	for name, entries := range map[string]int{
		bpf.WeirMapMulticastLines:   int(m.Ports+1) * int(m.Lines),
		bpf.WeirMapMulticastStats:   int(m.Ports+1) * cpus,
		bpf.WeirMapMulticastDevices: int(m.Ports),
		bpf.WeirMapMulticastMtu:     1,
	} {
		spec := g.spec.Maps[name]
		spec.MaxEntries = uint32(entries)
		if g.maps[name], err = newArray(spec); err != nil {
			delete(g.maps, name)
			return err
		}
	}
	g.ports = make([]port, m.Ports)
	return nil
}

// haveBroadcast fails where the kernel cannot redirect a packet to all devices of
// a map: before 5.14 it loads such a program, which then aborts.
func haveBroadcast() error {
	devices, err := ebpf.NewMap(&ebpf.MapSpec{Name: "weir_probe", Type: ebpf.DevMap, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("probe for multicast: %w", err)
	}
	defer devices.Close()
	p, err := ebpf.NewProgramWithOptions(&ebpf.ProgramSpec{
		Name: "weir_probe",
		Type: ebpf.XDP,
		Instructions: asm.Instructions{
			asm.LoadMapPtr(asm.R1, devices.FD()),
			asm.Mov.Imm(asm.R2, 0),
			asm.Mov.Imm(asm.R3, unix.BPF_F_BROADCAST|unix.BPF_F_EXCLUDE_INGRESS),
			asm.FnRedirectMap.Call(),
			asm.Return(),
		},
		License: "Dual BSD/GPL",
	}, ebpf.ProgramOptions{LogDisabled: true})
	if err != nil {
		return fmt.Errorf("probe for multicast: %w", err)
	}
	defer p.Close()
	action, err := p.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: 1})
	if err != nil {
		return fmt.Errorf("probe for multicast: %w", err)
	}
	if action != ActionRedirect {
		return fmt.Errorf("multicast: %w by this kernel, which cannot copy a packet to several interfaces: "+
			"use Linux 5.14 or later, or a configuration without multicast", ErrUnsupported)
	}
	return nil
}

// Groups returns the memory of the filters of groups, valid until Close: 8 words a
// line, the filter of all ports first. It is nil without ports.
func (g *Generation) Groups() []uint64 {
	if m := g.maps[bpf.WeirMapMulticastLines]; m != nil {
		return m.words
	}
	return nil
}

// Copies adds up the answers of the filters of groups on all CPUs, the filter of
// all ports first. It makes no system call.
func (g *Generation) Copies() []Copies {
	m := g.maps[bpf.WeirMapMulticastStats]
	if m == nil {
		return nil
	}
	all := make([]Copies, g.config.Multicast.Ports+1)
	for i := 0; i < len(m.words); i += rowCounters {
		c := &all[i/rowCounters%len(all)]
		for j, to := range []*uint64{&c.Listed.Packets, &c.Listed.Bytes, &c.Unlisted.Packets, &c.Unlisted.Bytes} {
			*to += atomic.LoadUint64(&m.words[i+j])
		}
	}
	return all
}

// SetPort makes the interface that has the target's name now port n, from 1, and
// reports whether there is one. Copies sent there have its address as source. Call
// it again when interfaces appear, go or change; the kernel drops an interface
// that has gone by itself. Copies that are sent at an edge of a domain with loop
// detection lose their filter.
func (g *Generation) SetPort(n int, t Target, edge bool) (there bool, err error) {
	devices := g.maps[bpf.WeirMapMulticastDevices]
	if devices == nil || n < 1 || n > len(g.ports) {
		return false, fmt.Errorf("there is no port %d", n)
	}
	err = t.in(func(uint64) error {
		iface, err := findIface(t.Iface)
		if errors.Is(err, ErrNoInterface) {
			return g.clearPort(devices, n)
		}
		if err != nil {
			return err
		}
		there = true
		return g.setPort(devices, n, iface, edge)
	})
	if errors.Is(err, ErrNoNetns) {
		g.ports[n-1], err = port{}, nil
	}
	g.setMTU()
	if err != nil {
		return false, fmt.Errorf("copy multicast to %s: %w", t, explainPermission(err))
	}
	return there, nil
}

// setMTU stores the least MTU of the ports' interfaces.
func (g *Generation) setMTU() {
	least := uint64(0)
	for _, p := range g.ports {
		if p.index != 0 && (least == 0 || uint64(p.mtu) < least) {
			least = uint64(p.mtu)
		}
	}
	atomic.StoreUint64(&g.maps[bpf.WeirMapMulticastMtu].words[0], least)
}

func (g *Generation) clearPort(devices *array, n int) error {
	if g.ports[n-1].index == 0 {
		return nil
	}
	g.ports[n-1] = port{}
	// It may exist under another name.
	if err := devices.m.Delete(uint32(n - 1)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// setPort puts the interface, with a program for it, into the device map. It is
// called in the interface's network namespace, in which the kernel looks up its
// index.
func (g *Generation) setPort(devices *array, n int, iface *netlink.LinkAttrs, edge bool) error {
	p := &g.ports[n-1]
	p.mtu = iface.MTU
	// One that has left the namespace and come back may have its former index.
	var now devmapEntry
	if err := devices.m.Lookup(uint32(n-1), &now); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	if p.index == iface.Index && int(now.Index) == p.index && bytes.Equal(p.mac, iface.HardwareAddr) {
		return nil
	}
	egress := bpf.WeirMulticastPort{Port: uint32(n), Edge: Flag(edge)}
	if len(iface.HardwareAddr) != len(egress.Mac) {
		return fmt.Errorf("%w: it has no Ethernet address", ErrUnsupported)
	}
	copy(egress.Mac[:], iface.HardwareAddr)
	spec := g.spec.Copy()
	replacements, err := g.connect(spec, nil, 1)
	if err != nil {
		return err
	}
	for _, p := range g.config.Parts { // at an edge, it takes off the filter of the domain that detects loops
		if err := setConstants(spec, p.Constants(Target{}, Seed{})); err != nil {
			return err
		}
	}
	if err := spec.Variables[bpf.WeirVarEgress].Set(&egress); err != nil {
		return err
	}
	var program struct {
		Egress *ebpf.Program `ebpf:"weir_egress"`
	}
	if err := spec.LoadAndAssign(&program, &ebpf.CollectionOptions{MapReplacements: replacements}); err != nil {
		return err
	}
	defer program.Egress.Close() // the map has a reference
	entry := devmapEntry{uint32(iface.Index), uint32(program.Egress.FD())}
	if err := devices.m.Put(uint32(n-1), &entry); err != nil {
		return err
	}
	p.index, p.mac = iface.Index, iface.HardwareAddr
	return nil
}
