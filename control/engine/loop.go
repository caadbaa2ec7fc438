package engine

import (
	"weir/filter/icarus"
	"weir/loader"
)

// Loop configures the search for loops. Without a node, there is none.
type Loop struct {
	*icarus.Node
	Edges bool // some interfaces are the domain's edges
}

func (l Loop) config() loader.Loop {
	if l.Node == nil {
		return loader.Loop{}
	}
	mask := l.Mask.Wire()
	return loader.Loop{
		Mask: mask[:l.Size/8], Key: l.Key, Domain: l.Domain, Confirm: uint8(l.Confirm), Edges: l.Edges,
	}
}
