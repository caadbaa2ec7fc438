// Package packet parses frames exactly as the data plane does: Ethernet with
// VLAN tags, PPPoE sessions, MPLS label stacks, IPv4 with options and fragments,
// IPv6 with extension headers, TCP, UDP, UDP-Lite, SCTP, DCCP, ICMP. It is the
// twin of bpf/parse.h; a contract test compares them.
package packet

import (
	"encoding/binary"
	"net/netip"

	"weir/filter/key"
)

// Limits of the parser, the same as in bpf/parse.h.
const (
	MaxVLANTags   = 8    // 802.1Q and 802.1ad tags
	MaxMPLSLabels = 16   // in a label stack
	MaxExtHeaders = 16   // IPv6 extension headers
	MaxExtBytes   = 1024 // of all IPv6 extension headers together
	minTransport  = 8    // bytes of a transport header, also in a first fragment
)

// Result is the result of parsing a frame.
type Result uint8

const (
	OK         Result = iota // parsed to the end
	NotIP                    // none of IP, ARP and Link
	ARP                      // an ARP frame
	Truncated                // the frame, or the packet by its length field, ends within a header
	Malformed                // a header is inconsistent
	Unparsed                 // more IPv6 headers than the limits allow
	Overtagged               // more VLAN tags or MPLS labels than the limits allow
	Link                     // of a protocol that controls the link
)

// Packet contains the fields of a frame that can be matched.
type Packet struct {
	key.Tuple
	// HasAddresses is true from the IP header on, even if the rest of the frame
	// is bad: a listed address matches whatever follows it.
	HasAddresses bool
	// Network is the offset of the IP header in the frame.
	Network int
	// Payload is the offset in the frame of the IP headers' payload, 0 where they are
	// bad or the packet is a later fragment.
	Payload int
	// length is the length of the payload by the IP headers. More bytes may follow
	// it in the frame.
	length int
	// EtherType is the type after the Ethernet header and its VLAN tags. Frames that are
	// NotIP are counted by it. It is 0 for a length, as in 802.3 frames.
	EtherType uint16
	// Encapsulated is true for a packet in PPPoE or MPLS.
	Encapsulated bool
	// Plain is true for a packet whose transport header follows the IP header
	// and that is not a fragment. No other is exempt by its ports.
	Plain bool
	// ND is true for IPv6 neighbour discovery from this link.
	ND bool
	// ICMP is the kind of a Plain packet's message.
	ICMP ICMP
}

const (
	minEtherType = 0x600 // what is less is a length

	etherIPv4   = 0x0800
	etherARP    = 0x0806
	etherVLAN   = 0x8100
	etherIPv6   = 0x86dd
	etherMPLS   = 0x8847
	etherMPLSMC = 0x8848
	etherPPPoE  = 0x8864 // a session
	etherQinQ   = 0x88a8

	pppIPv4   = 0x0021
	pppIPv6   = 0x0057
	pppMPLS   = 0x0281
	pppMPLSMC = 0x0283

	pppControl = 0x8000 // from here on, protocols that control the session

	protoHopOpts  = 0
	protoICMP     = 1
	protoRouting  = 43
	protoFragment = 44
	protoAH       = 51
	protoICMPv6   = 58
	protoDstOpts  = 60
	protoMobility = 135
	protoHIP      = 139
	protoShim6    = 140

	lengthUnknown = 1<<32 - 1
)

// Parse parses a whole Ethernet frame. The packet is meaningful, as far as
// HasAddresses goes, with every result.
func Parse(frame []byte) (Packet, Result) {
	var p Packet
	proto, rest, r := p.parseLink(frame)
	if r != OK {
		return p, r
	}
	p.Network = len(frame) - len(rest)
	if proto == etherARP {
		return p, ARP
	}
	return p, p.parseIP(proto, rest)
}

// parseIP parses a packet from its IP header on.
func (p *Packet) parseIP(proto uint16, b []byte) (r Result) {
	switch proto {
	case etherIPv4:
		r = p.parseIPv4(b)
	case etherIPv6:
		r = p.parseIPv6(b)
	default:
		r = NotIP
	}
	if r != OK {
		p.Payload, p.length = 0, 0
	}
	return r
}

// IP returns the IP packet of a frame, from its header on, and nil if the frame
// is of another kind.
func IP(frame []byte) []byte {
	proto, rest, r := new(Packet).parseLink(frame)
	if r != OK || proto != etherIPv4 && proto != etherIPv6 {
		return nil
	}
	return rest
}

// parseLink returns what follows the headers before IP, and its EtherType, or 0
// if it has none.
func (p *Packet) parseLink(frame []byte) (proto uint16, rest []byte, r Result) {
	proto, rest, r = parseEthernet(frame)
	if r != OK {
		return 0, nil, r
	}
	if isLinkControl(proto, rest) {
		return 0, nil, Link
	}
	if proto >= minEtherType {
		p.EtherType = proto
	}
	p.Encapsulated = proto == etherPPPoE || proto == etherMPLS || proto == etherMPLSMC
	if proto == etherPPPoE {
		if proto, rest, r = parsePPPoE(rest); r != OK {
			return 0, nil, r
		}
	}
	if proto == etherMPLS || proto == etherMPLSMC {
		return parseMPLS(rest)
	}
	return proto, rest, OK
}

func parseEthernet(frame []byte) (proto uint16, rest []byte, r Result) {
	if len(frame) < 14 {
		return 0, nil, Truncated
	}
	return skipTags(binary.BigEndian.Uint16(frame[12:]), frame[14:])
}

// skipTags returns what follows the VLAN tags that proto says rest begins with, and its
// EtherType.
func skipTags(proto uint16, rest []byte) (uint16, []byte, Result) {
	for tags := 0; isVLAN(proto); tags++ {
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

func isVLAN(proto uint16) bool { return proto == etherVLAN || proto == etherQinQ }

// isLinkControl reports whether a frame controls the link, which could go down
// without it. None of these protocols carries packets.
func isLinkControl(proto uint16, b []byte) bool {
	switch proto {
	case 0x22ea, // MSRP
		0x8808, // MAC control
		0x8809, // slow protocols: LACP, OAM
		0x8863, // PPPoE discovery
		0x888e, // 802.1X
		0x88cc, // LLDP
		0x88f5, // MVRP
		0x88f6, // MMRP
		0x88f7, // PTP
		0x8902: // connectivity fault management
		return true
	}
	if proto > 1500 || len(b) < 6 || b[2] != 3 {
		return false
	}
	switch binary.BigEndian.Uint16(b) { // LLC
	case 0x4242, // spanning tree
		0xfefe: // IS-IS
		return true
	case 0xaaaa: // of Cisco: CDP, VTP, PVST
		return b[3] == 0 && b[4] == 0 && b[5] == 0x0c
	}
	return false
}

// parsePPPoE returns what follows the headers of PPPoE and PPP. PPP may compress
// its protocol number to one byte, which is odd then; PPPoE forbids that, and
// receivers accept it.
func parsePPPoE(b []byte) (proto uint16, rest []byte, r Result) {
	const header = 6
	if len(b) < header+2 {
		return 0, nil, Truncated
	}
	b = b[header:]
	number, rest := binary.BigEndian.Uint16(b), b[2:]
	if b[0]&1 != 0 {
		number, rest = uint16(b[0]), b[1:]
	}
	if number >= pppControl {
		return 0, nil, Link
	}
	switch number {
	case pppIPv4:
		proto = etherIPv4
	case pppIPv6:
		proto = etherIPv6
	case pppMPLS, pppMPLSMC:
		proto = etherMPLS
	}
	return proto, rest, OK
}

// parseMPLS returns what follows a label stack. Nothing says what that is, so it
// is guessed by its first four bits, as routers do, and by the length in the
// header: an Ethernet frame can look like IP.
func parseMPLS(b []byte) (proto uint16, rest []byte, r Result) {
	for n, bottom := 0, false; !bottom; n++ {
		if n == MaxMPLSLabels {
			return 0, nil, Overtagged
		}
		if len(b) < 4 {
			return 0, nil, Truncated
		}
		bottom, b = b[2]&1 != 0, b[4:]
	}
	switch {
	case len(b) < 6:
	case b[0]>>4 == 4 && int(binary.BigEndian.Uint16(b[2:])) <= len(b):
		return etherIPv4, b, OK
	case b[0]>>4 == 6 && int(binary.BigEndian.Uint16(b[4:]))+40 <= len(b):
		return etherIPv6, b, OK
	}
	return 0, b, NotIP
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
	p.Plain = b[6]&0x20 == 0
	p.Payload, p.length = p.Network+header, left
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
	p.Plain = !isExtension(p.Proto)
	bytes := 0
	for n := 0; isExtension(p.Proto); n++ {
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
	p.Payload, p.length = p.Network+40+bytes, left
	if r := p.parseTransport(b, left); r != OK {
		return r
	}
	p.ND = p.Plain && p.Proto == protoICMPv6 && hopLimit == 255 && left != lengthUnknown && p.isND(b[0], b[1], left)
	return OK
}

// isND reports whether an ICMPv6 message with hop limit 255, which proves that
// it comes from this link, is neighbour discovery as receivers accept it: RFC
// 4861, sections 6.1, 7.1 and 8.1, and RFC 6980: never in fragments.
func (p *Packet) isND(kind, code byte, length int) bool {
	if code != 0 {
		return false
	}
	switch kind {
	case 133: // router solicitation
		return length >= 8
	case 134: // router advertisement
		return length >= 16 && p.Src.IsLinkLocalUnicast()
	case 135, 136: // neighbour solicitation and advertisement
		return length >= 24
	case 137: // redirect
		return length >= 40 && p.Src.IsLinkLocalUnicast()
	}
	return false
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
	ports := key.HasPorts(p.Proto)
	if !ports && p.Proto != protoICMP && p.Proto != protoICMPv6 {
		return OK
	}
	if left < minTransport || len(b) < minTransport {
		return Truncated
	}
	if ports {
		p.HasPorts = true
		p.SrcPort = binary.BigEndian.Uint16(b)
		p.DstPort = binary.BigEndian.Uint16(b[2:])
	} else if p.Plain {
		p.ICMP = icmpKind(p.Src.Is6(), p.Proto, b[0])
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
