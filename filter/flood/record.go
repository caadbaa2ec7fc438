// Package flood finds in samples of packets what a flood consists of, and the
// smallest rules that match it and little else.
package flood

import (
	"encoding/binary"
	"net/netip"

	"weir/filter/packet"
)

// MaxSample is the largest number of records in a sample of a second: SAMPLER_RECORDS of bpf/sampler.h,
// in each bank.
const MaxSample = 4096

// Record has the fields of a packet that the sampler keeps.
type Record struct {
	Src, Dst [16]byte // IPv4 as ::ffff:a.b.c.d
	IPv4     bool
	Protocol uint8 // behind all IPv6 extension headers
	// SrcPort and DstPort are the type and the code of ICMP and ICMPv6, and 0 where the
	// packet has neither: in later fragments and other protocols.
	SrcPort, DstPort uint16
	Flags            uint8 // of TCP, FIN is bit 0
	TTL              uint8 // or hop limit
	HeaderLength     uint8 // of TCP, in words of 32 bits: 5 without options
	Fragment         Fragment
	Length           uint16 // of the IP packet with its header, in bytes; at most 65535
	ID               uint16 // of IPv4, otherwise 0
	Window           uint16 // of TCP, not scaled
	// Payload has the first bytes behind the header of TCP, UDP (8 bytes) or ICMP (8 bytes), or
	// behind the IP headers for other protocols; zeros where there are fewer, and in later
	// fragments.
	Payload    [4]byte
	Reason     uint8 // a verdict.Reason: what became of the packet
	Conversing Conversing
	Interface  uint32 // its index
}

// Fragment says what part of an IP packet a packet is.
type Fragment uint8

const (
	Whole         Fragment = iota // no fragment
	FirstFragment                 // has the ports
	LaterFragment
)

// Conversing says whether a packet belongs to a conversation of this host: packets of the same
// addresses, ports and protocol were seen to go the other way.
type Conversing uint8

const (
	Unknown    Conversing = iota // packets in the other direction are not seen
	Stranger                     // it belongs to none
	Conversant                   // it belongs to one
)

const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoGRE    = 47
	protoESP    = 50
	protoICMPv6 = 58
	protoSCTP   = 132
)

// Of returns the record of an Ethernet frame of the given length, which may have been captured in
// part. Reason, Conversing and Interface are left to the caller. It is false for what is not IP, or
// whose IP header cannot be read.
func Of(frame []byte, length int) (r Record, ok bool) {
	p, _ := packet.Parse(frame)
	if !p.HasAddresses {
		return r, false
	}
	ip := frame[p.Network:]
	r = Record{Src: p.Src.As16(), Dst: p.Dst.As16(), IPv4: p.Src.Is4(), Protocol: p.Proto, SrcPort: p.SrcPort, DstPort: p.DstPort}
	total := 0
	if r.IPv4 {
		total, r.ID, r.TTL = int(binary.BigEndian.Uint16(ip[2:])), binary.BigEndian.Uint16(ip[4:]), ip[8]
	} else {
		total, r.TTL = int(binary.BigEndian.Uint16(ip[4:])), ip[7]
		if total > 0 {
			total += 40
		}
	}
	if total == 0 { // aggregated beyond 64 KiB
		total = length - p.Network
	}
	r.Length = uint16(min(total, 65535))
	r.Fragment = fragment(ip, &p)
	if p.Payload > 0 && p.Payload <= len(frame) {
		r.transport(frame[p.Payload:])
	}
	return r, true
}

func fragment(ip []byte, p *packet.Packet) Fragment {
	if p.Src.Is4() {
		switch bits := binary.BigEndian.Uint16(ip[6:]); {
		case bits&0x1fff != 0:
			return LaterFragment
		case bits&0x2000 != 0:
			return FirstFragment
		}
		return Whole
	}
	// Of IPv6, the parser finds no payload only where the packet is bad or a later fragment.
	b, proto, bytes := ip[40:], ip[6], 0
	for range packet.MaxExtHeaders {
		if len(b) < 8 {
			break
		}
		length := (int(b[1]) + 1) * 8
		switch proto {
		case 44:
			if bits := binary.BigEndian.Uint16(b[2:]); bits&0xfff8 != 0 {
				return LaterFragment
			} else if bits&1 != 0 {
				return FirstFragment
			}
			return Whole
		case 51:
			length = (int(b[1]) + 2) * 4
		case 0, 43, 60, 135, 139, 140:
		default:
			return Whole
		}
		if bytes += length; len(b) < length || bytes > packet.MaxExtBytes {
			break
		}
		proto, b = b[0], b[length:]
	}
	return Whole
}

// transport reads what follows the IP headers.
func (r *Record) transport(b []byte) {
	header := 0
	switch r.Protocol {
	case protoICMP, protoICMPv6:
		if len(b) < 8 {
			return
		}
		r.SrcPort, r.DstPort, header = uint16(b[0]), uint16(b[1]), 8
	case protoTCP:
		if len(b) < 20 {
			return
		}
		r.HeaderLength, r.Flags, r.Window = b[12]>>4, b[13], binary.BigEndian.Uint16(b[14:])
		header = int(r.HeaderLength) * 4
	case protoUDP:
		header = 8
	}
	if header <= len(b) {
		copy(r.Payload[:], b[header:])
	}
}

// Flow identifies the packets of a conversation in one direction, by addresses as in a [Record], and
// ports or the type and code of ICMP.
type Flow struct {
	Src, Dst         [16]byte
	SrcPort, DstPort uint16
	Protocol         uint8
}

// Flow returns the flow of the packet.
func (r *Record) Flow() Flow { return Flow{r.Src, r.Dst, r.SrcPort, r.DstPort, r.Protocol} }

// Reverse returns the flow in the other direction.
func (f Flow) Reverse() Flow { return Flow{f.Dst, f.Src, f.DstPort, f.SrcPort, f.Protocol} }

// Source returns the address that the packet comes from.
func (r *Record) Source() netip.Addr { return netip.AddrFrom16(r.Src).Unmap() }

// Destination returns the address that the packet goes to.
func (r *Record) Destination() netip.Addr { return netip.AddrFrom16(r.Dst).Unmap() }
