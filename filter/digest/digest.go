// Package digest remembers the packets that passed, so that "did this packet
// pass here, and when?" has an answer: the Source Path Isolation Engine of
// Snoeren et al. ("Hash-based IP traceback", SIGCOMM 2001; Broder and
// Mitzenmacher's survey, section 8.2).
//
// A packet's digest is a keyed hash of what does not change on its way. A Log
// keeps the digests of each slice of time in a Bloom filter of its own.
package digest

import (
	"encoding/binary"
	"errors"
	"fmt"

	"weir/filter/hash"
)

// The invariant part of a packet has one length for each family, so that the
// data plane can hash it in place.
const (
	payloadV4 = 8  // bytes of payload; with the header, 28 bytes suffice to tell IPv4 packets apart
	payloadV6 = 20 // IPv6 headers have less entropy: no identification

	headerV4 = 20
	headerV6 = 40

	LenV4 = headerV4 + payloadV4 // length in bytes of an IPv4 packet's invariant part
	LenV6 = headerV6 + payloadV6 // the same of an IPv6 packet's
)

var (
	// ErrTruncated says that a packet was cut off, by its own length or within
	// a header, before all of its invariant part.
	ErrTruncated = errors.New("digest: packet truncated")

	// ErrMalformed says that a packet is neither IPv4 nor IPv6, or that its
	// headers contradict themselves.
	ErrMalformed = errors.New("digest: packet malformed")
)

// Sum is the digest of the IP packet pkt, which begins with the IP header and
// may have bytes to spare at its end: hash.Sum of what AppendInvariant gives.
// The seed keeps others from making packets that share a digest. It fails with
// ErrTruncated or ErrMalformed.
func Sum(seed uint64, pkt []byte) (uint64, error) {
	var buf [LenV6]byte
	b, err := AppendInvariant(buf[:0], pkt)
	if err != nil {
		return 0, err
	}
	return hash.Sum(seed, b), nil
}

// AppendInvariant appends to b what does not change of the IP packet pkt while
// it is forwarded, LenV4 or LenV6 bytes:
//
//   - of IPv4 the header without options, where type of service, TTL and
//     checksum are zero, and the first 8 bytes of payload (SPIE, section 3.1);
//   - of IPv6 the header where traffic class, flow label and hop limit are zero,
//     and the first 20 bytes of payload.
//
// Nodes may insert IPv4 options and an IPv6 hop-by-hop header, and weir's own
// loop check does. Hence both are left out, which SPIE does for the values of
// options only, and the lengths and the next header are what they would be
// without them. Missing payload is zero; the lengths tell it from zeros.
//
// Fragmentation, translation of addresses and source routes make another packet
// of a packet, with another digest.
//
// It fails with ErrTruncated or ErrMalformed and then returns b.
func AppendInvariant(b, pkt []byte) ([]byte, error) {
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

func appendV4(b, pkt []byte) ([]byte, error) {
	if len(pkt) < headerV4 {
		return b, fmt.Errorf("%w: %d bytes of IPv4 header", ErrTruncated, len(pkt))
	}
	header := int(pkt[0]&0x0f) * 4
	total := int(binary.BigEndian.Uint16(pkt[2:]))
	if header < headerV4 || total < header {
		return b, fmt.Errorf("%w: IPv4 header of %d bytes in a packet of %d", ErrMalformed, header, total)
	}
	payload, err := payloadOf(pkt, header, total, payloadV4)
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
	const hopByHop = 0
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
	payload, err := payloadOf(pkt, header, total, payloadV6)
	if err != nil {
		return b, err
	}
	b = append(b, 0x60, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(total-header))
	b = append(b, next, 0)
	b = append(b, pkt[8:40]...) // addresses
	return append(b, payload...), nil
}

// zeros pads payloads.
var zeros [payloadV6]byte

// payloadOf is the first n bytes behind the header of a packet of total bytes,
// padded with zeros.
func payloadOf(pkt []byte, header, total, n int) ([]byte, error) {
	end := min(header+n, total)
	if len(pkt) < end {
		return nil, fmt.Errorf("%w: %d of %d bytes", ErrTruncated, len(pkt), end)
	}
	if end == header+n {
		return pkt[header:end], nil
	}
	padded := zeros
	copy(padded[:], pkt[header:end])
	return padded[:n], nil
}
