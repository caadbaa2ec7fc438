package packet

import (
	"encoding/binary"
	"fmt"
)

// Tunnel is a header that carries an IP header in a packet. The numbers are equal to enum tunnel
// in bpf/inner.h.
type Tunnel uint8

const (
	NoTunnel Tunnel = iota
	IPInIP          // IPv4 or IPv6 in either
	GRE
	VXLAN
	GTPU
	NumTunnels
)

// MaxInner is the number of headers in tunnels, one in the other, that are looked at.
const MaxInner = 4

var tunnelNames = [NumTunnels]string{"none", "ip", "gre", "vxlan", "gtp-u"}

// String returns the tunnel's name in commands, metrics and JSON.
func (t Tunnel) String() string {
	if t < NumTunnels {
		return tunnelNames[t]
	}
	return fmt.Sprintf("tunnel-%d", uint8(t))
}

// Limits and numbers as in bpf/inner.h.
const (
	maxInnerOffset = 960
	maxGTPUExt     = 4

	protoIPIP = 4
	protoUDP  = 17
	protoIPv6 = 41
	protoGRE  = 47

	portGTPU  = 2152
	portVXLAN = 4789

	etherBridged = 0x6558 // transparent Ethernet bridging
	etherWCCP    = 0x883e
)

// Tunnel returns what a packet may carry a header in.
func (p *Packet) Tunnel() Tunnel {
	switch {
	case p.Proto == protoIPIP, p.Proto == protoIPv6:
		return IPInIP
	case p.Proto == protoGRE:
		return GRE
	case p.Proto == protoUDP && p.HasPorts && p.DstPort == portVXLAN:
		return VXLAN
	case p.Proto == protoUDP && p.HasPorts && p.DstPort == portGTPU:
		return GTPU
	}
	return NoTunnel
}

// Inner returns the packet that a packet of this frame carries, as far as HasAddresses
// goes, and how parsing it ended. It is NotIP if there is none that is looked into, and
// Unparsed or Overtagged if more headers or tags precede it than the limits allow. Only its
// tuple, Network, Payload, Plain and ND are set.
func (p *Packet) Inner(frame []byte) (inner Packet, r Result) {
	tunnel := p.Tunnel()
	switch {
	case p.Payload == 0, tunnel == NoTunnel:
		return inner, NotIP
	case p.Payload > maxInnerOffset:
		return inner, Unparsed
	case p.Payload > len(frame):
		return inner, Truncated
	}
	frame = frame[:min(len(frame), p.Payload+p.length)]
	b, proto := frame[p.Payload:], uint16(0)
	switch tunnel {
	case IPInIP:
		proto = etherIPv4
		if p.Proto == protoIPv6 {
			proto = etherIPv6
		}
	case GRE:
		proto, b, r = skipGRE(b, p.Src.Is4())
	case VXLAN:
		proto, b, r = skipVXLAN(b)
	case GTPU:
		proto, b, r = skipGTPU(b, p.Payload)
	}
	switch {
	case r != OK:
	case proto == etherBridged:
		proto, b, r = parseEthernet(b)
	default: // Linux takes off tags without an Ethernet header, too
		proto, b, r = skipTags(proto, b)
	}
	if r != OK {
		return inner, r
	}
	inner.Network = len(frame) - len(b)
	switch {
	case proto != etherIPv4 && proto != etherIPv6:
		return inner, NotIP
	case inner.Network > maxInnerOffset:
		return inner, Unparsed
	}
	r = inner.parseIP(proto, b)
	if inner.Payload > 0 {
		inner.length = min(inner.length, max(0, len(frame)-inner.Payload))
	}
	return inner, r
}

// These skip a tunnel's header, and return the EtherType of the rest. NotIP: nothing that
// is looked into.

func skipGRE(b []byte, in4 bool) (proto uint16, rest []byte, r Result) {
	const checksum, routing, key, sequence, version = 0x8000, 0x4000, 0x2000, 0x1000, 7
	if len(b) < 4 {
		return 0, nil, Truncated
	}
	flags, length := binary.BigEndian.Uint16(b), 4
	if flags&(routing|version) != 0 { // obsolete, and PPTP
		return 0, nil, NotIP
	}
	for _, f := range []uint16{checksum, key, sequence} {
		if flags&f != 0 {
			length += 4
		}
	}
	if len(b) < length {
		return 0, nil, Truncated
	}
	proto, rest = binary.BigEndian.Uint16(b[2:]), b[length:]
	if flags == 0 && proto == etherWCCP {
		return skipWCCP(rest, in4)
	}
	return proto, rest, OK
}

// skipWCCP is about what WCCP redirects. Linux decapsulates it like all else, and takes it for
// IP of the version around it. In version 2 a header of four bytes precedes it.
func skipWCCP(b []byte, in4 bool) (proto uint16, rest []byte, r Result) {
	length := 0
	if len(b) > 0 && b[0]>>4 != 4 {
		length = 4
	}
	if len(b) == 0 || len(b) < length {
		return 0, nil, Truncated
	}
	if in4 {
		return etherIPv4, b[length:], OK
	}
	return etherIPv6, b[length:], OK
}

func skipVXLAN(b []byte) (proto uint16, rest []byte, r Result) {
	const validVNI = 0x08
	switch {
	case len(b) < 8+8:
		return 0, nil, Truncated
	case b[8]&validVNI == 0:
		return 0, nil, NotIP
	}
	return etherBridged, b[8+8:], OK
}

// skipGTPU takes the payload for IP by its first four bits: nothing else says it. b begins at
// offset in the frame.
func skipGTPU(b []byte, offset int) (proto uint16, rest []byte, r Result) {
	const version, optional, extension, carriesPacket = 0x30, 7, 4, 0xff
	end := offset + len(b)
	if b = cut(b, 8); len(b) < 8 {
		return 0, nil, Truncated
	}
	if b[0]&0xf0 != version || b[1] != carriesPacket {
		return 0, nil, NotIP
	}
	flags, next := b[0], byte(0)
	b = b[8:]
	if flags&optional != 0 {
		if len(b) < 4 {
			return 0, nil, Truncated
		}
		if flags&extension != 0 {
			next = b[3]
		}
		b = b[4:]
	}
	for n := 0; next != 0 && n < maxGTPUExt; n++ {
		if len(b) == 0 {
			return 0, nil, Truncated
		}
		length := int(b[0]) * 4
		switch {
		case length == 0:
			return 0, nil, Malformed
		case end-len(b)+length-1 > maxInnerOffset:
			return 0, nil, Unparsed
		case len(b) < length:
			return 0, nil, Truncated
		}
		next, b = b[length-1], b[length:]
	}
	switch {
	case next != 0:
		return 0, nil, Unparsed
	case len(b) == 0:
		return 0, nil, Truncated
	case b[0]>>4 == 4:
		return etherIPv4, b, OK
	case b[0]>>4 == 6:
		return etherIPv6, b, OK
	}
	return 0, nil, NotIP
}
