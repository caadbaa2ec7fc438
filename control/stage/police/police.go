// Package police limits what an interface receives to a rate, which flows share fairly.
package police

import (
	"fmt"
	"time"

	"weir/control/quantity"
	"weir/control/stage"
	"weir/filter/sfb"
)

// Spec limits what an interface receives to a rate, which flows share fairly.
type Spec struct {
	// The limit, as in 950Mbit/s or 100kpps: from 1Mbit/s to 100Gbit/s, or from 100pps to
	// 1Gpps. Set it a few percent below what the bottleneck behind the interface carries.
	Rate quantity.Rate `yaml:"rate,required,short"`

	// What makes a flow: flow (addresses, ports and protocol), src, dst, or a prefix as in
	// src/24. A source with many connections has more than others under flow.
	Key stage.Key `yaml:"key"`

	// How flows share: fair (by their rates), blue (by the rule of Stochastic Fair Blue, on
	// virtual queues) or bucket (not at all: a token bucket).
	Controller sfb.Controller `yaml:"controller"`

	// What may arrive at once, as a time at the full rate, from 5ms to 200ms. More than
	// twice the round-trip time of most traffic is best.
	Depth quantity.Duration `yaml:"depth"`

	// How long flows share their counters with the same others.
	Rehash quantity.Duration `yaml:"rehash"`
}

// SetDefaults sets the defaults.
func (p *Spec) SetDefaults() {
	p.Key, p.Depth, p.Rehash = "flow", quantity.Duration(20*time.Millisecond), quantity.Duration(time.Minute)
}

// bounds are the least and the largest rate of limits, in packets and in bytes a second.
type bounds struct {
	packets, bytes [2]float64
	example        string
}

var ofInterfaces = bounds{[2]float64{sfb.MinPacketRate, sfb.MaxPacketRate}, [2]float64{sfb.MinByteRate, sfb.MaxByteRate}, "950Mbit/s or 100kpps"}

// check returns why a limit cannot have a rate.
func (b *bounds) check(r quantity.Rate) error {
	within, unit, shown := b.bytes, quantity.Bits, 8.0
	if r.Unit == quantity.Packets {
		within, unit, shown = b.packets, quantity.Packets, 1
	}
	switch {
	case r.Unit == quantity.AnyUnit:
		return fmt.Errorf("%v: want bits, bytes or packets, as in %s", r, b.example)
	case r.PerSecond() < within[0] || r.PerSecond() > within[1]:
		return fmt.Errorf("%v is not between %v and %v", r, quantity.Rate{Value: shown * within[0], Unit: unit}, quantity.Rate{Value: shown * within[1], Unit: unit})
	}
	return nil
}

// Check returns what is wrong with the section.
func (p Spec) Check() (errs quantity.FieldErrors) {
	if p == (Spec{}) {
		return nil
	}
	errs.Add("rate", ofInterfaces.check(p.Rate))
	quantity.Between(&errs, "depth", p.Depth, quantity.Duration(sfb.MinDepth), quantity.Duration(sfb.MaxDepth))
	quantity.Between(&errs, "rehash", p.Rehash, quantity.Duration(sfb.MinLifetime), quantity.Duration(24*time.Hour))
	return errs
}

// Limits returns what the interface's program does, nil without a limit.
func (p Spec) Limits() *Limits {
	limits, err := sfb.Plan(p.Controller, p.Rate.PerSecond(), p.Rate.Unit == quantity.Packets, time.Duration(p.Depth), time.Duration(p.Rehash))
	if err != nil { // there is no limit: Check has found others
		return nil
	}
	l := &Limits{Limits: limits, Name: p.Rate.String() + " by " + string(p.Key)}
	l.V4, l.V6 = p.Key.Shapes()
	return l
}
