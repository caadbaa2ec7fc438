package engine

import (
	"weir/filter/hash"
	"weir/filter/membership"
	"weir/loader"
)

// config returns the constants of the program.
func config(block, allow *membership.Layout, s *hash.Secret, c *Config, lists int) loader.Config {
	p := c.Policy
	return loader.Config{
		TrackerSeed:   loader.Seed(c.Seed),
		Secret:        Secret(s),
		Block:         keySet(block),
		BlockClasses:  block.Classes,
		Kept:          block.Mode == membership.Approximate && block.Lines > 0,
		Allow:         keySet(allow),
		Failsafe:      Failsafe(p),
		FailsafeICMP:  FailsafeICMP(p),
		DropMalformed: p.DropMalformed,
		DropNotIP:     p.DropNotIP,
		Inner:         p.Inner,
		DHCPServer:    p.DHCPServer,
		Monitor:       p.Monitor,
		Out:           p.Out,
		TC:            c.TC,
		Lists:         lists,
		NoLean:        c.NoLean,
		SampleClean:   c.SampleClean,
	}
}
