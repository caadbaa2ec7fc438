package engine

import (
	"errors"
	"net/netip"

	"weir/filter/multicast"
	"weir/loader"
)

// Multicast says which groups go where.
type Multicast struct {
	Ports     []Port
	MaxGroups int // of all ports together
}

// Port is an interface and the groups that it wants.
type Port struct {
	loader.Target
	Groups []netip.Addr
}

// layMulticast plans the filters for the ports, where there are any.
func layMulticast(m Multicast) multicast.Layout {
	if len(m.Ports) == 0 {
		return multicast.Layout{}
	}
	return multicast.Plan(len(m.Ports), m.MaxGroups)
}

// fillMulticast brings what the ports want into the kernel's filters, before any
// program reads them.
func (g *Generation) fillMulticast(l multicast.Layout, m Multicast, seed uint64) (err error) {
	if l.Ports == 0 || g.kernel == nil {
		return nil // a reference forwards nothing
	}
	if g.multicast, err = multicast.NewTable(l, seed, g.kernel.Groups()); err != nil {
		return err
	}
	for i, p := range m.Ports {
		g.ports = append(g.ports, p.Target)
		for _, group := range p.Groups {
			if _, err := g.multicast.Add(i+1, group); err != nil {
				return err
			}
		}
	}
	return nil
}

// Multicast is the table of what the ports want, where changes are in force at
// once. It is nil where there are no ports.
func (g *Generation) Multicast() *multicast.Table { return g.multicast }

// Ports are the interfaces that packets are copied to: that of port n is n - 1.
func (g *Generation) Ports() []loader.Target { return g.ports }

// Connect brings the interfaces that there are now into the ports' places, and
// tells which of them are there. See loader.Generation.SetPort.
func (g *Generation) Connect() (there []bool, err error) {
	for i, t := range g.ports {
		ok, bad := g.kernel.SetPort(i+1, t)
		there, err = append(there, ok), errors.Join(err, bad)
	}
	return there, err
}

// Copies are what the filters of groups have answered, that of any port first.
func (g *Generation) Copies() []loader.Copies {
	if g.kernel == nil {
		return nil
	}
	return g.kernel.Copies()
}
