package engine

import (
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/sfb"
	"weir/loader"
)

// Police limits what an interface receives.
type Police struct {
	sfb.Limits
	Name    string    // for status
	V4, V6  key.Shape // of flows
	Stopped bool      // time is what the policer's memory says, for tests
}

// Apply polices the interface of programs that are loaded with the stats from now on;
// nil polices nothing. With the same limits and flows, what the present program knows of
// flows goes on.
func (p *Police) Apply(stats *loader.Stats) {
	if p == nil {
		stats.SetPolicer(loader.Policer{}, loader.Seed{})
		return
	}
	seed := hash.Seed(stats.PolicerSeed())
	if seed == (hash.Seed{}) {
		seed = hash.NewSeed()
	}
	stats.SetPolicer(p.constants(hash.NewSecret(seed)), loader.Seed(seed))
}

func (p *Police) constants(s *hash.Secret) loader.Policer {
	return loader.Policer{
		Secret: secret(s), V4: shape(membership.GatedShape{Shape: p.V4}), V6: shape(membership.GatedShape{Shape: p.V6}),
		Cost: p.Cost, BinCost: p.BinCost, Depth: p.Depth, Limit: p.Limit, Target: p.Target,
		Gap: p.Gap, Lifetime: p.Lifetime, Chunk: p.Chunk,
		ByPackets: flag(p.Packets), Tuple: flag(p.V4.Tuple()), Controller: uint8(p.Controller), Stopped: flag(p.Stopped),
	}
}
