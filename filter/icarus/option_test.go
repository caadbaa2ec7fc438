package icarus

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestSipHash checks the vectors that the authors of SipHash published, for the
// messages 00, 00 01, … with the key 00 01 … 0f.
func TestSipHash(t *testing.T) {
	var key Key
	for i := range key {
		key[i] = byte(i)
	}
	var message []byte
	for i, want := range []uint64{
		0x726fdb47dd0e0e31, 0x74f839c593dc67fd, 0x0d6c8009d9a94f5a, 0x85676696d7fb7e2d,
		0xcf2794e0277187b7, 0x18765564cd99a68d, 0xcbc9466e58fee3ce, 0xab0200f58b01d137,
		0x93f5f5799a932462, 0x9e0082df0ba9e4b0, 0x7a5dbbc594ddb9f3, 0xf4b32f46226bada7,
		0x751e8fbc860ee5fb, 0x14ea5627c0843d90, 0xf723ca908e7af2ee, 0xa129ca6149be45e5,
	} {
		if got := key.sum(message); got != want {
			t.Errorf("%d bytes: %016x, want %016x", i, got, want)
		}
		message = append(message, byte(i))
	}
}

// v4 and v6 are UDP packets with a payload of n bytes.
func v4(n int) []byte {
	p := append([]byte{0x45, 3, 0, 0, 1, 2, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 1}, udp(n)...)
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	checksum(p)
	return p
}

func v6(n int) []byte {
	p := append(append([]byte{0x60, 1, 2, 3, 0, 0, 17, 64}, make([]byte, 32)...), udp(n)...)
	p[8], p[24] = 0x20, 0x20
	binary.BigEndian.PutUint16(p[4:], uint16(len(p)-40))
	return p
}

func udp(n int) []byte {
	b := make([]byte, 8+n)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}

// checksum sets an IPv4 header's checksum by its definition.
func checksum(p []byte) {
	p[10], p[11] = 0, 0
	var sum uint32
	for i := 0; i < int(p[0]&15)*4; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(p[10:], ^uint16(sum+sum>>16))
}

func mustNode(t testing.TB, id uint64, domain uint8, g Geometry) *Node {
	t.Helper()
	n, err := NewNode(id, domain, Key{1, 2, 3}, g)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A packet crosses a domain as the paper describes, is longer by the stated
// overhead, has a correct checksum throughout, and leaves unchanged.
func TestDomain(t *testing.T) {
	for _, size := range Sizes {
		for confirm := 1; confirm <= 2; confirm++ {
			g := Geometry{Size: size, K: 7, Confirm: confirm}
			overhead4, overhead6 := g.Overhead()
			for family, c := range map[string]struct {
				pkt      []byte
				overhead int
			}{"IPv4": {v4(100), overhead4}, "IPv6": {v6(100), overhead6}, "an empty IPv4": {v4(0), overhead4}} {
				t.Run(fmt.Sprintf("%s, %d bits, confirm %d", family, size, confirm), func(t *testing.T) {
					before := slices.Clone(c.pkt)
					first := mustNode(t, 1, 9, g)
					pkt, o := first.Insert(c.pkt, len(c.pkt)+c.overhead)
					if o != Inserted || len(pkt) != len(c.pkt)+c.overhead || c.overhead%8 != 0 {
						t.Fatalf("%v: %d bytes, of %d", o, len(pkt), len(c.pkt))
					}
					if _, o := first.Insert(c.pkt, len(pkt)-1); o != TooLarge {
						t.Errorf("MTU of one byte less: %v", o)
					}
					if _, o := first.Insert(pkt, 9000); o != OptionsPresent {
						t.Errorf("again: %v", o)
					}
					valid := func(what string) {
						t.Helper()
						if again := slices.Clone(pkt); pkt[0]>>4 == 4 {
							if checksum(again); !bytes.Equal(again, pkt) {
								t.Errorf("%s: checksum %x, want %x", what, pkt[10:12], again[10:12])
							}
						}
					}
					valid("inserted")
					for id := uint64(2); id <= 4; id++ {
						if o := mustNode(t, id, 9, g).Visit(pkt); o != Visited {
							t.Errorf("node %d: %v", id, o)
						}
						valid("visited")
					}
					for i := 1; i <= 3; i++ {
						want := Suspected
						if i >= confirm {
							want = Looped
						}
						if o := first.Visit(pkt); o != want {
							t.Errorf("round %d: %v, want %v", i, o, want)
						}
						valid("again")
					}
					if o := mustNode(t, 5, 9, g).Visit(pkt); o != Visited {
						t.Errorf("a new node: %v", o)
					}
					out, o := first.Remove(pkt)
					if o != Removed || !bytes.Equal(out, before) || !bytes.Equal(c.pkt, before) {
						t.Errorf("%v: % x, was % x", o, out, before)
					}
					if _, o := first.Remove(out); o != Untouched {
						t.Errorf("removed again: %v", o)
					}
				})
			}
		}
	}
}

// Without the key no one can make a node suspect a packet.
func TestForged(t *testing.T) {
	g := Geometry{Size: 64, K: 6, Confirm: 1}
	n, other := mustNode(t, 1, 9, g), mustNode(t, 1, 8, g)
	for _, whole := range [][]byte{v4(40), v6(40)} {
		pkt, _ := n.Insert(whole, 1500)
		at := headerV4
		if pkt[0]>>4 == 6 {
			at = headerV6 + 8
		}
		if o := n.Check(pkt); o != Looped {
			t.Fatalf("a revisit: %v", o)
		}
		for i := 4; i < 8; i++ {
			forged := slices.Clone(pkt)
			forged[at+i] ^= 1
			if o := n.Check(forged); o != Forged {
				t.Errorf("tag changed in byte %d: %v", i, o)
			}
		}
		ones := slices.Clone(pkt)
		for i := 8; i < 16; i++ {
			ones[at+i] = 0xff
		}
		copy(ones[at+4:], make([]byte, 4))
		if o := n.Check(ones); o != Forged {
			t.Errorf("a full filter of another domain: %v", o)
		}
		// A tag is valid for its packet only: another payload, or another
		// address.
		another := slices.Clone(pkt)
		another[len(pkt)-40] ^= 1
		if o := n.Check(another); pkt[0]>>4 == 6 && o != Forged {
			t.Errorf("another payload: %v", o)
		}
		another = slices.Clone(pkt)
		another[13] ^= 1
		if o := n.Check(another); o != Forged {
			t.Errorf("another source: %v", o)
		}
		if o := other.Check(pkt); o != Foreign {
			t.Errorf("another domain: %v", o)
		}
		if o := mustNode(t, 1, 9, Geometry{Size: 128, K: 6, Confirm: 1}).Check(pkt); o != Foreign {
			t.Errorf("another size: %v", o)
		}
	}
}

// The fragments that a router inside the domain makes of a packet carry its
// filter and its tag, which does not match them: they are indistinguishable
// from forgeries and not judged.
func TestFragmentsFromInside(t *testing.T) {
	n := mustNode(t, 1, 9, Geometry{Size: 64, K: 6, Confirm: 1})
	pkt, _ := n.Insert(v4(40), 1500)
	pkt[6] |= 0x20 // more fragments
	if o := n.Check(pkt); o != Fragment {
		t.Errorf("a revisit: %v", o)
	}
	if o := mustNode(t, 2, 9, n.Geometry).Check(pkt); o != Visited {
		t.Errorf("a visit: %v", o)
	}
}

// Packets that get no filter stay unchanged.
func TestObstacles(t *testing.T) {
	n := mustNode(t, 1, 9, Geometry{Size: 64, K: 6, Confirm: 1})
	change := func(p []byte, at int, b ...byte) []byte {
		copy(p[at:], b)
		return p
	}
	for name, c := range map[string]struct {
		pkt  []byte
		want Outcome
	}{
		"more fragments":     {change(v4(8), 6, 0x20, 0), Fragment},
		"a later fragment":   {change(v4(8), 6, 0, 1), Fragment},
		"do not fragment":    {change(v4(8), 6, 0x40, 0), Inserted},
		"IPv4 options":       {change(v4(8), 0, 0x46), OptionsPresent},
		"short header":       {change(v4(8), 0, 0x44), Untouched},
		"aggregated":         {change(v4(8), 2, 0, 0), Untouched},
		"aggregated, IPv6":   {change(v6(8), 4, 0, 0), Untouched},
		"fragment header":    {change(v6(8), 6, 44), Fragment},
		"hop-by-hop":         {change(v6(8), 6, 0), OptionsPresent},
		"truncated":          {v4(8)[:25], Untouched},
		"truncated, IPv6":    {v6(40)[:55], Untouched},
		"too long":           {change(v4(8), 2, 0xff, 0xf8), TooLarge},
		"too long, IPv6":     {change(v6(8), 4, 0xff, 0xf0), TooLarge},
		"a group":            {change(v4(8), 16, 239, 1, 2, 3), Untouched},
		"a group, IPv6":      {change(v6(8), 24, 0xff, 0x0e), Untouched},
		"broadcast":          {change(v4(8), 16, 255, 255, 255, 255), Untouched},
		"no IP":              {change(v4(8), 0, 0x55), Untouched},
		"nothing":            {nil, Untouched},
		"half a header":      {v4(8)[:12], Untouched},
		"half a header, six": {v6(8)[:30], Untouched},
	} {
		before := slices.Clone(c.pkt)
		out, o := n.Insert(c.pkt, 1<<20)
		if o != c.want || (o != Inserted && !bytes.Equal(out, before)) {
			t.Errorf("%s: %v, want %v", name, o, c.want)
		}
	}
}

// FuzzOption checks, for arbitrary bytes, that nothing is read beyond their
// end, and that what can be inserted can be removed.
func FuzzOption(f *testing.F) {
	g := Geometry{Size: 128, K: 7, Confirm: 2}
	node := mustNode(f, 1, 9, g)
	r := rand.New(rand.NewPCG(1, 1))
	for _, p := range [][]byte{v4(0), v6(0), v4(30), v6(30)} {
		f.Add(p)
		inserted, _ := node.Insert(p, 1500)
		for range 20 {
			mangled := slices.Clone(inserted)
			mangled[r.IntN(len(mangled))] = byte(r.Uint32())
			f.Add(mangled[:r.IntN(len(mangled)+1)])
		}
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		before := slices.Clone(p)
		out, o := node.Insert(p, 1500)
		if o == Inserted {
			back, o := node.Remove(out)
			if o != Removed || !bytes.Equal(back[:10], p[:10]) || !bytes.Equal(back[12:], p[12:]) {
				t.Fatalf("%v: % x, was % x", o, back, p)
			}
		}
		node.Remove(p)
		want := node.Check(p)
		if !bytes.Equal(p, before) {
			t.Fatal("changed")
		}
		if got := node.Visit(p); got != want {
			t.Fatalf("Visit returned %v, Check %v", got, want)
		}
	})
}
