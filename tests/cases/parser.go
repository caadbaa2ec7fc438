package cases

import (
	"bytes"
	"slices"

	"weir/filter/key"
	"weir/filter/packet"
)

// Parsed is a frame that the parser reads.
type Parsed struct {
	Name   string
	Frame  []byte
	Result packet.Result
	Tuple  key.Tuple // the zero one: no addresses
}

// OfParser returns a valid packet and one change to it, for each exit of the parser.
func OfParser() (all []Parsed) {
	for _, c := range parsed {
		f := packet.Frame(c.tuple)
		if c.change != nil {
			f = c.change(f)
		}
		all = append(all, Parsed{c.name, f, c.result, c.want})
	}
	return all
}

var parsed = []struct {
	name   string
	tuple  key.Tuple
	change func([]byte) []byte
	result packet.Result
	want   key.Tuple
}{
	{"IPv4", tcp4, nil, packet.OK, tcp4},
	{"IPv6", tcp6, nil, packet.OK, tcp6},

	{"an empty frame", tcp4, cutTo(0), packet.Truncated, key.Tuple{}},
	{"cut within Ethernet", tcp4, cutTo(13), packet.Truncated, key.Tuple{}},
	{"ARP", tcp4, set(atType, 8, 6), packet.ARP, key.Tuple{}},
	{"another EtherType", tcp4, set(atType, 0x88, 0xe7), packet.NotIP, key.Tuple{}},
	{"LLDP", tcp4, set(atType, 0x88, 0xcc), packet.Link, key.Tuple{}},
	{"LACP in a tag", tcp4, all(set(atType, 0x88, 0x09), vlan), packet.Link, key.Tuple{}},
	{"spanning tree", tcp4, set(atType, 0, 38, 0x42, 0x42, 3), packet.Link, key.Tuple{}},
	{"IS-IS", tcp4, set(atType, 5, 0xdc, 0xfe, 0xfe, 3), packet.Link, key.Tuple{}},
	{"beyond an 802.3 length", tcp4, set(atType, 5, 0xdd, 0xfe, 0xfe, 3), packet.NotIP, key.Tuple{}},
	{"PVST", tcp4, set(atType, 0, 50, 0xaa, 0xaa, 3, 0, 0, 0x0c, 1, 0x0b), packet.Link, key.Tuple{}},
	{"IPv4 in SNAP", tcp4, set(atType, 0, 50, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0), packet.NotIP, key.Tuple{}},
	{"LLC, cut", tcp4, all(set(atType, 0, 38, 0x42, 0x42, 3), cutTo(19)), packet.NotIP, key.Tuple{}},
	{"PPPoE discovery", tcp4, set(atType, 0x88, 0x63), packet.Link, key.Tuple{}},
	{"an 802.3 length", tcp4, set(atType, 0, 60), packet.NotIP, key.Tuple{}},

	{"one tag", tcp4, vlan, packet.OK, tcp4},
	{"a priority tag", tcp6, insert(atType, 0x81, 0, 0xe0, 0), packet.OK, tcp6},
	{"two tags", tcp4, qinq, packet.OK, tcp4},
	{"two equal tags", tcp6, all(vlan, vlan), packet.OK, tcp6},
	{"ARP in two tags", tcp4, all(set(atType, 8, 6), qinq), packet.ARP, key.Tuple{}},
	{"eight tags", tcp4, repeat(8, vlan), packet.OK, tcp4},
	{"nine tags", tcp4, repeat(9, vlan), packet.Overtagged, key.Tuple{}},
	{"cut within the eighth tag", tcp4, all(repeat(9, vlan), cutTo(14+8*4-1)), packet.Truncated, key.Tuple{}},
	{"cut after the eighth tag", tcp4, all(repeat(9, vlan), cutTo(14+8*4)), packet.Overtagged, key.Tuple{}},
	{"cut within a tag", tcp4, all(vlan, cutTo(17)), packet.Truncated, key.Tuple{}},
	{"cut within the second tag", tcp4, all(qinq, cutTo(21)), packet.Truncated, key.Tuple{}},
	{"cut after the second tag", tcp4, all(qinq, cutTo(22)), packet.Truncated, key.Tuple{}},

	{"PPPoE", tcp4, all(insert(atIP, pppoe(0, 0x21)...), of(0x8864)), packet.OK, tcp4},
	{"PPPoE", tcp6, all(insert(atIP, pppoe(0, 0x57)...), of(0x8864)), packet.OK, tcp6},
	{"PPPoE with a short protocol number", tcp6, all(insert(atIP, pppoe(0x57)...), of(0x8864)), packet.OK, tcp6},
	{"PPPoE in a tag", tcp4, all(insert(atIP, pppoe(0, 0x21)...), vlan, of(0x8864)), packet.OK, tcp4},
	{"another protocol of PPP", tcp4, all(insert(atIP, pppoe(0, 0x3d)...), of(0x8864)), packet.NotIP, key.Tuple{}},
	{"a PPP protocol that controls the session", tcp4, all(insert(atIP, pppoe(0xc0, 0x21)...), of(0x8864)), packet.Link, key.Tuple{}},
	{"cut within PPP", tcp4, all(insert(atIP, pppoe(0, 0x21)...), cutTo(atIP+7), of(0x8864)), packet.Truncated, key.Tuple{}},
	{"MPLS", tcp4, all(labels(1), of(0x8847)), packet.OK, tcp4},
	{"MPLS multicast", tcp6, all(labels(1), of(0x8848)), packet.OK, tcp6},
	{"MPLS in PPPoE", tcp6, all(labels(2), insert(atIP, pppoe(2, 0x81)...), of(0x8864)), packet.OK, tcp6},
	{"16 labels", tcp6, all(labels(16), of(0x8847)), packet.OK, tcp6},
	{"17 labels", tcp6, all(labels(17), of(0x8847)), packet.Overtagged, key.Tuple{}},
	{"cut within a label", tcp4, all(labels(2), cutTo(atIP+7), of(0x8847)), packet.Truncated, key.Tuple{}},
	{"no label is the last", tcp4, all(labels(2), set(atIP+6, 0), cutTo(atIP+8), of(0x8847)), packet.Truncated, key.Tuple{}},
	{"a control word", tcp4, all(insert(atIP, 0, 0, 0, 0), labels(1), of(0x8847)), packet.NotIP, key.Tuple{}},
	{"Ethernet that looks like IPv4", tcp4, all(insert(atIP, 0x40, 0xf9, 0xff, 1, 2, 3, 0x40, 0xf9, 0xff, 1, 2, 3, 8, 0), labels(1), of(0x8847)), packet.NotIP, key.Tuple{}},
	{"Ethernet that looks like IPv6", tcp4, all(insert(atIP, 0x60, 0xf9, 0xff, 1, 0x20, 3, 0x60, 0xf9, 0xff, 1, 2, 3, 8, 0), labels(1), of(0x8847)), packet.NotIP, key.Tuple{}},
	{"another version behind labels", tcp4, all(set(atIP, 0x55), labels(1), of(0x8847)), packet.NotIP, key.Tuple{}},
	{"nothing behind labels", tcp4, all(labels(1), cutTo(atIP+4), of(0x8847)), packet.NotIP, key.Tuple{}},

	{"cut within IPv4", tcp4, cutTo(atLayer44 - 1), packet.Truncated, key.Tuple{}},
	{"version 6 as IPv4", tcp4, set(atIP, 0x65), packet.Malformed, key.Tuple{}},
	{"version 0", tcp4, set(atIP, 0x05), packet.Malformed, key.Tuple{}},
	{"IHL below 5", tcp4, set(atIP, 0x44), packet.Malformed, none4},
	{"a length below the header's", tcp4, length4(19), packet.Malformed, none4},
	{"options", tcp4, all(set(atIP, 0x46), insert(atLayer44, 1, 1, 1, 0), length4(44)), packet.OK, tcp4},
	{"all options", tcp4, all(set(atIP, 0x4f), insert(atLayer44, make([]byte, 40)...), length4(80)), packet.OK, tcp4},
	{"options beyond the frame", tcp4, all(set(atIP, 0x4f), length4(100)), packet.Truncated, none4},
	{"options beyond the length", tcp4, set(atIP, 0x4f), packet.Malformed, none4},
	{"no transport by its length", tcp4, length4(20), packet.Truncated, none4},
	{"7 bytes of transport by its length", tcp4, length4(27), packet.Truncated, none4},
	{"8 bytes of transport", tcp4, all(length4(28), cutTo(atLayer44+8)), packet.OK, tcp4},
	{"cut within transport", tcp4, cutTo(atLayer44 + 7), packet.Truncated, none4},
	{"a length of 0: aggregated", tcp4, length4(0), packet.OK, tcp4},
	{"a length of 0, cut", tcp4, all(length4(0), cutTo(atLayer44+4)), packet.Truncated, none4},
	{"padding after the packet", tcp4, all(length4(28), insert(atLayer44+20, make([]byte, 30)...)), packet.OK, tcp4},
	{"a first fragment", tcp4, set(atIP+6, 0x20, 0), packet.OK, tcp4},
	{"a later fragment", tcp4, set(atIP+6, 0x00, 1), packet.OK, none4},
	{"a later fragment without data", tcp4, all(set(atIP+6, 0x20, 1), length4(20), cutTo(atLayer44)), packet.OK, none4},
	{"do not fragment", tcp4, set(atIP+6, 0x40, 0), packet.OK, tcp4},
	{"UDP", tcp4, set(atIP+9, 17), packet.OK, with(tcp4, 17)},
	{"SCTP", tcp4, set(atIP+9, 132), packet.OK, with(tcp4, 132)},
	{"ICMP", tcp4, set(atIP+9, 1), packet.OK, with(none4, 1)},
	{"ICMP cut", tcp4, all(set(atIP+9, 1), cutTo(atLayer44+7)), packet.Truncated, with(none4, 1)},
	{"ICMPv6 over IPv4 cut", tcp4, all(set(atIP+9, 58), length4(27)), packet.Truncated, with(none4, 58)},
	{"DCCP", tcp4, set(atIP+9, 33), packet.OK, with(tcp4, 33)},
	{"UDP-Lite", tcp4, set(atIP+9, 136), packet.OK, with(tcp4, 136)},
	{"GRE", tcp4, set(atIP+9, 47), packet.OK, with(none4, 47)},
	{"GRE without data", tcp4, all(set(atIP+9, 47), cutTo(atLayer44)), packet.OK, with(none4, 47)},
	{"hop-by-hop over IPv4 is data", tcp4, set(atIP+9, 0), packet.OK, with(none4, 0)},

	{"cut within IPv6", tcp6, cutTo(atExt6 - 1), packet.Truncated, key.Tuple{}},
	{"version 4 as IPv6", tcp6, set(atIP, 0x40), packet.Malformed, key.Tuple{}},
	{"no transport by IPv6's length", tcp6, length6(7), packet.Truncated, none6},
	{"8 bytes of transport over IPv6", tcp6, all(length6(8), cutTo(atExt6+8)), packet.OK, tcp6},
	{"cut within transport over IPv6", tcp6, cutTo(atExt6 + 7), packet.Truncated, none6},
	{"a payload of 0: a jumbogram", tcp6, length6(0), packet.OK, tcp6},
	{"no next header", tcp6, all(set(atNext6, 59), cutTo(atExt6)), packet.OK, with(none6, 59)},
	{"SCTP over IPv6", tcp6, set(atNext6, 132), packet.OK, with(tcp6, 132)},
	{"ICMPv6 cut", tcp6, all(set(atNext6, 58), length6(7)), packet.Truncated, with(none6, 58)},

	{"hop-by-hop", tcp6, options(protoHopOpts, 8), packet.OK, tcp6},
	{"routing", tcp6, options(protoRouting, 24), packet.OK, tcp6},
	{"destination options", tcp6, options(protoDstOpts, 16), packet.OK, tcp6},
	{"mobility", tcp6, options(protoMobility, 8), packet.OK, tcp6},
	{"HIP", tcp6, options(protoHIP, 40), packet.OK, tcp6},
	{"shim6", tcp6, options(protoShim6, 8), packet.OK, tcp6},
	{"authentication, in units of 4 bytes", tcp6, auth, packet.OK, tcp6},
	{"a longer one", tcp6, authLong, packet.OK, tcp6},
	{"a first fragment over IPv6", tcp6, fragment, packet.OK, tcp6},
	{"a fragment header's length does not count", tcp6, extend(protoFragment, 200, 0, 0, 0, 0, 0, 1), packet.OK, tcp6},
	{"reserved bits of a fragment header", tcp6, extend(protoFragment, 0, 0, 7, 0, 0, 0, 1), packet.OK, tcp6},
	{"a later fragment over IPv6", tcp6, later, packet.OK, none6},
	{"a later fragment goes on as data", tcp6, all(options(protoDstOpts, 8), later), packet.OK, with(none6, protoDstOpts)},
	{"options, then a fragment", tcp6, all(fragment, options(protoHopOpts, 8)), packet.OK, tcp6},
	{"all kinds", tcp6, all(options(protoShim6, 8), options(protoHIP, 8), options(protoMobility, 8), auth, fragment,
		options(protoRouting, 8), options(protoDstOpts, 8), options(protoHopOpts, 8)), packet.OK, tcp6},
	{"16 headers", tcp6, repeat(16, options(protoDstOpts, 8)), packet.OK, tcp6},
	{"17 headers", tcp6, repeat(17, options(protoDstOpts, 8)), packet.Unparsed, with(none6, protoDstOpts)},
	{"1024 bytes", tcp6, options(protoDstOpts, 1024), packet.OK, tcp6},
	{"1032 bytes", tcp6, options(protoDstOpts, 1032), packet.Unparsed, with(none6, 6)},
	{"1032 bytes in two", tcp6, all(options(protoDstOpts, 1024), options(protoDstOpts, 8)), packet.Unparsed, with(none6, 6)},
	{"a header beyond the payload", tcp6, all(options(protoDstOpts, 16), length6(15)), packet.Truncated, with(none6, 6)},
	{"a header's start beyond the payload", tcp6, all(options(protoDstOpts, 8), length6(7)), packet.Truncated, with(none6, protoDstOpts)},
	{"a header beyond the frame", tcp6, all(options(protoDstOpts, 16), cutTo(atExt6+15)), packet.Truncated, with(none6, 6)},
	{"a header's start beyond the frame", tcp6, all(options(protoDstOpts, 16), cutTo(atExt6+7)), packet.Truncated, with(none6, protoDstOpts)},
	{"options in a tag", tcp6, all(options(protoDstOpts, 8), vlan), packet.OK, tcp6},
}

// Neighbour is an ICMPv6 message that may be neighbour discovery as receivers accept it.
type Neighbour struct {
	Name  string
	Frame []byte
	ND    bool
}

// Message returns an ICMPv6 message from a link-local address of this link.
func Message(kind byte, length int) []byte {
	f := all(onLink, linkLocal, length6(uint16(length)))(packet.Frame(icmp6))
	f[atExt6] = kind
	return f
}

var (
	icmp6        = with(none6, protoICMPv6)
	onLink       = set(atHop6, 255)
	linkLocal    = set(atIP+8, 0xfe, 0x80)
	solicitation = all(onLink, set(atExt6, 135))
)

// OfNeighbours returns messages that are neighbour discovery, and others that nearly are.
func OfNeighbours() (found []Neighbour) {
	for _, c := range neighbours {
		found = append(found, Neighbour{c.name, c.change(packet.Frame(icmp6)), c.nd})
	}
	over4 := all(set(atIP+8, 255), set(atLayer44, 135))(packet.Frame(with(none4, protoICMPv6)))
	return append(found, Neighbour{"over IPv4", over4, false})
}

var neighbours = []struct {
	name   string
	change func([]byte) []byte
	nd     bool
}{
	{"plain", solicitation, true},
	{"in a tag", all(solicitation, vlan), true},
	{"another code", all(solicitation, set(atExt6+1, 1)), false},
	{"a router", all(onLink, set(atExt6, 134), linkLocal), true},
	{"a router's other address", all(onLink, set(atExt6, 134)), false},
	{"redirect", all(onLink, set(atExt6, 137), linkLocal), true},
	{"redirect from another address", all(onLink, set(atExt6, 137)), false},
	{"after options", all(solicitation, options(protoHopOpts, 8)), false},
	{"after HIP", all(solicitation, options(protoHIP, 8)), false},
	{"in PPPoE", all(solicitation, insert(atIP, pppoe(0, 0x57)...), of(0x8864)), true},
	{"from beyond the link", all(solicitation, set(atHop6, 254)), false},
	{"in a first fragment", all(solicitation, fragment), false},
	{"in an atomic fragment", all(solicitation, extend(protoFragment, 0, 0, 0, 0, 0, 0, 1)), false},
	{"fragment, then options", all(solicitation, options(protoDstOpts, 8), fragment), false},
	{"in a later fragment", all(solicitation, later), false},
	{"cut", all(solicitation, cutTo(atExt6+7)), false},
	{"over another protocol", all(solicitation, set(atNext6, 6)), false},
}

// Tunneled is a packet in tunnels.
type Tunneled struct {
	Name  string
	Frame []byte
	Depth int       // at which it is, 0 if it is not found
	Tuple key.Tuple // of it, the zero one if it is not found
}

// OfTunnels returns packets in tunnels of all kinds.
func OfTunnels() (all []Tunneled) {
	for _, c := range tunnels {
		found := c.tuple
		if c.depth == 0 {
			found = key.Tuple{}
		}
		all = append(all, Tunneled{c.name, c.change(packet.Frame(c.tuple)), c.depth, found})
	}
	cut := cutTo(atLayer44 + 20)(ipip(packet.Frame(tcp4)))
	return append(all, Tunneled{"cut behind the inner header", cut, 1, none4})
}

var tunnels = []struct {
	name   string
	tuple  key.Tuple
	change func([]byte) []byte
	depth  int
}{
	{"IPIP", tcp4, ipip, 1},
	{"6in4", tcp6, in(protoIPv6, false), 1},
	{"IPv6 that IPIP announces as IPv4", tcp6, ipip, 0},
	{"GRE", tcp4, in(protoGRE, false, 0, 0, 8, 0), 1},
	{"GRE with a checksum, a key and a number", tcp6, in(protoGRE, false, append([]byte{0xb0, 0, 0x86, 0xdd}, make([]byte, 12)...)...), 1},
	{"GRE with a bridged frame", tcp4, all(vlan, in(protoGRE, true, 0, 0, 0x65, 0x58)), 1},
	{"GRE with two tags", tcp4, in(protoGRE, false, 0, 0, 0x88, 0xa8, 0, 0, 0x81, 0, 0, 7, 8, 0), 1},
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
}

// Hidden is a packet in a tunnel, whose header may be hidden.
type Hidden struct {
	Name   string
	Frame  []byte
	Depth  int           // of the header that the result is of: 1 is the one in the first tunnel
	Result packet.Result // packet.NotIP: the packet around it is no tunnel's
	Tuple  key.Tuple     // the zero one: no addresses
}

// OfHidden returns packets whose inner header is hidden, also by what looks like the rest
// of it: padding of the frame, or of the packet around it.
func OfHidden() (found []Hidden) {
	for _, c := range hidden {
		found = append(found, Hidden{c.name, c.change(packet.Frame(tcp4)), 1, c.result, c.want})
	}
	// In a tunnel as well, whose packet ends before what it claims to carry does.
	deep := all(ipip, gre, first(16), ipip)(packet.Frame(tcp4))
	return append(found, Hidden{"a first fragment in a tunnel", deep, 2, packet.Truncated, key.Tuple{}})
}

// tags inserts VLAN tags.
func tags(n int) func([]byte) []byte {
	return insert(atIP-2, bytes.Repeat([]byte{0x81, 0, 0, 7}, n)...)
}

// first returns the first fragment of a packet with n bytes of payload, as Ethernet pads it.
func first(n int) func([]byte) []byte {
	return all(set(atIP+6, 0x20, 0), length4(uint16(20+n)))
}

var (
	gre  = in(protoGRE, false, 0, 0, 8, 0)
	gtpu = inUDP(portGTPU, false, 0x30, 0xff, 0, 0, 0, 0, 0, 1)
)

var hidden = []struct {
	name   string
	change func([]byte) []byte
	result packet.Result
	want   key.Tuple
}{
	{"eight tags in VXLAN", all(tags(packet.MaxVLANTags), vxlan), packet.OK, tcp4},
	{"nine tags in VXLAN", all(tags(packet.MaxVLANTags+1), vxlan), packet.Overtagged, key.Tuple{}},
	{"nine tags in GRE", all(tags(packet.MaxVLANTags+1), in(protoGRE, true, 0, 0, 0x65, 0x58)), packet.Overtagged, key.Tuple{}},
	{"a first fragment that ends within IP in IP", all(ipip, first(16)), packet.Truncated, key.Tuple{}},
	{"nine tags after GRE", in(protoGRE, false, append(append([]byte{0, 0, 0x81, 0}, bytes.Repeat([]byte{0, 0, 0x81, 0}, packet.MaxVLANTags)...), 0, 0, 8, 0)...), packet.Overtagged, key.Tuple{}},
	{"one that ends within a tag after GRE", all(in(protoGRE, false, 0, 0, 0x81, 0), first(6)), packet.Truncated, key.Tuple{}},
	{"one that ends within GRE", all(gre, first(8)), packet.Truncated, key.Tuple{}},
	{"one that ends before VXLAN", all(vxlan, first(8)), packet.Truncated, key.Tuple{}},
	{"one that ends behind VXLAN", all(vxlan, first(16)), packet.Truncated, key.Tuple{}},
	{"one that ends within the Ethernet header in VXLAN", all(vxlan, first(24)), packet.Truncated, key.Tuple{}},
	{"one that ends before GTP-U", all(gtpu, first(8)), packet.Truncated, key.Tuple{}},
	{"one that ends behind GTP-U", all(gtpu, first(16)), packet.Truncated, key.Tuple{}},
	{"one that ends within the ports", all(ipip, first(24)), packet.Truncated, none4},
	{"one with all headers", all(ipip, first(32)), packet.OK, tcp4},
	{"options beyond the packet", all(ipip, set(atIP, 0x4f), cutTo(atLayer44+20)), packet.Truncated, key.Tuple{}},
	{"IPv6 that IPIP announces as IPv4", all(ipip, set(atLayer44, 0x60)), packet.Malformed, key.Tuple{}},
	{"an extension of GTP-U with no length", inUDP(portGTPU, false, 0x34, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x85, 0), packet.Malformed, key.Tuple{}},
	{"five extensions of GTP-U", inUDP(portGTPU, false, append([]byte{0x34, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 0}, bytes.Repeat([]byte{0x85, 1, 0, 0}, 5)...)...), packet.Unparsed, key.Tuple{}},
	{"a header far from the beginning", inUDP(portGTPU, false, slices.Concat(
		[]byte{0x34, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x85, 255}, make([]byte, 255*4-2), []byte{0})...), packet.Unparsed, key.Tuple{}},
	{"PPTP", in(protoGRE, false, 0x20, 1, 0x88, 0x0b, 0, 0, 0, 0), packet.NotIP, key.Tuple{}},
	{"no tunnel", func(f []byte) []byte { return f }, packet.NotIP, key.Tuple{}},
}
