package receive

import (
	"encoding/hex"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// decode reads an NLRI in hexadecimal, without its length.
func decode(t testing.TB, family bgp.Family, components string) *bgp.FlowSpecNLRI {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(components, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	n, err := bgp.NLRIFromSlice(family, append([]byte{byte(len(b))}, b...))
	if err != nil {
		t.Fatal(err)
	}
	return n.(*bgp.FlowSpecNLRI)
}

// rated returns an extended community with a rate.
func rated(t uint16, rate float32) []byte {
	bits := math.Float32bits(rate)
	return []byte{byte(t >> 8), byte(t), 0, 0, byte(bits >> 24), byte(bits >> 16), byte(bits >> 8), byte(bits)}
}

var drops = [][]byte{rated(trafficRateBytes, 0)}

func testSpec() Spec {
	return Spec{
		AS: 64501, RouterID: netip.MustParseAddr("192.0.2.2"), List: "bgp", Communities: []string{"65535:666", "64500:1:666"},
		Neighbors: []Neighbor{{Address: netip.MustParseAddr("192.0.2.1"), AS: 64500}},
		Own:       []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8::/32")},
		Hold:      60e9, MaxRoutes: 100, MaxPatterns: 16, MaxCovered: 65536, Min4: 24, Min6: 56,
	}
}

// said returns what a rule becomes: its items, or why it is refused.
func said(t testing.TB, family bgp.Family, components string, extended [][]byte) string {
	t.Helper()
	s := testSpec()
	r := s.route(nlri{family, decode(t, family, components)}, s.Neighbors[0], &attributes{extended: extended, first: 64500})
	if r.wrong != nil {
		return "refused: " + r.wrong.Error()
	}
	var all []string
	for _, i := range r.items {
		all = append(all, strings.TrimSpace(i.text+" "+i.rate))
	}
	return strings.Join(all, ", ")
}

const (
	to7  = "01 20 cb007107 "                               // destination 203.0.113.7/32
	to7s = "01 80 00 20010db8 00000000 00000000 00000007 " // destination 2001:db8::7/128
)

// Each component of RFC 8955 and RFC 8956 is taken exactly, or refused with a reason.
func TestComponents(t *testing.T) {
	const v4, v6 = bgp.RF_FS_IPv4_UC, bgp.RF_FS_IPv6_UC
	for _, c := range []struct {
		name       string
		family     bgp.Family
		components string
		want       string
	}{
		{"1 destination", v4, to7, "> 203.0.113.7"},
		{"1 destination, a network", v4, "01 1c cb007110", "> 203.0.113.16/28"},
		{"1 destination, IPv6", v6, to7s, "> 2001:db8::7"},
		{"1 destination with an offset", v6, "01 80 20 00000000 00000000 00000007", "refused: destination: a prefix with an offset"},
		{"2 source", v4, to7 + "02 18 c63364", "any 198.51.100.0/24:* > 203.0.113.7:*"},
		{"2 source, IPv6", v6, to7s + "02 30 00 20010db80009", "any [2001:db8:9::/48]:* > [2001:db8::7]:*"},
		{"3 protocol", v4, to7 + "03 81 2f", "47 0.0.0.0/0:* > 203.0.113.7:*"},
		{"3 two protocols", v4, to7 + "03 01 06 81 11", "tcp 0.0.0.0/0:* > 203.0.113.7:*, udp 0.0.0.0/0:* > 203.0.113.7:*"},
		{"3 not a protocol", v4, to7 + "03 86 06", "protocol 0-5 dst 203.0.113.7/32 0pps, protocol 7-255 dst 203.0.113.7/32 0pps"},
		{"3 all protocols", v4, to7 + "03 83 00", "> 203.0.113.7"},
		{"3 no protocol", v4, to7 + "03 80 06", "refused: protocol: no packet has such a value"},
		{"4 port", v4, to7 + "03 81 11 04 81 35", "udp 0.0.0.0/0:53 > 203.0.113.7:*, udp 0.0.0.0/0:* > 203.0.113.7:53"},
		{"5 destination port without a protocol", v4, to7 + "05 81 50", "tcp 0.0.0.0/0:* > 203.0.113.7:80, udp 0.0.0.0/0:* > 203.0.113.7:80"},
		{"5 destination ports, a range", v4, to7 + "03 81 06 05 13 0400 d5 ffff", "tcp dport 1024-65535 dst 203.0.113.7/32 0pps"},
		{"5 any destination port", v4, to7 + "03 81 06 05 83 00", "tcp sport 0-65535 dst 203.0.113.7/32 0pps"},
		{"5 ports of GRE", v4, to7 + "03 81 2f 05 81 50", "refused: no packet has all that"},
		{"6 source port", v6, to7s + "03 81 11 06 81 7b", "udp [::/0]:123 > [2001:db8::7]:*"},
		{"6 source port, and a port", v4, to7 + "03 81 11 04 81 35 06 81 7b", "udp 0.0.0.0/0:123 > 203.0.113.7:53"},
		{"7 ICMP type", v4, to7 + "07 81 08", "icmp sport 8 dst 203.0.113.7/32 0pps"},
		{"7 ICMPv6 type", v6, to7s + "07 81 80", "icmp6 sport 128 dst 2001:db8::7/128 0pps"},
		{"8 ICMP code", v4, to7 + "07 81 03 08 01 01 81 03", "icmp sport 3 dport 1 dst 203.0.113.7/32 0pps, icmp sport 3 dport 3 dst 203.0.113.7/32 0pps"},
		{"8 ICMP code alone", v4, to7 + "08 81 04", "icmp dport 4 dst 203.0.113.7/32 0pps"},
		{"9 TCP flags", v4, to7 + "09 01 02 c2 fd", "tcp flags S dst 203.0.113.7/32 0pps"},
		{"9 TCP flags, all eight", v4, to7 + "09 01 02 42 fd 11 0012 d2 00ed", "tcp flags S/FSRPUEC dst 203.0.113.7/32 0pps"},
		{"9 TCP flags, just SYN", v4, to7 + "09 81 02", "tcp flags S/S dst 203.0.113.7/32 0pps"},
		{"9 TCP flags, SYN without ACK", v4, to7 + "09 01 02 c2 10", "tcp flags S/SA dst 203.0.113.7/32 0pps"},
		{"9 TCP flags, SYN or RST", v4, to7 + "09 00 02 81 04", "tcp flags R/SR dst 203.0.113.7/32 0pps, tcp flags S/S dst 203.0.113.7/32 0pps"},
		{"9 TCP flags, any of two", v4, to7 + "09 80 06", "tcp flags R/SR dst 203.0.113.7/32 0pps, tcp flags S/S dst 203.0.113.7/32 0pps"},
		{"9 TCP flags, all packets", v4, to7 + "09 80 00", "refused: tcp-flags: no packet has such a value"},
		{"9 TCP flags, too many", v4, to7 + "09 01 12 01 21 01 0c 81 c0", "refused: tcp-flags: it takes more than 4"},
		{"9 TCP flags of two bytes", v4, to7 + "09 91 0102", "refused: tcp-flags: weir compares the eight flags alone"},
		{"10 length", v4, to7 + "03 81 11 0a 13 01cc d5 01e0", "udp length 460-480 dst 203.0.113.7/32 0pps"},
		{"11 DSCP", v4, to7 + "0b 81 2e", "refused: dscp: weir has no condition for it"},
		{"12 fragments", v4, to7 + "0c 80 02", "fragment later dst 203.0.113.7/32 0pps"},
		{"12 fragments, first or others", v4, to7 + "0c 80 06", "fragment first dst 203.0.113.7/32 0pps, fragment later dst 203.0.113.7/32 0pps"},
		{"12 no fragments", v6, to7s + "0c 82 06", "fragment none dst 2001:db8::7/128 0pps"},
		{"12 all packets", v4, to7 + "0c 00 06 82 06", "> 203.0.113.7"},
		{"12 last fragment", v4, to7 + "0c 80 08", "refused: fragment: weir distinguishes"},
		{"12 do not fragment", v4, to7 + "0c 80 01", "refused: fragment: weir distinguishes"},
		{"12 later fragments with a port", v4, to7 + "05 81 50 0c 80 02", "refused: no packet has all that"},
		{"13 flow label", v6, to7s + "0d 81 07", "refused: label: weir has no condition for it"},
		{"14 is of Ethernet", v4, to7 + "0e 81 07", "refused: ether-type: it is of no rule for IP"},
		{"unknown", v4, to7 + "50 81 07", "refused: type 80: it cannot be read"},
		{"twice", v4, to7 + "03 81 06 03 81 11", "refused: it has two components of type 3"},
		{"cut off", v4, to7 + "05 11 50", "refused: destination-port: it cannot be read"},
		{"too many", v4, to7 + "04 01 01 01 03 01 05 01 07 01 09 01 0b 01 0d 01 0f 81 11 05 01 01 01 03 01 05 01 07 01 09 81 0b", "refused: it takes more than 64"},
		{"no destination", v4, "02 20 c6336407", "refused: the destination 0.0.0.0/0 is not in a prefix of --own"},
		{"another's destination", v4, "01 20 c0000207", "refused: the destination 192.0.2.7/32 is not in a prefix of --own"},
		{"a wide destination", v4, "01 10 cb00", "refused: its prefix 203.0.0.0/16 is shorter than /24"},
	} {
		if got := said(t, c.family, c.components, drops); got != c.want && !(strings.HasPrefix(c.want, "refused") && strings.HasPrefix(got, c.want)) {
			t.Errorf("%s:\n%s, want\n%s", c.name, got, c.want)
		}
	}
}

// Each action is taken exactly, or refused with a reason.
func TestActions(t *testing.T) {
	for _, c := range []struct {
		name     string
		extended [][]byte
		want     string
	}{
		{"drop", drops, "> 203.0.113.7"},
		{"drop by packets", [][]byte{rated(trafficRatePackets, 0)}, "> 203.0.113.7"},
		{"rate", [][]byte{rated(trafficRateBytes, 1.25e6)}, "dst 203.0.113.7/32 1.25MB/s"},
		{"rate of packets", [][]byte{rated(trafficRatePackets, 1000)}, "dst 203.0.113.7/32 1kpps"},
		{"the same twice", [][]byte{drops[0], rated(trafficRatePackets, 0)}, "> 203.0.113.7"},
		{"two rates", [][]byte{rated(trafficRateBytes, 1000), rated(trafficRatePackets, 10)}, "refused: action traffic-rate: there are two"},
		{"drop and a rate", [][]byte{drops[0], rated(trafficRatePackets, 10)}, "refused: action traffic-rate: there are two"},
		{"no number", [][]byte{rated(trafficRateBytes, float32(math.NaN()))}, "refused: action traffic-rate: it is no rate"},
		{"negative", [][]byte{rated(trafficRateBytes, -1)}, "refused: action traffic-rate: it is no rate"},
		{"infinite", [][]byte{rated(trafficRateBytes, float32(math.Inf(1)))}, "refused: action traffic-rate: it is no rate"},
		{"sample", [][]byte{drops[0], {0x80, 7, 0, 0, 0, 0, 0, 2}}, "> 203.0.113.7"},
		{"redirect", [][]byte{drops[0], {0x80, 8, 0, 0, 0, 0, 0, 2}}, "refused: action redirect"},
		{"redirect by IPv4", [][]byte{{0x81, 8, 0, 0, 0, 0, 0, 2}}, "refused: action redirect"},
		{"redirect by AS", [][]byte{{0x82, 8, 0, 0, 0, 0, 0, 2}}, "refused: action redirect"},
		{"redirect to the next hop", [][]byte{{8, 0, 0, 0, 0, 0, 0, 0}}, "refused: action redirect"},
		{"mark", [][]byte{drops[0], {0x80, 9, 0, 0, 0, 0, 0, 2}}, "refused: action traffic-marking"},
		{"unknown", [][]byte{drops[0], {0x80, 0x77, 0, 0, 0, 0, 0, 2}}, "refused: action 0x8077"},
		{"a route target", [][]byte{drops[0], {0, 2, 0, 0, 0, 0, 0, 2}}, "> 203.0.113.7"},
		{"none", nil, "refused: action accept"},
	} {
		if got := said(t, bgp.RF_FS_IPv4_UC, to7, c.extended); got != c.want && !(strings.HasPrefix(c.want, "refused") && strings.HasPrefix(got, c.want)) {
			t.Errorf("%s:\n%s, want\n%s", c.name, got, c.want)
		}
	}
	if got := said(t, bgp.RF_FS_IPv4_UC, to7+"05 81 50", [][]byte{rated(trafficRateBytes, 1000)}); !strings.HasPrefix(got, "refused: it takes 2 patterns") {
		t.Error(got)
	}
}

// Numbers that operators name are those that the operators of RFC 8955 select, one by one.
func FuzzNumbers(f *testing.F) {
	f.Add([]byte{1, 6, 0x41, 17, 0x86, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		var items []*bgp.FlowSpecComponentItem
		for ; len(b) > 1 && len(items) < 8; b = b[2:] {
			items = append(items, &bgp.FlowSpecComponentItem{Op: b[0], Value: uint64(b[1])})
		}
		if len(items) == 0 {
			return
		}
		all := numbers(items, maxByte)
		for n := range uint64(maxByte + 1) {
			want, group := false, false
			for i, item := range items {
				met := item.Op&opLess != 0 && n < item.Value || item.Op&opGreater != 0 && n > item.Value || item.Op&opEqual != 0 && n == item.Value
				if i > 0 && item.Op&opAnd != 0 {
					group = group && met
				} else {
					want, group = want || group, met
				}
			}
			if got := slices.ContainsFunc(all, func(s span) bool { return s.lo <= n && n <= s.hi }); got != (want || group) {
				t.Fatalf("%v names %d: %v", all, n, got)
			}
		}
	})
}
