package ruleset

import (
	"fmt"
	"net/netip"
	"slices"

	"weir/control/engine"
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/verdict"
)

// Penalties returns what penalties of flows, which drop their packets as an entry of a block
// list does, would cut off, as in "the gateway 192.0.2.1": by [Objections], and failsafe prefixes,
// which have the packets pass whatever their penalties are. Flows that are missing cut off
// nothing.
func Penalties(lists []engine.List, p *verdict.Policy, peers []Peer, flows []key.Key) map[key.Key]string {
	if len(flows) == 0 {
		return nil
	}
	rules := slices.Clone(lists)
	for i := range rules {
		if !rules[i].Allow {
			rules[i].Contents = nil // what it blocks does not matter here
		}
	}
	rules = append(rules, engine.List{Contents: list.SetOf(flows...)})
	cut := make(map[key.Key]string)
	for _, k := range flows {
		if i := slices.IndexFunc(p.FailsafePrefixes, func(f netip.Prefix) bool { return safe(f, k) }); i >= 0 {
			cut[k] = fmt.Sprintf("the failsafe prefix %v", p.FailsafePrefixes[i])
		}
	}
	for _, o := range Objections(rules, p, peers) {
		if _, known := cut[o.Entry]; !known && int(o.List) == len(rules) {
			cut[o.Entry] = o.Peer.What
		}
	}
	return cut
}
