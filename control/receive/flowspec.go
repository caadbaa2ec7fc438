package receive

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir/control/quantity"
	"weir/filter/flood"
	"weir/filter/key"
)

// mostParts bounds the entries and patterns of a rule.
const mostParts = 64

// span are the values from lo to hi.
type span struct{ lo, hi uint64 }

// part is a share of a rule, which an entry of a list or a pattern says exactly. Fields that are left
// open are nil.
type part struct {
	src, dst            netip.Prefix // of the rule's family
	proto, sport, dport *span        // or type and code of ICMP
	length, fragment    *span
	flags               *span // those that are set, and those that are compared
}

// rule is a FlowSpec rule.
type rule struct {
	components [][]byte // each begins with its type
	src, dst   netip.Prefix
	parts      []part
	wrong      error // why its parts do not say it
	unread     bool  // nor are the prefixes known
}

const (
	icmp, tcp, udp, icmp6 = 1, 6, 17, 58

	maxByte, maxWord = math.MaxUint8, math.MaxUint16
)

// ruleOf reads a rule. The packets of its parts together are just the packets that it matches.
func ruleOf(n *bgp.FlowSpecNLRI, v6 bool) (r rule) {
	r.src = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if v6 {
		r.src = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	r.dst = r.src
	for _, c := range n.Value {
		if b, err := c.Serialize(); err == nil && len(b) > 0 {
			r.components = append(r.components, b)
		}
	}
	if r.wrong = r.read(n.Value, v6); r.wrong != nil {
		r.parts = nil
	}
	return r
}

// read reads the components, all of which must be met.
func (r *rule) read(components []bgp.FlowSpecComponentInterface, v6 bool) error {
	values := make(map[bgp.BGPFlowSpecType][]span)
	for _, c := range components {
		t := c.Type()
		if _, twice := values[t]; twice {
			return fmt.Errorf("it has two components of type %d", t)
		}
		values[t] = nil
		var err error
		switch c := c.(type) {
		case *bgp.FlowSpecDestinationPrefix:
			r.dst = c.Prefix.Prefix
		case *bgp.FlowSpecSourcePrefix:
			r.src = c.Prefix.Prefix
		case *bgp.FlowSpecDestinationPrefix6:
			err = r.side(&r.dst, c.Prefix.Prefix, c.Offset)
		case *bgp.FlowSpecSourcePrefix6:
			err = r.side(&r.src, c.Prefix.Prefix, c.Offset)
		case *bgp.FlowSpecComponent:
			if values[t], err = valuesOf(c, v6); err == nil && len(values[t]) == 0 {
				err = errors.New("no packet has such a value")
			}
		case *bgp.FlowSpecUnknown:
			r.unread, err = true, errors.New("it cannot be read")
			if v6 && t <= bgp.FLOW_SPEC_TYPE_SRC_PREFIX && len(c.Value) > 2 && c.Value[2] != 0 {
				err = errOffset // the library reads the bits before it, too
			}
		default:
			r.unread, err = true, errors.New("it is of no rule for IP")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", nameOf(t), err)
		}
	}
	return r.expand(values, v6)
}

var errOffset = errors.New("a prefix with an offset: weir compares addresses from their first bit on")

// side takes a prefix of IPv6, whose first bits may not count.
func (r *rule) side(to *netip.Prefix, p netip.Prefix, offset uint8) error {
	if offset != 0 {
		r.unread = true
		return errOffset
	}
	*to = p
	return nil
}

func nameOf(t bgp.BGPFlowSpecType) string {
	if name := bgp.FlowSpecNameMap[t]; name != "" && t != bgp.FLOW_SPEC_TYPE_UNKNOWN {
		return name
	}
	return fmt.Sprintf("type %d", t)
}

// valuesOf returns the values that a component names.
func valuesOf(c *bgp.FlowSpecComponent, v6 bool) ([]span, error) {
	switch c.Type() {
	case bgp.FLOW_SPEC_TYPE_IP_PROTO, bgp.FLOW_SPEC_TYPE_ICMP_TYPE, bgp.FLOW_SPEC_TYPE_ICMP_CODE:
		return numbers(c.Items, maxByte), nil
	case bgp.FLOW_SPEC_TYPE_PORT, bgp.FLOW_SPEC_TYPE_DST_PORT, bgp.FLOW_SPEC_TYPE_SRC_PORT, bgp.FLOW_SPEC_TYPE_PKT_LEN:
		return numbers(c.Items, maxWord), nil
	case bgp.FLOW_SPEC_TYPE_TCP_FLAG:
		return flags(c.Items)
	case bgp.FLOW_SPEC_TYPE_FRAGMENT:
		return fragments(c.Items, v6)
	case bgp.FLOW_SPEC_TYPE_DSCP, bgp.FLOW_SPEC_TYPE_LABEL:
		return nil, errors.New("weir has no condition for it")
	}
	return nil, errors.New("it is of no rule for IP")
}

// The bits of operators: RFC 8955, section 4.2.1.
const (
	opAnd     = 0x40
	opLess    = 0x04
	opGreater = 0x02
	opEqual   = 0x01
	opNot     = 0x02 // of masks
	opMatch   = 0x01
)

// numbers returns which numbers up to a greatest one a list of operators and values names.
func numbers(items []*bgp.FlowSpecComponentItem, most uint64) (all []span) {
	var group []span
	for i, item := range items {
		var named []span
		if v := item.Value; item.Op&opLess != 0 && v > 0 {
			named = append(named, span{0, min(v-1, most)})
		}
		if v := item.Value; item.Op&opEqual != 0 && v <= most {
			named = append(named, span{v, v})
		}
		if v := item.Value; item.Op&opGreater != 0 && v < most {
			named = append(named, span{v + 1, most})
		}
		if i > 0 && item.Op&opAnd != 0 {
			group = both(group, merge(named))
			continue
		}
		all = append(all, group...)
		group = merge(named)
	}
	return merge(append(all, group...))
}

// merge sorts spans, and joins those that touch.
func merge(all []span) (joined []span) {
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.lo, b.lo) })
	for _, s := range all {
		if n := len(joined); n > 0 && s.lo <= joined[n-1].hi+1 {
			joined[n-1].hi = max(joined[n-1].hi, s.hi)
			continue
		}
		joined = append(joined, s)
	}
	return joined
}

// both returns the values that are in one of a and in one of b.
func both(a, b []span) (all []span) {
	for _, s := range a {
		for _, o := range b {
			if lo, hi := max(s.lo, o.lo), min(s.hi, o.hi); lo <= hi {
				all = append(all, span{lo, hi})
			}
		}
	}
	return merge(all)
}

// meets reports whether bits meet a list of operators and masks.
func meets(items []*bgp.FlowSpecComponentItem, bits uint64) (any bool) {
	group := false
	for i, item := range items {
		met := bits&item.Value != 0
		if item.Op&opMatch != 0 {
			met = bits&item.Value == item.Value
		}
		met = met != (item.Op&opNot != 0)
		if i > 0 && item.Op&opAnd != 0 {
			group = group && met
			continue
		}
		any, group = any || group, met
	}
	return any || group
}

// mostFlags is how many conditions of flags a rule may take: each takes a pattern.
const mostFlags = 4

// flags returns conditions of TCP's eight flags, of which one is met where a list of masks is: each a
// span of the flags that are set, and of those that are compared.
func flags(items []*bgp.FlowSpecComponentItem) (all []span, err error) {
	for _, item := range items {
		if item.Value > maxByte {
			return nil, errors.New("weir compares the eight flags alone")
		}
	}
	var met [maxByte + 1]bool
	for bits := range met {
		met[bits] = meets(items, uint64(bits))
	}
	all, ok := cover(&met, 0, 0, mostFlags)
	if !ok {
		return nil, fmt.Errorf("it takes more than %d conditions, as in S/SA: name fewer", mostFlags)
	}
	return all, nil
}

// cover returns the fewest conditions, of which a packet meets one at most, for the flags that are met,
// of those that have a value in the bits of a mask, and false where it takes more than most.
func cover(met *[maxByte + 1]bool, value, mask uint64, most int) (all []span, ok bool) {
	some := func(value, mask uint64, want bool) bool {
		for bits := range uint64(len(met)) {
			if bits&mask == value && met[bits] == want {
				return true
			}
		}
		return false
	}
	switch {
	case !some(value, mask, true):
		return nil, true
	case !some(value, mask, false):
		return []span{{value, mask}}, most > 0
	}
	for bit := uint64(1); bit <= maxByte; bit <<= 1 { // which all that are met have, or none
		if mask&bit != 0 {
			continue
		}
		if !some(value, mask|bit, true) {
			return cover(met, value|bit, mask|bit, most)
		}
		if !some(value|bit, mask|bit, true) {
			return cover(met, value, mask|bit, most)
		}
	}
	for bit := uint64(1); bit <= maxByte && most > 1; bit <<= 1 {
		if mask&bit != 0 {
			continue
		}
		without, fits := cover(met, value, mask|bit, most-1)
		if !fits {
			continue
		}
		if with, fits := cover(met, value|bit, mask|bit, most-len(without)); fits {
			all, ok = slices.Concat(without, with), true
			most = len(all) - 1
		}
	}
	return all, ok
}

// The bits of fragments: RFC 8955, section 4.2.2.12.
const (
	dontFragment  = 1
	isFragment    = 2
	firstFragment = 4
	lastFragment  = 8
)

// fragments returns which of flood's kinds of fragments a list of masks names.
func fragments(items []*bgp.FlowSpecComponentItem, v6 bool) (all []span, err error) {
	kinds := [][]uint64{
		flood.Whole:         {0},
		flood.FirstFragment: {firstFragment},
		flood.LaterFragment: {isFragment, isFragment | lastFragment},
	}
	for kind, states := range kinds {
		if !v6 { // which has no such bit
			for _, s := range slices.Clone(states) {
				states = append(states, s|dontFragment)
			}
		}
		met := 0
		for _, s := range states {
			if meets(items, s) {
				met++
			}
		}
		switch met {
		case len(states):
			all = append(all, span{uint64(kind), uint64(kind)})
		case 0:
		default:
			return nil, errors.New("weir distinguishes whole packets, first and later fragments, but neither the last one nor DF")
		}
	}
	if len(all) == len(kinds) {
		all = merge(all)
	}
	return all, nil
}

// expand makes the parts of a rule from the values of its components.
func (r *rule) expand(values map[bgp.BGPFlowSpecType][]span, v6 bool) error {
	one := func(n uint64) []span { return []span{{n, n}} }
	of := func(t bgp.BGPFlowSpecType, most uint64) []span {
		if all, ok := values[t]; ok {
			return all
		}
		return []span{{0, most}}
	}
	has := func(all ...bgp.BGPFlowSpecType) bool {
		return slices.ContainsFunc(all, func(t bgp.BGPFlowSpecType) bool { _, ok := values[t]; return ok })
	}
	// Components of a protocol match its packets alone.
	protocols := of(bgp.FLOW_SPEC_TYPE_IP_PROTO, maxByte)
	hasPorts := has(bgp.FLOW_SPEC_TYPE_PORT, bgp.FLOW_SPEC_TYPE_SRC_PORT, bgp.FLOW_SPEC_TYPE_DST_PORT)
	if hasPorts {
		protocols = each(both(protocols, append(one(tcp), one(udp)...)))
	}
	hasFlags := has(bgp.FLOW_SPEC_TYPE_TCP_FLAG)
	if hasFlags {
		protocols = both(protocols, one(tcp))
	}
	types, codes := of(bgp.FLOW_SPEC_TYPE_ICMP_TYPE, maxByte), of(bgp.FLOW_SPEC_TYPE_ICMP_CODE, maxByte)
	hasTypes := has(bgp.FLOW_SPEC_TYPE_ICMP_TYPE, bgp.FLOW_SPEC_TYPE_ICMP_CODE)
	if hasTypes {
		number := uint64(icmp)
		if v6 {
			number = icmp6
		}
		protocols = both(protocols, one(number))
	}
	sides, most := [][2][]span{{types, codes}}, uint64(maxByte)
	if !hasTypes {
		most = 0
		if hasPorts {
			most = maxWord
		}
		sport, dport, either := of(bgp.FLOW_SPEC_TYPE_SRC_PORT, maxWord), of(bgp.FLOW_SPEC_TYPE_DST_PORT, maxWord), of(bgp.FLOW_SPEC_TYPE_PORT, maxWord)
		if sides = [][2][]span{{sport, dport}}; has(bgp.FLOW_SPEC_TYPE_PORT) {
			sides = [][2][]span{{both(sport, either), dport}, {sport, both(dport, either)}}
		}
	}
	open := func(s span, most uint64) *span {
		if s == (span{0, most}) {
			return nil
		}
		return &s
	}
	later := span{uint64(flood.LaterFragment), uint64(flood.LaterFragment)}
	for _, proto := range protocols {
		for _, fragment := range of(bgp.FLOW_SPEC_TYPE_FRAGMENT, uint64(flood.LaterFragment)) {
			if fragment == later && (hasPorts || hasTypes || hasFlags) {
				continue // which has none of these
			}
			for _, length := range of(bgp.FLOW_SPEC_TYPE_PKT_LEN, maxWord) {
				for _, flag := range of(bgp.FLOW_SPEC_TYPE_TCP_FLAG, 0) { // set and compared
					p := part{src: r.src, dst: r.dst, proto: open(proto, maxByte), length: open(length, maxWord),
						fragment: open(fragment, uint64(flood.LaterFragment)), flags: open(flag, 0)}
					if err := r.add(p, sides, most); err != nil {
						return err
					}
				}
			}
		}
	}
	if len(r.parts) == 0 {
		return errors.New("no packet has all that")
	}
	return nil
}

// each returns the values of spans one by one.
func each(all []span) (single []span) {
	for _, s := range all {
		for n := s.lo; n <= s.hi; n++ {
			single = append(single, span{n, n})
		}
	}
	return single
}

// add adds the parts of all pairs of ports, or of a type and a code; most is the greatest, 0 where the rule
// names neither.
func (r *rule) add(p part, sides [][2][]span, most uint64) error {
	if most == 0 {
		r.parts = append(r.parts, p)
		return nil
	}
	for _, side := range sides {
		for _, s := range side[0] {
			for _, d := range side[1] {
				p.sport, p.dport = &s, &d
				if open := (span{0, most}); s == open && d != open { // what has the one has the other
					p.sport = nil
				} else if d == open {
					p.dport = nil
				}
				if r.parts = append(r.parts, p); len(r.parts) > mostParts {
					return fmt.Errorf("it takes more than %d entries or patterns", mostParts)
				}
			}
		}
	}
	return nil
}

// entry returns an entry of a list that says the part, and false where only a pattern does.
func (p *part) entry() (string, bool) {
	t := key.Tuple{Src: p.src.Addr(), Dst: p.dst.Addr()}
	s := key.Shape{SrcBits: uint8(p.src.Bits()), DstBits: uint8(p.dst.Bits())}
	if t.Src.Is6() {
		s.Fields |= key.FieldV6
	}
	if p.length != nil || p.fragment != nil || p.flags != nil {
		return "", false
	}
	if p.proto != nil {
		if p.proto.lo != p.proto.hi {
			return "", false
		}
		t.Proto = uint8(p.proto.lo)
		s.Fields |= key.FieldProto
	}
	hasPorts := p.sport != nil || p.dport != nil
	if hasPorts && t.Proto != tcp && t.Proto != udp { // a type and a code
		return "", false
	}
	t.HasPorts = hasPorts
	for _, side := range []struct {
		of    *span
		to    *uint16
		field key.Fields
	}{{p.sport, &t.SrcPort, key.FieldSrcPort}, {p.dport, &t.DstPort, key.FieldDstPort}} {
		switch {
		case side.of == nil || *side.of == span{0, maxWord}:
		case side.of.lo != side.of.hi:
			return "", false
		default:
			*side.to = uint16(side.of.lo)
			s.Fields |= side.field
		}
	}
	if hasPorts && s.Fields&(key.FieldSrcPort|key.FieldDstPort) == 0 {
		return "", false // any port, and no fragment without
	}
	k, ok := s.Of(t)
	return k.String(), ok
}

// pattern returns the pattern that says the part.
func (p *part) pattern() string {
	var u flood.Rule // with its conditions in the order of their fields
	for _, c := range []struct {
		field flood.Field
		of    *span
	}{
		{flood.Protocol, p.proto}, {flood.FragmentPart, p.fragment}, {flood.Flags, p.flags}, {flood.Length, p.length},
		{flood.SourcePort, p.sport}, {flood.DestinationPort, p.dport},
	} {
		if c.of == nil {
			continue
		}
		is := flood.Condition{Field: c.field, Lo: uint32(c.of.lo), Hi: uint32(c.of.hi)}
		if c.field == flood.Flags {
			if is.Hi = is.Lo; c.of.hi != maxByte {
				is.Mask = uint8(c.of.hi)
			}
		}
		u.Conditions = append(u.Conditions, is)
	}
	if p.src.Bits() > 0 {
		u.Conditions = append(u.Conditions, flood.Condition{Field: flood.SourcePrefix, Prefix: p.src})
	}
	u.Conditions = append(u.Conditions, flood.Condition{Field: flood.DestinationPrefix, Prefix: p.dst})
	return u.String()
}

// precedes reports whether a rule comes before another one of the same family: RFC 8955, section 5.1.
func (r *rule) precedes(o *rule) bool {
	for i, a := range r.components {
		if i >= len(o.components) {
			return true
		}
		b := o.components[i]
		if a[0] != b[0] {
			return a[0] < b[0]
		}
		if t := bgp.BGPFlowSpecType(a[0]); t <= bgp.FLOW_SPEC_TYPE_SRC_PREFIX {
			p, q := r.dst, o.dst
			if t == bgp.FLOW_SPEC_TYPE_SRC_PREFIX {
				p, q = r.src, o.src
			}
			if !p.Overlaps(q) {
				return p.Addr().Less(q.Addr())
			}
			if p.Bits() != q.Bits() {
				return p.Bits() > q.Bits()
			}
			continue
		}
		if n := min(len(a), len(b)); !bytes.Equal(a[:n], b[:n]) {
			return bytes.Compare(a[:n], b[:n]) < 0
		}
		if len(a) != len(b) {
			return len(a) > len(b)
		}
	}
	return false
}

// mayMeet reports whether packets may be of both rules. It knows the addresses, the protocols and the ports.
func (r *rule) mayMeet(o *rule) bool {
	if r.unread || o.unread {
		return true
	}
	if !r.src.Overlaps(o.src) || !r.dst.Overlaps(o.dst) {
		return false
	}
	if len(r.parts) == 0 || len(o.parts) == 0 || len(r.parts)*len(o.parts) > mostParts {
		return true // which is on the safe side
	}
	meet := func(a, b *span) bool { return a == nil || b == nil || a.lo <= b.hi && b.lo <= a.hi }
	for i := range r.parts {
		for n := range o.parts {
			a, b := &r.parts[i], &o.parts[n]
			if meet(a.proto, b.proto) && meet(a.sport, b.sport) && meet(a.dport, b.dport) {
				return true
			}
		}
	}
	return false
}

// action decides about the packets of a rule.
type action struct {
	drop  bool
	rate  quantity.Rate // unless they are dropped
	goOn  bool          // later rules see what is left
	wrong error         // why weir does not do it
}

// Extended communities by type and subtype: RFC 8955, section 7; RFC 8956, section 6.
const (
	trafficRateBytes   = 0x8006
	trafficAction      = 0x8007
	redirect           = 0x8008
	trafficMarking     = 0x8009
	trafficRatePackets = 0x800c
	redirectIPv4       = 0x8108
	redirectAS4        = 0x8208
	redirectNextHop    = 0x0800 // draft-ietf-idr-flowspec-redirect-ip
	redirectIPv6       = 0x000c // of IPv6 communities, and 0x000b before
)

// actionOf reads the extended communities of a rule.
func actionOf(all [][]byte, other bool) (a action) {
	limited := false
	if other {
		a.wrong = errors.New("action redirect: weir sends no packet elsewhere")
	}
	for _, c := range all {
		value := math.Float32frombits(binary.BigEndian.Uint32(c[4:]))
		switch t := binary.BigEndian.Uint16(c); t {
		case trafficRateBytes, trafficRatePackets:
			rate := quantity.Rate{Value: float64(value), Unit: quantity.Packets}
			if t == trafficRateBytes {
				rate.Unit = quantity.Bytes
			}
			switch {
			case !(value >= 0 && value <= quantity.MaxRate/8):
				a.wrong = errors.New("action traffic-rate: it is no rate")
			case limited && (a.drop != (value == 0) || !a.drop && a.rate != rate):
				a.wrong = errors.New("action traffic-rate: there are two")
			}
			limited, a.drop, a.rate = true, value == 0, rate
		case trafficAction:
			a.goOn = c[7]&1 != 0 // and sampling, which weir always does
		case redirect, redirectIPv4, redirectAS4, redirectNextHop:
			a.wrong = errors.New("action redirect: weir sends no packet elsewhere")
		case trafficMarking:
			a.wrong = errors.New("action traffic-marking: weir changes no packet")
		default:
			if t >= 0x8000 && t < 0xc000 && t&0xff00 <= 0x8200 {
				a.wrong = fmt.Errorf("action %#04x: weir does not know it", t)
			}
		}
	}
	if !limited && a.wrong == nil {
		a.wrong = errors.New("action accept: weir receive lets nothing pass that would not")
	}
	return a
}
