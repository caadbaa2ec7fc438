package stages

import (
	"errors"
	"slices"

	"weir/bpf"
	"weir/control/engine"
	"weir/control/stage"
	"weir/loader"
	"weir/loader/netif"
)

// checkReject returns what is wrong with an interface whose outgoing packets are filtered or not.
func checkReject(on, outgoing bool) error {
	if on && !outgoing {
		return errors.New("it is of outgoing packets, which are not filtered here: set egress: true")
	}
	return nil
}

// Reject is the share of programs that refuse TCP connections of this host which the lists drop.
type Reject struct {
	engine.BasePart
	Interfaces []netif.Target // or globs, for outgoing packets
}

// Constants returns those of an interface. Only programs for TC have them.
func (r *Reject) Constants(t netif.Target, _ loader.Seed) map[string]any {
	all := make(map[string]any)
	if slices.ContainsFunc(r.Interfaces, func(o netif.Target) bool { return stage.Covers(o, t) }) {
		all[bpf.WeirTCVarReject] = uint8(1)
	}
	return all
}
