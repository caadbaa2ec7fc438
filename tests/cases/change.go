package cases

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"weir/filter/key"
	"weir/filter/packet"
)

// Protocols and ports, by their numbers at IANA.
const (
	protoHopOpts  = 0
	protoICMP     = 1
	protoIPIP     = 4
	protoUDP      = 17
	protoIPv6     = 41
	protoRouting  = 43
	protoFragment = 44
	protoGRE      = 47
	protoAH       = 51
	protoICMPv6   = 58
	protoDstOpts  = 60
	protoMobility = 135
	protoHIP      = 139
	protoShim6    = 140

	portGTPU  = 2152
	portVXLAN = 4789
)

var (
	src4, dst4 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.7")
	src6, dst6 = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8:1::7")

	tcp4  = key.Tuple{Src: src4, Dst: dst4, Proto: 6, HasPorts: true, SrcPort: 0x1234, DstPort: 443}
	tcp6  = key.Tuple{Src: src6, Dst: dst6, Proto: 6, HasPorts: true, SrcPort: 0x1234, DstPort: 443}
	none4 = key.Tuple{Src: src4, Dst: dst4, Proto: 6}
	none6 = key.Tuple{Src: src6, Dst: dst6, Proto: 6}
)

func with(t key.Tuple, proto uint8) key.Tuple {
	t.Proto = proto
	return t
}

// Offsets in a frame without tags.
const (
	atType    = 12
	atIP      = 14
	atNext6   = atIP + 6
	atHop6    = atIP + 7
	atExt6    = atIP + 40
	atLayer44 = atIP + 20
)

// set returns a change that overwrites bytes.
func set(at int, b ...byte) func([]byte) []byte {
	return func(f []byte) []byte {
		copy(f[at:], b)
		return f
	}
}

// cutTo truncates the frame to n bytes; the lengths in its headers stay.
func cutTo(n int) func([]byte) []byte { return func(f []byte) []byte { return f[:n] } }

// insert inserts bytes.
func insert(at int, b ...byte) func([]byte) []byte {
	return func(f []byte) []byte { return slices.Insert(f, at, b...) }
}

func all(changes ...func([]byte) []byte) func([]byte) []byte {
	return func(f []byte) []byte {
		for _, c := range changes {
			f = c(f)
		}
		return f
	}
}

// extend inserts an extension header before the first one of an IPv6 packet,
// given its type and its bytes from the second one on.
func extend(kind uint8, b ...byte) func([]byte) []byte {
	return func(f []byte) []byte {
		f = slices.Insert(f, atExt6, append([]byte{f[atNext6]}, b...)...)
		f[atNext6] = kind
		binary.BigEndian.PutUint16(f[atIP+4:], uint16(len(f)-atExt6))
		return f
	}
}

// options returns an options header of the given size in bytes.
func options(kind uint8, size int) func([]byte) []byte {
	return extend(kind, append([]byte{byte(size/8 - 1)}, make([]byte, size-2)...)...)
}

func repeat(n int, change func([]byte) []byte) func([]byte) []byte {
	return func(f []byte) []byte {
		for range n {
			f = change(f)
		}
		return f
	}
}

func length4(n uint16) func([]byte) []byte { return set(atIP+2, byte(n>>8), byte(n)) }
func length6(n uint16) func([]byte) []byte { return set(atIP+4, byte(n>>8), byte(n)) }

// of sets the EtherType of a frame behind its tags.
func of(proto uint16) func([]byte) []byte {
	return func(f []byte) []byte {
		at := atType
		for f[at] == 0x81 {
			at += 4
		}
		binary.BigEndian.PutUint16(f[at:], proto)
		return f
	}
}

// pppoe returns the headers of PPPoE and PPP, with its protocol number.
func pppoe(number ...byte) []byte { return append([]byte{0x11, 0, 0, 7, 0, 0}, number...) }

// labels inserts a label stack.
func labels(n int) func([]byte) []byte {
	stack := bytes.Repeat([]byte{0, 1, 0, 64}, n)
	stack[4*n-2] = 1
	return insert(atIP, stack...)
}

var (
	vlan     = insert(atType, 0x81, 0, 0x20, 1)
	qinq     = all(vlan, insert(atType, 0x88, 0xa8, 0, 2))
	fragment = extend(protoFragment, 0, 0, 0, 0, 0, 0, 1) // the first one
	later    = extend(protoFragment, 0, 0, 8, 0, 0, 0, 1)
	auth     = extend(protoAH, append([]byte{1}, make([]byte, 10)...)...) // 12 bytes
	authLong = extend(protoAH, append([]byte{4}, make([]byte, 22)...)...) // 24 bytes
)

// in puts the packet of a frame, or the whole frame, into an IPv4 packet behind the header
// of a tunnel.
func in(proto uint8, whole bool, header ...byte) func([]byte) []byte {
	return func(f []byte) []byte {
		if !whole {
			f = f[atIP:]
		}
		outer := slices.Concat(packet.Frame(with(none4, 59))[:atLayer44], header, f)
		outer[atIP+9] = proto
		return length4(uint16(len(outer) - atIP))(outer)
	}
}

// inUDP is in behind a UDP header with a destination port.
func inUDP(port uint16, whole bool, header ...byte) func([]byte) []byte {
	udp := []byte{0x12, 0x34, byte(port >> 8), byte(port), 0, 0, 0, 0}
	return in(protoUDP, whole, append(udp, header...)...)
}

var (
	ipip  = in(protoIPIP, false)
	vxlan = inUDP(portVXLAN, true, 8, 0, 0, 0, 0, 0, 7, 0)
)
