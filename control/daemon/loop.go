package daemon

import (
	"weir/control/config"
	"weir/control/run"
	"weir/filter/icarus"
)

// loopOf is the node that the configuration makes of this host. It fails where
// the key cannot be read, or anybody can.
func loopOf(c config.Loop) (*run.Loop, error) {
	key, err := c.Key()
	if err != nil {
		return nil, err
	}
	g, err := c.Geometry()
	if err != nil {
		return nil, err
	}
	n, err := icarus.NewNode(uint64(c.Node), uint8(c.Domain), key, g)
	if err != nil {
		return nil, err
	}
	return &run.Loop{Node: n, ID: uint64(c.Node), Edges: c.Edges, Drop: c.Action == config.DropLoops}, nil
}
