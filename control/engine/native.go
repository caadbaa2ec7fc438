package engine

import (
	"encoding/binary"
	"net/netip"

	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/quotient"
	"weir/filter/verdict"
	"weir/loader"
)

// Secret returns a secret as the program has it.
func Secret(s *hash.Secret) loader.Secret {
	return loader.Secret{Pairs: s.Pairs, Offsets: s.Offsets}
}

// keySet returns the geometry of a set as the program has it.
func keySet(l *membership.Layout) loader.KeySet {
	k := loader.KeySet{
		Lines: l.Lines, First: uint32(l.First), Rest: uint32(l.Rest), Buckets: l.Buckets,
		Marks6Lines: l.Mark6Lines, HotBuckets: l.HotBuckets,
		GatesV4: uint32(l.Gates(false)), GatesV6: uint32(l.Gates(true)),
		N_v4: uint32(len(l.V4)), N_v4Flow: uint32(len(l.V4Flow)),
		N_v6: uint32(len(l.V6)), N_v6Flow: uint32(len(l.V6Flow)),
		PrefixShift: uint32(l.Prefixes.Shift), Quotient: Quotient(l.Prefixes.Layout, l.Prefixes.Secret),
		Directory: Directory(l.Directory), Reach: reach(l.Reach),
		Mark6Src: shape(membership.GatedShape{Shape: key.Shape{Fields: key.FieldV6, SrcBits: membership.Mark6Bits}}),
		Mark6Dst: shape(membership.GatedShape{Shape: key.Shape{Fields: key.FieldV6, DstBits: membership.Mark6Bits}}),
	}
	v4 := l.V4
	if l.Classes != nil {
		k.Classes = l.ClassFactor
	}
	if l.Mode == membership.Exact {
		for i, s := range l.V4 {
			k.Prefixes[i].SrcMask, k.Prefixes[i].DstMask = Mask(s.SrcBits)[0], Mask(s.DstBits)[0]
			k.Prefixes[i].Tail = l.Prefixes.Tail(s.SrcBits+s.DstBits, s.DstBits > 0)
		}
		k.N_prefixes, k.N_v4, v4 = k.N_v4, 0, nil
	}
	for _, kind := range []struct {
		to   *[membership.MaxShapes]loader.Shape
		from []membership.GatedShape
	}{{&k.V4, v4}, {&k.V4Flow, l.V4Flow}, {&k.V6, l.V6}, {&k.V6Flow, l.V6Flow}} {
		for i, s := range kind.from {
			kind.to[i] = shape(s)
		}
	}
	return k
}

// Quotient returns a quotient table's geometry and secret as the program has them.
func Quotient(l quotient.Layout, s quotient.Secret) loader.Quotient {
	if l.Lines == 0 {
		return loader.Quotient{}
	}
	s = l.Cut(s)
	return loader.Quotient{
		Salt: s.Xor, Mul: s.Mul, KeyMask: 1<<l.KeyBits - 1,
		Scale: uint64(l.Words()) << (loader.QuotientKeyBits - l.KeyBits),
		Front: uint32(l.Front), FrontScale: uint64(l.Front) << (loader.QuotientKeyBits - l.KeyBits),
		RemMask: l.InSecond() - 1, Rems: l.Repeat(2*l.InSecond() - 1), Seconds: l.Repeat(l.InSecond()), ListBit: uint32(l.ListBit()),
		LaneBits: uint32(l.LaneBits), Lines: uint32(l.Lines), Buckets: uint32(l.Buckets),
	}
}

// Directory returns a directory's geometry as the program has it.
func Directory(l membership.DirectoryLayout) loader.Directory {
	if l.Bits == 0 {
		return loader.Directory{}
	}
	return loader.Directory{
		Shift: uint32(32 - l.Bits), Parts: uint32(l.Parts()), Src: uint32(l.SrcWords()), Dst: uint32(l.DstWords()),
	}
}

func reach(l membership.ReachLayout) loader.Reach {
	if l.Bits == 0 {
		return loader.Reach{}
	}
	return loader.Reach{Shift: uint32(32 - l.Bits), GatesV4: uint32(l.V4), GatesV6: uint32(l.V6)}
}

// Shape returns a shape as the program has it.
func Shape(s key.Shape) loader.Shape { return shape(membership.GatedShape{Shape: s}) }

func shape(g membership.GatedShape) loader.Shape {
	s := loader.Shape{
		Head:    uint32(g.Fields) | uint32(g.SrcBits)<<8 | uint32(g.DstBits)<<16,
		Gate:    uint32(g.Gate),
		SrcMask: Mask(g.SrcBits),
		DstMask: Mask(g.DstBits),
	}
	var ports [4]byte
	if g.Fields&key.FieldSrcPort != 0 {
		ports[0], ports[1] = 0xff, 0xff
	}
	if g.Fields&key.FieldDstPort != 0 {
		ports[2], ports[3] = 0xff, 0xff
	}
	s.PortsMask = binary.NativeEndian.Uint32(ports[:])
	if g.Fields&key.FieldProto != 0 {
		s.ProtoMask = 0xff << 24
	}
	return s
}

// Mask returns a prefix length as a mask of the words of an address.
func Mask(bits uint8) (words [4]uint32) {
	var b [16]byte
	for i := range int(bits) {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return nativeWords(b)
}

func nativeWords(b [16]byte) (words [4]uint32) {
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return words
}

// Failsafe returns the failsafe ports and prefixes of a policy as the program has them.
func Failsafe(p verdict.Policy) loader.Failsafe {
	var f loader.Failsafe
	for _, port := range p.FailsafePorts {
		to := &f.Ports[f.N_ports]
		var b [2]byte
		binary.BigEndian.PutUint16(b[:], port.Port)
		to.Port, to.Proto = binary.NativeEndian.Uint16(b[:]), port.Proto
		f.N_ports++
	}
	for _, prefix := range p.FailsafePrefixes {
		to, n := &f.V4, &f.N_v4
		if prefix.Addr().Is6() {
			to, n = &f.V6, &f.N_v6
		}
		to[*n].Addr, to[*n].Mask = Words(prefix.Masked().Addr()), Mask(uint8(prefix.Bits()))
		*n++
	}
	return f
}

// FailsafeICMP returns the failsafe kinds of ICMP of a policy, a bit for each.
func FailsafeICMP(p verdict.Policy) (kinds uint8) {
	for _, f := range p.FailsafeICMP {
		kinds |= 1 << f.ICMP
	}
	return kinds
}

// Words returns an address as programs have it: one of IPv4 in the first word.
func Words(a netip.Addr) [4]uint32 {
	var b [16]byte
	copy(b[:], a.AsSlice())
	return nativeWords(b)
}
