package key

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"weir/filter/hash"
	"weir/tests/seed"
)

const anyFlow = FieldSrcPort | FieldDstPort | FieldProto

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// keys has one key of each kind, with its serialisation and its text in the
// list format.
var keys = []struct {
	shape      Shape
	tuple      Tuple
	serialised string
	text       string
	shapeText  string
}{
	{Shape{SrcBits: 32}, Tuple{Src: addr("192.0.2.1"), Dst: addr("198.51.100.7")},
		"\x00\x20\x00\x00\xc0\x00\x02\x01", "192.0.2.1", "src/32"},
	{Shape{SrcBits: 20}, Tuple{Src: addr("192.0.31.1"), Dst: addr("198.51.100.7")},
		"\x00\x14\x00\x00\xc0\x00\x10\x00", "192.0.16.0/20", "src/20"},
	{Shape{DstBits: 32}, Tuple{Src: addr("192.0.2.1"), Dst: addr("198.51.100.7")},
		"\x00\x00\x20\x00\xc6\x33\x64\x07", "> 198.51.100.7", "dst/32"},
	{Shape{}, Tuple{Src: addr("192.0.2.1"), Dst: addr("198.51.100.7")},
		"\x00\x00\x00\x00\x00\x00\x00\x00", "0.0.0.0/0", "src/0"},
	{Shape{SrcBits: 32, DstBits: 24, Fields: anyFlow}, Tuple{Src: addr("192.0.2.1"), Dst: addr("198.51.100.7"), Proto: 6, HasPorts: true, SrcPort: 0x1234, DstPort: 443},
		"\x0e\x20\x18\x06\xc0\x00\x02\x01\xc6\x33\x64\x00\x12\x34\x01\xbb", "tcp 192.0.2.1:4660 > 198.51.100.0/24:443", "src/32+dst/24+sport+dport+proto"},
	{Shape{DstBits: 32, Fields: FieldDstPort}, Tuple{Src: addr("192.0.2.1"), Dst: addr("198.51.100.7"), Proto: 6, HasPorts: true, SrcPort: 1, DstPort: 53},
		"\x04\x00\x20\x00\x00\x00\x00\x00\xc6\x33\x64\x07\x00\x00\x00\x35", "any 0.0.0.0/0:* > 198.51.100.7:53", "dst/32+dport"},
	{Shape{Fields: FieldV6, SrcBits: 33}, Tuple{Src: addr("2001:db8:ffff::1"), Dst: addr("2001:db8::2")},
		"\x01\x21\x00\x00\x20\x01\x0d\xb8\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "2001:db8:8000::/33", "ip6 src/33"},
	{Shape{Fields: FieldV6 | FieldProto, SrcBits: 128, DstBits: 128}, Tuple{Src: addr("::ffff:192.0.2.1"), Dst: addr("2001:db8::2"), Proto: 58},
		"\x09\x80\x80\x3a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xc0\x00\x02\x01" +
			"\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00",
		"icmp6 [::ffff:192.0.2.1]:* > [2001:db8::2]:*", "ip6 src/128+dst/128+proto"},
}

func TestKeys(t *testing.T) {
	secret := hash.NewSecret(hash.NewSeed())
	for _, c := range keys {
		k, ok := c.shape.Of(c.tuple)
		if !ok {
			t.Errorf("%v does not fit %+v", c.shape, c.tuple)
			continue
		}
		if got := k.Append(nil); string(got) != c.serialised {
			t.Errorf("%v is serialised as % x, want % x", k, got, c.serialised)
		}
		if len(c.serialised) != c.shape.KeyLen() {
			t.Errorf("%v has a length of %d", c.shape, c.shape.KeyLen())
		}
		if got, err := Parse([]byte(c.serialised)); err != nil || got != k {
			t.Errorf("% x is parsed as %v (%v), want %v", c.serialised, got, err, k)
		}
		if got := k.Hash(secret); got != secret.Sum([]byte(c.serialised)) {
			t.Errorf("%v: hash %#x is not that of the serialisation", k, got)
		}
		if k.String() != c.text || c.shape.String() != c.shapeText {
			t.Errorf("%q of shape %q, want %q of %q", k, c.shape, c.text, c.shapeText)
		}
		// Of is idempotent on keys.
		if again, ok := c.shape.Of(Tuple{k.Src, k.Dst, k.Proto, true, k.SrcPort, k.DstPort}); !ok || again != k {
			t.Errorf("%v is not canonical: %v", k, again)
		}
	}
}

func TestOfRejects(t *testing.T) {
	v4 := Tuple{Src: addr("192.0.2.1"), Dst: addr("192.0.2.2"), Proto: 6}
	v6 := Tuple{Src: addr("::1"), Dst: addr("::2"), Proto: 6, HasPorts: true}
	mapped := Tuple{Src: addr("::ffff:192.0.2.1"), Dst: addr("::ffff:192.0.2.2")}
	for _, c := range []struct {
		name  string
		shape Shape
		tuple Tuple
	}{
		{"another family", Shape{Fields: FieldV6}, v4},
		{"another family", Shape{}, v6},
		{"a mapped address on the wire is IPv6", Shape{SrcBits: 32}, mapped},
		{"ports of a packet without ports", Shape{Fields: FieldSrcPort}, v4},
		{"ports of a packet without ports", Shape{Fields: FieldDstPort, SrcBits: 32}, v4},
	} {
		if k, ok := c.shape.Of(c.tuple); ok || k != (Key{}) {
			t.Errorf("%s: %v of %+v is %v", c.name, c.shape, c.tuple, k)
		}
	}
	if k, ok := (Shape{Fields: FieldProto}).Of(v4); !ok || k.Proto != 6 {
		t.Error("a protocol needs no ports")
	}
}

func TestAddresses(t *testing.T) {
	p := netip.MustParsePrefix("192.0.2.77/24")
	for k, want := range map[Key]string{
		Source(p): "192.0.2.0/24", Destination(p): "> 192.0.2.0/24",
		Source(netip.MustParsePrefix("2001:db8::1/32")):       "2001:db8::/32",
		Destination(netip.MustParsePrefix("2001:db8::1/128")): "> 2001:db8::1",
	} {
		if k.String() != want || k.Tuple() {
			t.Errorf("%v, want %s", k, want)
		}
	}
}

func TestShapeValid(t *testing.T) {
	for s, want := range map[Shape]bool{
		{}:                               true,
		{SrcBits: 32, DstBits: 32}:       true,
		{SrcBits: 33}:                    false,
		{DstBits: 33}:                    false,
		{Fields: FieldV6, SrcBits: 128}:  true,
		{Fields: FieldV6, DstBits: 129}:  false,
		{Fields: 1 << 4}:                 false,
		{Fields: FieldV6 | anyFlow}:      true,
		{Fields: FieldProto, SrcBits: 8}: true,
	} {
		if s.Valid() != want {
			t.Errorf("%#v: valid is %t", s, !want)
		}
	}
}

// Parse rejects what Append does not produce.
func TestParseRejects(t *testing.T) {
	v4, flow := keys[1].serialised, keys[4].serialised
	change := func(s string, at int, to byte) string { return s[:at] + string([]byte{to}) + s[at+1:] }
	for name, b := range map[string]string{
		"nothing":                         "",
		"a head alone":                    v4[:4],
		"a missing byte":                  v4[:7],
		"an extra byte":                   v4 + "\x00",
		"an unknown field":                change(v4, 0, 1<<4),
		"a longer prefix than the family": change(v4, 1, 33),
		"host bits":                       change(v4, 7, 1),
		"a protocol that is not matched":  change(v4, 3, 6),
		"a flow cut to an address":        flow[:8],
		"an address of a flow's length":   change(flow, 0, 0),
		"a port that is not matched":      change(flow, 0, byte(FieldProto|FieldDstPort)),
	} {
		if k, err := Parse([]byte(b)); err == nil || k != (Key{}) {
			t.Errorf("%s: % x is parsed as %v", name, b, k)
		} else if !strings.HasPrefix(err.Error(), "key: ") {
			t.Errorf("%s: error %q", name, err)
		}
	}
}

// Different keys have different serialisations and texts, and they order as their
// serialisations do.
func TestSerialisation(t *testing.T) {
	r := seed.New(t)
	serialised, texts := make(map[string]Key), make(map[string]Key)
	var last Key
	for range 100_000 {
		s := Shape{Fields: Fields(r.IntN(16))}
		s.SrcBits, s.DstBits = uint8(r.IntN(4)*s.MaxBits()/3), uint8(r.IntN(4)*s.MaxBits()/3)
		var a [16]byte
		a[0], a[2], a[3], a[15] = byte(r.IntN(2)<<7), byte(r.IntN(2)), byte(r.IntN(2)), byte(r.IntN(2))
		t6 := Tuple{netip.AddrFrom16(a), netip.AddrFrom16(a), uint8(r.IntN(3)), true, uint16(r.IntN(2)), uint16(r.IntN(2))}
		if !s.V6() {
			t6.Src, t6.Dst = netip.AddrFrom4([4]byte(a[:])), netip.AddrFrom4([4]byte(a[:]))
		}
		k, _ := s.Of(t6)
		for text, seen := range map[string]map[string]Key{string(k.Append(nil)): serialised, k.String(): texts} {
			if other, ok := seen[text]; ok && other != k {
				t.Fatalf("%#v and %#v are both %q", k, other, text)
			}
			seen[text] = k
		}
		if last.Src.IsValid() && k.Compare(last) != bytes.Compare(k.Append(nil), last.Append(nil)) {
			t.Fatalf("%v and %v: order %d", k, last, k.Compare(last))
		}
		last = k
	}
}

func TestProtoNames(t *testing.T) {
	for p := range 256 {
		name := ProtoName(uint8(p))
		if got, ok := ProtoNumber(name); !ok || got != uint8(p) {
			t.Errorf("protocol %d is called %q, which is %d (%t)", p, name, got, ok)
		}
	}
	for _, name := range []string{"", "TCP", "any", "256", "-1", "+6", "06", "6 ", "0x6", "6.0"} {
		if p, ok := ProtoNumber(name); ok {
			t.Errorf("%q is protocol %d", name, p)
		}
	}
}

// Whatever Parse accepts is canonical and serialises to the same bytes.
func FuzzParse(f *testing.F) {
	for _, c := range keys {
		f.Add([]byte(c.serialised))
	}
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xff}, MaxLen))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := Parse(b)
		if err != nil {
			if k != (Key{}) {
				t.Errorf("an error and the key %v", k)
			}
			return
		}
		if got := k.Append(nil); !bytes.Equal(got, b) {
			t.Errorf("% x serialises again as % x", b, got)
		}
		if !k.Valid() || k.KeyLen() != len(b) || k.String() == "" {
			t.Errorf("%v of %d bytes", k, len(b))
		}
		if again, ok := k.Of(Tuple{k.Src, k.Dst, k.Proto, true, k.SrcPort, k.DstPort}); !ok || again != k {
			t.Errorf("%v is not canonical: %v", k, again)
		}
	})
}

// Covers and Overlaps agree with the packets of a world in which every field has
// two bits that count.
func TestCoversAndOverlaps(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var world []Tuple
	for i := range 4 * 4 * 3 {
		v4 := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{byte(n&2) << 6, 0, 0, byte(n & 1)}) }
		v6 := func(n int) netip.Addr { return netip.AddrFrom16([16]byte{0: byte(n&2) << 6, 15: byte(n & 1)}) }
		for _, of := range []func(int) netip.Addr{v4, v6} {
			p := Tuple{Src: of(i), Dst: of(i >> 2), Proto: []uint8{1, 6, 17}[i>>4]}
			world = append(world, p)
			for ports := range 4 {
				if p.Proto != 1 {
					p.HasPorts, p.SrcPort, p.DstPort = true, uint16(ports&1), uint16(ports>>1)
					world = append(world, p)
				}
			}
		}
	}
	matches := func(k Key, p Tuple) bool {
		now, ok := k.Of(p)
		return ok && now == k
	}
	random := func() Key {
		for {
			p := world[r.IntN(len(world))]
			bits := []uint8{0, 1, uint8(p.Src.BitLen())}
			s := Shape{Fields: Fields(r.IntN(8)) << 1, SrcBits: bits[r.IntN(3)], DstBits: bits[r.IntN(3)]}
			if p.Src.Is6() {
				s.Fields |= FieldV6
			}
			if k, ok := s.Of(p); ok {
				return k
			}
		}
	}
	seen := map[[2]bool]int{}
	for range 20_000 {
		k, other := random(), random()
		some, all := false, true
		for _, p := range world {
			if matches(other, p) {
				some, all = some || matches(k, p), all && matches(k, p)
			}
		}
		covers, overlaps := k.Covers(other), k.Overlaps(other)
		// A key may have no packet that another leaves out, and yet not say so: any
		// protocol with ports is not only TCP and UDP.
		if overlaps != some || covers && !all || !covers && all && k.Shape.Within(other.Shape) {
			t.Fatalf("%v and %v: covers %t, overlaps %t, but some packets %t, all %t", k, other, covers, overlaps, some, all)
		}
		seen[[2]bool{covers, overlaps}]++
	}
	for _, c := range [][2]bool{{false, false}, {false, true}, {true, true}} {
		if seen[c] == 0 {
			t.Errorf("no two keys of which covers, overlaps are %v", c)
		}
	}
	for _, p := range world {
		if k := p.Key(); !matches(k, p) || k.SrcBits != uint8(p.Src.BitLen()) || k.Ports() != p.HasPorts || k.Fields&FieldProto == 0 {
			t.Errorf("the key of %+v is %v", p, k)
		}
	}
}
