package config

import (
	"fmt"
	"slices"
	"time"

	"weir/control/fleet/enrollment"
	"weir/control/quantity"
)

// Rollouts say in which steps the changes of lists reach the nodes of a fleet.
type Rollouts struct {
	// Of all lists with sources.
	Rollout `yaml:",inline"`

	// Of single lists, instead of that. One without waves reaches all nodes at once.
	Lists []ListRollout `yaml:"lists,omitempty"`
}

// ListRollout is the rollout of a list.
type ListRollout struct {
	Name string `yaml:",key"`

	Rollout `yaml:",inline"`
}

// Rollout is how a change reaches the nodes.
type Rollout struct {
	// The nodes that have a change before all others do, one wave after the other. None:
	// a change goes to all nodes at once.
	Waves []Wave `yaml:"waves,omitempty"`

	// How the first contents of a list reach the nodes. waves: as any change; nodes that no
	// wave has reached have nothing until then. at_once: all have them at once.
	First First `yaml:"first"`

	// The share of the packets that pass on a node which a version may drop in addition.
	// If it is more, the rollout halts.
	Limit quantity.Share `yaml:"limit"`

	// The addresses that a block list's version may drop in addition and with which a node
	// has conversed in the last 24 hours: a number, or any (the default). If they are more, the
	// rollout halts. Nodes need the key collateral in weir.yaml to know them.
	MaxConversed Most `yaml:"max_conversed"`

	// Packets that the nodes of a wave which rehearses must have looked at.
	Packets quantity.Count `yaml:"packets"`

	// The share of a wave's nodes that must confirm a version. Nodes that were silent
	// before are not counted.
	Confirm quantity.Share `yaml:"confirm"`
}

// Wave is a step of a rollout.
type Wave struct {
	// The labels of its nodes, one of which a node must have. None: all nodes.
	Labels []string `yaml:"labels,omitempty"`

	// rehearse: filter by the old version, and count what the new one would drop in
	// addition. enforce: filter by it.
	Mode WaveMode `yaml:"mode"`

	// How long the nodes are watched once they have confirmed.
	For quantity.Duration `yaml:"for"`
}

// WaveMode is the way in which the nodes of a wave take a version.
type WaveMode string

// The modes of waves.
const (
	Enforce  WaveMode = "enforce"
	Rehearse WaveMode = "rehearse"
)

// UnmarshalText sets the mode by its name.
func (m *WaveMode) UnmarshalText(text []byte) error {
	return oneOf(m, "mode", text, Rehearse, Enforce)
}

// First is how the first contents of a list reach the nodes.
type First string

// The ways of first contents.
const (
	InWaves First = "waves"
	AtOnce  First = "at_once"
)

// UnmarshalText sets it by its name.
func (f *First) UnmarshalText(text []byte) error { return oneOf(f, "first", text, InWaves, AtOnce) }

// Most is the largest number of something that may be.
type Most int64

// AnyNumber is no bound.
const AnyNumber Most = -1

// anyNumber is how it is written.
const anyNumber = "any"

// MarshalText returns the number, or any.
func (m Most) MarshalText() ([]byte, error) {
	if m == AnyNumber {
		return []byte(anyNumber), nil
	}
	return quantity.Count(m).MarshalText()
}

// UnmarshalText reads a number, or any.
func (m *Most) UnmarshalText(text []byte) error {
	if string(text) == anyNumber {
		*m = AnyNumber
		return nil
	}
	var n quantity.Count
	if err := n.UnmarshalText(text); err != nil {
		return fmt.Errorf("%w, or any", err)
	}
	*m = Most(n)
	return nil
}

// maxWaves bounds the waves of a rollout: each is in every catalog.
const maxWaves = 20

// SetDefaults sets the defaults.
func (w *Wave) SetDefaults() { w.Mode, w.For = Enforce, quantity.Duration(5*time.Minute) }

// SetDefaults sets the defaults.
func (r *Rollout) SetDefaults() {
	r.First, r.Limit, r.MaxConversed, r.Packets, r.Confirm = InWaves, 0.001, AnyNumber, 1000, 0.95
}

// SetDefaults sets the defaults.
func (r *Rollouts) SetDefaults() { r.Rollout.SetDefaults() }

// SetDefaults sets the defaults.
func (r *ListRollout) SetDefaults() { r.Rollout.SetDefaults() }

// RolloutOf returns how changes of a list reach the nodes, nil if at once: manual
// entries are urgent.
func (h *Hub) RolloutOf(l List) *Rollout {
	r := h.Rollout.Rollout
	if i := slices.IndexFunc(h.Rollout.Lists, func(own ListRollout) bool { return own.Name == l.Name }); i >= 0 {
		r = h.Rollout.Lists[i].Rollout
	}
	if len(l.All()) == 0 || len(r.Waves) == 0 {
		return nil
	}
	return &r
}

// check returns what is wrong with the rollouts of a hub.
func (r *Rollouts) check(h *Hub) (errs quantity.FieldErrors) {
	r.Rollout.check("rollout", h, &errs)
	for i := range r.Lists {
		own := &r.Lists[i]
		path := Join("rollout.lists", own.Name)
		own.check(path, h, &errs)
		if !slices.ContainsFunc(h.Lists, func(l List) bool { return l.Name == own.Name && len(l.All()) > 0 }) {
			errs.Failf(path, "want a list that has sources: manual entries reach all nodes at once")
		}
	}
	return errs
}

func (r *Rollout) check(path string, h *Hub, errs *quantity.FieldErrors) {
	quantity.Between(errs, Join(path, "limit"), r.Limit, 0, 1)
	if r.Confirm <= 0 || r.Confirm > 1 {
		errs.Failf(Join(path, "confirm"), "%v: want more than 0%%, and at most 100%%", r.Confirm)
	}
	if len(r.Waves) > maxWaves {
		errs.Failf(Join(path, "waves"), "%d waves, want at most %d", len(r.Waves), maxWaves)
	}
	for i, w := range r.Waves {
		at := fmt.Sprintf("%s[%d]", Join(path, "waves"), i)
		checkLabels(errs, Join(at, "labels"), w.Labels)
		if w.For < h.MaxAge {
			errs.Failf(Join(at, "for"), "%v is less than max_age, %v, after which a node that the change has cut off is noticed", w.For, h.MaxAge)
		}
		quantity.Between(errs, Join(at, "for"), w.For, 0, quantity.Duration(30*24*time.Hour))
	}
}

func checkLabels(errs *quantity.FieldErrors, path string, labels []string) {
	quantity.Unique(errs, path, len(labels), func(i int) any { return labels[i] })
	for i, l := range labels {
		if err := enrollment.CheckLabel(l); err != nil {
			errs.Failf(fmt.Sprintf("%s[%d]", path, i), "%v", err)
		}
	}
}

// leastRate lets a small delta arrive within the timeout of a request.
const leastRate = 1000

// checkMaxRate checks the rate of a link, in bytes a second; 0: there is no bound.
func checkMaxRate(errs *quantity.FieldErrors, path string, r quantity.Rate) {
	switch {
	case r == quantity.Rate{}:
	case r.Unit == quantity.Packets:
		errs.Failf(path, "%v: want bits or bytes, as in 2Mbit/s", r)
	case r.PerSecond() < leastRate:
		errs.Failf(path, "%v: want at least 8kbit/s", r)
	}
}
