package receive

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir/filter/flood"
	"weir/filter/key"
)

// Spec says from whom routes are taken, and which.
type Spec struct {
	Listen    netip.AddrPort
	AS        uint32
	RouterID  netip.Addr
	Neighbors []Neighbor

	List        string         // of the daemon, for blackholes and rules that are entries
	Own         []netip.Prefix // in which destinations are
	Communities []string       // of blackholes
	Sources     bool           // blackholes are sources of packets, not their destinations
	Hold        time.Duration  // how long routes stay when a session has ended
	MaxRoutes   int            // of a neighbor
	MaxPatterns int
	MaxCovered  int // addresses, or networks of IPv6 with 64 bits, that all routes cover together
	Min4, Min6  int // the shortest prefixes
}

// The limits of a Spec.
const (
	mostRoutes = 10_000
	leastHold  = time.Second
	mostHold   = 30 * 24 * time.Hour
)

// Validate returns what is wrong with a Spec, by the names of the command's options.
func (s *Spec) Validate() error {
	switch {
	case len(s.Neighbors) == 0:
		return errors.New("--neighbor is missing: who may connect, and its AS, as in --neighbor 192.0.2.1=64500")
	case s.AS == 0:
		return errors.New("--as is missing: the number of your own autonomous system")
	case !s.RouterID.Is4():
		return errors.New("--router-id is missing: an IPv4 address of this host, as in --router-id 192.0.2.2")
	case s.List == "":
		return errors.New("--list is missing: a block list in weir.yaml for nothing else, as in --list bgp")
	case len(s.Own) == 0:
		return errors.New("--own is missing: the prefixes in which neighbors may have you drop packets, as in --own 203.0.113.0/24,2001:db8::/32")
	case s.Hold < leastHold || s.Hold > mostHold:
		return fmt.Errorf("--hold %v: want %v to 30d", s.Hold, leastHold)
	case s.MaxRoutes < 1 || s.MaxRoutes > mostRoutes:
		return fmt.Errorf("--max-routes %d: want 1 to %d", s.MaxRoutes, mostRoutes)
	case s.MaxPatterns < 0 || s.MaxPatterns > flood.MaxPatterns:
		return fmt.Errorf("--max-patterns %d: want 0 to %d", s.MaxPatterns, flood.MaxPatterns)
	case s.MaxCovered < 1:
		return fmt.Errorf("--max-covered %d: want 1 or more", s.MaxCovered)
	case s.Min4 < 0 || s.Min4 > 32:
		return fmt.Errorf("--min-ipv4 %d: want 0 to 32", s.Min4)
	case s.Min6 < 0 || s.Min6 > 128:
		return fmt.Errorf("--min-ipv6 %d: want 0 to 128", s.Min6)
	}
	seen := make(map[netip.Addr]bool)
	for _, n := range s.Neighbors {
		if seen[n.Address] {
			return fmt.Errorf("--neighbor %v is there twice", n.Address)
		}
		seen[n.Address] = true
	}
	return nil
}

// attributes are common to the routes of a message.
type attributes struct {
	communities []string // as in 65535:666, or with three numbers
	extended    [][]byte
	redirects   bool // to an address of IPv6
	first       uint32
}

func attributesOf(all []bgp.PathAttributeInterface) (a attributes) {
	extended := func(all []bgp.ExtendedCommunityInterface) (bytes [][]byte) {
		for _, c := range all {
			if b, err := c.Serialize(); err == nil && len(b) >= 8 {
				bytes = append(bytes, b)
			}
		}
		return bytes
	}
	for _, of := range all {
		switch of := of.(type) {
		case *bgp.PathAttributeCommunities:
			for _, c := range of.Value {
				a.communities = append(a.communities, fmt.Sprintf("%d:%d", c>>16, c&0xffff))
			}
		case *bgp.PathAttributeLargeCommunities:
			for _, c := range of.Values {
				a.communities = append(a.communities, fmt.Sprintf("%d:%d:%d", c.ASN, c.LocalData1, c.LocalData2))
			}
		case *bgp.PathAttributeExtendedCommunities:
			a.extended = append(a.extended, extended(of.Value)...)
		case *bgp.PathAttributeIP6ExtendedCommunities:
			a.redirects = a.redirects || slices.ContainsFunc(extended(of.Value), func(b []byte) bool {
				return b[1] == redirectIPv6&0xff || b[1] == 0x0b
			})
		case *bgp.PathAttributeAsPath:
			for _, segment := range of.Value {
				if as := segment.GetAS(); len(as) > 0 && a.first == 0 {
					a.first = as[0]
				}
			}
		}
	}
	return a
}

// route is a blackhole or a rule of a neighbor.
type route struct {
	neighbor netip.Addr
	text     string
	label    string // of its entries
	scope    netip.Prefix
	items    []item
	rule     *rule // nil: it is a blackhole
	passes   bool  // packets of the rule pass, or some of them, and later rules do not see them

	number  uint64    // routes come one after the other
	wrong   error     // why it can never be taken
	refused error     // why it is not taken now
	again   time.Time // when the daemon is asked again that has refused it
	ends    time.Time // when it is forgotten, since the session has ended
	said    string    // what was reported of it last
}

// item is an entry of the list or, with a rate, a pattern.
type item struct{ text, rate string }

// identify returns what routes of a neighbor that replace each other have in common.
func (n nlri) identify() string {
	var b strings.Builder
	b.WriteString(idOf(n.family))
	switch of := n.NLRI.(type) {
	case *bgp.IPAddrPrefix:
		b.WriteString(of.Prefix.String())
	case *bgp.FlowSpecNLRI:
		for _, c := range of.Value {
			bytes, _ := c.Serialize()
			b.Write(bytes)
		}
	}
	return b.String()
}

// idOf returns what the routes of a family begin with.
func idOf(f bgp.Family) string { return strconv.Itoa(int(f)) + " " }

// route returns the route of a message, nil for one that is no blackhole.
func (s *Spec) route(n nlri, from Neighbor, a *attributes) *route {
	r := &route{neighbor: from.Address}
	switch of := n.NLRI.(type) {
	case *bgp.IPAddrPrefix:
		at := slices.IndexFunc(a.communities, func(c string) bool { return slices.Contains(s.Communities, c) })
		if at < 0 {
			return nil
		}
		r.text, r.label, r.scope = of.Prefix.String(), "blackhole "+a.communities[at], of.Prefix
		k := key.Destination(of.Prefix)
		if s.Sources {
			k = key.Source(of.Prefix)
		}
		r.items = []item{{text: k.String()}}
	case *bgp.FlowSpecNLRI:
		s.flow(r, of, n.family == bgp.RF_FS_IPv6_UC, from, a)
	default:
		return nil
	}
	if err := s.may(r); err != nil {
		r.wrong, r.passes = cmp.Or(r.wrong, err), false
	}
	if r.wrong != nil {
		r.items = nil
	}
	return r
}

// maxText bounds the text of a rule.
const maxText = 256

// flow completes a route with a rule.
func (s *Spec) flow(r *route, n *bgp.FlowSpecNLRI, v6 bool, from Neighbor, a *attributes) {
	of, does := ruleOf(n, v6), actionOf(a.extended, a.redirects)
	r.rule, r.label = &of, "FlowSpec"
	var b strings.Builder
	b.WriteString("flow")
	for _, c := range n.Value {
		if _, unknown := c.(*bgp.FlowSpecUnknown); unknown {
			b.WriteString(" [unread]")
			continue
		}
		b.WriteString(" " + c.String())
	}
	if r.text = b.String(); len(r.text) > maxText {
		r.text = r.text[:maxText] + "…" // a copy
	}
	if r.scope = of.dst; of.dst.Bits() == 0 {
		r.scope = of.src
	}
	r.passes = !does.drop && !does.goOn
	switch {
	case from.AS != s.AS && a.first != from.AS: // RFC 8955, section 6
		r.wrong, r.passes = fmt.Errorf("its AS path does not begin with %d", from.AS), false
	case of.wrong != nil:
		r.wrong = of.wrong
	case does.wrong != nil:
		r.wrong = does.wrong
	case !does.drop && len(of.parts) > 1:
		r.wrong = fmt.Errorf("it takes %d patterns, which would each have the rate", len(of.parts))
	}
	if r.wrong != nil {
		return
	}
	rate := "0pps"
	if !does.drop {
		rate = does.rate.String()
		r.label += " rate " + rate
	}
	for i := range of.parts {
		p := &of.parts[i]
		if entry, ok := p.entry(); ok && does.drop {
			r.items = append(r.items, item{text: entry})
		} else {
			r.items = append(r.items, item{p.pattern(), rate})
		}
	}
}

// may returns why a route must not be taken, whatever the daemon says.
func (s *Spec) may(r *route) error {
	inside := func(p netip.Prefix) bool {
		return slices.ContainsFunc(s.Own, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) })
	}
	least := s.Min4
	if r.scope.Addr().Is6() {
		least = s.Min6
	}
	dst := r.scope
	if r.rule != nil {
		dst = r.rule.dst
	}
	switch {
	case r.scope.Bits() < least:
		return fmt.Errorf("its prefix %v is shorter than /%d (--min-ipv4, --min-ipv6)", r.scope, least)
	case s.Sources && r.rule == nil && slices.ContainsFunc(s.Own, r.scope.Overlaps):
		return fmt.Errorf("the source %v is in a prefix of --own", r.scope)
	case (!s.Sources || r.rule != nil) && !inside(dst):
		return fmt.Errorf("the destination %v is not in a prefix of --own", dst)
	}
	return nil
}

// covered returns how many addresses a prefix has, or networks of IPv6 with 64 bits.
func covered(p netip.Prefix) float64 {
	bits := 32
	if p.Addr().Is6() {
		bits = 64
	}
	n := 1.0
	for range bits - min(p.Bits(), bits) {
		n *= 2
	}
	return n
}
