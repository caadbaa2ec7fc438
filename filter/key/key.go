// Package key defines what weir can list: an exact match on a shape of a
// packet's addresses, ports and protocol. Matching a packet against every shape
// in use is tuple space search (Srinivasan, Suri and Varghese, "Packet
// classification using tuple space search", SIGCOMM 1999).
//
// A Shape selects the fields that must match and the number of bits of each
// address. A Key is a shape with values for its fields. Each has one canonical
// serialisation, shared with the C twin in bpf/key.h; every filter hashes it
// under the secret of its generation. Serialisations of one length differ in
// their first bytes when their shapes do, and [hash.Secret] separates lengths: its
// bound holds for any two different keys.
//
// Layout, all fields in network order:
//
//	byte 0    fields: FieldV6 | FieldSrcPort | FieldDstPort | FieldProto
//	byte 1    source prefix length in bits
//	byte 2    destination prefix length in bits
//	byte 3    protocol number, 0 unless FieldProto is set
//	then      address form: the one address that is matched
//	          tuple form:   source, destination, source port, destination port
//
// The length is 8 bytes (IPv4 address), 16 (IPv4 tuple), 20 (IPv6 address) or
// 40 (IPv6 tuple). Address bits beyond the prefix length and fields that are
// not matched are zero.
package key

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"weir/filter/hash"
)

// Fields is the set of fields that a shape matches in addition to the
// addresses, and the family of its addresses.
type Fields uint8

const (
	FieldV6      Fields = 1 << iota // addresses are IPv6
	FieldSrcPort                    // the source port is matched
	FieldDstPort                    // the destination port is matched
	FieldProto                      // the protocol number is matched
)

// The four serialised lengths of a key, in bytes.
const (
	LenV4     = 8
	LenV4Flow = 16
	LenV6     = 20
	LenV6Flow = 40
	MaxLen    = LenV6Flow
	HeadLen   = 4 // of these, the shape and the protocol number
)

// Shape selects the fields of a packet that must match. The zero Shape matches
// every IPv4 packet. Shapes are comparable.
type Shape struct {
	Fields  Fields
	SrcBits uint8 // prefix length of the source, 0…32 or 0…128
	DstBits uint8 // prefix length of the destination
}

// V6 reports whether the shape matches IPv6 packets; otherwise it matches IPv4.
func (s Shape) V6() bool { return s.Fields&FieldV6 != 0 }

// Ports reports whether the shape needs a transport header. Such a shape does
// not match later fragments.
func (s Shape) Ports() bool { return s.Fields&(FieldSrcPort|FieldDstPort) != 0 }

// Tuple reports whether keys of the shape are serialised in tuple form: always,
// unless only one address is matched.
func (s Shape) Tuple() bool {
	return s.Fields&^FieldV6 != 0 || (s.SrcBits != 0 && s.DstBits != 0)
}

// MaxBits returns the length of the family's addresses in bits: 32 or 128.
func (s Shape) MaxBits() int {
	if s.V6() {
		return 128
	}
	return 32
}

// KeyLen returns the serialised length of the shape's keys in bytes.
func (s Shape) KeyLen() int {
	switch {
	case s.V6() && s.Tuple():
		return LenV6Flow
	case s.V6():
		return LenV6
	case s.Tuple():
		return LenV4Flow
	}
	return LenV4
}

// Valid reports whether the prefix lengths fit the family and all fields are
// known.
func (s Shape) Valid() bool {
	m := s.MaxBits()
	return int(s.SrcBits) <= m && int(s.DstBits) <= m &&
		s.Fields < 1<<4
}

// String returns the shape in the notation of the documentation, such as
// "src/20" or "src/24+dport+proto"; IPv6 shapes begin with "ip6 ".
func (s Shape) String() string {
	var p []string
	if s.SrcBits > 0 || !s.Tuple() && s.DstBits == 0 {
		p = append(p, fmt.Sprintf("src/%d", s.SrcBits))
	}
	if s.DstBits > 0 {
		p = append(p, fmt.Sprintf("dst/%d", s.DstBits))
	}
	if s.Fields&FieldSrcPort != 0 {
		p = append(p, "sport")
	}
	if s.Fields&FieldDstPort != 0 {
		p = append(p, "dport")
	}
	if s.Fields&FieldProto != 0 {
		p = append(p, "proto")
	}
	t := strings.Join(p, "+")
	if s.V6() {
		t = "ip6 " + t
	}
	return t
}

// Key is a shape with the values of its fields, in canonical form: addresses
// are masked to the shape's prefix lengths, fields that are not matched are
// zero. The constructors return only canonical keys. Keys are comparable.
type Key struct {
	Shape
	Proto            uint8
	SrcPort, DstPort uint16
	Src, Dst         netip.Addr // an address that is not matched is the family's zero address
}

// Tuple contains the fields of a packet that can be matched: its addresses and,
// if it has them, protocol and ports.
type Tuple struct {
	Src, Dst         netip.Addr // both IPv4 or both IPv6
	Proto            uint8
	HasPorts         bool // false for later fragments and for protocols without ports
	SrcPort, DstPort uint16
}

// Source returns the key that matches packets from p. Host bits of p are
// masked.
func Source(p netip.Prefix) Key { return address(p, true) }

// Destination returns the key that matches packets to p. Host bits of p are
// masked.
func Destination(p netip.Prefix) Key { return address(p, false) }

func address(p netip.Prefix, source bool) Key {
	var s Shape
	t := Tuple{Src: p.Addr(), Dst: p.Addr()}
	if p.Addr().Is6() {
		s.Fields |= FieldV6
	}
	if source {
		s.SrcBits = uint8(p.Bits())
	} else {
		s.DstBits = uint8(p.Bits())
	}
	k, _ := s.Of(t)
	return k
}

// Of returns the key of shape s that matches the packet. It reports false if
// the shape cannot match the packet: another family, or ports that the packet
// does not have.
func (s Shape) Of(t Tuple) (Key, bool) {
	if t.Src.Is6() != s.V6() || s.Ports() && !t.HasPorts {
		return Key{}, false
	}
	k := Key{Shape: s, Src: mask(t.Src, s.SrcBits), Dst: mask(t.Dst, s.DstBits)}
	if s.Fields&FieldProto != 0 {
		k.Proto = t.Proto
	}
	if s.Fields&FieldSrcPort != 0 {
		k.SrcPort = t.SrcPort
	}
	if s.Fields&FieldDstPort != 0 {
		k.DstPort = t.DstPort
	}
	return k, true
}

// Key is the most specific key that the packet matches.
func (t Tuple) Key() Key {
	s := Shape{Fields: FieldProto, SrcBits: uint8(t.Src.BitLen()), DstBits: uint8(t.Dst.BitLen())}
	if t.Src.Is6() {
		s.Fields |= FieldV6
	}
	if t.HasPorts {
		s.Fields |= FieldSrcPort | FieldDstPort
	}
	k, _ := s.Of(t)
	return k
}

// Reverse returns the key of the packets that answer those of k.
func (k Key) Reverse() Key {
	const ports = FieldSrcPort | FieldDstPort
	if swapped := k.Fields & ports; swapped == FieldSrcPort || swapped == FieldDstPort {
		k.Fields ^= ports
	}
	k.SrcBits, k.DstBits = k.DstBits, k.SrcBits
	k.Src, k.Dst = k.Dst, k.Src
	k.SrcPort, k.DstPort = k.DstPort, k.SrcPort
	return k
}

// Within reports whether s matches on nothing that other leaves open: packets
// that match one key of other then match one key of s.
func (s Shape) Within(other Shape) bool {
	return s.V6() == other.V6() && s.SrcBits <= other.SrcBits && s.DstBits <= other.DstBits && s.Fields&^other.Fields == 0
}

// Covers reports whether every packet that matches other matches k.
func (k Key) Covers(other Key) bool { return k.Shape.Within(other.Shape) && k.Overlaps(other) }

// Overlaps reports whether there are packets that match both keys.
func (k Key) Overlaps(other Key) bool {
	both := k.Fields & other.Fields
	switch {
	case k.V6() != other.V6(),
		both&FieldProto != 0 && k.Proto != other.Proto,
		both&FieldSrcPort != 0 && k.SrcPort != other.SrcPort,
		both&FieldDstPort != 0 && k.DstPort != other.DstPort,
		k.Ports() && !other.mayHavePorts(), other.Ports() && !k.mayHavePorts():
		return false
	}
	return netip.PrefixFrom(k.Src, int(min(k.SrcBits, other.SrcBits))).Contains(other.Src) &&
		netip.PrefixFrom(k.Dst, int(min(k.DstBits, other.DstBits))).Contains(other.Dst)
}

// mayHavePorts reports whether packets that match the key may have ports.
func (k Key) mayHavePorts() bool { return k.Fields&FieldProto == 0 || HasPorts(k.Proto) }

// HasPorts reports whether packets of a protocol have ports: TCP, UDP, UDP-Lite,
// SCTP and DCCP.
func HasPorts(proto uint8) bool {
	switch proto {
	case 6, 17, 33, 132, 136:
		return true
	}
	return false
}

func mask(a netip.Addr, bits uint8) netip.Addr {
	p, err := a.WithZone("").Prefix(int(bits))
	if err != nil { // only for bits beyond the family, which Valid rejects
		panic(fmt.Sprintf("key: /%d of %v: %v", bits, a, err))
	}
	return p.Addr()
}

// Append appends the key's canonical serialisation to b.
func (k Key) Append(b []byte) []byte {
	b = append(b, byte(k.Fields), k.SrcBits, k.DstBits, k.Proto)
	if !k.Tuple() {
		a := k.Src
		if k.DstBits > 0 {
			a = k.Dst
		}
		return append(b, a.AsSlice()...)
	}
	b = append(b, k.Src.AsSlice()...)
	b = append(b, k.Dst.AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, k.SrcPort)
	return binary.BigEndian.AppendUint16(b, k.DstPort)
}

// Parse decodes a serialised key. It fails on anything that Append does not
// produce.
func Parse(b []byte) (Key, error) {
	if len(b) < LenV4 {
		return Key{}, fmt.Errorf("key: %d bytes, need at least %d", len(b), LenV4)
	}
	s := Shape{Fields: Fields(b[0]), SrcBits: b[1], DstBits: b[2]}
	if !s.Valid() {
		return Key{}, fmt.Errorf("key: offset 0: invalid shape % x", b[:3])
	}
	if len(b) != s.KeyLen() {
		return Key{}, fmt.Errorf("key: %d bytes, shape %v has %d", len(b), s, s.KeyLen())
	}
	alen := s.MaxBits() / 8
	zero := netip.AddrFrom4([4]byte{})
	if s.V6() {
		zero = netip.IPv6Unspecified()
	}
	k := Key{Shape: s, Proto: b[3], Src: zero, Dst: zero}
	first, _ := netip.AddrFromSlice(b[4 : 4+alen])
	switch {
	case s.Tuple():
		k.Src = first
		k.Dst, _ = netip.AddrFromSlice(b[4+alen : 4+2*alen])
		k.SrcPort = binary.BigEndian.Uint16(b[4+2*alen:])
		k.DstPort = binary.BigEndian.Uint16(b[6+2*alen:])
	case s.DstBits > 0:
		k.Dst = first
	default:
		k.Src = first
	}
	canonical, _ := s.Of(Tuple{Src: k.Src, Dst: k.Dst, Proto: k.Proto, HasPorts: true, SrcPort: k.SrcPort, DstPort: k.DstPort})
	if canonical != k {
		return Key{}, fmt.Errorf("key: bits set outside shape %v", s)
	}
	return k, nil
}

// Compare orders shapes as [Key.Compare] orders their keys.
func (s Shape) Compare(o Shape) int {
	return cmp.Or(cmp.Compare(s.Fields, o.Fields), cmp.Compare(s.SrcBits, o.SrcBits), cmp.Compare(s.DstBits, o.DstBits))
}

// Compare returns the order of two keys, which their serialisations have as well:
// first by shape.
func (k Key) Compare(l Key) int {
	return cmp.Or(
		cmp.Compare(k.Fields, l.Fields), cmp.Compare(k.SrcBits, l.SrcBits), cmp.Compare(k.DstBits, l.DstBits),
		cmp.Compare(k.Proto, l.Proto), k.Src.Compare(l.Src), k.Dst.Compare(l.Dst),
		cmp.Compare(k.SrcPort, l.SrcPort), cmp.Compare(k.DstPort, l.DstPort),
	)
}

// Hash returns the hash of the canonical serialisation.
func (k Key) Hash(s *hash.Secret) uint64 {
	var buf [MaxLen]byte
	return s.Sum(k.Append(buf[:0]))
}

// String returns the key in the list format: an address, a prefix, or "tcp
// 192.0.2.1:* > 198.51.100.7:443". A destination alone, which the format leaves
// to the list's direction, is written with a leading "> ".
func (k Key) String() string {
	if !k.Tuple() {
		if k.DstBits > 0 {
			return "> " + side(k.Dst, k.DstBits)
		}
		return side(k.Src, k.SrcBits)
	}
	name := "any"
	if k.Fields&FieldProto != 0 {
		name = ProtoName(k.Proto)
	}
	src, dst := side(k.Src, k.SrcBits), side(k.Dst, k.DstBits)
	if k.V6() {
		src, dst = "["+src+"]", "["+dst+"]"
	}
	return fmt.Sprintf("%s %s:%s > %s:%s", name,
		src, port(k.SrcPort, k.Fields&FieldSrcPort != 0),
		dst, port(k.DstPort, k.Fields&FieldDstPort != 0))
}

func side(a netip.Addr, bits uint8) string {
	if int(bits) == a.BitLen() {
		return a.String()
	}
	return fmt.Sprintf("%v/%d", a, bits)
}

func port(p uint16, counts bool) string {
	if !counts {
		return "*"
	}
	return fmt.Sprint(p)
}

var protoNames = map[uint8]string{1: "icmp", 6: "tcp", 17: "udp", 33: "dccp", 58: "icmp6", 132: "sctp", 136: "udplite"}

// ProtoName returns the list format's name of a protocol, as in "tcp", "udp" or
// "icmp6", or the decimal number.
func ProtoName(p uint8) string {
	if n, ok := protoNames[p]; ok {
		return n
	}
	return fmt.Sprint(p)
}

// ProtoNumber returns the inverse of [ProtoName].
func ProtoNumber(name string) (uint8, bool) {
	for p, n := range protoNames {
		if n == name {
			return p, true
		}
	}
	var p uint8
	if n, err := fmt.Sscanf(name, "%d", &p); n != 1 || err != nil || fmt.Sprint(p) != name {
		return 0, false
	}
	return p, true
}
