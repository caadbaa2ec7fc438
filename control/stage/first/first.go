// Package first looks for flows that were not seen lately.
package first

import (
	"fmt"
	"slices"
	"time"

	"weir/control/engine"
	"weir/control/quantity"
	"weir/control/stage"
	"weir/filter/recent"
	"weir/filter/verdict"
)

// Spec looks for flows that were not seen lately.
type Spec struct {
	// What makes a flow: flow (addresses, ports and protocol), src, dst, or a prefix as in
	// src/24.
	Key stage.Key `yaml:"key,required,short"`

	// What remembers flows: bloom, which forgets none within a window of its last packet;
	// or stable (SBF), ibf-2c or ibf-mc, which forget them as others come, ibf-2c and ibf-mc
	// the important ones later.
	Filter recent.Kind `yaml:"filter"`

	// How long a flow is known at least after its last packet, and at most twice as long,
	// with bloom; and the interval in which new flows are counted. From 1s to 1h.
	Window quantity.Duration `yaml:"window"`

	// Memory of an interface: with bloom about 0.7 flows a byte in a window, or it ends early.
	Memory quantity.Size `yaml:"memory"`

	// How many events of new flows each CPU may send in a second, for weir events
	// --first-seen: up to 10000. With 0 flows are only counted.
	Events int `yaml:"events" min:"0" max:"10000"`

	// What makes a flow important, so that its event comes first, and ibf-2c and ibf-mc
	// remember it longer: the size of its first packet, the priority of the block list that
	// matches. Default: only ports.
	Importance []Importance `yaml:"importance,omitempty"`

	// Destination ports of the most important flows, as in tcp/22; up to 8.
	Ports []verdict.FailsafePort `yaml:"ports,omitempty"`
}

// Importance is a property that makes a flow important.
type Importance string

// What makes a flow important.
const (
	BySize Importance = "size"
	ByList Importance = "list"
)

// UnmarshalText reads what makes a flow important.
func (i *Importance) UnmarshalText(text []byte) error {
	if *i = Importance(text); *i != BySize && *i != ByList {
		return fmt.Errorf("unknown importance %q: want size or list", text)
	}
	return nil
}

// MarshalText returns what makes a flow important.
func (i Importance) MarshalText() ([]byte, error) { return []byte(i), nil }

// SetDefaults sets the defaults.
func (s *Spec) SetDefaults() {
	s.Window, s.Memory, s.Events = quantity.Duration(10*time.Second), 256<<10, 100
}

// On reports whether new flows are looked for.
func (s *Spec) On() bool { return s.Key != "" }

// Outgoing reports that only flows of incoming packets count.
func (*Spec) Outgoing() bool { return false }

// Shared returns no maps: each interface has its own.
func (*Spec) Shared() map[string]int { return nil }

// Check returns what is wrong with the section.
func (s *Spec) Check() (errs quantity.FieldErrors) {
	if !s.On() {
		return nil
	}
	quantity.Between(&errs, "window", s.Window, quantity.Duration(time.Second), quantity.Duration(time.Hour))
	quantity.Between(&errs, "memory", s.Memory, 4<<10, 1<<30)
	quantity.Unique(&errs, "importance", len(s.Importance), func(i int) any { return s.Importance[i] })
	if s.Filter.ByImportance() && len(s.Importance) == 0 && len(s.Ports) == 0 {
		errs.Failf("filter", "%v remembers important flows longer, and importance and ports are missing, which say what is important", s.Filter)
	}
	quantity.Unique(&errs, "ports", len(s.Ports), func(i int) any { return s.Ports[i] })
	if len(s.Ports) > verdict.MaxFailsafe {
		errs.Failf("ports", "there are %d: the maximum is %d", len(s.Ports), verdict.MaxFailsafe)
	}
	return errs
}

// Part returns the share of programs.
func (s *Spec) Part() (engine.Part, error) {
	p := &Part{
		Filter: s.Filter, Lines: uint32(s.Memory / banks / line), Events: s.Events, Ports: s.Ports,
		BySize: slices.Contains(s.Importance, BySize), ByList: slices.Contains(s.Importance, ByList),
		Window: time.Duration(s.Window),
	}
	p.V4, p.V6 = s.Key.Shapes()
	return p, nil
}
