package membership

import (
	"encoding/binary"
	"math"
	"math/bits"

	"weir/filter/key"
)

// ReachLayout is the geometry of a reach, which says in one read of most packets that no key
// of a set matches them, whatever the shapes. Allow sets have one: what the block lists have
// is dropped without a lookup, unless it is within the reach.
//
// A reach of B bits has a bit for each of 2^B networks of sources and then, if any key needs
// them, of destinations, in words of the CPU's byte order. The network of an IPv4 address is
// its first B bits; that of an IPv6 address is its first B bits, combined by XOR with
// those that follow up to the 32nd. A key sets the bits of all networks that it touches on the
// side of its longer prefix.
//
// The bits of a removed key stay until the next generation: they only cost lookups.
type ReachLayout struct {
	Bits   int  // B; 0: there is no reach
	V4, V6 Gate // the sides on which keys of each family have bits; GateAlways: some have none
}

// Words returns the number of words.
func (l ReachLayout) Words() int {
	switch {
	case l.Bits == 0:
		return 0
	case (l.V4|l.V6)&GateDst != 0:
		return 2 << l.Bits / 64
	}
	return 1 << l.Bits / 64
}

const (
	// The reaches that are planned, from 8 KiB on, and how many bits a key has.
	minReachBits, maxReachBits = 16, 20
	reachPerKey                = 16
)

// PlanReach plans a reach, unless the set is empty.
func (l *Layout) PlanReach() {
	l.Reach = ReachLayout{}
	for _, kind := range [...][]GatedShape{l.V4, l.V4Flow} {
		for _, g := range kind {
			l.Reach.V4 |= reachGate(g.SrcBits, g.DstBits)
		}
	}
	for _, kind := range [...][]GatedShape{l.V6, l.V6Flow} {
		for _, g := range kind {
			l.Reach.V6 |= reachGate(g.SrcBits, g.DstBits)
		}
	}
	if l.Reach.V4|l.Reach.V6 != 0 {
		l.Reach.Bits = min(max(minReachBits, bits.Len(uint(reachPerKey*l.Planned()))), maxReachBits)
	}
}

// reachGate returns the side on which keys with prefixes of these lengths have bits.
func reachGate(src, dst uint8) Gate {
	switch {
	case src == 0 && dst == 0:
		return GateAlways
	case src >= dst:
		return GateSrc
	}
	return GateDst
}

// networks returns which networks a prefix touches: the first and their number, a power of two
// that divides it. first is the first word of its address.
func (l ReachLayout) networks(v6 bool, first uint32, length uint8) (from, n uint32) {
	rest := 32 - l.Bits
	open := max(l.Bits-int(length), 0) // bits of a network's number that the prefix leaves open
	from = first >> rest
	if v6 {
		from ^= first & (1<<rest - 1)
		if int(length) < l.Bits {
			open = max(open, rest)
		} else {
			open = max(32-int(length), 0)
		}
	}
	return from >> open << open, 1 << open
}

// reach is the reach of a set. A nil one has no bits.
type reach struct {
	ReachLayout
	words []uint64
}

func newReach(l ReachLayout, words []uint64) *reach {
	if l.Bits == 0 {
		return nil
	}
	return &reach{l, words}
}

// addPrefix sets the bits of a prefix of IPv4. It is safe for concurrent use, as is add.
func (r *reach) addPrefix(p Prefix) {
	if r != nil && p.Bits > 0 {
		r.set(false, p.Dst, p.Addr, p.Bits)
	}
}

// add sets the bits of a serialised key.
func (r *reach) add(k []byte) {
	if r == nil {
		return
	}
	if gate := reachGate(k[1], k[2]); gate != GateAlways {
		dst := gate == GateDst
		r.set(key.Fields(k[0])&key.FieldV6 != 0, dst, binary.BigEndian.Uint32(addressOf(k, gate)), max(k[1], k[2]))
	}
}

func (r *reach) set(v6, dst bool, first uint32, length uint8) {
	from, n := r.networks(v6, first, length)
	if dst {
		from += 1 << r.Bits
	}
	if n < 64 {
		orWord(&r.words[from/64], (1<<n-1)<<(from%64))
		return
	}
	for i := range n / 64 {
		orWord(&r.words[from/64+i], math.MaxUint64)
	}
}
