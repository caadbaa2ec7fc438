package digest

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"testing"

	"weir/filter/hash"
)

var secret = hash.NewSecret(hash.Seed{1})

// v4 returns an IPv4 packet with the given options, a multiple of four bytes.
func v4(options, payload []byte) []byte {
	p := []byte{
		byte(0x45 + len(options)/4), 0x10, 0, 0, // type of service 16
		0x12, 0x34, 0x40, 0, // identification, don't fragment
		64, 17, 0xbe, 0xef, // TTL, UDP, checksum
		192, 0, 2, 1,
		198, 51, 100, 7,
	}
	p = append(append(p, options...), payload...)
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	return p
}

// v6 returns an IPv6 packet with the given hop-by-hop header, or none.
func v6(hopByHop, payload []byte) []byte {
	p := []byte{0x6a, 0xbc, 0xde, 0xf0, 0, 0, 17, 64} // traffic class, flow label, UDP, hop limit
	p = append(p, 0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)
	p = append(p, 0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2)
	if len(hopByHop) > 0 {
		p[6] = 0
		hopByHop = slices.Clone(hopByHop)
		hopByHop[0], hopByHop[1] = 17, byte(len(hopByHop)/8-1)
	}
	p = append(append(p, hopByHop...), payload...)
	binary.BigEndian.PutUint16(p[4:], uint16(len(p)-40))
	return p
}

var payload = []byte("a payload that is longer than twenty bytes")

// with sets byte i of a packet.
func with(p []byte, i int, b byte) []byte {
	p[i] = b
	return p
}

func mustSum(t testing.TB, p []byte) uint64 {
	t.Helper()
	d, err := Sum(secret, p)
	if err != nil {
		t.Fatalf("%v: % x", err, p)
	}
	return d
}

// TestLayout spells out the invariant parts, for other implementations.
func TestLayout(t *testing.T) {
	for _, c := range []struct {
		name, want string
		pkt        []byte
	}{
		{"IPv4", "450000321234400000110000c0000201c6336407" + hex.EncodeToString(payload[:8]), v4(nil, payload[:30])},
		{"IPv4 with options", "450000321234400000110000c0000201c6336407" + hex.EncodeToString(payload[:8]), v4(make([]byte, 12), payload[:30])},
		{"IPv4, short", "450000171234400000110000c0000201c6336407" + "0102030000000000", v4(nil, []byte{1, 2, 3})},
		{"IPv6", "60000000001e110020010db800000000000000000000000120010db8000000000000000000000002" + hex.EncodeToString(payload[:20]), v6(nil, payload[:30])},
		{"IPv6 with hop-by-hop", "60000000001e110020010db800000000000000000000000120010db8000000000000000000000002" + hex.EncodeToString(payload[:20]), v6(make([]byte, 24), payload[:30])},
		{"IPv6, empty", "600000000000110020010db800000000000000000000000120010db8000000000000000000000002" + hex.EncodeToString(make([]byte, 20)), v6(nil, nil)},
	} {
		got, err := AppendInvariant([]byte("x"), c.pkt)
		if err != nil || string(got) != "x"+string(unhex(t, c.want)) {
			t.Errorf("%s: %x, %v; want 78%s", c.name, got, err, c.want)
		}
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestEveryByte changes one byte at a time and checks whether the digest
// changes. Offsets that control the parser are left to the other tests.
func TestEveryByte(t *testing.T) {
	for _, c := range []struct {
		name      string
		pkt       []byte
		steering  []int // versions, lengths, next header
		invariant func(i int) bool
	}{
		{"IPv4", v4(make([]byte, 8), payload), []int{0, 2, 3}, func(i int) bool {
			return i >= 4 && i < 8 || i == 9 || i >= 12 && i < 20 || i >= 28 && i < 36
		}},
		{"IPv6", v6(make([]byte, 16), payload), []int{0, 4, 5, 6, 41}, func(i int) bool {
			// 40 is the next header, which lies in the hop-by-hop header here.
			return i >= 8 && i < 41 || i >= 56 && i < 76
		}},
	} {
		before := mustSum(t, c.pkt)
		for i := range c.pkt {
			if slices.Contains(c.steering, i) {
				continue
			}
			p := slices.Clone(c.pkt)
			p[i] ^= 0x11
			if changed := mustSum(t, p) != before; changed != c.invariant(i) {
				t.Errorf("%s: byte %d changed the digest: %v", c.name, i, changed)
			}
		}
		// Traffic class shares a byte with the version.
		if c.name == "IPv6" {
			p := slices.Clone(c.pkt)
			p[0] ^= 0x0f
			if mustSum(t, p) != before {
				t.Error("traffic class changes the digest")
			}
		}
		if p := append(slices.Clone(c.pkt), 1, 2, 3); mustSum(t, p) != before {
			t.Errorf("%s: bytes after the packet change the digest", c.name)
		}
		if d, err := Sum(hash.NewSecret(hash.Seed{2}), c.pkt); err != nil || d == before {
			t.Errorf("%s: the seed does not change the digest", c.name)
		}
	}
}

// TestLengthsAreDistinguished checks that padding does not make packets alike.
func TestLengthsAreDistinguished(t *testing.T) {
	for _, make := range []func(n int) []byte{
		func(n int) []byte { return v4(nil, make([]byte, n)) },
		func(n int) []byte { return v6(nil, make([]byte, n)) },
	} {
		seen := map[uint64]int{}
		for n := range 40 {
			d := mustSum(t, make(n))
			if m, ok := seen[d]; ok {
				t.Errorf("payloads of %d and %d zeros share a digest", m, n)
			}
			seen[d] = n
		}
	}
}

// TestTruncated truncates packets to every length: the digest is that of the
// whole packet or there is none.
func TestTruncated(t *testing.T) {
	for _, c := range []struct {
		name string
		pkt  []byte
		need int
	}{
		{"IPv4", v4(nil, payload), 28},
		{"IPv4 with options", v4(make([]byte, 40), payload), 68},
		{"IPv4, short", v4(nil, payload[:3]), 23},
		{"IPv6", v6(nil, payload), 60},
		{"IPv6 with hop-by-hop", v6(make([]byte, 8), payload), 68},
		{"IPv6, short", v6(make([]byte, 8), payload[:3]), 51},
	} {
		want := mustSum(t, c.pkt)
		for n := range len(c.pkt) {
			got, err := Sum(secret, c.pkt[:n])
			switch {
			case n < c.need && !errors.Is(err, ErrTruncated):
				t.Errorf("%s: %d bytes: error %v", c.name, n, err)
			case n >= c.need && (err != nil || got != want):
				t.Errorf("%s: %d bytes: %x, %v; want %x", c.name, n, got, err, want)
			}
		}
	}
}

func TestMalformed(t *testing.T) {
	for name, p := range map[string][]byte{
		"version":                with(v4(nil, payload), 0, 0x55),
		"IPv4 header length":     with(v4(nil, payload), 0, 0x44),
		"IPv4 total length":      with(with(v4(nil, payload), 2, 0), 3, 19),
		"options beyond packet":  with(v4(nil, payload[:4]), 0, 0x47),
		"no room for hop-by-hop": with(v6(nil, payload[:7]), 6, 0),
		"long hop-by-hop":        with(v6(make([]byte, 8), payload[:7]), 41, 1),
	} {
		if _, err := Sum(secret, p); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// FuzzSum checks, for arbitrary bytes, that computing a digest or rejecting the
// packet leaves the input unchanged, that the digest depends on nothing after
// the invariant part, and that forwarding does not change it.
func FuzzSum(f *testing.F) {
	for _, p := range [][]byte{
		nil, {0x45}, {0x60},
		v4(nil, payload), v4(make([]byte, 12), payload[:3]), v4(make([]byte, 40), nil),
		v6(nil, payload), v6(make([]byte, 8), payload[:3]), v6(make([]byte, 64), nil),
		v6(nil, payload)[:50], v4(nil, payload)[:27],
		with(v6(make([]byte, 8), payload), 40, 0), // a second hop-by-hop header
	} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		kept := slices.Clone(p)
		prefix := []byte("prefix")
		b, err := AppendInvariant(prefix, p)
		if !bytes.Equal(p, kept) {
			t.Fatal("packet changed")
		}
		if err != nil {
			if !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrMalformed) {
				t.Fatalf("error %v", err)
			}
			if string(b) != "prefix" {
				t.Fatalf("%x appended despite the error %v", b, err)
			}
			return
		}
		want := len(prefix) + LenV4
		ttl, checksum := 8, 10
		if p[0]>>4 == 6 {
			want = len(prefix) + LenV6
			ttl, checksum = 7, 1 // the flow label, as IPv6 has no checksum
		}
		if len(b) != want {
			t.Fatalf("invariant part of %d bytes, want %d", len(b), want)
		}
		forwarded := append(slices.Clone(p), 0xff)
		forwarded[ttl]--
		forwarded[checksum] ^= 0xff
		if again, err := AppendInvariant([]byte("prefix"), forwarded); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("forwarded: %x, %v; want %x", again, err, b)
		}
		// The invariant part is itself a packet with the same invariant part,
		// unless a second hop-by-hop header, which is not allowed, follows the
		// first.
		self := b[len(prefix):]
		if self[0]>>4 == 6 && self[6] == 0 {
			return
		}
		if again, err := AppendInvariant(nil, self); err != nil || !bytes.Equal(again, self) {
			t.Fatalf("invariant part of %x is %x, %v", self, again, err)
		}
	})
}

func BenchmarkSum(b *testing.B) {
	for _, c := range []struct {
		name string
		pkt  []byte
	}{{"v4", v4(nil, payload)}, {"v6", v6(nil, payload)}} {
		b.Run(fmt.Sprintf("family=%s", c.name), func(b *testing.B) {
			for b.Loop() {
				if _, err := Sum(secret, c.pkt); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
