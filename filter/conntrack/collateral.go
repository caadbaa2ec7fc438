package conntrack

import (
	"net/netip"
	"time"

	"weir/filter/packet"
)

// Collateral records the remote addresses that lists match and with which this host has
// conversed: it opened the connection and was answered, or it answered a handshake that was
// completed. It asks Replies for the connections that this host opens. Packets with a forged
// source address are part of no conversation: bpf/collateral.h, its twin, says why.
type Collateral struct {
	Accepted map[Connection]ConnectionState // that others open and this host answers
	Partners map[Partner]Conversation
}

// Partner is a remote address, as the source of an incoming packet or the destination of one that leaves.
type Partner struct {
	Addr netip.Addr
	Out  bool
}

// Conversation describes the packets of a partner that lists matched.
type Conversation struct {
	First, Last time.Duration
	How         How
}

// How says how this host has conversed, in bits.
type How uint32

const (
	OpenedTCP How = 1 << iota
	OpenedUDP
	AcceptedTCP
)

// answer remembers that this host answers a connection, with a segment that leaves. opened: it
// is one that this host has opened.
func (m *Collateral) answer(r *Replies, c Connection, g segment, opened bool) {
	s, known := m.Accepted[c]
	switch now := r.Now(); {
	case g.kind() == tcpSYN:
	case g.kind() == tcpSYN|tcpACK:
		m.Accepted[c] = ConnectionState{Until: now + r.Opening, Expected: g.sequence + 1}
	case !opened && known && now < s.Until:
		m.Accepted[c] = r.prolong(s, g, false)
	}
}

// Record records the conversation of a packet of a frame that a list matches, if it is of any. out:
// it leaves.
func (m *Collateral) Record(r *Replies, frame []byte, pkt packet.Packet, out bool) {
	c, ok := connectionOf(pkt)
	if !ok {
		return
	}
	if out {
		c.Local, c.Remote = c.Remote, c.Local
	}
	now := r.Now()
	how := m.how(r, frame, pkt, c, out, now)
	if how == 0 {
		return
	}
	partner := Partner{c.Remote.Addr(), out}
	of, known := m.Partners[partner]
	if !known {
		of.First = now
	}
	of.Last = now
	of.How |= how
	m.Partners[partner] = of
}

// Conversing reports whether an incoming packet of a frame is of a conversation of this host, and
// whether that is known: not of datagrams to a server or that an unconnected socket may have asked
// for, nor of segments of TCP whose beginning was not seen. The twin of conversing() in bpf/sampler.h.
func (m *Collateral) Conversing(r *Replies, frame []byte, pkt packet.Packet) (is, known bool) {
	c, ok := connectionOf(pkt)
	if !ok {
		return false, false
	}
	now := r.Now()
	if s := r.Open[c]; pkt.Proto == protoUDP {
		open := now < s.Until
		return open && s.Connected, pkt.DstPort >= r.Ephemeral && (!open || s.Connected)
	}
	g, ok := segmentOf(frame, pkt)
	known = g.flags&(tcpSYN|tcpACK) == tcpSYN
	for _, s := range []ConnectionState{r.Open[c], m.Accepted[c]} {
		known = known || now < s.Until
		is = is || now < s.Until && (s.Answered || s.Expected != 0 && g.acknowledgement == s.Expected)
	}
	return is && ok, known && ok
}

// how returns how a packet shows a conversation at a time, 0 if it does not.
func (m *Collateral) how(r *Replies, frame []byte, pkt packet.Packet, c Connection, out bool, now time.Duration) How {
	opened, accepted := r.Open[c], m.Accepted[c]
	if pkt.Proto == protoUDP {
		if out || !opened.Connected || now >= opened.Until {
			return 0
		}
		return OpenedUDP
	}
	g, ok := segmentOf(frame, pkt)
	if !ok || g.flags&tcpACK == 0 || g.flags&tcpRST != 0 || out && g.flags&tcpSYN != 0 {
		return 0
	}
	answered := func(s ConnectionState, opened bool) bool {
		switch {
		case now >= s.Until:
			return false
		case s.Answered:
			return true
		case out:
			return g.showsAnswer(opened)
		}
		return s.Expected != 0 && g.acknowledgement == s.Expected
	}
	switch {
	case answered(opened, true):
		return OpenedTCP
	case answered(accepted, false):
		return AcceptedTCP
	}
	return 0
}
