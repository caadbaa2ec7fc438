package icarus

import (
	"bytes"
	"encoding/binary"
	"slices"

	"weir/filter/invariant"
)

// The filter travels in an option of its own, of an experimental type (RFC
// 4727) that nodes which do not know it skip.
//
//	type, length, count, domain, tag (4 bytes), filter (m/8 bytes)
//
// In IPv4 it directly follows the header's first 20 bytes. In IPv6 it is the
// only option of a hop-by-hop header directly after the fixed one, after
// padding that aligns it to 8 bytes; its type says that it may change en route.
// The count is Trace.Unchanged. Bit i of the filter is bit i mod 8, counted
// from the least significant, of byte i/8.
//
// The tag authenticates nodes that know the domain's key: the first 4 bytes of
// SipHash-2-4 over the packet's invariant part (package invariant) and the domain.
// It is verified only if a filter did not change, before acting on that, so
// without the key no one can craft an option that gets another's packet
// dropped.
const (
	TypeV4 = 0x9e // 158: copied into fragments, control, number 30
	TypeV6 = 0x3e // skip, may change, number 30

	optionHead = 8 // bytes before the filter
	headerV4   = 20
	headerV6   = 40
	maxLength  = 1<<16 - 1 // of an IPv4 packet, and of an IPv6 payload
)

// padV6 starts the hop-by-hop header, after its next header and length: PadN of
// 6 bytes.
var padV6 = []byte{1, 4, 0, 0, 0, 0}

// Outcome says how a node treated a packet's filter. The numbers are from
// enum loop_outcome in bpf/loop.h.
type Outcome uint8

const (
	Untouched      Outcome = iota // no filter, and none belongs there: not counted
	Inserted                      // at an edge, with the node's own mask
	Visited                       // the node's mask was new to the filter
	Suspected                     // the filter did not change, at too few consecutive nodes to decide
	Looped                        // the filter did not change at Confirm consecutive nodes
	Removed                       // at an edge
	TooLarge                      // not inserted: the packet would exceed the MTU or its length field
	NoRoom                        // not inserted or removed: the frame's buffer has no room
	Fragment                      // not inserted, or its filter not judged: a fragment
	OptionsPresent                // not inserted: IPv4 options or a hop-by-hop header are present
	Forged                        // the filter did not change, but the tag is not the domain's: ignored
	Foreign                       // an option of the type, but of another domain or size: ignored
	NumOutcomes
)

var outcomeNames = [NumOutcomes]string{
	"untouched", "inserted", "visited", "suspected", "looped", "removed",
	"too-large", "no-room", "fragment", "options-present", "forged", "foreign",
}

// String returns the outcome's name in metrics and JSON.
func (o Outcome) String() string { return outcomeNames[o] }

// Node is a node of a domain; it does what bpf/loop.h does with the filters of
// packets. Its methods take packets that begin with the IP header and ignore
// trailing bytes. They do not modify the Node, so it is safe for concurrent
// use.
type Node struct {
	Geometry
	Domain uint8 // distinguishes adjacent domains
	Key    Key
	Mask   Filter
}

// NewNode returns the node with the given id. The masks' seed is derived from
// the key. It fails if [Mask] does.
func NewNode(id uint64, domain uint8, key Key, g Geometry) (*Node, error) {
	mask, err := Mask(key.sum([]byte("mask")), id, g.Size, g.K)
	if err != nil {
		return nil, err
	}
	return &Node{Geometry: g, Domain: domain, Key: key, Mask: mask}, nil
}

// Overhead returns the number of bytes that the filter adds to packets.
func (g Geometry) Overhead() (v4, v6 int) { return g.length(), 8 + g.length() }

// length returns the length of the whole option in bytes.
func (g Geometry) length() int { return optionHead + g.Size/8 }

// Insert returns the packet as it enters the domain through this node, on a
// path with the given MTU. It returns pkt itself unless the outcome is
// Inserted.
func (n *Node) Insert(pkt []byte, mtu int) ([]byte, Outcome) {
	if isGroup(pkt) {
		return pkt, Untouched
	}
	return n.InsertForwarded(pkt, mtu)
}

// InsertForwarded is Insert of a packet that is known to be forwarded into the domain,
// which may be multicast.
func (n *Node) InsertForwarded(pkt []byte, mtu int) ([]byte, Outcome) {
	if o := obstacle(pkt); o != Inserted {
		return pkt, o
	}
	var out []byte
	v4, v6 := n.Overhead()
	if pkt[0]>>4 == 4 {
		total := int(binary.BigEndian.Uint16(pkt[2:])) + v4
		if total > min(mtu, maxLength) {
			return pkt, TooLarge
		}
		out = slices.Concat(pkt[:headerV4], make([]byte, v4), pkt[headerV4:])
		out[0] = 0x40 | byte(headerV4+v4)/4
		binary.BigEndian.PutUint16(out[2:], uint16(total))
	} else {
		payload := int(binary.BigEndian.Uint16(pkt[4:])) + v6
		if headerV6+payload > mtu || payload > maxLength {
			return pkt, TooLarge
		}
		out = slices.Concat(pkt[:headerV6], make([]byte, v6), pkt[headerV6:])
		binary.BigEndian.PutUint16(out[4:], uint16(payload))
		out[6], out[headerV6], out[headerV6+1] = 0, pkt[6], byte(v6/8-1)
		copy(out[headerV6+2:], padV6)
	}
	tag, ok := n.tag(pkt)
	if !ok {
		return pkt, Untouched
	}
	at, optionType, length := headerV6+8, byte(TypeV6), n.length()-2
	if out[0]>>4 == 4 {
		at, optionType, length = headerV4, TypeV4, n.length()
	}
	option := out[at:][:n.length()]
	option[0], option[1] = optionType, byte(length)
	option[3] = n.Domain
	copy(option[4:], tag)
	n.Mask.put(option[optionHead:])
	if out[0]>>4 == 4 {
		fixChecksum(out, pkt[:4], out[:4], nil, option)
	}
	return out, Inserted
}

// isGroup reports whether a packet is multicast or broadcast: routing tables do not say
// whether it crosses the domain.
func isGroup(pkt []byte) bool {
	switch {
	case len(pkt) >= headerV4 && pkt[0]>>4 == 4:
		return pkt[16] >= 224
	case len(pkt) >= headerV6 && pkt[0]>>4 == 6:
		return pkt[24] == 0xff
	}
	return false
}

// obstacle returns Inserted, or the reason that a packet gets no filter,
// regardless of its length.
func obstacle(pkt []byte) Outcome {
	switch {
	case len(pkt) >= headerV4 && pkt[0]>>4 == 4:
		switch total := int(binary.BigEndian.Uint16(pkt[2:])); {
		case pkt[0]&0xf > 5:
			return OptionsPresent
		case fragmentV4(pkt):
			return Fragment
		case pkt[0]&0xf == 5 && total >= headerV4: // 0 if aggregated beyond 64 KiB
			return Inserted
		}
	case len(pkt) >= headerV6 && pkt[0]>>4 == 6:
		const hopByHop, fragment = 0, 44
		switch payload := binary.BigEndian.Uint16(pkt[4:]); {
		case pkt[6] == hopByHop:
			return OptionsPresent
		case pkt[6] == fragment:
			return Fragment
		case payload != 0: // as if aggregated
			return Inserted
		}
	}
	return Untouched
}

// fragmentV4 reports whether an IPv4 packet is a fragment: more follow, or its
// offset is nonzero.
func fragmentV4(pkt []byte) bool { return binary.BigEndian.Uint16(pkt[6:])&0x3fff != 0 }

// Check returns the outcome of a visit without changing the packet: Untouched,
// Foreign, Forged, Fragment, Visited, Suspected or Looped. Fragments are not
// judged: the tag of a packet that was fragmented inside the domain does not
// match its fragments, so they cannot be authenticated.
func (n *Node) Check(pkt []byte) Outcome {
	option, o := n.find(pkt)
	if option == nil {
		return o
	}
	if f := filterOf(option[optionHead:]); f.Visit(n.Mask) {
		return Visited
	}
	if tag, ok := n.tag(pkt); !ok || !bytes.Equal(tag, option[4:optionHead]) {
		if pkt[0]>>4 == 4 && fragmentV4(pkt) {
			return Fragment
		}
		return Forged
	}
	t := Trace{Filter: filterOf(option[optionHead:]), Unchanged: option[2]}
	if t.Visit(n.Mask, n.Confirm) {
		return Looped
	}
	return Suspected
}

// Visit updates the packet as it passes the node and returns the outcome of
// [Node.Check].
func (n *Node) Visit(pkt []byte) Outcome {
	o := n.Check(pkt)
	if o != Visited && o != Suspected && o != Looped {
		return o
	}
	option, _ := n.find(pkt)
	before := slices.Clone(option)
	t := Trace{Filter: filterOf(option[optionHead:]), Unchanged: option[2]}
	t.Visit(n.Mask, n.Confirm)
	option[2] = t.Unchanged
	t.Filter.put(option[optionHead:])
	if pkt[0]>>4 == 4 && !bytes.Equal(before, option) {
		fixChecksum(pkt, before, option, nil, nil)
	}
	return o
}

// Remove returns the packet as it leaves the domain. It returns pkt itself, and
// Untouched, unless it has one of the domain's options.
func (n *Node) Remove(pkt []byte) ([]byte, Outcome) {
	option, _ := n.find(pkt)
	if option == nil {
		return pkt, Untouched
	}
	v4, v6 := n.Overhead()
	if pkt[0]>>4 == 4 {
		out := slices.Concat(pkt[:headerV4], pkt[headerV4+v4:])
		out[0] = 0x45
		binary.BigEndian.PutUint16(out[2:], binary.BigEndian.Uint16(pkt[2:])-uint16(v4))
		fixChecksum(out, pkt[:4], out[:4], option, nil)
		return out, Removed
	}
	out := slices.Concat(pkt[:headerV6], pkt[headerV6+v6:])
	out[6] = pkt[headerV6]
	binary.BigEndian.PutUint16(out[4:], binary.BigEndian.Uint16(pkt[4:])-uint16(v6))
	return out, Removed
}

// find returns the domain's option of a packet, or nil and Foreign or
// Untouched. The option must be exactly where Insert puts it, and be the only
// one.
func (n *Node) find(pkt []byte) ([]byte, Outcome) {
	option := optionOf(pkt)
	if option == nil {
		return nil, Untouched
	}
	v4, v6 := n.Overhead()
	size := n.length()
	if len(option) < size || option[3] != n.Domain {
		return nil, Foreign
	}
	if pkt[0]>>4 == 4 {
		if int(pkt[0]&0xf)*4 != headerV4+v4 || int(option[1]) != size || int(binary.BigEndian.Uint16(pkt[2:])) < headerV4+v4 {
			return nil, Foreign
		}
	} else if int(pkt[headerV6+1]) != v6/8-1 || int(option[1]) != size-2 || int(binary.BigEndian.Uint16(pkt[4:])) < v6 {
		return nil, Foreign
	}
	return option[:size], Untouched
}

// optionOf returns what follows the position at which Insert puts the option,
// if that is of its type: 8 bytes or more, up to the end. It returns nil if
// there is none.
func optionOf(pkt []byte) []byte {
	at, optionType := headerV4, byte(TypeV4)
	switch {
	case len(pkt) < headerV4+optionHead:
		return nil
	case pkt[0]>>4 == 4:
		if pkt[0]&0xf < (headerV4+optionHead)/4 {
			return nil
		}
	case pkt[0]>>4 == 6:
		at, optionType = headerV6+8, TypeV6
		if len(pkt) < at+optionHead || pkt[6] != 0 || !bytes.Equal(pkt[headerV6+2:at], padV6) {
			return nil
		}
	default:
		return nil
	}
	if pkt[at] != optionType {
		return nil
	}
	return pkt[at:]
}

// tag returns the authentication tag of a packet's filter. It reports false if
// the packet's invariant part is incomplete.
func (n *Node) tag(pkt []byte) ([]byte, bool) {
	b, err := invariant.Append(make([]byte, 0, invariant.LenV6+1), pkt)
	if err != nil {
		return nil, false
	}
	return binary.LittleEndian.AppendUint64(nil, n.Key.sum(append(b, n.Domain)))[:4], true
}

// Wire returns a filter as it is encoded in a packet.
func (f Filter) Wire() (b [32]byte) {
	for i, w := range f {
		binary.LittleEndian.PutUint64(b[8*i:], w)
	}
	return b
}

func (f Filter) put(to []byte) {
	b := f.Wire()
	copy(to, b[:])
}

func filterOf(b []byte) (f Filter) {
	for i := range f {
		if 8*i < len(b) {
			f[i] = binary.LittleEndian.Uint64(b[8*i:])
		}
	}
	return f
}

// fixChecksum updates an IPv4 header's checksum (RFC 1624, equation 3): before
// was replaced by after, the bytes `gone` were removed and `added` inserted. A
// wrong checksum stays wrong by the same difference.
func fixChecksum(header, before, after, gone, added []byte) {
	sum := uint32(^binary.BigEndian.Uint16(header[10:]))
	for _, b := range [][]byte{before, gone} {
		for i := 0; i < len(b); i += 2 {
			sum += uint32(^binary.BigEndian.Uint16(b[i:]))
		}
	}
	for _, b := range [][]byte{after, added} {
		for i := 0; i < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(header[10:], ^uint16(sum))
}
