package list

import (
	"cmp"
	"encoding/binary"
	"iter"
	"net/netip"

	"weir/filter/key"
)

// Prefix is the common interface of V4Prefix and V6Prefix. Prefixes are ordered
// by address, then length: a prefix comes before those that it covers.
type Prefix[P any] interface {
	Ordered[P]
	Bits() int
	Prefix() netip.Prefix
	Cut(bits int) P                // the prefix of that length, not above Bits, that covers it
	Children(bits int) iter.Seq[P] // the prefixes of that length that it covers, ascending
	Key(source bool) key.Key       // the key that matches it as a source or as a destination
	AppendAddr([]byte) []byte      // appends its first address in network order
}

// V4Prefix is an IPv4 prefix in one word: address<<8 | length, the address in
// host order.
type V4Prefix uint64

// V4 returns the prefix of the given length in bits, 0…32, at addr, whose host
// bits must be zero.
func V4(addr uint32, bits int) V4Prefix { return V4Prefix(addr)<<8 | V4Prefix(bits) }

// V4Of returns the IPv4 prefix p, whose host bits must be zero.
func V4Of(p netip.Prefix) V4Prefix {
	b := p.Addr().As4()
	return V4(binary.BigEndian.Uint32(b[:]), p.Bits())
}

// Addr returns the prefix's first address in host order.
func (p V4Prefix) Addr() uint32 { return uint32(p >> 8) }

// Bits returns the prefix's length.
func (p V4Prefix) Bits() int { return int(p & 0xff) }

func (p V4Prefix) addr() netip.Addr {
	return netip.AddrFrom4([4]byte(p.AppendAddr(make([]byte, 0, 4))))
}

// Prefix returns p as a netip.Prefix.
func (p V4Prefix) Prefix() netip.Prefix { return netip.PrefixFrom(p.addr(), p.Bits()) }

// String returns the prefix in the list format: a single address has no length.
func (p V4Prefix) String() string { return p.Key(true).String() }

// Compare returns the order of p and q.
func (p V4Prefix) Compare(q V4Prefix) int { return cmp.Compare(p, q) }

// Cut implements [Prefix].
func (p V4Prefix) Cut(bits int) V4Prefix {
	return V4(uint32(uint64(p.Addr())&^(1<<(32-bits)-1)), bits)
}

// Children implements [Prefix].
func (p V4Prefix) Children(bits int) iter.Seq[V4Prefix] {
	return func(yield func(V4Prefix) bool) {
		for i := range uint64(1) << (bits - p.Bits()) {
			if !yield(V4(p.Addr()+uint32(i<<(32-bits)), bits)) {
				return
			}
		}
	}
}

// Key implements [Prefix].
func (p V4Prefix) Key(source bool) key.Key {
	return keyOf(key.Shape{}, p.addr(), netip.IPv4Unspecified(), p.Bits(), source)
}

// AppendAddr implements [Prefix].
func (p V4Prefix) AppendAddr(b []byte) []byte { return binary.BigEndian.AppendUint32(b, p.Addr()) }

// V6Prefix is an IPv6 prefix without pointers.
type V6Prefix struct {
	hi, lo uint64
	bits   uint8
}

// V6Of returns the IPv6 prefix p, whose host bits must be zero.
func V6Of(p netip.Prefix) V6Prefix {
	b := p.Addr().As16()
	return V6Prefix{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:]), uint8(p.Bits())}
}

// Bits returns the prefix's length.
func (p V6Prefix) Bits() int { return int(p.bits) }

func (p V6Prefix) addr() netip.Addr {
	return netip.AddrFrom16([16]byte(p.AppendAddr(make([]byte, 0, 16))))
}

// Prefix returns p as a netip.Prefix.
func (p V6Prefix) Prefix() netip.Prefix { return netip.PrefixFrom(p.addr(), p.Bits()) }

// String returns the prefix in the list format: a single address has no length.
func (p V6Prefix) String() string { return p.Key(true).String() }

// Compare returns the order of p and q.
func (p V6Prefix) Compare(q V6Prefix) int {
	return cmp.Or(cmp.Compare(p.hi, q.hi), cmp.Compare(p.lo, q.lo), cmp.Compare(p.bits, q.bits))
}

// Cut implements [Prefix].
func (p V6Prefix) Cut(bits int) V6Prefix {
	return V6Prefix{p.hi &^ (^uint64(0) >> min(bits, 64)), p.lo &^ (^uint64(0) >> max(bits-64, 0)), uint8(bits)}
}

// Children implements [Prefix].
func (p V6Prefix) Children(bits int) iter.Seq[V6Prefix] {
	return func(yield func(V6Prefix) bool) {
		shift := 128 - bits
		for i := range uint64(1) << (bits - p.Bits()) {
			c := V6Prefix{p.hi | i>>max(64-shift, 0), p.lo | i<<shift, uint8(bits)}
			if shift >= 64 {
				c.hi = p.hi | i<<(shift-64)
			}
			if !yield(c) {
				return
			}
		}
	}
}

// Key implements [Prefix].
func (p V6Prefix) Key(source bool) key.Key {
	return keyOf(key.Shape{Fields: key.FieldV6}, p.addr(), netip.IPv6Unspecified(), p.Bits(), source)
}

// AppendAddr implements [Prefix].
func (p V6Prefix) AppendAddr(b []byte) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, p.hi), p.lo)
}

// keyOf returns the key of a prefix at a, whose host bits are zero. One of no
// bits is the same key on either side.
func keyOf(s key.Shape, a, unspecified netip.Addr, bits int, source bool) key.Key {
	if source {
		s.SrcBits = uint8(bits)
		return key.Key{Shape: s, Src: a, Dst: unspecified}
	}
	s.DstBits = uint8(bits)
	return key.Key{Shape: s, Src: unspecified, Dst: a}
}

// PrefixOf returns the prefix of a key in address form, and whether it is matched
// against sources.
func PrefixOf(k key.Key) (p netip.Prefix, source bool) {
	if k.DstBits > 0 {
		return netip.PrefixFrom(k.Dst, int(k.DstBits)), false
	}
	return netip.PrefixFrom(k.Src, int(k.SrcBits)), true
}
