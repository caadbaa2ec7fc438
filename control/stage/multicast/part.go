package multicast

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"weir/bpf"
	"weir/control/engine"
	"weir/control/journal"
	"weir/filter/hash"
	"weir/filter/multicast"
	"weir/loader"
	"weir/loader/kernelerr"
	"weir/loader/netif"
)

// Part is the share of the programs for incoming packets, of one generation: they copy packets to
// the ports that want their groups.
type Part struct {
	engine.BasePart
	Ports     []Port
	MaxGroups int              // of all ports together
	Layout    multicast.Layout // of the filters; without lines: they are planned for MaxGroups

	// Table has the groups of the ports, by their numbers from 1. Changes of it take effect at
	// once. It is nil in a reference.
	Table *multicast.Table

	devices []device // of the ports, as they are in the map
}

// Port is an interface and the groups that it wants when the generation is built.
type Port struct {
	netif.Target
	Groups, Manual []netip.Addr // of the configuration, and added by commands
	Edge           bool         // of the domain that detects loops
}

// device is the interface at a port.
type device struct {
	index int // 0: none
	mac   []byte
	mtu   int
}

// Part returns the share of the programs of a generation, whose interfaces are in a network
// namespace. Some are edges of the domain that detects loops. The journal has manual groups.
func (s *Spec) Part(netns string, edges []string, j *journal.Journal) *Part {
	p := &Part{Ports: make([]Port, len(s.Interfaces))}
	at, known := make(map[string]*Port), make(map[netip.Addr]bool)
	for i, iface := range s.Interfaces {
		p.Ports[i] = Port{
			Target: netif.Target{Netns: netns, Iface: iface.Name},
			Edge:   slices.ContainsFunc(edges, func(edge string) bool { ok, _ := path.Match(edge, iface.Name); return ok }),
		}
		at[listOf(iface.Name)] = &p.Ports[i]
		for _, g := range iface.Groups {
			known[netip.Addr(g)] = true
			p.Ports[i].Groups = append(p.Ports[i].Groups, netip.Addr(g))
		}
	}
	for e := range j.Entries() {
		if to := at[e.List]; to != nil {
			known[e.Key.Dst] = true
			to.Manual = append(to.Manual, e.Key.Dst)
		}
	}
	// What was wanted before max_groups was lowered stays wanted.
	p.MaxGroups = max(int(s.MaxGroups), len(known))
	return p
}

// Of returns the part of a generation, nil where nothing is forwarded.
func Of(g *engine.Generation) *Part {
	for _, p := range g.Parts {
		if of, is := p.(*Part); is {
			return of
		}
	}
	return nil
}

// General returns why no packet takes the lean path.
func (*Part) General(t netif.Target) string {
	if t.Out {
		return ""
	}
	return "multicast is forwarded"
}

// Constants returns the geometry of the filters.
func (p *Part) Constants(t netif.Target, _ loader.Seed) map[string]any {
	all := make(map[string]any)
	if l := &p.Layout; !t.Out {
		all[bpf.WeirVarMulticast] = &bpf.WeirMulticastFilters{Ports: uint32(l.Ports), Lines: l.Lines, First: uint32(l.First), Rest: uint32(l.Rest)}
	}
	return all
}

// Maps returns the filters, counters and interfaces of the ports. It fails where the kernel cannot
// forward.
func (p *Part) Maps(out bool) (map[string]int, error) {
	if out {
		return nil, nil
	}
	if err := checkKernel(); err != nil {
		return nil, err
	}
	if p.Layout.Lines == 0 {
		p.Layout = multicast.Plan(len(p.Ports), p.MaxGroups)
	}
	filters := len(p.Ports) + 1
	return map[string]int{
		bpf.WeirMapMulticastLines:   filters * int(p.Layout.Lines),
		bpf.WeirMapMulticastStats:   filters * loader.CPUs(),
		bpf.WeirMapMulticastDevices: len(p.Ports),
		bpf.WeirMapMulticastMtu:     1,
	}, nil
}

// Fill adds the groups of the ports to the kernel's filters.
func (p *Part) Fill(g *loader.Generation, secret *hash.Secret) (err error) {
	words := g.Words(bpf.WeirMapMulticastLines)
	if words == nil {
		return nil // it is of outgoing packets
	}
	if p.Table, err = multicast.NewTable(p.Layout, secret, words); err != nil {
		return err
	}
	p.devices = make([]device, len(p.Ports))
	for i, to := range p.Ports {
		for _, group := range slices.Concat(to.Groups, to.Manual) {
			if _, err := p.Table.Add(i+1, group); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkKernel fails where the kernel cannot redirect a packet to all devices of a map: before
// 5.14 it loads such a program, which then aborts.
func checkKernel() error {
	devices, err := ebpf.NewMap(&ebpf.MapSpec{Name: "weir_probe", Type: ebpf.DevMap, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("probe for multicast: %w", kernelerr.Permission(err))
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
		return fmt.Errorf("probe for multicast: %w", kernelerr.Permission(err))
	}
	defer p.Close()
	action, err := p.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: 1})
	if err != nil {
		return fmt.Errorf("probe for multicast: %w", kernelerr.Permission(err))
	}
	if action != loader.ActionRedirect {
		return fmt.Errorf("multicast: %w by this kernel, which cannot copy a packet to several interfaces: "+
			"use Linux 5.14 or later, or a configuration without multicast", kernelerr.ErrUnsupported)
	}
	return nil
}

// Connect makes the interfaces that have the ports' names now the ports, and reports which of them
// exist. Copies that are sent there have the interface's address as source; at an edge of a domain
// with loop detection they lose their filter. Call it again when interfaces appear, go or change.
func (p *Part) Connect(g *loader.Generation) (there []bool, err error) {
	least := 0
	for i, to := range p.Ports {
		ok, bad := p.connect(g, i)
		if bad != nil {
			ok, err = false, errors.Join(err, fmt.Errorf("copy multicast to %s: %w", to, bad))
		}
		there = append(there, ok)
		if d := p.devices[i]; d.index != 0 && (least == 0 || d.mtu < least) {
			least = d.mtu
		}
	}
	atomic.StoreUint64(&g.Words(bpf.WeirMapMulticastMtu)[0], uint64(least))
	return there, err
}

// connect makes an interface a port, by its number from 0.
func (p *Part) connect(g *loader.Generation, n int) (there bool, err error) {
	to, d := &p.Ports[n], &p.devices[n]
	iface, err := to.Find()
	switch {
	case errors.Is(err, netif.ErrNoNetns):
		*d = device{}
		return false, nil
	case errors.Is(err, netif.ErrNoInterface) && d.index == 0:
		return false, nil
	case errors.Is(err, netif.ErrNoInterface): // it may exist under another name
		*d = device{}
		return false, g.ClearDevice(bpf.WeirMapMulticastDevices, n)
	case err != nil:
		return false, err
	}
	d.mtu = iface.MTU
	// One that has left the namespace and come back may have its former index.
	now, err := g.Device(bpf.WeirMapMulticastDevices, n)
	if err != nil || d.index == iface.Index && now == d.index && bytes.Equal(d.mac, iface.HardwareAddr) {
		return true, err
	}
	egress := bpf.WeirMulticastPort{Port: uint32(n + 1), Edge: loader.Flag(to.Edge)}
	if len(iface.HardwareAddr) != len(egress.Mac) {
		return false, fmt.Errorf("%w: it has no Ethernet address", kernelerr.ErrUnsupported)
	}
	copy(egress.Mac[:], iface.HardwareAddr)
	switch err := g.SetDevice(bpf.WeirMapMulticastDevices, n, to.Target, iface, map[string]any{bpf.WeirVarEgress: &egress}); {
	case errors.Is(err, netif.ErrNoNetns): // it has gone meanwhile
		*d = device{}
		return false, nil
	case errors.Is(err, netif.ErrNoInterface):
		*d = device{}
		return false, g.ClearDevice(bpf.WeirMapMulticastDevices, n)
	case err != nil:
		return false, err
	}
	d.index, d.mac = iface.Index, iface.HardwareAddr
	return true, nil
}

// Copies counts the answers of a filter of groups.
type Copies struct {
	Listed   loader.Counter // that were sent on
	Unlisted loader.Counter // dropped by a port; of the filter of any port, left to the stack
}

const rowWords = int(unsafe.Sizeof(bpf.WeirMulticastRow{})) / 8

// Copies adds up the answers of the filters of a generation on all CPUs, the filter of all ports
// first. It makes no system call.
func (p *Part) Copies(g *loader.Generation) []Copies {
	all := make([]Copies, len(p.Ports)+1)
	words := g.Words(bpf.WeirMapMulticastStats)
	for i := 0; i < len(words); i += rowWords {
		c := &all[i/rowWords%len(all)]
		for j, to := range []*uint64{&c.Listed.Packets, &c.Listed.Bytes, &c.Unlisted.Packets, &c.Unlisted.Bytes} {
			*to += atomic.LoadUint64(&words[i+j])
		}
	}
	return all
}
