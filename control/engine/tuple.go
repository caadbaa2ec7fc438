package engine

import (
	"encoding/binary"
	"net/netip"

	"weir/filter/key"
	"weir/loader"
)

// TupleOf returns the fields of a packet that keys match.
func TupleOf(s *loader.Packet) key.Tuple {
	t := key.Tuple{Src: AddrOf(s.Family, s.Src), Dst: AddrOf(s.Family, s.Dst), Proto: s.Proto, HasPorts: s.HasPorts != 0}
	var ports [4]byte
	binary.NativeEndian.PutUint32(ports[:], s.Ports)
	t.SrcPort, t.DstPort = binary.BigEndian.Uint16(ports[:]), binary.BigEndian.Uint16(ports[2:])
	return t
}

// AddrOf returns an address as programs have it.
func AddrOf(family uint8, words [4]uint32) netip.Addr {
	var b [16]byte
	for i, w := range words {
		binary.NativeEndian.PutUint32(b[4*i:], w)
	}
	if family == 4 {
		return netip.AddrFrom4([4]byte(b[:]))
	}
	return netip.AddrFrom16(b)
}
