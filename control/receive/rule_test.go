package receive

import (
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir/control/list/listfile"
	"weir/filter/flood"
	"weir/filter/key"
)

// matches reports whether a rule matches a packet, component by component as RFC 8955 has it.
func matches(components []bgp.FlowSpecComponentInterface, p *flood.Record) bool {
	ports := (p.Protocol == tcp || p.Protocol == udp) && p.Fragment != flood.LaterFragment
	number := uint8(icmp6)
	if p.IPv4 {
		number = icmp
	}
	types := p.Protocol == number && p.Fragment != flood.LaterFragment
	fragment := [...]uint64{flood.Whole: 0, flood.FirstFragment: firstFragment, flood.LaterFragment: isFragment}[p.Fragment]
	numeric := func(c *bgp.FlowSpecComponent, n uint64) bool {
		met, group := false, false
		for i, item := range c.Items {
			one := item.Op&opLess != 0 && n < item.Value || item.Op&opGreater != 0 && n > item.Value || item.Op&opEqual != 0 && n == item.Value
			if i > 0 && item.Op&opAnd != 0 {
				group = group && one
			} else {
				met, group = met || group, one
			}
		}
		return met || group
	}
	for _, c := range components {
		of, _ := c.(*bgp.FlowSpecComponent)
		met := false
		switch c.Type() {
		case bgp.FLOW_SPEC_TYPE_DST_PREFIX, bgp.FLOW_SPEC_TYPE_SRC_PREFIX:
			address := p.Source()
			if c.Type() == bgp.FLOW_SPEC_TYPE_DST_PREFIX {
				address = p.Destination()
			}
			switch c := c.(type) {
			case *bgp.FlowSpecDestinationPrefix:
				met = c.Prefix.Prefix.Contains(address)
			case *bgp.FlowSpecSourcePrefix:
				met = c.Prefix.Prefix.Contains(address)
			case *bgp.FlowSpecDestinationPrefix6:
				met = c.Prefix.Prefix.Contains(address)
			case *bgp.FlowSpecSourcePrefix6:
				met = c.Prefix.Prefix.Contains(address)
			}
		case bgp.FLOW_SPEC_TYPE_IP_PROTO:
			met = numeric(of, uint64(p.Protocol))
		case bgp.FLOW_SPEC_TYPE_PORT:
			met = ports && (numeric(of, uint64(p.SrcPort)) || numeric(of, uint64(p.DstPort)))
		case bgp.FLOW_SPEC_TYPE_DST_PORT:
			met = ports && numeric(of, uint64(p.DstPort))
		case bgp.FLOW_SPEC_TYPE_SRC_PORT:
			met = ports && numeric(of, uint64(p.SrcPort))
		case bgp.FLOW_SPEC_TYPE_ICMP_TYPE:
			met = types && numeric(of, uint64(p.SrcPort))
		case bgp.FLOW_SPEC_TYPE_ICMP_CODE:
			met = types && numeric(of, uint64(p.DstPort))
		case bgp.FLOW_SPEC_TYPE_TCP_FLAG:
			met = p.Protocol == tcp && p.Fragment != flood.LaterFragment && meets(of.Items, uint64(p.Flags))
		case bgp.FLOW_SPEC_TYPE_PKT_LEN:
			met = numeric(of, uint64(p.Length))
		case bgp.FLOW_SPEC_TYPE_FRAGMENT:
			met = meets(of.Items, fragment)
		}
		if !met {
			return false
		}
	}
	return true
}

// random returns a packet whose fields are often those of the bytes of a rule.
func random(r *rand.Rand, v4 bool, of []byte) (p flood.Record) {
	value := func() uint16 {
		if i := r.IntN(len(of) + 1); r.IntN(4) > 0 && i < len(of) {
			return uint16(of[i]) + uint16(r.IntN(3)) - 1
		}
		return uint16(r.Uint32())
	}
	p.IPv4 = v4
	for _, to := range []*[16]byte{&p.Src, &p.Dst} {
		if v4 {
			*to = netip.MustParseAddr("203.0.113.7").As16()
		} else {
			*to = netip.MustParseAddr("2001:db8::7").As16()
		}
		if r.IntN(3) == 0 {
			to[15] = byte(value())
		}
	}
	p.Protocol = [...]uint8{icmp, tcp, udp, icmp6, uint8(value())}[r.IntN(5)]
	p.Length = value()
	p.Fragment = flood.Fragment(r.IntN(3))
	if hasPorts := p.Protocol == tcp || p.Protocol == udp; hasPorts && p.Fragment != flood.LaterFragment {
		p.SrcPort, p.DstPort = value(), value()
	} else if (p.Protocol == icmp || p.Protocol == icmp6) && p.Fragment != flood.LaterFragment {
		p.SrcPort, p.DstPort = value()&0xff, value()&0xff
	}
	if p.Protocol == tcp && p.Fragment != flood.LaterFragment {
		p.Flags, p.HeaderLength = uint8(value()), 5
	}
	return p
}

// drops reports whether an item drops a packet.
func (i item) drops(t *testing.T, p *flood.Record) bool {
	t.Helper()
	if i.rate != "" {
		u, err := flood.ParseRule(i.text)
		if err != nil {
			t.Fatal(err)
		}
		return u.Matches(p)
	}
	e, err := listfile.ParseEntry(i.text)
	if err != nil {
		t.Fatalf("%q: %v", i.text, err)
	}
	for _, v4 := range e.V4 {
		e.Flows = append(e.Flows, key.Source(v4.Prefix()))
	}
	for _, v6 := range e.V6 {
		e.Flows = append(e.Flows, key.Source(v6))
	}
	tuple := key.Tuple{Src: p.Source(), Dst: p.Destination(), Proto: p.Protocol}
	if tuple.HasPorts = key.HasPorts(p.Protocol) && p.Fragment != flood.LaterFragment; tuple.HasPorts {
		tuple.SrcPort, tuple.DstPort = p.SrcPort, p.DstPort
	}
	for _, k := range e.Flows {
		if of, ok := k.Shape.Of(tuple); ok && of == k {
			return true
		}
	}
	return false
}

// Whatever a rule is, what weir drops for it are just the packets that it matches, or it is refused.
func FuzzRule(f *testing.F) {
	for _, text := range []string{to7 + "03 81 11 06 81 7b 0a 13 01cc d5 01e0", to7 + "04 81 35 09 01 02 c2 fd", to7 + "02 18 c63364 07 81 08 0c 80 06", to7 + "05 03 50 45 ff 85 10", to7 + "0c 82 06"} {
		b, _ := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
		f.Add(b, false)
	}
	b, _ := hex.DecodeString(strings.ReplaceAll(to7s+"03 81 3a 07 81 80", " ", ""))
	f.Add(b, true)
	f.Fuzz(func(t *testing.T, b []byte, v6 bool) {
		if len(b) == 0 || len(b) > 0xef {
			return
		}
		family := bgp.RF_FS_IPv4_UC
		if v6 {
			family = bgp.RF_FS_IPv6_UC
		}
		n, err := bgp.NLRIFromSlice(family, append([]byte{byte(len(b))}, b...))
		if err != nil {
			return
		}
		of := n.(*bgp.FlowSpecNLRI)
		s := testSpec()
		s.Own = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
		s.Min4, s.Min6 = 0, 0
		r := s.route(nlri{family, of}, s.Neighbors[0], &attributes{extended: drops, first: 64500})
		if r.wrong != nil {
			if len(r.items) > 0 {
				t.Fatalf("%s: refused in part", r.text)
			}
			return
		}
		if len(r.items) > mostParts {
			t.Fatalf("%s: %d items", r.text, len(r.items))
		}
		random1 := rand.New(rand.NewPCG(1, 2))
		for range 500 {
			p := random(random1, !v6, b)
			dropped := false
			for _, i := range r.items {
				dropped = dropped || i.drops(t, &p)
			}
			if want := matches(of.Value, &p); dropped != want {
				t.Fatalf("%s\nof %+v: dropped %v, want %v: %v", r.text, p, dropped, want, r.items)
			}
		}
	})
}
