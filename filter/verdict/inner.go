package verdict

import (
	"weir/filter/packet"
)

// Carried is a header that [Program.Carried] finds in the tunnels of a packet.
type Carried struct {
	Reason Reason        // Blocked; or the parser's complaint; or Clean
	Packet packet.Packet // the header that is listed
	Tunnel packet.Tunnel // what carries the header that is listed, or complained about
	List   int           // see [Outcome]
	Trial  int           // the first list on trial that a header matches, unless one is Blocked; 0: none
}

// Carried returns for which header in a tunnel a packet of a frame is dropped that no
// block list matches itself, or what is wrong with the headers. Each header is judged by
// itself, from the outermost on: what a failsafe or an allow list lets pass is not looked
// into.
func (p *Program) Carried(frame []byte, pkt packet.Packet) (c Carried) {
	if !p.Inner {
		return c
	}
	trial := 0
	for depth := 0; ; depth++ {
		if p.allows(frame, pkt) {
			return Carried{Trial: trial}
		}
		if c.Reason != Clean {
			return c
		}
		in, result := pkt.Inner(frame)
		if result == packet.NotIP {
			return Carried{Trial: trial}
		}
		c = Carried{Tunnel: pkt.Tunnel(), Reason: parsed[result], Trial: trial}
		switch {
		case depth == packet.MaxInner && in.HasAddresses:
			c.Reason = Unparsed
			return c
		case !in.HasAddresses:
			return c
		case p.exempts(in):
			return Carried{Trial: trial}
		}
		list, ok, of := p.match(p.Block, in.Tuple, p.where(frame))
		if ok {
			return Carried{Blocked, in, c.Tunnel, list, 0}
		}
		if trial == 0 {
			trial = of
		}
		c.Trial = trial
		pkt = in
	}
}

// exempts reports whether a packet passes before any list.
func (p *Policy) exempts(pkt packet.Packet) bool {
	return pkt.ND || p.isDHCP(pkt) || p.failsafe(pkt)
}
