package engine

import (
	"errors"
	"net/netip"

	"weir/filter/hash"
	"weir/filter/multicast"
	"weir/loader"
)

// Multicast configures which groups are forwarded where.
type Multicast struct {
	Ports     []Port
	MaxGroups int // of all ports together
}

// Port is an interface and the groups that it wants.
type Port struct {
	loader.Target
	Groups []netip.Addr
	Edge   bool // of the domain that detects loops
}

// layMulticast returns the layout of the ports' filters, empty without ports.
func layMulticast(m Multicast) multicast.Layout {
	if len(m.Ports) == 0 {
		return multicast.Layout{}
	}
	return multicast.Plan(len(m.Ports), m.MaxGroups)
}

// fillMulticast adds the groups of the ports to the kernel's filters, before a
// program reads them.
func (g *Generation) fillMulticast(l multicast.Layout, m Multicast, secret *hash.Secret) (err error) {
	if l.Ports == 0 || g.kernel == nil {
		return nil // a reference forwards nothing
	}
	if g.multicast, err = multicast.NewTable(l, secret, g.kernel.Groups()); err != nil {
		return err
	}
	for i, p := range m.Ports {
		g.ports, g.portEdges = append(g.ports, p.Target), append(g.portEdges, p.Edge)
		for _, group := range p.Groups {
			if _, err := g.multicast.Add(i+1, group); err != nil {
				return err
			}
		}
	}
	return nil
}

// Multicast returns the table of the ports' groups. Changes of it take effect at
// once. It is nil without ports.
func (g *Generation) Multicast() *multicast.Table { return g.multicast }

// Ports returns the interfaces that packets are copied to: port n is at n - 1.
func (g *Generation) Ports() []loader.Target { return g.ports }

// Connect sets the interface of each port, and reports which of them exist. See
// [loader.Generation.SetPort].
func (g *Generation) Connect() (there []bool, err error) {
	for i, t := range g.ports {
		ok, bad := g.kernel.SetPort(i+1, t, g.portEdges[i])
		there, err = append(there, ok), errors.Join(err, bad)
	}
	return there, err
}

// Copies returns what the filters of groups have answered: first that of all ports.
func (g *Generation) Copies() []loader.Copies {
	if g.kernel == nil {
		return nil
	}
	return g.kernel.Copies()
}
