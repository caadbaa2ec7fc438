// Package conntrack remembers connections of this host, and with whom it has conversed.
// bpf/replies.h and bpf/collateral.h are the twins.
package conntrack

import (
	"encoding/binary"
	"net/netip"
	"time"

	"weir/filter/packet"
)

// Replies remembers the connections that this host opens, as they leave, so that their
// replies pass the block lists. Only what a program on this host sends opens one, and only
// in a way in which nothing answers a packet: a TCP SYN, or a UDP packet from an ephemeral
// port. What no program has sent through a connected socket, as all that [Replies.Remember] sees,
// does not prolong a connection of UDP, and opens it again only when it has been expired
// for as long. bpf/replies.h is its twin.
type Replies struct {
	Opening     time.Duration // that a TCP connection lasts until it is established, or once it is closed
	Established time.Duration // since the last packet that was sent
	UDP         time.Duration // likewise
	Ephemeral   uint16        // the port from which on hosts connect
	Now         func() time.Duration
	Drop        bool // replies do not pass: connections are remembered for Collateral alone

	Open map[Connection]ConnectionState
}

// Connection identifies a connection of this host.
type Connection struct {
	Local, Remote netip.AddrPort
	Proto         uint8
}

// ConnectionState is the state that is remembered of a connection.
type ConnectionState struct {
	Until   time.Duration // when it expires
	Closing bool          // this host has closed it

	// For Collateral.
	Connected bool   // of UDP: a connected socket has opened it
	Answered  bool   // both sides have taken part
	Expected  uint32 // the number that acknowledges the SYN of this host; 0: unknown
}

const (
	protoTCP = 6
	protoUDP = 17

	tcpFlags = 13 // offset in the header
	tcpFIN   = 0x01
	tcpSYN   = 0x02
	tcpRST   = 0x04
	tcpACK   = 0x10
)

// Tracks reports whether a packet may be of a connection.
func Tracks(p packet.Packet) bool {
	return p.HasPorts && p.Plain && (p.Proto == protoTCP || p.Proto == protoUDP)
}

// connectionOf returns the connection of an incoming packet, and false where it can have none.
func connectionOf(p packet.Packet) (c Connection, ok bool) {
	return Connection{netip.AddrPortFrom(p.Dst, p.DstPort), netip.AddrPortFrom(p.Src, p.SrcPort), p.Proto}, Tracks(p)
}

// segment is a TCP segment.
type segment struct {
	sequence, acknowledgement uint32
	flags                     byte
	hasData                   bool
}

// kind returns the flags that open, accept, reset or close.
func (g segment) kind() byte { return g.flags & (tcpSYN | tcpACK | tcpRST | tcpFIN) }

// showsAnswer reports whether the other side has taken part in a connection of which this host
// sends the segment. A host that opens a connection sends nothing but SYNs and RSTs until its SYN
// is answered. One that accepts may send an ACK to a spoofed source, but neither data nor a FIN.
func (g segment) showsAnswer(opened bool) bool {
	return g.flags&(tcpSYN|tcpACK|tcpRST) == tcpACK && (opened || g.hasData || g.flags&tcpFIN != 0)
}

// segmentOf reads the header of a plain TCP packet, and returns false where the frame ends before.
func segmentOf(frame []byte, p packet.Packet) (g segment, ok bool) {
	header := frame[p.Network:]
	begin, length := 40, int(binary.BigEndian.Uint16(header[4:]))
	if length > 0 {
		length += begin
	}
	if p.Src.Is4() {
		begin, length = int(header[0]&15)*4, int(binary.BigEndian.Uint16(header[2:]))
	}
	if len(header) <= begin+tcpFlags {
		return g, false
	}
	tcp := header[begin:]
	return segment{
		sequence: binary.BigEndian.Uint32(tcp[4:]), acknowledgement: binary.BigEndian.Uint32(tcp[8:]), flags: tcp[tcpFlags],
		// The length of segments to be cut can be too large for the field, which is 0 then.
		hasData: length == 0 || length > begin+int(tcp[12]>>4)*4,
	}, true
}

// prolong returns the state of a connection, which this host has opened or accepted, after a
// segment that it sends.
func (r *Replies) prolong(s ConnectionState, g segment, opened bool) ConnectionState {
	s.Answered = s.Answered || g.showsAnswer(opened)
	s.Closing = s.Closing || g.flags&(tcpFIN|tcpRST) != 0
	until := r.Now() + r.Established
	if s.Closing {
		until = r.Now() + r.Opening
	}
	// A RST prolongs nothing: whatever comes in is answered by one, once the socket is gone.
	if g.flags&tcpRST == 0 || until < s.Until {
		s.Until = until
	}
	return s
}

// IsReply reports whether an incoming packet is a reply.
func (r *Replies) IsReply(frame []byte, p packet.Packet) bool {
	c, ok := connectionOf(p)
	if !ok {
		return false
	}
	if p.Proto == protoTCP {
		if g, ok := segmentOf(frame, p); !ok || g.flags&(tcpSYN|tcpACK) == tcpSYN {
			return false
		}
	}
	s, ok := r.Open[c]
	return ok && r.Now() < s.Until
}

// Remember remembers the connection of a packet that leaves, for Collateral, too, unless that is
// nil.
func (r *Replies) Remember(frame []byte, p packet.Packet, measured *Collateral) {
	c, ok := connectionOf(p)
	if !ok {
		return
	}
	c.Local, c.Remote = c.Remote, c.Local
	if r.Open == nil {
		r.Open = make(map[Connection]ConnectionState)
	}
	s, known := r.Open[c]
	now := r.Now()
	if p.Proto == protoUDP {
		if c.Local.Port() >= r.Ephemeral && !(known && now < s.Until+r.UDP) {
			r.Open[c] = ConnectionState{Until: now + r.UDP}
		}
		return
	}
	g, ok := segmentOf(frame, p)
	if !ok {
		return
	}
	open := known && now < s.Until
	switch {
	case g.kind() == tcpSYN:
		r.Open[c] = ConnectionState{Until: now + r.Opening, Expected: g.sequence + 1}
	case open:
		r.Open[c] = r.prolong(s, g, true)
	}
	if measured != nil {
		measured.answer(r, c, g, open)
	}
}
