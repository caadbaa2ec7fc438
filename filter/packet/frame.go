package packet

import (
	"encoding/binary"

	"weir/filter/key"
)

// Frame returns a minimal Ethernet frame with the tuple; it is the inverse of
// [Parse]. A tuple without ports becomes a later fragment if its protocol would
// have them.
func Frame(t key.Tuple) []byte {
	f := make([]byte, 12, 14+40+8+20)
	var transport []byte
	fragment := !t.HasPorts && key.HasPorts(t.Proto)
	switch {
	case t.HasPorts:
		transport = binary.BigEndian.AppendUint16(transport, t.SrcPort)
		transport = binary.BigEndian.AppendUint16(transport, t.DstPort)
		transport = append(transport, make([]byte, 16)...)
	case t.Proto == protoICMPv6:
		transport = make([]byte, 40) // enough for every kind of neighbour discovery
	default:
		transport = make([]byte, 20)
	}
	if t.Src.Is4() {
		var offset uint16
		if fragment {
			offset = 100
		}
		f = append(f, 0x08, 0x00, 0x45, 0)
		f = binary.BigEndian.AppendUint16(f, uint16(20+len(transport)))
		f = append(f, 0, 0)
		f = binary.BigEndian.AppendUint16(f, offset)
		f = append(f, 64, t.Proto, 0, 0)
	} else {
		next, ext := t.Proto, []byte(nil)
		if fragment {
			next, ext = protoFragment, []byte{t.Proto, 0, 0, 0, 0, 0, 0, 1}
			binary.BigEndian.PutUint16(ext[2:], 100<<3)
		}
		f = append(f, 0x86, 0xdd, 0x60, 0, 0, 0)
		f = binary.BigEndian.AppendUint16(f, uint16(len(ext)+len(transport)))
		f = append(f, next, 64)
		transport = append(ext, transport...)
	}
	f = append(f, t.Src.AsSlice()...)
	f = append(f, t.Dst.AsSlice()...)
	return append(f, transport...)
}

// VLAN returns the VLAN of a frame: that of the outermost tag that names one, as priority tags
// do not. It is 0 where none does.
func VLAN(frame []byte) uint16 {
	for i := range MaxVLANTags {
		at := 12 + 4*i
		if len(frame) < at+4 || !isVLAN(binary.BigEndian.Uint16(frame[at:])) {
			return 0
		}
		if id := binary.BigEndian.Uint16(frame[at+2:]) & 0xfff; id != 0 {
			return id
		}
	}
	return 0
}
