package cases

import (
	"bytes"
	"net/netip"
	"slices"

	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
)

// Policy is the policy of the verdicts.
var Policy = verdict.Policy{
	FailsafePorts:    []verdict.FailsafePort{{Proto: 17, Port: 4500}, {Proto: 6, Port: 22}},
	FailsafePrefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.64/26"), netip.MustParsePrefix("2001:db8:1::/48")},
	FailsafeICMP:     []verdict.FailsafeICMP{{ICMP: packet.ICMPError}, {ICMP: packet.EchoRequest}},
}

// Blocked and Allowed are the keys of the verdicts. Each that is blocked is a list, from 1 on.
var (
	Blocked = []key.Key{
		source("192.0.2.0/24"), source("2001:db8::/32"), flowKey,
		source("fe80::/10"), source("0.0.0.0/32"), source("fd00::/8"),
	}
	Allowed = source("192.0.2.7/32")
)

var (
	flow       = udp("198.51.100.1", "203.0.113.1", 1000, 53)
	flowKey, _ = key.Shape{Fields: key.FieldProto | key.FieldDstPort, DstBits: 32}.Of(flow)
)

func source(s string) key.Key { return key.Source(netip.MustParsePrefix(s)) }

// udp returns the tuple of a UDP packet.
func udp(src, dst string, srcPort, dstPort uint16) key.Tuple {
	return key.Tuple{
		Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst),
		Proto: protoUDP, HasPorts: true, SrcPort: srcPort, DstPort: dstPort,
	}
}

// Judged is an incoming frame that the policy and the lists decide on.
type Judged struct {
	Name   string
	Frame  []byte
	Reason verdict.Reason
	List   int // that blocks it, or 0
}

// OfVerdicts returns frames for each stage of the verdict.
func OfVerdicts() []Judged {
	listed := func() []byte { return packet.Frame(udp("192.0.2.1", "203.0.113.9", 1, 2)) }
	clean := func() []byte { return packet.Frame(udp("198.51.100.9", "203.0.113.9", 1, 2)) }
	v6 := func() []byte { return packet.Frame(udp("2001:db8::1", "2001:db8::2", 1, 2)) }
	overwrite := func(f []byte, at int, to ...byte) []byte { return set(at, to...)(f) }
	later := flow
	later.HasPorts, later.SrcPort, later.DstPort = false, 0, 0
	solicitation := func(src string) []byte {
		n := udp(src, "ff02::1", 0, 0)
		n.Proto, n.HasPorts = protoICMPv6, false
		return solicitation(packet.Frame(n))
	}
	icmp := func(src, dst string, kind byte) []byte {
		t := udp(src, dst, 0, 0)
		t.Proto, t.HasPorts = protoICMP, false
		if t.Src.Is6() {
			t.Proto = protoICMPv6
		}
		f := packet.Frame(t)
		p, _ := packet.Parse(f)
		return overwrite(f, p.Payload, kind)
	}
	icmp4 := func(kind byte) []byte { return icmp("192.0.2.1", "203.0.113.9", kind) }
	icmp6 := func(kind byte) []byte { return icmp("2001:db8::1", "2001:db8::2", kind) }
	behind := func(kind byte, f []byte) []byte { return options(kind, 8)(f) }
	return []Judged{
		{"nothing listed", clean(), verdict.Clean, 0},
		{"a listed network", listed(), verdict.Blocked, 1},
		{"a listed network, IPv6", v6(), verdict.Blocked, 2},
		{"a listed flow", packet.Frame(flow), verdict.Blocked, 3},
		{"another port", packet.Frame(udp("198.51.100.1", "203.0.113.1", 1000, 54)), verdict.Clean, 0},
		{"a listed flow's later fragment", packet.Frame(later), verdict.Clean, 0},
		{"listed and allowed", packet.Frame(udp("192.0.2.7", "203.0.113.9", 1, 2)), verdict.Allowed, 0},

		{"a listed flow, from an allowed source", packet.Frame(udp("192.0.2.7", "203.0.113.1", 1000, 53)), verdict.Allowed, 0},
		{"a failsafe port", packet.Frame(udp("192.0.2.1", "203.0.113.9", 1, 4500)), verdict.Failsafe, 0},
		{"a failsafe port as source", packet.Frame(udp("192.0.2.1", "203.0.113.9", 4500, 1)), verdict.Blocked, 1},
		{"a failsafe port of another protocol", packet.Frame(udp("192.0.2.1", "203.0.113.9", 1, 22)), verdict.Blocked, 1},
		{"a failsafe network", packet.Frame(udp("192.0.2.65", "203.0.113.9", 1, 2)), verdict.Failsafe, 0},
		{"a failsafe network, IPv6", packet.Frame(udp("2001:db8:1::1", "2001:db8::2", 1, 2)), verdict.Failsafe, 0},
		{"a failsafe network as destination", packet.Frame(udp("192.0.2.1", "192.0.2.65", 1, 2)), verdict.Blocked, 1},

		{"fragmentation needed", icmp4(3), verdict.Failsafe, 0},
		{"time exceeded", icmp4(11), verdict.Failsafe, 0},
		{"a parameter problem", icmp4(12), verdict.Failsafe, 0},
		{"an echo request", icmp4(8), verdict.Failsafe, 0},
		{"an echo reply", icmp4(0), verdict.Blocked, 1},
		{"source quench", icmp4(4), verdict.Blocked, 1},
		{"an ICMP redirect", icmp4(5), verdict.Blocked, 1},
		{"ICMPv6's packet too big in ICMP", icmp4(2), verdict.Blocked, 1},
		{"destination unreachable, IPv6", icmp6(1), verdict.Failsafe, 0},
		{"packet too big", icmp6(2), verdict.Failsafe, 0},
		{"time exceeded, IPv6", icmp6(3), verdict.Failsafe, 0},
		{"a parameter problem, IPv6", icmp6(4), verdict.Failsafe, 0},
		{"an echo request, IPv6", icmp6(128), verdict.Failsafe, 0},
		{"an echo reply, IPv6", icmp6(129), verdict.Blocked, 2},
		{"ICMP's echo request in ICMPv6", icmp6(8), verdict.Blocked, 2},
		{"ICMPv6 over IPv4", overwrite(icmp4(3), 23, protoICMPv6), verdict.Blocked, 1},
		{"ICMP over IPv6", overwrite(icmp6(3), 20, protoICMP), verdict.Blocked, 2},
		{"an error's type in UDP", overwrite(listed(), 34, 3), verdict.Blocked, 1},
		{"an ICMP error in a fragment", overwrite(icmp4(3), 20, 0x20), verdict.Blocked, 1},
		{"an ICMP error behind an extension header", behind(60, icmp6(2)), verdict.Blocked, 2},
		{"an ICMP error, truncated", icmp4(3)[:40], verdict.Blocked, 1},

		{"DHCP from a listed client", packet.Frame(udp("192.0.2.1", "255.255.255.255", 68, 67)), verdict.Blocked, 1},
		{"DHCP from a server", packet.Frame(udp("192.0.2.1", "255.255.255.255", 67, 68)), verdict.DHCP, 0},
		{"DHCP through a relay", packet.Frame(udp("192.0.2.1", "192.0.2.2", 67, 67)), verdict.Blocked, 1},
		{"not quite DHCP", packet.Frame(udp("192.0.2.1", "192.0.2.2", 68, 68)), verdict.Blocked, 1},
		{"DHCPv6 from a listed client", packet.Frame(udp("fe80::1", "ff02::1:2", 546, 547)), verdict.Blocked, 4},
		{"DHCPv6 from a server to another address", packet.Frame(udp("fe80::1", "2001:db8::2", 547, 546)), verdict.Blocked, 4},
		{"DHCPv6 from a server", packet.Frame(udp("fe80::1", "fe80::2", 547, 546)), verdict.DHCP, 0},
		{"DHCP's ports over IPv6", packet.Frame(udp("fe80::1", "fe80::2", 67, 68)), verdict.Blocked, 4},
		{"DHCPv6's ports over IPv4", packet.Frame(udp("192.0.2.1", "192.0.2.2", 546, 547)), verdict.Blocked, 1},
		{"DHCP's ports over TCP", overwrite(packet.Frame(udp("192.0.2.1", "192.0.2.2", 68, 67)), 23, 6), verdict.Blocked, 1},
		{"DHCPv6 behind HIP", behind(139, packet.Frame(udp("fe80::1", "fe80::2", 547, 546))), verdict.Blocked, 4},
		{"DHCP in a fragment", overwrite(packet.Frame(udp("192.0.2.1", "192.0.2.2", 67, 68)), 20, 0x20), verdict.Blocked, 1},
		{"a failsafe port behind an extension header", behind(60, packet.Frame(udp("fe80::1", "fe80::2", 1, 4500))), verdict.Blocked, 4},
		{"a failsafe port in a fragment", overwrite(packet.Frame(udp("192.0.2.1", "203.0.113.9", 1, 4500)), 20, 0x20), verdict.Blocked, 1},
		{"an IPv4 address in an IPv6 header", packet.Frame(udp("::ffff:192.0.2.1", "2001:db8::2", 1, 2)), verdict.Clean, 0},
		{"neighbour discovery", solicitation("fe80::1"), verdict.ND, 0},
		{"neighbour discovery from another link", overwrite(solicitation("fe80::1"), 21, 254), verdict.Blocked, 4},

		{"ARP", overwrite(clean(), 12, 8, 6), verdict.ARP, 0},
		{"LLDP", overwrite(clean(), 12, 0x88, 0xcc), verdict.Link, 0},
		{"NSH", overwrite(clean(), 12, 0x89, 0x4f), verdict.NotIP, 0},
		{"truncated", clean()[:40], verdict.Truncated, 0},
		{"malformed", overwrite(clean(), 14, 0x41), verdict.Malformed, 0},
		{"too many tags", slices.Concat(clean()[:12], bytes.Repeat([]byte{0x81, 0, 0, 1}, packet.MaxVLANTags+1), clean()[12:]), verdict.Overtagged, 0},
		// The addresses matter, whatever follows them.
		{"listed and truncated", listed()[:40], verdict.Blocked, 1},
		{"listed and malformed", overwrite(listed(), 14, 0x41), verdict.Blocked, 1},
		{"cut before its addresses", listed()[:33], verdict.Truncated, 0},
		{"failsafe and truncated", packet.Frame(udp("192.0.2.65", "203.0.113.9", 1, 2))[:40], verdict.Failsafe, 0},
	}
}

// DHCP is a frame that passes or not on a host that is a client, and on one that serves or
// relays DHCP.
type DHCP struct {
	Frame          []byte
	Client, Server bool
}

// OfDHCP returns packets between the ports of DHCP.
func OfDHCP() (found []DHCP) {
	for _, c := range []struct {
		src, dst         string
		srcPort, dstPort uint16
		client, server   bool
	}{
		{"192.0.2.1", "255.255.255.255", 67, 68, true, true},
		{"0.0.0.0", "255.255.255.255", 68, 67, false, true},
		{"192.0.2.1", "192.0.2.2", 67, 67, false, true},
		{"192.0.2.1", "192.0.2.2", 68, 68, false, false},
		{"2001:db8::1", "fe80::2", 547, 546, true, true},
		{"fe80::1", "2001:db8::2", 547, 546, false, false},
		{"fe80::1", "ff02::1:2", 546, 547, false, true},
		{"2001:db8::1", "2001:db8::2", 546, 547, false, false},
		{"2001:db8::1", "2001:db8::2", 547, 547, false, true},
	} {
		found = append(found, DHCP{packet.Frame(udp(c.src, c.dst, c.srcPort, c.dstPort)), c.client, c.server})
	}
	return found
}

// Reversed returns the frame of the answer, as far as the packet is understood: its
// addresses, and ports, are exchanged.
func Reversed(frame []byte) []byte {
	frame = bytes.Clone(frame)
	p, _ := packet.Parse(frame)
	exchange := func(a, b []byte) {
		for i := range a {
			a[i], b[i] = b[i], a[i]
		}
	}
	if ip := frame[p.Network:]; p.HasAddresses && p.Src.Is4() {
		exchange(ip[12:16], ip[16:20])
	} else if p.HasAddresses {
		exchange(ip[8:24], ip[24:40])
	}
	if p.HasPorts {
		ports := frame[p.Payload:]
		exchange(ports[:2], ports[2:4])
	}
	if p.Payload > 0 && p.Payload < len(frame) { // an echo request, and its reply
		switch kind := &frame[p.Payload]; {
		case p.Src.Is4() && p.Proto == protoICMP && *kind&^8 == 0:
			*kind ^= 8
		case p.Src.Is6() && p.Proto == protoICMPv6 && *kind&^1 == 128:
			*kind ^= 1
		}
	}
	return frame
}
