// Package invariant extracts the parts of a packet that forwarding does not change, so that
// several nodes recognise it. The parts are chosen as in the Source Path Isolation Engine (SPIE)
// of Snoeren and others ("Hash-based IP traceback", SIGCOMM 2001), without checksums.
// bpf/invariant.h is the twin.
package invariant

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The invariant part of a packet has a fixed length for each family, so that
// the data plane can hash it in place.
const (
	payloadV4 = 8  // bytes of payload: with the header 28 bytes, enough to distinguish IPv4 packets
	payloadV6 = 20 // IPv6 headers have less entropy: no identification

	headerV4 = 20
	headerV6 = 40

	LenV4 = headerV4 + payloadV4 // length in bytes of an IPv4 packet's invariant part
	LenV6 = headerV6 + payloadV6 // length in bytes of an IPv6 packet's invariant part

	// MostV6 is the length in bytes of the longest start of an IPv6 packet without
	// options that its invariant part depends on.
	MostV6 = LenV6 + behind

	behind = 4 // bytes that follow, if all are there, to take a checksum's place: SCTP's is the longest
)

var (
	// ErrTruncated means that the packet ends, by its own length or within a
	// header, before its invariant part does.
	ErrTruncated = errors.New("packet truncated")

	// ErrMalformed means that the packet is neither IPv4 nor IPv6, or that its
	// headers contradict each other.
	ErrMalformed = errors.New("packet malformed")
)

// Append appends to b the parts of the IP packet pkt that forwarding
// does not change, LenV4 or LenV6 bytes. The packet begins with the IP header; trailing
// bytes are ignored. The parts are:
//
//   - IPv4: the header without options, with type of service, TTL and
//     checksum zeroed, and the first 8 bytes of payload (SPIE, section 3.1);
//   - IPv6: the header with traffic class, flow label and hop limit zeroed,
//     and the first 20 bytes of payload.
//
// Where the checksum of TCP, UDP, UDP-Lite, DCCP, SCTP or ICMP lies in these bytes of
// payload, as many of the four bytes behind them take its place, or zeros where there are not
// four: a sender may leave it to a NIC, and only nodes behind that see it.
//
// Nodes may insert IPv4 options and an IPv6 hop-by-hop header, and weir's own
// loop check does. Both are therefore left out, where SPIE leaves out only the
// values of options, and lengths and next header are adjusted as if they were
// absent. Missing payload is zero; the lengths distinguish it from payload of
// zeros.
//
// Fragmentation, address translation and source routing change the invariant part.
//
// It returns ErrTruncated or ErrMalformed, wrapped, and then b unchanged.
func Append(b, pkt []byte) ([]byte, error) {
	if len(pkt) == 0 {
		return b, fmt.Errorf("%w: empty", ErrTruncated)
	}
	switch version := pkt[0] >> 4; version {
	case 4:
		return appendV4(b, pkt)
	case 6:
		return appendV6(b, pkt)
	default:
		return b, fmt.Errorf("%w: IP version %d", ErrMalformed, version)
	}
}

// AppendStart appends to b the start of a packet with the invariant part of the IP packet
// pkt, and nothing that forwarding changes: the invariant part with the checksum in the
// payload, and the bytes that take its place. It returns the errors of Append.
func AppendStart(b, pkt []byte) ([]byte, error) {
	begun := len(b)
	b, err := Append(b, pkt)
	if err != nil {
		return b, err
	}
	ip := b[begun:]
	header, from := headerV4, int(pkt[0]&0x0f)*4
	left := int(binary.BigEndian.Uint16(ip[2:])) - header
	if ip[0]>>4 == 6 {
		header, from, left = headerV6, headerV6, int(binary.BigEndian.Uint16(ip[4:]))
		if pkt[6] == hopByHop {
			from += 8 * (1 + int(pkt[headerV6+1]))
		}
	}
	payload := pkt[from:min(len(pkt), from+min(left, len(ip)-header+behind))]
	n := copy(ip[header:], payload)
	return append(b, payload[n:]...), nil
}

func appendV4(b, pkt []byte) ([]byte, error) {
	if len(pkt) < headerV4 {
		return b, fmt.Errorf("%w: %d bytes of IPv4 header", ErrTruncated, len(pkt))
	}
	header := int(pkt[0]&0x0f) * 4
	total := int(binary.BigEndian.Uint16(pkt[2:]))
	if header < headerV4 || total < header {
		return b, fmt.Errorf("%w: IPv4 header of %d bytes in a packet of %d", ErrMalformed, header, total)
	}
	proto := pkt[9]
	if binary.BigEndian.Uint16(pkt[6:])&0x1fff != 0 {
		proto = noChecksum // a later fragment, which has no header of it
	}
	payload, err := payloadOf(pkt, header, total, payloadV4, proto)
	if err != nil {
		return b, err
	}
	b = append(b, 0x45, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(total-header+headerV4))
	b = append(b, pkt[4:8]...)     // identification, flags, fragment offset
	b = append(b, 0, pkt[9], 0, 0) // protocol
	b = append(b, pkt[12:20]...)   // addresses
	return append(b, payload...), nil
}

func appendV6(b, pkt []byte) ([]byte, error) {
	if len(pkt) < headerV6 {
		return b, fmt.Errorf("%w: %d bytes of IPv6 header", ErrTruncated, len(pkt))
	}
	next, header := pkt[6], headerV6
	total := headerV6 + int(binary.BigEndian.Uint16(pkt[4:]))
	if next == hopByHop {
		if total < headerV6+8 {
			return b, fmt.Errorf("%w: hop-by-hop header in a payload of %d bytes", ErrMalformed, total-headerV6)
		}
		if len(pkt) < headerV6+8 {
			return b, fmt.Errorf("%w: %d bytes of hop-by-hop header", ErrTruncated, len(pkt)-headerV6)
		}
		next, header = pkt[headerV6], headerV6+8*(1+int(pkt[headerV6+1]))
		if total < header {
			return b, fmt.Errorf("%w: hop-by-hop header of %d bytes in a payload of %d", ErrMalformed, header-headerV6, total-headerV6)
		}
	}
	payload, err := payloadOf(pkt, header, total, payloadV6, next)
	if err != nil {
		return b, err
	}
	b = append(b, 0x60, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(total-header))
	b = append(b, next, 0)
	b = append(b, pkt[8:40]...) // addresses
	return append(b, payload...), nil
}

const hopByHop = 0 // the protocol

// noChecksum stands for protocols without a checksum: 59, no next header, is one.
const noChecksum = 59

// checksumOf returns where a protocol's header has its checksum, in bytes, and its length.
func checksumOf(proto byte) (at, length int) {
	switch proto {
	case 6: // TCP
		return 16, 2
	case 17, 33, 136: // UDP, DCCP, UDP-Lite
		return 6, 2
	case 1, 58: // ICMP, ICMPv6
		return 2, 2
	case 132: // SCTP
		return 8, 4
	}
	return 0, 0
}

// payloadOf returns the first n bytes after the header of a packet of total bytes, padded
// with zeros, in which bytes that follow take the place of the checksum of a protocol.
func payloadOf(pkt []byte, header, total, n int, proto byte) ([]byte, error) {
	end := min(header+n, total)
	if total >= header+n+behind {
		end += behind
	}
	if len(pkt) < end {
		return nil, fmt.Errorf("%w: %d of %d bytes", ErrTruncated, len(pkt), end)
	}
	var padded [payloadV6 + behind]byte
	copy(padded[:], pkt[header:end])
	if at, length := checksumOf(proto); at < n {
		copy(padded[at:at+length], padded[n:])
	}
	return padded[:n], nil
}
