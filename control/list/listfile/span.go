package listfile

import (
	"encoding/binary"
	"iter"
	"math/bits"
	"net/netip"
)

// prefixes iterates, in order, over the fewest prefixes that cover exactly
// first…last. Both are of one family and first is not above last. There are at
// most 62 prefixes in IPv4 and 254 in IPv6.
func prefixes(first, last netip.Addr) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for a := first; ; {
			// The largest block that starts at a and ends by last.
			host := trailingZeros(a)
			end := fill(a, host)
			for last.Less(end) {
				host--
				end = fill(a, host)
			}
			if !yield(netip.PrefixFrom(a, a.BitLen()-host)) || end == last {
				return
			}
			a = end.Next()
		}
	}
}

// trailingZeros returns the number of zero bits at the end of a.
func trailingZeros(a netip.Addr) int {
	hi, lo := split(a)
	if uint32(lo) == 0 && a.Is4() {
		return 32
	}
	if lo == 0 {
		return 64 + bits.TrailingZeros64(hi)
	}
	return bits.TrailingZeros64(lo)
}

// fill returns a with its last n bits set.
func fill(a netip.Addr, n int) netip.Addr {
	hi, lo := split(a)
	lo |= 1<<n - 1
	if n > 64 {
		hi |= 1<<(n-64) - 1
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], hi)
	binary.BigEndian.PutUint64(b[8:], lo)
	if a.Is4() {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return netip.AddrFrom16(b)
}

// split returns an address as two words, an IPv4 address in the lower half of
// the lower one.
func split(a netip.Addr) (hi, lo uint64) {
	if a.Is4() {
		b := a.As4()
		return 0, uint64(binary.BigEndian.Uint32(b[:]))
	}
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}
