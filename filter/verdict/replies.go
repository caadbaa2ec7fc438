package verdict

import (
	"net/netip"
	"time"

	"weir/filter/packet"
)

// Replies remembers the connections that this host opens, as they leave, so that their
// replies pass the block lists. Only what a program on this host sends opens one, and only
// in a way in which nothing answers a packet: a TCP SYN, or a UDP packet from an ephemeral
// port. What no program has sent through a connected socket, as all that Decide sees,
// does not prolong a connection of UDP, and opens it again only when it has been expired
// for as long. bpf/replies.h is its twin.
type Replies struct {
	Opening     time.Duration // that a TCP connection lasts until it is established, or once it is closed
	Established time.Duration // since the last packet that was sent
	UDP         time.Duration // likewise
	Ephemeral   uint16        // the port from which on hosts connect
	Now         func() time.Duration

	Open map[Connection]ConnectionState
}

// Connection identifies a connection of this host.
type Connection struct {
	Local, Remote netip.AddrPort
	Proto         uint8
}

// ConnectionState is what is remembered of a connection.
type ConnectionState struct {
	Until   time.Duration // when it expires
	Closing bool          // this host has closed it
}

const (
	tcpFIN = 0x01
	tcpRST = 0x04
)

// connectionOf returns the connection of an incoming packet, and false where it can have none.
func connectionOf(p packet.Packet) (c Connection, ok bool) {
	ok = p.HasPorts && p.Plain && (p.Proto == protoTCP || p.Proto == protoUDP)
	return Connection{netip.AddrPortFrom(p.Dst, p.DstPort), netip.AddrPortFrom(p.Src, p.SrcPort), p.Proto}, ok
}

// flagsOf returns the flags of a plain TCP packet, and false where the frame ends before.
func flagsOf(frame []byte, p packet.Packet) (flags byte, ok bool) {
	header := frame[p.Network:]
	length := 40
	if p.Src.Is4() {
		length = int(header[0]&15) * 4
	}
	if len(header) <= length+tcpFlags {
		return 0, false
	}
	return header[length+tcpFlags], true
}

// isReply reports whether an incoming packet is a reply.
func (r *Replies) isReply(frame []byte, p packet.Packet) bool {
	c, ok := connectionOf(p)
	if !ok {
		return false
	}
	if p.Proto == protoTCP {
		if flags, ok := flagsOf(frame, p); !ok || flags&(tcpSYN|tcpACK) == tcpSYN {
			return false
		}
	}
	s, ok := r.Open[c]
	return ok && r.Now() < s.Until
}

// remember remembers the connection of a packet that leaves.
func (r *Replies) remember(frame []byte, p packet.Packet) {
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
	flags, ok := flagsOf(frame, p)
	switch {
	case !ok:
	case flags&(tcpSYN|tcpACK|tcpRST|tcpFIN) == tcpSYN:
		r.Open[c] = ConnectionState{Until: now + r.Opening}
	case known && now < s.Until:
		s.Closing = s.Closing || flags&(tcpFIN|tcpRST) != 0
		until := now + r.Established
		if s.Closing {
			until = now + r.Opening
		}
		// A RST prolongs nothing: whatever comes in is answered by one, once the socket is gone.
		if flags&tcpRST == 0 || until < s.Until {
			s.Until = until
		}
		r.Open[c] = s
	}
}
