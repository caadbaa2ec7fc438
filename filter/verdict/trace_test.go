package verdict

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"weir/filter/key"
	"weir/filter/packet"
)

// overtagged returns a packet from a source whose protocol is IP in IP, or VXLAN, with
// a packet of GRE that has a frame with too many tags.
func overtagged(vxlan bool) []byte {
	t := tuple("198.51.100.1", "203.0.113.1", 1, 4789)
	plain := packet.Frame(t)
	ip := func(proto byte, of []byte) []byte {
		h := slices.Concat(plain[14:34], of)
		binary.BigEndian.PutUint16(h[2:], uint16(len(h)))
		h[9] = proto
		return h
	}
	tagged := slices.Concat(plain[:12], bytes.Repeat([]byte{0x81, 0, 0, 1}, packet.MaxVLANTags+1), plain[12:])
	gre := ip(47, slices.Concat([]byte{0, 0, 0x65, 0x58}, tagged))
	if !vxlan {
		return slices.Concat(plain[:14], ip(4, gre))
	}
	inner := slices.Concat(plain[:14], gre)
	udp := binary.BigEndian.AppendUint16(slices.Clone(plain[34:38]), uint16(16+len(inner)))
	return slices.Concat(plain[:14], ip(17, slices.Concat(udp, []byte{0, 0, 8, 0, 0, 0, 0, 0, 0, 0}, inner)))
}

// What is known of a packet in part says that a header in a tunnel may be listed, or have
// too many tags, if it may be in one: also where a tunnel without tags may carry one that
// has them.
func TestTraceOfTunnels(t *testing.T) {
	p := Program{Policy: Policy{Inner: true}}
	for _, vxlan := range []bool{false, true} {
		if o := p.Decide(overtagged(vxlan)); o.Reason != Overtagged || o.Action != Drop {
			t.Fatalf("VXLAN %t: %+v", vxlan, o)
		}
	}
	const any, tcp, udp = 0, 6, 17
	for name, c := range map[string]struct {
		fields key.Fields
		proto  uint8
		port   uint16
		want   bool
	}{
		"any protocol":                   {0, any, 0, true},
		"IP in IP":                       {key.FieldProto, 4, 0, true},
		"IPv6 in IP":                     {key.FieldProto, 41, 0, true},
		"GRE":                            {key.FieldProto, 47, 0, true},
		"UDP":                            {key.FieldProto, udp, 0, true},
		"UDP from a port":                {key.FieldProto | key.FieldSrcPort, udp, 0, true},
		"VXLAN":                          {key.FieldProto | key.FieldDstPort, udp, 4789, true},
		"GTP-U":                          {key.FieldProto | key.FieldDstPort, udp, 2152, true},
		"any protocol, the port VXLAN":   {key.FieldDstPort, any, 4789, true},
		"any protocol, from a port":      {key.FieldSrcPort, any, 0, true},
		"any protocol, another port":     {key.FieldDstPort, any, 53, false},
		"UDP, another port":              {key.FieldProto | key.FieldDstPort, udp, 53, false},
		"TCP":                            {key.FieldProto, tcp, 0, false},
		"TCP, the port VXLAN has in UDP": {key.FieldProto | key.FieldDstPort, tcp, 4789, false},
	} {
		src := source("198.51.100.1/32")
		k := key.Key{Shape: key.Shape{Fields: c.fields, SrcBits: 32}, Proto: c.proto, DstPort: c.port, Src: src.Src, Dst: src.Dst}
		got := make(map[Reason]bool)
		for _, d := range p.Trace(k, nil, nil).Depends {
			got[d.Reason] = true
		}
		if got[Blocked] != c.want || got[Overtagged] != c.want {
			t.Errorf("%s: listed in a tunnel %t, too many tags %t, want %t", name, got[Blocked], got[Overtagged], c.want)
		}
	}
}
