// Package reject refuses TCP connections of programs on this host that the lists drop.
package reject

import (
	"errors"
	"slices"

	"weir/bpf"
	"weir/control/engine"
	"weir/control/stage"
	"weir/loader"
	"weir/loader/netif"
)

// Check returns what is wrong with an interface whose outgoing packets are filtered or not.
func Check(on, outgoing bool) error {
	if on && !outgoing {
		return errors.New("it is of outgoing packets, which are not filtered here: set egress: true")
	}
	return nil
}

// Part is the share of programs.
type Part struct {
	engine.BasePart
	Interfaces []netif.Target // or globs, for outgoing packets
}

// Constants returns those of an interface. Only programs for TC have them.
func (p *Part) Constants(t netif.Target, _ loader.Seed) map[string]any {
	all := make(map[string]any)
	if slices.ContainsFunc(p.Interfaces, func(o netif.Target) bool { return stage.Covers(o, t) }) {
		all[bpf.WeirTCVarReject] = uint8(1)
	}
	return all
}
