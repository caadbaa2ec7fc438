package demo

import (
	"net/netip"
	"slices"

	"weir/control/list"
	"weir/filter/key"
)

// naive decides whether a packet is listed with Go's maps, so that the demo's
// oracle shares no structure with weir. Addresses are matched against sources.
type naive struct {
	v4     map[list.V4Prefix]struct{}
	v6     map[netip.Prefix]struct{}
	flows  map[key.Key]struct{}
	bits4  []int // prefix lengths in use
	bits6  []int
	shapes []key.Shape
}

func newNaive() *naive {
	return &naive{
		v4:    make(map[list.V4Prefix]struct{}),
		v6:    make(map[netip.Prefix]struct{}),
		flows: make(map[key.Key]struct{}),
	}
}

func (n *naive) add(e list.Entries) {
	for _, p := range e.V4 {
		n.v4[p] = struct{}{}
		n.bits4 = with(n.bits4, p.Bits())
	}
	for _, p := range e.V6 {
		n.v6[p] = struct{}{}
		n.bits6 = with(n.bits6, p.Bits())
	}
	for _, k := range e.Flows {
		n.flows[k] = struct{}{}
		n.shapes = with(n.shapes, k.Shape)
	}
}

func with[T comparable](s []T, v T) []T {
	if slices.Contains(s, v) {
		return s
	}
	return append(s, v)
}

func (n *naive) listed(t key.Tuple) bool {
	return n.listedSource(t.Src) || n.listedFlow(t)
}

func (n *naive) listedSource(a netip.Addr) bool {
	if a.Is4() {
		b := a.As4()
		addr := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
		for _, bits := range n.bits4 {
			if _, ok := n.v4[list.V4(addr&^uint32(1<<(32-bits)-1), bits)]; ok {
				return true
			}
		}
		return false
	}
	for _, bits := range n.bits6 {
		p, err := a.Prefix(bits)
		if err != nil {
			continue
		}
		if _, ok := n.v6[p]; ok {
			return true
		}
	}
	return false
}

func (n *naive) listedFlow(t key.Tuple) bool {
	for _, s := range n.shapes {
		if k, ok := s.Of(t); ok {
			if _, ok := n.flows[k]; ok {
				return true
			}
		}
	}
	return false
}
