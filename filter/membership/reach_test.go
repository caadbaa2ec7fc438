package membership

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"weir/filter/key"
)

// network is the number of an address's network, as the documentation states it.
func (l ReachLayout) network(a netip.Addr) uint32 {
	b := a.AsSlice()
	first := uint64(binary.BigEndian.Uint32(b))
	net := first >> (32 - l.Bits)
	if a.Is6() {
		net ^= first & (1<<(32-l.Bits) - 1)
	}
	return uint32(net)
}

// reached reports whether a key may match a packet, by the bits alone.
func (s *Set) reached(t key.Tuple) bool {
	l, gates := s.Reach, s.Reach.V4
	if t.Src.Is6() {
		gates = l.V6
	}
	bit := func(i uint32) bool { return s.memory.Reach[i/64]>>(i%64)&1 != 0 }
	return gates&GateAlways != 0 || gates&GateSrc != 0 && bit(l.network(t.Src)) ||
		gates&GateDst != 0 && bit(1<<l.Bits+l.network(t.Dst))
}

// host returns a random address within a prefix.
func (r random) host(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= byte(r.IntN(2)) << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// A prefix touches the networks of its addresses, and no others.
func TestReachNetworks(t *testing.T) {
	r := newRandom(t)
	for range 20_000 {
		l := ReachLayout{Bits: minReachBits + r.IntN(maxReachBits-minReachBits+1)}
		v6 := r.IntN(2) == 0
		a, _ := netip.AddrFromSlice(binary.BigEndian.AppendUint32(nil, r.Uint32()))
		if v6 {
			a, _ = netip.AddrFromSlice(append(a.AsSlice(), make([]byte, 12)...))
		}
		p := netip.PrefixFrom(a, 1+r.IntN(a.BitLen())).Masked()
		from, n := l.networks(v6, binary.BigEndian.Uint32(p.Addr().AsSlice()), uint8(p.Bits()))
		lowest, highest := uint32(1<<l.Bits), uint32(0)
		for range 10 {
			net := l.network(r.host(p))
			lowest, highest = min(lowest, net), max(highest, net)
		}
		if lowest < from || highest >= from+n || n == 0 || from%n != 0 || from+n > 1<<l.Bits {
			t.Fatalf("%v of %d bits: networks %d … %d, %d from %d on", p, l.Bits, lowest, highest, n, from)
		}
		if n >= 64 && highest-lowest < n/16 { // all ten near to each other: a chance of 2^-32
			t.Fatalf("%v of %d bits: networks %d … %d alone, %d from %d on", p, l.Bits, lowest, highest, n, from)
		}
	}
}

// Packets that match a key are reached, filled in or added; those of other networks are not.
func TestReach(t *testing.T) {
	r := newRandom(t)
	for range 50 {
		keys := make(map[key.Key]uint16)
		for range 1 + r.IntN(300) {
			if k := r.key(); k.SrcBits+k.DstBits > 0 {
				keys[k] = 1
			}
		}
		layout, err := PlanLayout(census(keys), Exact, 0, secretOf(r.Uint64()))
		if err != nil {
			t.Fatal(err)
		}
		layout.PlanReach()
		s, err := NewSet(layout, layout.Alloc())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Fill(columns(keys)); err != nil {
			t.Fatal(err)
		}
		for range 300 {
			if k := r.key(); keys[k] == 0 && s.Add(k, 1) == nil {
				keys[k] = 1
			}
		}
		for k := range keys {
			matching := key.Tuple{
				Src: r.host(netip.PrefixFrom(k.Src, int(k.SrcBits))), Dst: r.host(netip.PrefixFrom(k.Dst, int(k.DstBits))),
				Proto: k.Proto, HasPorts: true, SrcPort: k.SrcPort, DstPort: k.DstPort,
			}
			if _, ok := s.Match(matching); !ok || !s.reached(matching) {
				t.Fatalf("%v: %v matches (%t), and is reached (%t)", k, matching, ok, s.reached(matching))
			}
		}
		far := key.Tuple{Src: netip.MustParseAddr("198.51.100.1"), Dst: netip.MustParseAddr("203.0.113.1")}
		if s.reached(far) != (s.Reach.V4&GateAlways != 0) {
			t.Errorf("%v: reached %t, by %v", far, s.reached(far), s.Reach)
		}
	}
}

// A reach has the bits that its keys need, on the sides that have any.
func TestPlanReach(t *testing.T) {
	v6 := key.FieldV6
	for _, test := range []struct {
		keys  map[key.Shape]int
		want  ReachLayout
		words int
	}{
		{nil, ReachLayout{}, 0},
		{map[key.Shape]int{{SrcBits: 32}: 1}, ReachLayout{Bits: 16, V4: GateSrc}, 1 << 10},
		{map[key.Shape]int{{SrcBits: 8, DstBits: 32}: 1, {Fields: v6, SrcBits: 64, DstBits: 64}: 1},
			ReachLayout{Bits: 16, V4: GateDst, V6: GateSrc}, 1 << 11},
		{map[key.Shape]int{{}: 1, {Fields: v6 | key.FieldProto}: 1}, ReachLayout{Bits: 16, V4: GateAlways, V6: GateAlways}, 1 << 10},
		{map[key.Shape]int{{SrcBits: 32}: 10_000}, ReachLayout{Bits: 18, V4: GateSrc}, 1 << 12},
		{map[key.Shape]int{{SrcBits: 32}: 10_000_000}, ReachLayout{Bits: 20, V4: GateSrc}, 1 << 14},
	} {
		l, err := PlanLayout(Census{Keys: test.keys, Highest: 1}, Exact, 0, secretOf(1))
		if err != nil {
			t.Fatal(err)
		}
		l.PlanReach()
		if l.Reach != test.want || l.Reach.Words() != test.words {
			t.Errorf("%v: %+v of %d words, want %+v of %d", test.keys, l.Reach, l.Reach.Words(), test.want, test.words)
		}
	}
}
