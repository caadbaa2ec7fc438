package contract

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"weir/control/engine"
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/long"
)

// anyTuple is a TCP packet of the whole world, unlike those of random.tuple.
func (r random) anyTuple(v6 bool) key.Tuple {
	return key.Tuple{
		Src: r.anyAddr(v6), Dst: r.anyAddr(v6), Proto: 6, HasPorts: true,
		SrcPort: uint16(r.IntN(1 << 16)), DstPort: uint16(r.IntN(1 << 16)),
	}
}

func (r random) anyAddr(v6 bool) netip.Addr {
	var b [16]byte
	for i := range b {
		b[i] = byte(r.IntN(256))
	}
	if v6 {
		return netip.AddrFrom16(b)
	}
	return netip.AddrFrom4([4]byte(b[:]))
}

// neighbours are packets that differ from one in a single bit of a single
// field: in the last one that the shape counts, and in the first one that it
// does not count.
func neighbours(t key.Tuple, s key.Shape) (outside, inside []key.Tuple) {
	flip := func(a netip.Addr, bit int) netip.Addr {
		b := a.AsSlice()
		b[bit/8] ^= 0x80 >> (bit % 8)
		a, _ = netip.AddrFromSlice(b)
		return a
	}
	side := func(bits uint8, set func(*key.Tuple, int)) {
		if bits > 0 {
			n := t
			set(&n, int(bits)-1)
			outside = append(outside, n)
		}
		if int(bits) < s.MaxBits() {
			n := t
			set(&n, int(bits))
			inside = append(inside, n)
		}
	}
	side(s.SrcBits, func(n *key.Tuple, bit int) { n.Src = flip(n.Src, bit) })
	side(s.DstBits, func(n *key.Tuple, bit int) { n.Dst = flip(n.Dst, bit) })
	field := func(f key.Fields, set func(*key.Tuple)) {
		n := t
		set(&n)
		if s.Fields&f != 0 {
			outside = append(outside, n)
		} else {
			inside = append(inside, n)
		}
	}
	field(key.FieldSrcPort, func(n *key.Tuple) { n.SrcPort ^= 1 << 15 })
	field(key.FieldDstPort, func(n *key.Tuple) { n.DstPort ^= 1 })
	field(key.FieldProto, func(n *key.Tuple) { n.Proto = 132 })
	return outside, inside
}

// Key and hash of the program equal Go's: under a new seed for each
// generation, a program that lists one key blocks just the packets that have
// it. If C cut, ordered or hashed the key otherwise, it would block none.
func TestKeyVectors(t *testing.T) {
	lab.Root(t)
	flow := key.FieldSrcPort | key.FieldDstPort | key.FieldProto
	for _, s := range []key.Shape{
		{SrcBits: 32}, {SrcBits: 19}, {DstBits: 32}, {DstBits: 1}, {},
		{SrcBits: 32, DstBits: 32, Fields: flow}, {SrcBits: 32, DstBits: 32}, {SrcBits: 24, Fields: key.FieldDstPort | key.FieldProto},
		{Fields: key.FieldSrcPort}, {Fields: key.FieldProto}, {DstBits: 7, Fields: key.FieldProto},
		{Fields: key.FieldV6, SrcBits: 128}, {Fields: key.FieldV6, SrcBits: 33}, {Fields: key.FieldV6, DstBits: 64}, {Fields: key.FieldV6, DstBits: 97}, {Fields: key.FieldV6},
		{Fields: key.FieldV6 | flow, SrcBits: 128, DstBits: 128}, {Fields: key.FieldV6, SrcBits: 128, DstBits: 65},
		{Fields: key.FieldV6 | key.FieldDstPort, SrcBits: 48}, {Fields: key.FieldV6 | key.FieldProto}, {Fields: key.FieldV6 | key.FieldSrcPort, DstBits: 31},
	} {
		t.Run(s.String(), func(t *testing.T) {
			r := newRandom(t)
			seeds := long.Or(1, 4)
			for range seeds {
				tuple := r.anyTuple(s.V6())
				k, ok := s.Of(tuple)
				if !ok {
					t.Fatal("the shape does not fit the packet")
				}
				_, kernel := engines(t, []engine.List{{Name: "one", Contents: list.SetOf(k)}}, engine.Config{})
				outside, inside := neighbours(tuple, s)
				check := func(t key.Tuple, want verdict.Reason) error {
					got, err := kernel.Decide(packet.Frame(t))
					if err == nil && got.Reason != want {
						err = fmt.Errorf("%v lists %v: %+v for %+v, want %v", s, k, got, t, want)
					}
					return err
				}
				err := check(tuple, verdict.Blocked)
				for _, n := range inside {
					err = errors.Join(err, check(n, verdict.Blocked))
				}
				for _, n := range outside {
					err = errors.Join(err, check(n, verdict.Clean))
				}
				for range 20 {
					if n := r.anyTuple(s.V6()); mustOf(s, n) != k {
						err = errors.Join(err, check(n, verdict.Clean))
					}
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func mustOf(s key.Shape, t key.Tuple) key.Key {
	k, ok := s.Of(t)
	if !ok {
		panic("a packet with ports that has no key")
	}
	return k
}
