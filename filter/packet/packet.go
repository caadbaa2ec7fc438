// Package packet parses frames exactly as the data plane does: Ethernet with
// VLAN tags, IPv4 with options and fragments, IPv6 with extension headers, TCP,
// UDP, SCTP, ICMP. It is the twin of bpf/parse.h; a contract test compares
// them.
package packet

import (
	"encoding/binary"
	"net/netip"

	"weir/filter/key"
)

// Limits of the parser, the same as in bpf/parse.h.
const (
	MaxVLANTags   = 8    // 802.1Q and 802.1ad tags
	MaxExtHeaders = 16   // IPv6 extension headers
	MaxExtBytes   = 1024 // of all IPv6 extension headers together
	minTransport  = 8    // bytes of TCP, UDP, SCTP or ICMP, also in a first fragment
)

// Result is the result of parsing a frame.
type Result uint8

const (
	OK         Result = iota // parsed to the end
	NotIP                    // an EtherType that weir does not filter
	ARP                      // an ARP frame
	Truncated                // the frame, or the packet by its length field, ends within a header
	Malformed                // a header is inconsistent
	Unparsed                 // more IPv6 headers than the limits allow
	Overtagged               // more VLAN tags than the limit allows
)

// Packet contains the fields of a frame that can be matched.
type Packet struct {
	key.Tuple
	// HasAddresses is true from the IP header on, even if the rest of the frame
	// is bad: a listed address matches whatever follows it.
	HasAddresses bool
	// Network is the offset of the IP header in the frame.
	Network int
	// ND is true for IPv6 neighbour discovery from this link.
	ND bool
}

const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherVLAN = 0x8100
	etherIPv6 = 0x86dd
	etherQinQ = 0x88a8

	protoHopOpts  = 0
	protoICMP     = 1
	protoTCP      = 6
	protoUDP      = 17
	protoRouting  = 43
	protoFragment = 44
	protoAH       = 51
	protoICMPv6   = 58
	protoDstOpts  = 60
	protoSCTP     = 132
	protoMobility = 135
	protoHIP      = 139
	protoShim6    = 140

	icmpv6NDFirst = 133
	icmpv6NDLast  = 137

	lengthUnknown = 1<<32 - 1
)

// Parse parses a whole Ethernet frame. The packet is meaningful, as far as
// HasAddresses goes, with every result.
func Parse(frame []byte) (Packet, Result) {
	var p Packet
	proto, rest, r := parseEthernet(frame)
	if r != OK {
		return p, r
	}
	p.Network = len(frame) - len(rest)
	switch proto {
	case etherIPv4:
		return p, p.parseIPv4(rest)
	case etherIPv6:
		return p, p.parseIPv6(rest)
	case etherARP:
		return p, ARP
	}
	return p, NotIP
}

// IP returns what follows the Ethernet header and tags of a frame with the
// EtherType of IPv4 or IPv6, and nil for others.
func IP(frame []byte) []byte {
	proto, rest, r := parseEthernet(frame)
	if r != OK || proto != etherIPv4 && proto != etherIPv6 {
		return nil
	}
	return rest
}

func parseEthernet(frame []byte) (proto uint16, rest []byte, r Result) {
	if len(frame) < 14 {
		return 0, nil, Truncated
	}
	proto, rest = binary.BigEndian.Uint16(frame[12:]), frame[14:]
	for tags := 0; proto == etherVLAN || proto == etherQinQ; tags++ {
		if tags == MaxVLANTags {
			return 0, nil, Overtagged
		}
		if len(rest) < 4 {
			return 0, nil, Truncated
		}
		proto, rest = binary.BigEndian.Uint16(rest[2:]), rest[4:]
	}
	return proto, rest, OK
}

func (p *Packet) parseIPv4(b []byte) Result {
	if len(b) < 20 {
		return Truncated
	}
	if b[0]>>4 != 4 {
		return Malformed
	}
	p.HasAddresses = true
	p.Src = netip.AddrFrom4([4]byte(b[12:]))
	p.Dst = netip.AddrFrom4([4]byte(b[16:]))
	p.Proto = b[9]

	header := int(b[0]&15) * 4
	left := int(binary.BigEndian.Uint16(b[2:]))
	switch {
	case header < 20 || left != 0 && left < header:
		return Malformed
	case left == 0: // aggregated beyond 64 KiB
		left = lengthUnknown
	default:
		left -= header
	}
	if binary.BigEndian.Uint16(b[6:])&0x1fff != 0 {
		return OK // a later fragment
	}
	return p.parseTransport(cut(b, header), left)
}

func (p *Packet) parseIPv6(b []byte) Result {
	if len(b) < 40 {
		return Truncated
	}
	if b[0]>>4 != 6 {
		return Malformed
	}
	p.HasAddresses = true
	p.Src = netip.AddrFrom16([16]byte(b[8:]))
	p.Dst = netip.AddrFrom16([16]byte(b[24:]))
	p.Proto = b[6]

	left := int(binary.BigEndian.Uint16(b[4:]))
	if left == 0 { // a jumbogram, or aggregated beyond 64 KiB
		left = lengthUnknown
	}
	hopLimit := b[7]
	b = b[40:]
	fragment := false
	for n, bytes := 0, 0; isExtension(p.Proto); n++ {
		if n == MaxExtHeaders {
			return Unparsed
		}
		if left < 8 || len(b) < 8 {
			return Truncated
		}
		this, length := p.Proto, (int(b[1])+1)*8
		p.Proto = b[0]
		switch this {
		case protoAH:
			length = (int(b[1]) + 2) * 4
		case protoFragment:
			fragment = true
			length = 8
			if binary.BigEndian.Uint16(b[2:])&0xfff8 != 0 {
				return OK // a later fragment
			}
		}
		if left < length {
			return Truncated
		}
		if bytes += length; bytes > MaxExtBytes {
			return Unparsed
		}
		if len(b) < length {
			return Truncated
		}
		left, b = left-length, b[length:]
	}
	if r := p.parseTransport(b, left); r != OK {
		return r
	}
	// RFC 4861: from this link, hence 255; RFC 6980: never in fragments.
	if p.Proto == protoICMPv6 && !fragment && hopLimit == 255 {
		p.ND = b[0] >= icmpv6NDFirst && b[0] <= icmpv6NDLast
	}
	return OK
}

func isExtension(proto uint8) bool {
	switch proto {
	case protoHopOpts, protoRouting, protoFragment, protoAH, protoDstOpts,
		protoMobility, protoHIP, protoShim6:
		return true
	}
	return false
}

func (p *Packet) parseTransport(b []byte, left int) Result {
	switch p.Proto {
	case protoTCP, protoUDP, protoSCTP, protoICMP, protoICMPv6:
		if left < minTransport || len(b) < minTransport {
			return Truncated
		}
	}
	switch p.Proto {
	case protoTCP, protoUDP, protoSCTP:
		p.HasPorts = true
		p.SrcPort = binary.BigEndian.Uint16(b)
		p.DstPort = binary.BigEndian.Uint16(b[2:])
	}
	return OK
}

// cut returns b[n:], or nil if b is shorter.
func cut(b []byte, n int) []byte {
	if len(b) < n {
		return nil
	}
	return b[n:]
}
