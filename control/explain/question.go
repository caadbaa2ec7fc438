package explain

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"strings"

	"weir/control/engine"
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
)

// question is a packet, or as much of one as is known.
type question struct {
	key.Tuple
	src, dst, transport bool // what is known: the addresses, and protocol with ports
}

// protoNone is a protocol without ports that no list names: it stands where
// the protocol is not known.
const protoNone = 255 // reserved by IANA

// ErrQuery is of a query that asks for no packet, and says what one looks like.
var ErrQuery = errors.New(`want an address, "> ADDRESS", or a flow as in "tcp 192.0.2.1:1234 > 198.51.100.7:443"`)

// parse reads a query. An address alone asks for packets from it, and for
// packets to it.
func parse(query string) ([]question, error) {
	entries, _, err := list.Parse("query", strings.NewReader(query), list.Options{MaxBad: -1})
	if line, ok := errors.AsType[list.LineError](err); ok {
		return nil, fmt.Errorf("%q: %w; %w", query, line.Err, ErrQuery)
	}
	if err != nil {
		return nil, err
	}
	if entries.Len() != 1 {
		return nil, fmt.Errorf("%q: %w", query, ErrQuery)
	}
	var p netip.Prefix
	switch {
	case len(entries.V4) == 1:
		p = entries.V4[0].Prefix()
	case len(entries.V6) == 1:
		p = entries.V6[0]
	default:
		return flowQuestion(query, entries.Flows[0])
	}
	if !p.IsSingleIP() {
		return nil, fmt.Errorf("%q: a prefix, where packets have addresses; %w", query, ErrQuery)
	}
	return []question{from(p.Addr()), to(p.Addr())}, nil
}

func from(a netip.Addr) question {
	return question{Tuple: key.Tuple{Src: a, Dst: zero(a), Proto: protoNone}, src: true}
}

func to(a netip.Addr) question {
	return question{Tuple: key.Tuple{Src: zero(a), Dst: a, Proto: protoNone}, dst: true}
}

func zero(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func flowQuestion(query string, k key.Key) ([]question, error) {
	full := uint8(k.MaxBits())
	if !k.Tuple() && k.DstBits == full {
		return []question{to(k.Dst)}, nil
	}
	const bothPorts = key.FieldSrcPort | key.FieldDstPort
	switch ports := k.Fields & bothPorts; {
	case k.SrcBits != full || k.DstBits != full:
		return nil, fmt.Errorf("%q: a packet has one source and one destination; %w", query, ErrQuery)
	case k.Fields&key.FieldProto == 0:
		return nil, fmt.Errorf("%q: a packet has a protocol; %w", query, ErrQuery)
	case ports != 0 && ports != bothPorts:
		return nil, fmt.Errorf("%q: give both ports, or * for both, which stands for a later fragment; %w", query, ErrQuery)
	default:
		return []question{{
			Tuple: key.Tuple{
				Src: k.Src, Dst: k.Dst, Proto: k.Proto,
				HasPorts: ports == bothPorts, SrcPort: k.SrcPort, DstPort: k.DstPort,
			},
			src: true, dst: true, transport: true,
		}}, nil
	}
}

// String says which packets are meant.
func (q *question) String() string {
	switch {
	case !q.dst:
		return "from " + q.Src.String()
	case !q.src:
		return "to " + q.Dst.String()
	}
	s := key.Shape{Fields: key.FieldProto, SrcBits: uint8(q.Src.BitLen()), DstBits: uint8(q.Dst.BitLen())}
	if q.Src.Is6() {
		s.Fields |= key.FieldV6
	}
	if q.HasPorts {
		s.Fields |= key.FieldSrcPort | key.FieldDstPort
	}
	k, _ := s.Of(q.Tuple) // the shape is that of the tuple
	return k.String()
}

// decides tells whether all that a shape matches on is known.
func (q *question) decides(s key.Shape) bool {
	return (q.src || s.SrcBits == 0) && (q.dst || s.DstBits == 0) &&
		(q.transport || s.Fields&^key.FieldV6 == 0)
}

// restrict is the set without the shapes that match on what is not known.
func (q *question) restrict(s *membership.Set) *membership.Set {
	r := *s
	for _, shapes := range []*[]membership.GatedShape{&r.V4, &r.V4Flow, &r.V6, &r.V6Flow} {
		var known []membership.GatedShape
		for _, g := range *shapes {
			if q.decides(g.Shape) {
				known = append(known, g)
			}
		}
		*shapes = known
	}
	return &r
}

// candidates are the keys of a line that may match: of addresses, those whose
// prefix holds one of the packet's.
func (q *question) candidates(l engine.List, e list.Entries) iter.Seq[key.Key] {
	return func(yield func(key.Key) bool) {
		prefix := func(p netip.Prefix) bool {
			if !p.Contains(q.Src) && !p.Contains(q.Dst) {
				return true
			}
			for _, k := range l.Keys(p) {
				if !yield(k) {
					return false
				}
			}
			return true
		}
		for _, p := range e.V4 {
			if q.Src.Is4() && !prefix(p.Prefix()) {
				return
			}
		}
		for _, p := range e.V6 {
			if q.Src.Is6() && !prefix(p) {
				return
			}
		}
		for _, k := range e.Flows {
			if !yield(k) {
				return
			}
		}
	}
}

// matches tells whether a key matches all such packets (full), or some of them
// (part).
func (q *question) matches(k key.Key) (full, part bool) {
	if q.decides(k.Shape) {
		now, ok := k.Of(q.Tuple)
		return ok && now == k, false
	}
	if !k.Tuple() || k.V6() != q.Src.Is6() {
		return false, false
	}
	// What is known must agree; the rest is taken as if it did.
	return false, (!q.src || holds(k.Src, k.SrcBits, q.Src)) && (!q.dst || holds(k.Dst, k.DstBits, q.Dst))
}

func holds(network netip.Addr, bits uint8, a netip.Addr) bool {
	p, err := a.Prefix(int(bits))
	return err == nil && p.Addr() == network
}
