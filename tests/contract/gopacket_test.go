package contract

import (
	"net"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"weir/control/capture"
	"weir/filter/packet"
	"weir/tests/data"
)

// TestParserAgainstGopacket compares the parser with an independent one, over
// every packet of every capture that both can parse.
func TestParserAgainstGopacket(t *testing.T) {
	compared, withPorts, encapsulated := 0, 0, 0
	data.Captures(t, func(name string, r *capture.Reader) {
		for p, err := range r.All() {
			if err != nil {
				return
			}
			want, ok := outermost(p.Data)
			if !ok {
				continue
			}
			got, result := packet.Parse(p.Data)
			if !got.HasAddresses || got.Src.String() != want.src || got.Dst.String() != want.dst {
				t.Fatalf("%s, packet %d: %v > %v, gopacket finds %v > %v", name, p.Number, got.Src, got.Dst, want.src, want.dst)
			}
			compared++
			if got.Encapsulated {
				encapsulated++
			}
			if result != packet.OK || !want.hasPorts || !got.HasPorts {
				continue // gopacket parses further than weir
			}
			if got.SrcPort != want.srcPort || got.DstPort != want.dstPort {
				t.Fatalf("%s, packet %d: ports %d > %d, gopacket finds %d > %d",
					name, p.Number, got.SrcPort, got.DstPort, want.srcPort, want.dstPort)
			}
			withPorts++
		}
	})
	t.Logf("%d packets agree in addresses, %d also in ports; %d are in PPPoE or MPLS", compared, withPorts, encapsulated)
	if compared < 300_000 || withPorts < 200_000 || encapsulated < 100 {
		t.Errorf("only %d, %d and %d packets were compared", compared, withPorts, encapsulated)
	}
}

type found struct {
	src, dst         string
	srcPort, dstPort uint16
	hasPorts         bool
}

// outermost decodes the first IP layer after Ethernet, VLAN tags, PPPoE and MPLS
// labels, and its transport layer.
func outermost(frame []byte) (f found, ok bool) {
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true})
	tags, labels := 0, 0
	for _, l := range p.Layers() {
		switch l := l.(type) {
		case *layers.Ethernet:
			if ok {
				return f, ok // a tunnel
			}
		case *layers.Dot1Q:
			if tags++; tags > packet.MaxVLANTags {
				return f, ok
			}
		case *layers.PPPoE, *layers.PPP:
			if ok {
				return f, ok
			}
		case *layers.MPLS:
			if labels++; ok || labels > packet.MaxMPLSLabels {
				return f, ok
			}
		case *layers.IPv4:
			if labels > 0 && int(l.Length) > len(l.Contents)+len(l.Payload) {
				return f, ok // cut short, or not IP
			}
			if ok || l.Version != 4 {
				return f, ok
			}
			f.src, f.dst, ok = l.SrcIP.String(), l.DstIP.String(), true
		case *layers.IPv6:
			if labels > 0 && int(l.Length) > len(l.Payload) {
				return f, ok
			}
			if ok || l.Version != 6 {
				return f, ok
			}
			f.src, f.dst, ok = addr6(l.SrcIP), addr6(l.DstIP), true
		case *layers.TCP:
			f.srcPort, f.dstPort, f.hasPorts = uint16(l.SrcPort), uint16(l.DstPort), ok && p.ErrorLayer() == nil
			return f, ok
		case *layers.UDP:
			f.srcPort, f.dstPort, f.hasPorts = uint16(l.SrcPort), uint16(l.DstPort), ok && p.ErrorLayer() == nil
			return f, ok
		case *layers.SCTP:
			f.srcPort, f.dstPort, f.hasPorts = uint16(l.SrcPort), uint16(l.DstPort), ok && p.ErrorLayer() == nil
			return f, ok
		case *layers.IPv6HopByHop, *layers.IPv6Routing, *layers.IPv6Fragment, *layers.IPv6Destination, *layers.IPSecAH:
		default:
			if !ok {
				return f, false // what weir does not look into
			}
			return f, ok
		}
	}
	return f, ok
}

// addr6 writes an address as netip does, also an IPv4-mapped one.
func addr6(ip net.IP) string { return netip.AddrFrom16([16]byte(ip)).String() }
