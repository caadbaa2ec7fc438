// Package multicast forwards multicast to the interfaces that want it.
package multicast

import (
	"fmt"
	"net/netip"
	"strings"

	"weir/control/quantity"
	"weir/control/stage"
	"weir/filter/multicast"
	"weir/loader/hooks"
	"weir/loader/netif"
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

// Feature returns what the kernel must have: see checkKernel.
func (s *Spec) Feature() stage.Feature {
	return stage.Feature{Major: 5, Minor: 14, Name: "multicast", Otherwise: "it is refused", Configured: s.On()}
}

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
func (s *Spec) CheckAt(errs *quantity.FieldErrors, path string, place hooks.Hook, together bool) {
	if s.On() && place != hooks.Native {
		errs.Failf(path, "multicast is forwarded in native mode only, not %v: elsewhere the copies of a packet may share their bytes", place)
	}
	if s.On() && !together {
		errs.Failf(path, "multicast is forwarded within one network namespace: all interfaces must be in the same")
	}
}

// General returns why no packet takes the lean path.
func (s *Spec) General(at netif.Target) string {
	if !s.On() {
		return ""
	}
	return new(Part).General(at)
}
