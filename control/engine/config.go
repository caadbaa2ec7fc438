package engine

import (
	"weir/control/engine/constants"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/sketch"
	"weir/loader"
)

// config returns the constants of the program.
func config(block, allow *membership.Layout, s *hash.Secret, c *Config, lists int) loader.Config {
	p := c.Policy
	trackers, ephemeral := make([]loader.Tracker, len(c.Trackers)), uint16(0)
	for i, t := range c.Trackers {
		trackers[i] = loader.Tracker{
			Secret: constants.Secret(t.Secret), Lines: t.Lines, Buckets: t.Buckets,
			ByBytes: loader.Flag(t.Unit == sketch.Bytes), Tuple: loader.Flag(t.V4.Tuple()), Punishes: loader.Flag(t.Punishes),
			Unexempt: loader.Flag(t.Unexempt), Dropped: loader.Flag(t.Dropped),
			V4: constants.Shape(t.V4), V6: constants.Shape(t.V6),
			Src4: constants.Shape(key.Shape{SrcBits: 32}),
			Src6: constants.Shape(key.Shape{Fields: key.FieldV6, SrcBits: 128}),
		}
		if t.Pairs != nil {
			trackers[i].Pairs = t.Pairs.Lines
			trackers[i].Pair4, trackers[i].Pair6 = constants.Shape(t.Pairs.V4), constants.Shape(t.Pairs.V6)
			ephemeral = t.Pairs.Ephemeral
		}
	}
	return loader.Config{
		Trackers:      trackers,
		TrackerSeed:   loader.Seed(c.TrackerSeed),
		EphemeralPort: ephemeral,
		Secret:        constants.Secret(s),
		Block:         constants.KeySet(block),
		BlockClasses:  block.Classes,
		Kept:          block.Mode == membership.Approximate && block.Lines > 0,
		Allow:         constants.KeySet(allow),
		Failsafe:      constants.Failsafe(p),
		FailsafeICMP:  constants.FailsafeICMP(p),
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
