package multicast

import (
	"errors"
	"net/netip"
	"slices"

	"weir/control/engine"
	"weir/filter/hash"
	"weir/filter/multicast"
	"weir/loader"
)

// Part is the share of the programs for incoming packets, of one generation: they copy packets to
// the ports that want their groups.
type Part struct {
	engine.BasePart
	Ports     []Port
	MaxGroups int // of all ports together

	// Table has the groups of the ports, by their numbers from 1. Changes of it take effect at
	// once. It is nil in a reference.
	Table  *multicast.Table
	layout multicast.Layout
}

// Port is an interface and the groups that it wants when the generation is built.
type Port struct {
	loader.Target
	Groups, Manual []netip.Addr // of the configuration, and added by commands
	Edge           bool         // of the domain that detects loops
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

// Constants returns none: the loader sets those of the filters.
func (*Part) Constants(loader.Target, loader.Seed) map[string]any { return nil }

// Configure adds the layout of the ports' filters.
func (p *Part) Configure(c *loader.Config) {
	if l := &p.layout; !c.Out {
		*l = multicast.Plan(len(p.Ports), p.MaxGroups)
		c.Multicast = loader.Multicast{Ports: uint32(l.Ports), Lines: l.Lines, First: uint32(l.First), Rest: uint32(l.Rest)}
	}
}

// Fill adds the groups of the ports to the kernel's filters.
func (p *Part) Fill(g *loader.Generation, secret *hash.Secret) (err error) {
	words := g.Groups()
	if words == nil {
		return nil // it is of outgoing packets
	}
	if p.Table, err = multicast.NewTable(p.layout, secret, words); err != nil {
		return err
	}
	for i, to := range p.Ports {
		for _, group := range slices.Concat(to.Groups, to.Manual) {
			if _, err := p.Table.Add(i+1, group); err != nil {
				return err
			}
		}
	}
	return nil
}

// Connect sets the interface of each port, and reports which of them exist. See
// [loader.Generation.SetPort].
func (p *Part) Connect(g *loader.Generation) (there []bool, err error) {
	for i, to := range p.Ports {
		ok, bad := g.SetPort(i+1, to.Target, to.Edge)
		there, err = append(there, ok), errors.Join(err, bad)
	}
	return there, err
}
