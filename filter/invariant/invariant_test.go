package invariant

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
	"testing"
)

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

func mustAppend(t testing.TB, p []byte) string {
	t.Helper()
	b, err := Append(nil, p)
	if err != nil {
		t.Fatalf("%v: % x", err, p)
	}
	return string(b)
}

// TestLayout spells out the invariant parts, for other implementations.
func TestLayout(t *testing.T) {
	// The payload's first bytes in hexadecimal, where those that follow replace n from at on.
	text := func(size, at, n int) string {
		b := slices.Clone(payload[:size])
		copy(b[at:at+n], payload[size:])
		return hex.EncodeToString(b)
	}
	text4 := func(at, n int) string { return text(8, at, n) }
	text6 := func(at, n int) string { return text(20, at, n) }
	const head4, tail4 = "4500003212344000", "0000c0000201c6336407"
	const head6, tail6 = "60000000001e", "0020010db800000000000000000000000120010db8000000000000000000000002"
	for _, c := range []struct {
		name, want string
		pkt        []byte
	}{
		{"IPv4", "450000321234400000110000c0000201c6336407" + text4(6, 2), v4(nil, payload[:30])},
		{"IPv4 with options", "450000321234400000110000c0000201c6336407" + text4(6, 2), v4(make([]byte, 12), payload[:30])},
		{"IPv4, short", "450000171234400000110000c0000201c6336407" + "0102030000000000", v4(nil, []byte{1, 2, 3})},
		{"IPv6", "60000000001e110020010db800000000000000000000000120010db8000000000000000000000002" + text6(6, 2), v6(nil, payload[:30])},
		{"IPv6 with hop-by-hop", "60000000001e110020010db800000000000000000000000120010db8000000000000000000000002" + text6(6, 2), v6(make([]byte, 24), payload[:30])},
		{"TCP in IPv4", head4 + "0006" + tail4 + text4(0, 0), with(v4(nil, payload[:30]), 9, 6)},
		{"SCTP in IPv4", head4 + "0084" + tail4 + text4(0, 0), with(v4(nil, payload[:30]), 9, 132)},
		{"ICMP", head4 + "0001" + tail4 + text4(2, 2), with(v4(nil, payload[:30]), 9, 1)},
		{"UDP-Lite", head4 + "0088" + tail4 + text4(6, 2), with(v4(nil, payload[:30]), 9, 136)},
		{"DCCP", head4 + "0021" + tail4 + text4(6, 2), with(v4(nil, payload[:30]), 9, 33)},
		{"GRE", head4 + "002f" + tail4 + text4(0, 0), with(v4(nil, payload[:30]), 9, 47)},
		{"a later fragment", "450000321234000100110000c0000201c6336407" + text4(0, 0), with(with(v4(nil, payload[:30]), 6, 0), 7, 1)},
		{"UDP with three bytes", "4500001f1234400000110000c0000201c6336407" + hex.EncodeToString(payload[:6]) + "0000", v4(nil, payload[:11])},
		{"UDP with four bytes", "450000201234400000110000c0000201c6336407" + hex.EncodeToString(payload[:6]) + hex.EncodeToString(payload[8:10]), v4(nil, payload[:12])},
		{"TCP in IPv6", head6 + "06" + tail6 + text6(16, 2), with(v6(nil, payload[:30]), 6, 6)},
		{"SCTP in IPv6", head6 + "84" + tail6 + text6(8, 4), with(v6(nil, payload[:30]), 6, 132)},
		{"ICMPv6", head6 + "3a" + tail6 + text6(2, 2), with(v6(nil, payload[:30]), 6, 58)},
		{"IPv6, empty", "600000000000110020010db800000000000000000000000120010db8000000000000000000000002" + hex.EncodeToString(make([]byte, 20)), v6(nil, nil)},
	} {
		got, err := Append([]byte("x"), c.pkt)
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

// TestEveryByte changes one byte at a time and checks whether the invariant part
// changes. Offsets that control the parser are left to the other tests.
func TestEveryByte(t *testing.T) {
	for _, c := range []struct {
		name      string
		pkt       []byte
		steering  []int // versions, lengths, next header
		invariant func(i int) bool
	}{
		{"IPv4", v4(make([]byte, 8), payload), []int{0, 2, 3}, func(i int) bool {
			return i >= 4 && i < 8 || i == 9 || i >= 12 && i < 20 || i >= 28 && i < 34 || i == 36 || i == 37
		}},
		{"IPv6", v6(make([]byte, 16), payload), []int{0, 4, 5, 6, 41}, func(i int) bool {
			// 40 is the next header, which lies in the hop-by-hop header here.
			return i >= 8 && i < 41 || i >= 56 && i < 62 || i >= 64 && i < 78
		}},
	} {
		before := mustAppend(t, c.pkt)
		for i := range c.pkt {
			if slices.Contains(c.steering, i) {
				continue
			}
			p := slices.Clone(c.pkt)
			p[i] ^= 0x11
			if changed := mustAppend(t, p) != before; changed != c.invariant(i) {
				t.Errorf("%s: byte %d changed the invariant part: %v", c.name, i, changed)
			}
		}
		// Traffic class shares a byte with the version.
		if c.name == "IPv6" {
			p := slices.Clone(c.pkt)
			p[0] ^= 0x0f
			if mustAppend(t, p) != before {
				t.Error("traffic class changes the invariant part")
			}
		}
		if p := append(slices.Clone(c.pkt), 1, 2, 3); mustAppend(t, p) != before {
			t.Errorf("%s: bytes after the packet change the invariant part", c.name)
		}
	}
}

// TestLengthsAreDistinguished checks that padding does not make packets alike.
func TestLengthsAreDistinguished(t *testing.T) {
	for _, make := range []func(n int) []byte{
		func(n int) []byte { return v4(nil, make([]byte, n)) },
		func(n int) []byte { return v6(nil, make([]byte, n)) },
	} {
		seen := map[string]int{}
		for n := range 40 {
			d := mustAppend(t, make(n))
			if m, ok := seen[d]; ok {
				t.Errorf("payloads of %d and %d zeros share an invariant part", m, n)
			}
			seen[d] = n
		}
	}
}

// TestTruncated truncates packets to every length: the invariant part is equal to the
// whole packet's or there is none.
func TestTruncated(t *testing.T) {
	for _, c := range []struct {
		name string
		pkt  []byte
		need int
	}{
		{"IPv4", v4(nil, payload), 32},
		{"IPv4 with options", v4(make([]byte, 40), payload), 72},
		{"IPv4, short", v4(nil, payload[:3]), 23},
		{"TCP in IPv4", with(v4(nil, payload), 9, 6), 32},
		{"SCTP in IPv6", with(v6(nil, payload), 6, 132), 64},
		{"IPv6", v6(nil, payload), 64},
		{"IPv6 with hop-by-hop", v6(make([]byte, 8), payload), 72},
		{"IPv6, short", v6(make([]byte, 8), payload[:3]), 51},
	} {
		want := mustAppend(t, c.pkt)
		for n := range len(c.pkt) {
			got, err := Append(nil, c.pkt[:n])
			switch {
			case n < c.need && !errors.Is(err, ErrTruncated):
				t.Errorf("%s: %d bytes: error %v", c.name, n, err)
			case n >= c.need && (err != nil || string(got) != want):
				t.Errorf("%s: %d bytes: %x, %v; want %x", c.name, n, got, err, want)
			}
		}
	}
}

// TestStart checks that the start of a packet has its first bytes of payload unchanged, as
// digests before version 3 need them, and none that forwarding changes.
func TestStart(t *testing.T) {
	for _, c := range []struct {
		pkt, want []byte // of want, the payload
	}{
		{v4(make([]byte, 12), payload[:30]), v4(nil, payload[:12])},
		{v4(nil, payload[:3]), v4(nil, append(payload[:3:3], 0, 0, 0, 0, 0))},
		{append(v4(nil, payload[:9]), "trailer"...), v4(nil, payload[:9])},
		{v6(make([]byte, 24), payload[:30]), v6(nil, payload[:24])},
	} {
		got, err := AppendStart(nil, c.pkt)
		if err != nil {
			t.Fatal(err)
		}
		if mustAppend(t, got) != mustAppend(t, c.pkt) {
			t.Errorf("%x has another invariant part", got)
		}
		from := 20
		if got[0]>>4 == 6 {
			from = 40
		}
		if !bytes.Equal(got[from:], c.want[from:]) {
			t.Errorf("payload %x, want %x", got[from:], c.want[from:])
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
		if _, err := Append(nil, p); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// FuzzAppend checks, for arbitrary bytes, that taking the invariant part or rejecting the
// packet leaves the input unchanged, that forwarding does not change the invariant part, and
// that the start suffices.
func FuzzAppend(f *testing.F) {
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
		b, err := Append(prefix, p)
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
		if again, err := Append([]byte("prefix"), forwarded); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("forwarded: %x, %v; want %x", again, err, b)
		}
		// The start of the packet has the same invariant part, unless a second hop-by-hop header,
		// which is not allowed, follows the first.
		start, err := AppendStart([]byte("prefix"), p)
		if err != nil || !bytes.HasPrefix(start, []byte("prefix")) || !bytes.Equal(p, kept) {
			t.Fatalf("start %x, %v", start, err)
		}
		if start = start[len(prefix):]; start[0]>>4 == 6 && start[6] == hopByHop {
			return
		}
		if again, err := Append([]byte("prefix"), start); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("of the start %x: %x, %v; want %x", start, again, err, b)
		}
	})
}
