package list

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"weir/filter/key"
	"weir/filter/snapshot"
)

// The kinds of groups, in the upper byte of a tag. The rest is the prefix length, or
// of flows the shape: fields, source bits and destination bits, a byte each.
const (
	groupV4 = iota
	groupV4Src
	groupV4Dst
	groupV6
	groupV6Src
	groupV6Dst
	groupFlows

	groupShift = 24
)

// Groups returns the set as groups of keys, to encode it.
func (s *Set) Groups() []snapshot.Group {
	s = s.orEmpty()
	var all []snapshot.Group
	all = prefixGroups(all, groupV4, s.V4.Plain, 4)
	all = prefixGroups(all, groupV4Src, s.V4.Src, 4)
	all = prefixGroups(all, groupV4Dst, s.V4.Dst, 4)
	all = prefixGroups(all, groupV6, s.V6.Plain, 16)
	all = prefixGroups(all, groupV6Src, s.V6.Src, 16)
	all = prefixGroups(all, groupV6Dst, s.V6.Dst, 16)
	for k := range s.Flows.All() { // in order of their shapes
		tag := uint32(groupFlows<<groupShift) | uint32(k.Fields)<<16 | uint32(k.SrcBits)<<8 | uint32(k.DstBits)
		if len(all) == 0 || all[len(all)-1].Tag != tag {
			all = append(all, snapshot.Group{Tag: tag, Bits: 8 * (k.KeyLen() - shapeLen)})
		}
		g := &all[len(all)-1]
		var text [key.MaxLen]byte
		g.Keys = append(g.Keys, k.Append(text[:0])[shapeLen:]...)
	}
	return all
}

// shapeLen is the length in bytes of the shape in a serialised key.
const shapeLen = 3

// prefixGroups appends a group for each length of prefixes, whose addresses have size
// bytes.
func prefixGroups[P Prefix[P]](all []snapshot.Group, kind uint32, prefixes Sorted[P], size int) []snapshot.Group {
	counts := make([]int, 8*size+1)
	for p := range prefixes.All() {
		counts[p.Bits()]++
	}
	of := make([]*snapshot.Group, len(counts))
	first := len(all)
	for bits, n := range counts {
		if n > 0 {
			g := snapshot.Group{Tag: kind<<groupShift | uint32(bits), Bits: bits}
			g.Keys = make([]byte, 0, n*g.Width())
			all = append(all, g)
		}
	}
	for i := range all[first:] {
		of[all[first+i].Bits] = &all[first+i]
	}
	var text [16]byte
	for p := range prefixes.All() {
		g := of[p.Bits()]
		g.Keys = append(g.Keys, p.AppendAddr(text[:0])[:g.Width()]...)
	}
	return all
}

// SetOfGroups returns the set of groups of keys. It fails where Groups would not
// return them.
func SetOfGroups(groups []snapshot.Group) (*Set, error) {
	var v4 [3][]V4Prefix
	var v6 [3][]V6Prefix
	var flows []key.Key
	for _, g := range groups {
		kind, rest := g.Tag>>groupShift, int(g.Tag&(1<<groupShift-1))
		switch {
		case kind <= groupV4Dst && rest <= 32 && g.Bits == rest:
			to := &v4[kind-groupV4]
			*to = slices.Grow(*to, g.Len())
			for i := range g.Len() {
				var a [4]byte
				copyKey(a[:], g, i)
				*to = append(*to, V4(binary.BigEndian.Uint32(a[:]), rest))
			}
		case kind >= groupV6 && kind <= groupV6Dst && rest <= 128 && g.Bits == rest:
			to := &v6[kind-groupV6]
			*to = slices.Grow(*to, g.Len())
			for i := range g.Len() {
				var a [16]byte
				copyKey(a[:], g, i)
				*to = append(*to, V6Of(netip.PrefixFrom(netip.AddrFrom16(a), rest)))
			}
		case kind == groupFlows:
			s := key.Shape{Fields: key.Fields(rest >> 16), SrcBits: uint8(rest >> 8), DstBits: uint8(rest)}
			if !s.Valid() || !s.Tuple() || g.Bits != 8*(s.KeyLen()-shapeLen) {
				return nil, fmt.Errorf("list: group %#x: no shape of flows", g.Tag)
			}
			flows = slices.Grow(flows, g.Len())
			for i := range g.Len() {
				k, err := key.Parse(append([]byte{byte(s.Fields), s.SrcBits, s.DstBits}, g.Key(i)...))
				if err != nil {
					return nil, fmt.Errorf("list: group %#x: %w", g.Tag, err)
				}
				flows = append(flows, k)
			}
		default:
			return nil, fmt.Errorf("list: group %#x of %d bits: no kind of entries", g.Tag, g.Bits)
		}
	}
	return &Set{
		V4:    newPrefixes(v4[0], v4[1], v4[2]),
		V6:    newPrefixes(v6[0], v6[1], v6[2]),
		Flows: sorted(flows),
	}, nil
}

func copyKey(to []byte, g snapshot.Group, i int) {
	if g.Bits > 0 {
		copy(to, g.Key(i))
	}
}
