package packet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"weir/filter/key"
)

var (
	src4, dst4 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.7")
	src6, dst6 = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8:1::7")

	tcp4  = key.Tuple{Src: src4, Dst: dst4, Proto: 6, HasPorts: true, SrcPort: 0x1234, DstPort: 443}
	tcp6  = key.Tuple{Src: src6, Dst: dst6, Proto: 6, HasPorts: true, SrcPort: 0x1234, DstPort: 443}
	none4 = key.Tuple{Src: src4, Dst: dst4, Proto: 6}
	none6 = key.Tuple{Src: src6, Dst: dst6, Proto: 6}
)

func with(t key.Tuple, proto uint8) key.Tuple {
	t.Proto = proto
	return t
}

// Offsets in a frame without tags.
const (
	atType    = 12
	atIP      = 14
	atNext6   = atIP + 6
	atHop6    = atIP + 7
	atExt6    = atIP + 40
	atLayer44 = atIP + 20
)

// set returns a change that overwrites bytes.
func set(at int, b ...byte) func([]byte) []byte {
	return func(f []byte) []byte {
		copy(f[at:], b)
		return f
	}
}

// cutTo truncates the frame to n bytes; the lengths in its headers stay.
func cutTo(n int) func([]byte) []byte { return func(f []byte) []byte { return f[:n] } }

// insert inserts bytes.
func insert(at int, b ...byte) func([]byte) []byte {
	return func(f []byte) []byte { return slices.Insert(f, at, b...) }
}

func all(changes ...func([]byte) []byte) func([]byte) []byte {
	return func(f []byte) []byte {
		for _, c := range changes {
			f = c(f)
		}
		return f
	}
}

// extend inserts an extension header before the first one of an IPv6 packet,
// given its type and its bytes from the second one on.
func extend(kind uint8, b ...byte) func([]byte) []byte {
	return func(f []byte) []byte {
		f = slices.Insert(f, atExt6, append([]byte{f[atNext6]}, b...)...)
		f[atNext6] = kind
		binary.BigEndian.PutUint16(f[atIP+4:], uint16(len(f)-atExt6))
		return f
	}
}

// options returns an options header of the given size in bytes.
func options(kind uint8, size int) func([]byte) []byte {
	return extend(kind, append([]byte{byte(size/8 - 1)}, make([]byte, size-2)...)...)
}

func repeat(n int, change func([]byte) []byte) func([]byte) []byte {
	return func(f []byte) []byte {
		for range n {
			f = change(f)
		}
		return f
	}
}

func length4(n uint16) func([]byte) []byte { return set(atIP+2, byte(n>>8), byte(n)) }
func length6(n uint16) func([]byte) []byte { return set(atIP+4, byte(n>>8), byte(n)) }

// of sets the EtherType of a frame behind its tags.
func of(proto uint16) func([]byte) []byte {
	return func(f []byte) []byte {
		at := atType
		for f[at] == 0x81 {
			at += 4
		}
		binary.BigEndian.PutUint16(f[at:], proto)
		return f
	}
}

// pppoe returns the headers of PPPoE and PPP, with its protocol number.
func pppoe(number ...byte) []byte { return append([]byte{0x11, 0, 0, 7, 0, 0}, number...) }

// labels inserts a label stack.
func labels(n int) func([]byte) []byte {
	stack := bytes.Repeat([]byte{0, 1, 0, 64}, n)
	stack[4*n-2] = 1
	return insert(atIP, stack...)
}

var (
	vlan     = insert(atType, 0x81, 0, 0x20, 1)
	qinq     = all(vlan, insert(atType, 0x88, 0xa8, 0, 2))
	fragment = extend(protoFragment, 0, 0, 0, 0, 0, 0, 1) // the first one
	later    = extend(protoFragment, 0, 0, 8, 0, 0, 0, 1)
	auth     = extend(protoAH, append([]byte{1}, make([]byte, 10)...)...) // 12 bytes
	authLong = extend(protoAH, append([]byte{4}, make([]byte, 22)...)...) // 24 bytes
)

// A valid packet and one change to it, for each exit of the parser.
var cases = []struct {
	name   string
	tuple  key.Tuple
	change func([]byte) []byte
	result Result
	want   key.Tuple // zero: no addresses
}{
	{"IPv4", tcp4, nil, OK, tcp4},
	{"IPv6", tcp6, nil, OK, tcp6},

	{"an empty frame", tcp4, cutTo(0), Truncated, key.Tuple{}},
	{"cut within Ethernet", tcp4, cutTo(13), Truncated, key.Tuple{}},
	{"ARP", tcp4, set(atType, 8, 6), ARP, key.Tuple{}},
	{"another EtherType", tcp4, set(atType, 0x88, 0xe7), NotIP, key.Tuple{}},
	{"LLDP", tcp4, set(atType, 0x88, 0xcc), Link, key.Tuple{}},
	{"LACP in a tag", tcp4, all(set(atType, 0x88, 0x09), vlan), Link, key.Tuple{}},
	{"spanning tree", tcp4, set(atType, 0, 38, 0x42, 0x42, 3), Link, key.Tuple{}},
	{"IS-IS", tcp4, set(atType, 5, 0xdc, 0xfe, 0xfe, 3), Link, key.Tuple{}},
	{"beyond an 802.3 length", tcp4, set(atType, 5, 0xdd, 0xfe, 0xfe, 3), NotIP, key.Tuple{}},
	{"PVST", tcp4, set(atType, 0, 50, 0xaa, 0xaa, 3, 0, 0, 0x0c, 1, 0x0b), Link, key.Tuple{}},
	{"IPv4 in SNAP", tcp4, set(atType, 0, 50, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0), NotIP, key.Tuple{}},
	{"LLC, cut", tcp4, all(set(atType, 0, 38, 0x42, 0x42, 3), cutTo(19)), NotIP, key.Tuple{}},
	{"PPPoE discovery", tcp4, set(atType, 0x88, 0x63), Link, key.Tuple{}},
	{"an 802.3 length", tcp4, set(atType, 0, 60), NotIP, key.Tuple{}},

	{"one tag", tcp4, vlan, OK, tcp4},
	{"a priority tag", tcp6, insert(atType, 0x81, 0, 0xe0, 0), OK, tcp6},
	{"two tags", tcp4, qinq, OK, tcp4},
	{"two equal tags", tcp6, all(vlan, vlan), OK, tcp6},
	{"ARP in two tags", tcp4, all(set(atType, 8, 6), qinq), ARP, key.Tuple{}},
	{"eight tags", tcp4, repeat(8, vlan), OK, tcp4},
	{"nine tags", tcp4, repeat(9, vlan), Overtagged, key.Tuple{}},
	{"cut within the eighth tag", tcp4, all(repeat(9, vlan), cutTo(14+8*4-1)), Truncated, key.Tuple{}},
	{"cut after the eighth tag", tcp4, all(repeat(9, vlan), cutTo(14+8*4)), Overtagged, key.Tuple{}},
	{"cut within a tag", tcp4, all(vlan, cutTo(17)), Truncated, key.Tuple{}},
	{"cut within the second tag", tcp4, all(qinq, cutTo(21)), Truncated, key.Tuple{}},
	{"cut after the second tag", tcp4, all(qinq, cutTo(22)), Truncated, key.Tuple{}},

	{"PPPoE", tcp4, all(insert(atIP, pppoe(0, 0x21)...), of(0x8864)), OK, tcp4},
	{"PPPoE", tcp6, all(insert(atIP, pppoe(0, 0x57)...), of(0x8864)), OK, tcp6},
	{"PPPoE with a short protocol number", tcp6, all(insert(atIP, pppoe(0x57)...), of(0x8864)), OK, tcp6},
	{"PPPoE in a tag", tcp4, all(insert(atIP, pppoe(0, 0x21)...), vlan, of(0x8864)), OK, tcp4},
	{"another protocol of PPP", tcp4, all(insert(atIP, pppoe(0, 0x3d)...), of(0x8864)), NotIP, key.Tuple{}},
	{"a PPP protocol that controls the session", tcp4, all(insert(atIP, pppoe(0xc0, 0x21)...), of(0x8864)), Link, key.Tuple{}},
	{"cut within PPP", tcp4, all(insert(atIP, pppoe(0, 0x21)...), cutTo(atIP+7), of(0x8864)), Truncated, key.Tuple{}},
	{"MPLS", tcp4, all(labels(1), of(0x8847)), OK, tcp4},
	{"MPLS multicast", tcp6, all(labels(1), of(0x8848)), OK, tcp6},
	{"MPLS in PPPoE", tcp6, all(labels(2), insert(atIP, pppoe(2, 0x81)...), of(0x8864)), OK, tcp6},
	{"16 labels", tcp6, all(labels(16), of(0x8847)), OK, tcp6},
	{"17 labels", tcp6, all(labels(17), of(0x8847)), Overtagged, key.Tuple{}},
	{"cut within a label", tcp4, all(labels(2), cutTo(atIP+7), of(0x8847)), Truncated, key.Tuple{}},
	{"no label is the last", tcp4, all(labels(2), set(atIP+6, 0), cutTo(atIP+8), of(0x8847)), Truncated, key.Tuple{}},
	{"a control word", tcp4, all(insert(atIP, 0, 0, 0, 0), labels(1), of(0x8847)), NotIP, key.Tuple{}},
	{"Ethernet that looks like IPv4", tcp4, all(insert(atIP, 0x40, 0xf9, 0xff, 1, 2, 3, 0x40, 0xf9, 0xff, 1, 2, 3, 8, 0), labels(1), of(0x8847)), NotIP, key.Tuple{}},
	{"Ethernet that looks like IPv6", tcp4, all(insert(atIP, 0x60, 0xf9, 0xff, 1, 0x20, 3, 0x60, 0xf9, 0xff, 1, 2, 3, 8, 0), labels(1), of(0x8847)), NotIP, key.Tuple{}},
	{"another version behind labels", tcp4, all(set(atIP, 0x55), labels(1), of(0x8847)), NotIP, key.Tuple{}},
	{"nothing behind labels", tcp4, all(labels(1), cutTo(atIP+4), of(0x8847)), NotIP, key.Tuple{}},

	{"cut within IPv4", tcp4, cutTo(atLayer44 - 1), Truncated, key.Tuple{}},
	{"version 6 as IPv4", tcp4, set(atIP, 0x65), Malformed, key.Tuple{}},
	{"version 0", tcp4, set(atIP, 0x05), Malformed, key.Tuple{}},
	{"IHL below 5", tcp4, set(atIP, 0x44), Malformed, none4},
	{"a length below the header's", tcp4, length4(19), Malformed, none4},
	{"options", tcp4, all(set(atIP, 0x46), insert(atLayer44, 1, 1, 1, 0), length4(44)), OK, tcp4},
	{"all options", tcp4, all(set(atIP, 0x4f), insert(atLayer44, make([]byte, 40)...), length4(80)), OK, tcp4},
	{"options beyond the frame", tcp4, all(set(atIP, 0x4f), length4(100)), Truncated, none4},
	{"options beyond the length", tcp4, set(atIP, 0x4f), Malformed, none4},
	{"no transport by its length", tcp4, length4(20), Truncated, none4},
	{"7 bytes of transport by its length", tcp4, length4(27), Truncated, none4},
	{"8 bytes of transport", tcp4, all(length4(28), cutTo(atLayer44+8)), OK, tcp4},
	{"cut within transport", tcp4, cutTo(atLayer44 + 7), Truncated, none4},
	{"a length of 0: aggregated", tcp4, length4(0), OK, tcp4},
	{"a length of 0, cut", tcp4, all(length4(0), cutTo(atLayer44+4)), Truncated, none4},
	{"padding after the packet", tcp4, all(length4(28), insert(atLayer44+20, make([]byte, 30)...)), OK, tcp4},
	{"a first fragment", tcp4, set(atIP+6, 0x20, 0), OK, tcp4},
	{"a later fragment", tcp4, set(atIP+6, 0x00, 1), OK, none4},
	{"a later fragment without data", tcp4, all(set(atIP+6, 0x20, 1), length4(20), cutTo(atLayer44)), OK, none4},
	{"do not fragment", tcp4, set(atIP+6, 0x40, 0), OK, tcp4},
	{"UDP", tcp4, set(atIP+9, 17), OK, with(tcp4, 17)},
	{"SCTP", tcp4, set(atIP+9, 132), OK, with(tcp4, 132)},
	{"ICMP", tcp4, set(atIP+9, 1), OK, with(none4, 1)},
	{"ICMP cut", tcp4, all(set(atIP+9, 1), cutTo(atLayer44+7)), Truncated, with(none4, 1)},
	{"ICMPv6 over IPv4 cut", tcp4, all(set(atIP+9, 58), length4(27)), Truncated, with(none4, 58)},
	{"DCCP", tcp4, set(atIP+9, 33), OK, with(tcp4, 33)},
	{"UDP-Lite", tcp4, set(atIP+9, 136), OK, with(tcp4, 136)},
	{"GRE", tcp4, set(atIP+9, 47), OK, with(none4, 47)},
	{"GRE without data", tcp4, all(set(atIP+9, 47), cutTo(atLayer44)), OK, with(none4, 47)},
	{"hop-by-hop over IPv4 is data", tcp4, set(atIP+9, 0), OK, with(none4, 0)},

	{"cut within IPv6", tcp6, cutTo(atExt6 - 1), Truncated, key.Tuple{}},
	{"version 4 as IPv6", tcp6, set(atIP, 0x40), Malformed, key.Tuple{}},
	{"no transport by IPv6's length", tcp6, length6(7), Truncated, none6},
	{"8 bytes of transport over IPv6", tcp6, all(length6(8), cutTo(atExt6+8)), OK, tcp6},
	{"cut within transport over IPv6", tcp6, cutTo(atExt6 + 7), Truncated, none6},
	{"a payload of 0: a jumbogram", tcp6, length6(0), OK, tcp6},
	{"no next header", tcp6, all(set(atNext6, 59), cutTo(atExt6)), OK, with(none6, 59)},
	{"SCTP over IPv6", tcp6, set(atNext6, 132), OK, with(tcp6, 132)},
	{"ICMPv6 cut", tcp6, all(set(atNext6, 58), length6(7)), Truncated, with(none6, 58)},

	{"hop-by-hop", tcp6, options(protoHopOpts, 8), OK, tcp6},
	{"routing", tcp6, options(protoRouting, 24), OK, tcp6},
	{"destination options", tcp6, options(protoDstOpts, 16), OK, tcp6},
	{"mobility", tcp6, options(protoMobility, 8), OK, tcp6},
	{"HIP", tcp6, options(protoHIP, 40), OK, tcp6},
	{"shim6", tcp6, options(protoShim6, 8), OK, tcp6},
	{"authentication, in units of 4 bytes", tcp6, auth, OK, tcp6},
	{"a longer one", tcp6, authLong, OK, tcp6},
	{"a first fragment over IPv6", tcp6, fragment, OK, tcp6},
	{"a fragment header's length does not count", tcp6, extend(protoFragment, 200, 0, 0, 0, 0, 0, 1), OK, tcp6},
	{"reserved bits of a fragment header", tcp6, extend(protoFragment, 0, 0, 7, 0, 0, 0, 1), OK, tcp6},
	{"a later fragment over IPv6", tcp6, later, OK, none6},
	{"a later fragment goes on as data", tcp6, all(options(protoDstOpts, 8), later), OK, with(none6, protoDstOpts)},
	{"options, then a fragment", tcp6, all(fragment, options(protoHopOpts, 8)), OK, tcp6},
	{"all kinds", tcp6, all(options(protoShim6, 8), options(protoHIP, 8), options(protoMobility, 8), auth, fragment,
		options(protoRouting, 8), options(protoDstOpts, 8), options(protoHopOpts, 8)), OK, tcp6},
	{"16 headers", tcp6, repeat(16, options(protoDstOpts, 8)), OK, tcp6},
	{"17 headers", tcp6, repeat(17, options(protoDstOpts, 8)), Unparsed, with(none6, protoDstOpts)},
	{"1024 bytes", tcp6, options(protoDstOpts, 1024), OK, tcp6},
	{"1032 bytes", tcp6, options(protoDstOpts, 1032), Unparsed, with(none6, 6)},
	{"1032 bytes in two", tcp6, all(options(protoDstOpts, 1024), options(protoDstOpts, 8)), Unparsed, with(none6, 6)},
	{"a header beyond the payload", tcp6, all(options(protoDstOpts, 16), length6(15)), Truncated, with(none6, 6)},
	{"a header's start beyond the payload", tcp6, all(options(protoDstOpts, 8), length6(7)), Truncated, with(none6, protoDstOpts)},
	{"a header beyond the frame", tcp6, all(options(protoDstOpts, 16), cutTo(atExt6+15)), Truncated, with(none6, 6)},
	{"a header's start beyond the frame", tcp6, all(options(protoDstOpts, 16), cutTo(atExt6+7)), Truncated, with(none6, protoDstOpts)},
	{"options in a tag", tcp6, all(options(protoDstOpts, 8), vlan), OK, tcp6},
}

func TestParse(t *testing.T) {
	for _, c := range cases {
		f := Frame(c.tuple)
		if c.change != nil {
			f = c.change(f)
		}
		before := bytes.Clone(f)
		p, result := Parse(f)
		want := c.want
		if p.HasAddresses != want.Src.IsValid() || p.Tuple != want || result != c.result || p.ND {
			t.Errorf("%s: result %d of %+v, want %d of %+v", c.name, result, p, c.result, want)
		}
		if !bytes.Equal(f, before) {
			t.Errorf("%s: the frame has been changed", c.name)
		}
	}
}

// Neighbour discovery is what receivers accept as such: RFC 4861, and RFC 6980.
func TestNeighbourDiscovery(t *testing.T) {
	icmp6 := with(none6, protoICMPv6)
	link := set(atHop6, 255)
	least := map[int]int{133: 8, 134: 16, 135: 24, 136: 24, 137: 40} // bytes
	local := set(atIP+8, 0xfe, 0x80)
	for kind := range 256 {
		for length := range 41 {
			f := all(link, local, length6(uint16(length)))(Frame(icmp6))
			f[atExt6] = byte(kind)
			n, ok := least[kind]
			if p, _ := Parse(f); p.ND != (ok && length >= n) {
				t.Errorf("type %d, %d bytes: %t", kind, length, p.ND)
			}
		}
	}
	solicitation := all(link, set(atExt6, 135))
	for name, c := range map[string]struct {
		change func([]byte) []byte
		want   bool
	}{
		"plain":                         {solicitation, true},
		"in a tag":                      {all(solicitation, vlan), true},
		"another code":                  {all(solicitation, set(atExt6+1, 1)), false},
		"a router":                      {all(link, set(atExt6, 134), local), true},
		"a router's other address":      {all(link, set(atExt6, 134)), false},
		"redirect":                      {all(link, set(atExt6, 137), local), true},
		"redirect from another address": {all(link, set(atExt6, 137)), false},
		"after options":                 {all(solicitation, options(protoHopOpts, 8)), false},
		"after HIP":                     {all(solicitation, options(protoHIP, 8)), false},
		"in PPPoE":                      {all(solicitation, insert(atIP, pppoe(0, 0x57)...), of(0x8864)), true},
		"from beyond the link":          {all(solicitation, set(atHop6, 254)), false},
		"in a first fragment":           {all(solicitation, fragment), false},
		"in an atomic fragment":         {all(solicitation, extend(protoFragment, 0, 0, 0, 0, 0, 0, 1)), false},
		"fragment, then options":        {all(solicitation, options(protoDstOpts, 8), fragment), false},
		"in a later fragment":           {all(solicitation, later), false},
		"cut":                           {all(solicitation, cutTo(atExt6+7)), false},
		"over another protocol":         {all(solicitation, set(atNext6, 6)), false},
	} {
		if p, _ := Parse(c.change(Frame(icmp6))); p.ND != c.want {
			t.Errorf("%s: %t", name, p.ND)
		}
	}
	f := Frame(with(none4, protoICMPv6))
	f[atIP+8], f[atLayer44] = 255, 135
	if p, _ := Parse(f); p.ND {
		t.Error("over IPv4")
	}
}

// Frame and Parse are inverses.
func TestFrame(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 10_000 {
		var a, b [16]byte
		for i := range a {
			a[i], b[i] = byte(r.Uint32()), byte(r.Uint32())
		}
		want := key.Tuple{Src: netip.AddrFrom16(a), Dst: netip.AddrFrom16(b), Proto: uint8(r.IntN(256))}
		if r.IntN(2) == 0 {
			want.Src, want.Dst = netip.AddrFrom4([4]byte(a[:])), netip.AddrFrom4([4]byte(b[:]))
		} else if isExtension(want.Proto) {
			continue
		}
		if p := want.Proto; key.HasPorts(p) && r.IntN(2) == 0 {
			want.HasPorts, want.SrcPort, want.DstPort = true, uint16(r.Uint32()), uint16(r.Uint32())
		}
		p, result := Parse(Frame(want))
		if result != OK || p.Tuple != want || !p.HasAddresses {
			t.Fatalf("%+v becomes %+v, result %d", want, p, result)
		}
	}
}

// in puts the packet of a frame, or the whole frame, into an IPv4 packet behind the header
// of a tunnel.
func in(proto uint8, whole bool, header ...byte) func([]byte) []byte {
	return func(f []byte) []byte {
		if !whole {
			f = f[atIP:]
		}
		outer := slices.Concat(Frame(with(none4, 59))[:atLayer44], header, f)
		outer[atIP+9] = proto
		return length4(uint16(len(outer) - atIP))(outer)
	}
}

// inUDP is in behind a UDP header with a destination port.
func inUDP(port uint16, whole bool, header ...byte) func([]byte) []byte {
	udp := []byte{0x12, 0x34, byte(port >> 8), byte(port), 0, 0, 0, 0}
	return in(protoUDP, whole, append(udp, header...)...)
}

var (
	ipip  = in(protoIPIP, false)
	vxlan = inUDP(portVXLAN, true, 8, 0, 0, 0, 0, 0, 7, 0)
)

// A packet in tunnels.
var tunnels = []struct {
	name   string
	tuple  key.Tuple
	change func([]byte) []byte
	depth  int // at which the packet is, 0 if it is not found
}{
	{"IPIP", tcp4, ipip, 1},
	{"6in4", tcp6, in(protoIPv6, false), 1},
	{"IPv6 that IPIP announces as IPv4", tcp6, ipip, 0},
	{"GRE", tcp4, in(protoGRE, false, 0, 0, 8, 0), 1},
	{"GRE with a checksum, a key and a number", tcp6, in(protoGRE, false, append([]byte{0xb0, 0, 0x86, 0xdd}, make([]byte, 12)...)...), 1},
	{"GRE with a bridged frame", tcp4, all(vlan, in(protoGRE, true, 0, 0, 0x65, 0x58)), 1},
	{"GRE with routing", tcp4, in(protoGRE, false, 0x40, 0, 8, 0), 0},
	{"GRE that WCCP redirects", tcp4, in(protoGRE, false, 0, 0, 0x88, 0x3e), 1},
	{"GRE that WCCP version 2 redirects", tcp4, in(protoGRE, false, 0, 0, 0x88, 0x3e, 0, 1, 2, 3), 1},
	{"GRE that WCCP redirects, with a key", tcp4, in(protoGRE, false, 0x20, 0, 0x88, 0x3e, 0, 0, 0, 1), 0},
	{"PPTP", tcp4, in(protoGRE, false, 0x20, 1, 0x88, 0x0b, 0, 0, 0, 0), 0},
	{"VXLAN", tcp6, vxlan, 1},
	{"VXLAN with tags inside and outside", tcp4, all(vlan, vxlan, qinq), 1},
	{"VXLAN without a VNI", tcp4, inUDP(portVXLAN, true, 0, 0, 0, 0, 0, 0, 7, 0), 0},
	{"GTP-U", tcp4, inUDP(portGTPU, false, 0x30, 0xff, 0, 0, 0, 0, 0, 1), 1},
	{"GTP-U with an extension", tcp6, inUDP(portGTPU, false, 0x34, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x85, 1, 0, 0, 0), 1},
	{"GTP-U with an extension of no length", tcp6, inUDP(portGTPU, false, 0x34, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x85, 0, 0, 0, 0), 0},
	{"GTP-U, an echo", tcp4, inUDP(portGTPU, false, 0x30, 1, 0, 0, 0, 0, 0, 1), 0},
	{"four, one in the other", tcp4, all(ipip, vxlan, in(protoGRE, false, 0, 0, 8, 0), ipip), 4},
	{"in PPPoE", tcp4, all(ipip, insert(atIP, pppoe(0, 0x21)...), of(0x8864)), 1},
	{"in MPLS", tcp4, all(ipip, labels(2), of(0x8847)), 1},
	{"a first fragment", tcp4, all(ipip, set(atIP+6, 0x20, 0)), 1},
	{"a later fragment", tcp4, all(ipip, set(atIP+6, 0, 1)), 0},
	{"cut within the inner header", tcp4, all(ipip, cutTo(atLayer44+19)), 0},
	{"cut behind the inner header", tcp4, all(ipip, cutTo(atLayer44+20)), 1},
}

func TestInner(t *testing.T) {
	for _, c := range tunnels {
		f := c.change(Frame(c.tuple))
		p, result := Parse(f)
		if result != OK {
			t.Errorf("%s: result %d", c.name, result)
		}
		depth := 0
		for inner, _ := p.Inner(f); inner.HasAddresses; inner, _ = p.Inner(f) {
			p = inner
			depth++
		}
		if depth != c.depth || depth > 0 && (p.Src != c.tuple.Src || p.Dst != c.tuple.Dst) {
			t.Errorf("%s: %v > %v at depth %d, want depth %d", c.name, p.Src, p.Dst, depth, c.depth)
		}
	}
}

// What hides a header in a tunnel is reported as outside a tunnel: also where padding of the
// frame, or of the packet around it, looks like the rest of it.
func TestHiddenInner(t *testing.T) {
	tags := func(n int) func([]byte) []byte {
		return insert(atIP-2, bytes.Repeat([]byte{0x81, 0, 0, 7}, n)...)
	}
	// first returns the first fragment of a packet with n bytes of payload, as Ethernet pads it.
	first := func(n int) func([]byte) []byte {
		return all(set(atIP+6, 0x20, 0), length4(uint16(20+n)))
	}
	gre, gtpu := in(protoGRE, false, 0, 0, 8, 0), inUDP(portGTPU, false, 0x30, 0xff, 0, 0, 0, 0, 0, 1)
	for _, c := range []struct {
		name   string
		change func([]byte) []byte
		want   Result
	}{
		{"eight tags in VXLAN", all(tags(MaxVLANTags), vxlan), OK},
		{"nine tags in VXLAN", all(tags(MaxVLANTags+1), vxlan), Overtagged},
		{"nine tags in GRE", all(tags(MaxVLANTags+1), in(protoGRE, true, 0, 0, 0x65, 0x58)), Overtagged},
		{"a first fragment that ends within IP in IP", all(ipip, first(16)), Truncated},
		{"one that ends within GRE", all(gre, first(8)), Truncated},
		{"one that ends before VXLAN", all(vxlan, first(8)), Truncated},
		{"one that ends behind VXLAN", all(vxlan, first(16)), Truncated},
		{"one that ends within the Ethernet header in VXLAN", all(vxlan, first(24)), Truncated},
		{"one that ends before GTP-U", all(gtpu, first(8)), Truncated},
		{"one that ends behind GTP-U", all(gtpu, first(16)), Truncated},
		{"one that ends within the ports", all(ipip, first(24)), Truncated},
		{"one with all headers", all(ipip, first(32)), OK},
		{"options beyond the packet", all(ipip, set(atIP, 0x4f), cutTo(atLayer44+20)), Truncated},
		{"IPv6 that IPIP announces as IPv4", all(ipip, set(atLayer44, 0x60)), Malformed},
		{"an extension of GTP-U with no length", inUDP(portGTPU, false, 0x34, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x85, 0), Malformed},
		{"five extensions of GTP-U", inUDP(portGTPU, false, append([]byte{0x34, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 0}, bytes.Repeat([]byte{0x85, 1, 0, 0}, 5)...)...), Unparsed},
		{"a header far from the beginning", inUDP(portGTPU, false, slices.Concat(
			[]byte{0x34, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x85, 255}, make([]byte, 255*4-2), []byte{0})...), Unparsed},
		{"PPTP", in(protoGRE, false, 0x20, 1, 0x88, 0x0b, 0, 0, 0, 0), NotIP},
		{"no tunnel", func(f []byte) []byte { return f }, NotIP},
	} {
		f := c.change(Frame(tcp4))
		p, result := Parse(f)
		if result != OK {
			t.Errorf("%s: result %d", c.name, result)
		}
		in, got := p.Inner(f)
		if got != c.want || got == OK && in.Tuple != tcp4 {
			t.Errorf("%s: result %d with %+v, want %d", c.name, got, in, c.want)
		}
	}
	// In a tunnel as well, whose packet ends before what it claims to carry does.
	f := all(ipip, gre, first(16), ipip)(Frame(tcp4))
	p, _ := Parse(f)
	inner, r := p.Inner(f)
	if r != OK {
		t.Fatalf("result %d of the header in the first tunnel", r)
	}
	if in, r := inner.Inner(f); r != Truncated {
		t.Errorf("a first fragment in a tunnel: result %d with %+v", r, in)
	}
}

// No frame makes the parser panic or return an inconsistent result, in tunnels either.
func FuzzParse(f *testing.F) {
	for _, c := range cases {
		frame := Frame(c.tuple)
		if c.change != nil {
			frame = c.change(frame)
		}
		f.Add(frame)
	}
	for _, c := range tunnels {
		f.Add(c.change(Frame(c.tuple)))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		p, result := Parse(frame)
		if err := impossible(p, result); err != nil {
			t.Errorf("% x: %v", frame, err)
		}
		// What follows the packet must not matter.
		if longer, r := Parse(append(bytes.Clone(frame), 0xff)); result == OK && (r != OK || longer != p) {
			t.Errorf("% x: %+v, with a byte more %+v and result %d", frame, p, longer, r)
		}
		for inner, _ := p.Inner(frame); inner.HasAddresses; inner, _ = p.Inner(frame) {
			if inner.Src.Is4() != inner.Dst.Is4() || inner.Network < p.Payload || inner.Network > maxInnerOffset ||
				inner.HasPorts && !key.HasPorts(inner.Proto) {
				t.Fatalf("% x: %+v in %+v", frame, inner, p)
			}
			p = inner
		}
	})
}

func impossible(p Packet, r Result) error {
	switch {
	case !p.HasAddresses && p != Packet{Network: p.Network, EtherType: p.EtherType, Encapsulated: p.Encapsulated}:
		return fmt.Errorf("%+v without addresses", p)
	case p.HasAddresses && p.Src.Is4() != p.Dst.Is4():
		return fmt.Errorf("%+v has addresses of two families", p)
	case p.HasAddresses && (r == NotIP || r == ARP || r == Link), !p.HasAddresses && r == OK:
		return fmt.Errorf("%+v with result %d", p, r)
	case p.HasPorts && (r != OK || !key.HasPorts(p.Proto)):
		return fmt.Errorf("%+v has ports with result %d", p, r)
	case !p.HasPorts && (p.SrcPort != 0 || p.DstPort != 0):
		return fmt.Errorf("%+v has port numbers, but HasPorts is false", p)
	case p.ND && (r != OK || p.Proto != protoICMPv6 || p.Src.Is4()):
		return fmt.Errorf("%+v is neighbour discovery with result %d", p, r)
	}
	return nil
}
