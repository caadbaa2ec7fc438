// Package multicast forwards multicast to the interfaces that want it.
package multicast

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"weir/control/engine"
	"weir/control/journal"
	"weir/control/quantity"
	"weir/control/stage"
	"weir/filter/hash"
	"weir/filter/multicast"
	"weir/loader"
)

// Spec forwards packets to groups wider than a link, from the interfaces where
// weir filters to those that want them.
type Spec struct {
	// The interfaces that want groups, in the network namespace of the filtered ones.
	Interfaces []Interface `yaml:"interfaces,required"`

	// The maximum number of groups of all interfaces, for which the filters are
	// planned: they err once in a million packets to other groups.
	MaxGroups quantity.Count `yaml:"max_groups" min:"1" max:"65536"`
}

// Interface is an interface that wants groups: a name alone, or a mapping.
type Interface struct {
	// Name; the interface need not be filtered.
	Name string `yaml:"name,required,short"`

	// Groups that it wants, in addition to manual ones.
	Groups []Group `yaml:"groups,omitempty"`
}

// Label returns the name.
func (i Interface) Label() string { return i.Name }

// Group is a multicast group that routers forward.
type Group netip.Addr

// UnmarshalText reads a group's address.
func (g *Group) UnmarshalText(text []byte) error {
	a, err := netip.ParseAddr(string(text))
	if err != nil {
		return fmt.Errorf("%q: want a multicast group, as in 239.1.2.3 or ff0e::1", text)
	}
	if err := multicast.Check(a); err != nil {
		return fmt.Errorf("%q: %w", text, err)
	}
	*g = Group(a)
	return nil
}

// MarshalText returns the address.
func (g Group) MarshalText() ([]byte, error) { return netip.Addr(g).MarshalText() }

func (g Group) String() string { return netip.Addr(g).String() }

// DefaultMaxGroups is the default of MaxGroups: 4.5 KB an interface.
const DefaultMaxGroups = 1024

// SetDefaults sets the defaults.
func (s *Spec) SetDefaults() { s.MaxGroups = DefaultMaxGroups }

// On reports whether multicast is forwarded.
func (s *Spec) On() bool { return len(s.Interfaces) > 0 }

// Check adds what is wrong with the section.
func (s *Spec) Check(errs *quantity.FieldErrors) {
	if !s.On() {
		return
	}
	quantity.Unique(errs, "multicast.interfaces", len(s.Interfaces), func(i int) any { return s.Interfaces[i].Name })
	groups := make(map[Group]bool)
	for i, iface := range s.Interfaces {
		at := fmt.Sprintf("multicast.interfaces[%d]", i)
		if err := stage.CheckName(iface.Name); err != nil {
			errs.Add(at, err)
		} else if strings.ContainsAny(iface.Name, `*?[\`) {
			errs.Failf(at, "%q is a pattern, but each interface has groups of its own: name them one by one", iface.Name)
		}
		quantity.Unique(errs, at+".groups", len(iface.Groups), func(i int) any { return iface.Groups[i] })
		for _, g := range iface.Groups {
			groups[g] = true
		}
	}
	if len(groups) > int(s.MaxGroups) && s.MaxGroups > 0 { // 0 is out of range
		errs.Failf("multicast.max_groups", "%d groups are wanted, more than %d", len(groups), s.MaxGroups)
	}
}

// CheckAt adds what is wrong with an interface that is filtered at a place, in the network
// namespace of the first one or not.
func (s *Spec) CheckAt(errs *quantity.FieldErrors, path string, place loader.Hook, together bool) {
	if s.On() && place != loader.Native {
		errs.Failf(path, "multicast is forwarded in native mode only, not %v: elsewhere the copies of a packet may share their bytes", place)
	}
	if s.On() && !together {
		errs.Failf(path, "multicast is forwarded within one network namespace: all interfaces must be in the same")
	}
}

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

// Part returns the share of the programs of a generation, whose interfaces are in a network
// namespace. Some are edges of the domain that detects loops. The journal has manual groups.
func (s *Spec) Part(netns string, edges []string, j *journal.Journal) *Part {
	p := &Part{Ports: make([]Port, len(s.Interfaces))}
	at, known := make(map[string]*Port), make(map[netip.Addr]bool)
	for i, iface := range s.Interfaces {
		p.Ports[i] = Port{
			Target: loader.Target{Netns: netns, Iface: iface.Name},
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
