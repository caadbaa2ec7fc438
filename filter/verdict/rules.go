package verdict

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
)

// MaxRules bounds the distinct rules of lists, as in bpf/rules.h.
const MaxRules = 64

// Rule says for which packets a list is, and whether it is on trial. That of a list for all
// packets, which is not on trial, is the zero Rule, or nil.
type Rule struct {
	// Trial: the packets pass, and are counted as WouldBlock. Nothing else changes for them.
	Trial bool
	// Protocols that match, whatever the port. A protocol of Ports matches at these alone. Where
	// there is neither, all protocols match.
	Protocols  []uint8
	Ports      []PortRange
	Interfaces []string // names and globs; none: all
	VLANs      []uint16 // 0 stands for packets without one; none: all
}

// PortRange is a range of destination ports.
type PortRange struct {
	Proto       uint8
	First, Last uint16
}

func (p PortRange) String() string {
	if p.First == p.Last {
		return fmt.Sprintf("%s/%d", key.ProtoName(p.Proto), p.First)
	}
	return fmt.Sprintf("%s/%d-%d", key.ProtoName(p.Proto), p.First, p.Last)
}

// MarshalText returns the range as in tcp/22 or udp/5000-5010.
func (p PortRange) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads a port, or a range, of a protocol that has ports.
func (p *PortRange) UnmarshalText(text []byte) error {
	name, numbers, ok := strings.Cut(string(text), "/")
	first, last, isRange := strings.Cut(numbers, "-")
	if !isRange {
		last = first
	}
	from, err := strconv.ParseUint(first, 10, 16)
	to, err2 := strconv.ParseUint(last, 10, 16)
	proto, known := key.ProtoNumber(name)
	switch {
	case !ok:
		if _, err := strconv.ParseUint(name, 10, 16); err == nil {
			return fmt.Errorf("port %q without its protocol: did you mean tcp/%s?", text, text)
		}
		fallthrough
	case err != nil || err2 != nil || !known || !key.HasPorts(proto):
		return fmt.Errorf("invalid port %q: want a protocol with ports, as tcp and udp, and a number or a range, as in tcp/22 or udp/5000-5010", text)
	case from > to:
		return fmt.Errorf("the range %q is upside down: did you mean %s/%d-%d?", text, name, to, from)
	}
	*p = PortRange{proto, uint16(from), uint16(to)}
	return nil
}

// On reports whether there is a rule.
func (r *Rule) On() bool { return r != nil && (r.Trial || r.Narrow()) }

// Narrow reports whether the list is not for all packets.
func (r *Rule) Narrow() bool { return r.ByHeader() || len(r.Interfaces)+len(r.VLANs) > 0 }

// ByHeader reports whether the rule depends on protocols and ports.
func (r *Rule) ByHeader() bool { return len(r.Protocols)+len(r.Ports) > 0 }

// Equal reports whether two rules are the same.
func (r *Rule) Equal(o *Rule) bool {
	if !r.On() || !o.On() {
		return r.On() == o.On()
	}
	return r.Trial == o.Trial && slices.Equal(r.Protocols, o.Protocols) && slices.Equal(r.Ports, o.Ports) &&
		slices.Equal(r.Interfaces, o.Interfaces) && slices.Equal(r.VLANs, o.VLANs)
}

// Where says where packets are.
type Where struct {
	Interface string // "": unknown, and on none that a rule names
	VLAN      uint16 // 0: none
}

// Matches reports whether the rule is for a packet.
func (r *Rule) Matches(t key.Tuple, w Where) bool {
	return r.MatchesPorts(t.Proto, t.HasPorts, t.DstPort) && r.Covers(w.Interface) &&
		(len(r.VLANs) == 0 || slices.Contains(r.VLANs, w.VLAN))
}

// MatchesPorts reports whether the rule is for packets of a protocol, whose destination port is
// known.
func (r *Rule) MatchesPorts(proto uint8, known bool, port uint16) bool {
	limited := false
	for _, p := range r.Ports {
		if p.Proto != proto {
			continue
		}
		limited = true
		if known && p.First <= port && port <= p.Last {
			return true
		}
	}
	return !limited && (!r.ByHeader() || slices.Contains(r.Protocols, proto))
}

// Of reports whether the rule is for all packets of a key, and whether it may be for some.
func (r *Rule) Of(k key.Key) (all, some bool) {
	switch {
	case !r.ByHeader():
		all, some = true, true
	case k.Fields&key.FieldProto == 0:
		some = k.Fields&key.FieldDstPort == 0 || slices.ContainsFunc(r.Protocols, key.HasPorts) ||
			slices.ContainsFunc(r.Ports, func(p PortRange) bool { return p.First <= k.DstPort && k.DstPort <= p.Last })
	case k.Fields&key.FieldDstPort != 0:
		all = r.MatchesPorts(k.Proto, true, k.DstPort)
		some = all
	default:
		all = r.MatchesPorts(k.Proto, false, 0)
		some = all || slices.ContainsFunc(r.Ports, func(p PortRange) bool { return p.Proto == k.Proto })
	}
	return all && len(r.Interfaces)+len(r.VLANs) == 0, some
}

// Headers reports whether the rule is for all packets of a key, wherever they are.
func (r *Rule) Headers(k key.Key) bool {
	all, _ := (&Rule{Protocols: r.Protocols, Ports: r.Ports}).Of(k)
	return all
}

// Covers reports whether the rule is for packets of an interface.
func (r *Rule) Covers(name string) bool {
	return len(r.Interfaces) == 0 || slices.ContainsFunc(r.Interfaces, func(pattern string) bool {
		ok, _ := path.Match(pattern, name)
		return ok
	})
}

// String describes for which packets the list is, as in "tcp/22, icmp, on eth0, of VLAN 10". It
// is empty for all.
func (r *Rule) String() string {
	if r == nil {
		return ""
	}
	var parts []string
	for _, p := range r.Ports {
		parts = append(parts, p.String())
	}
	for _, p := range r.Protocols {
		if !slices.ContainsFunc(r.Ports, func(of PortRange) bool { return of.Proto == p }) {
			parts = append(parts, key.ProtoName(p))
		}
	}
	if len(r.Interfaces) > 0 {
		parts = append(parts, "on "+strings.Join(r.Interfaces, " or "))
	}
	if len(r.VLANs) > 0 {
		var names []string
		for _, v := range r.VLANs {
			names = append(names, strconv.Itoa(int(v)))
		}
		parts = append(parts, "of VLAN "+strings.Join(names, " or "))
	}
	return strings.Join(parts, ", ")
}

// Rules are the rules of lists, by the numbers that keys have in a set: of lists, and of
// combinations of lists that share a key.
type Rules struct {
	Distinct []Rule // at most MaxRules
	// Node returns what a number stands for.
	Node func(number int) Node
}

// Node says what a number in a set stands for.
type Node struct {
	List uint16 // 0: the list of this number, which has no rule
	Next uint16 // the node of further lists with the key, 0: none
	Rule uint8  // in Distinct
}

// Word returns the node as the program has it.
func (n Node) Word() uint64 {
	if n.List == 0 {
		return 0
	}
	return 1<<63 | uint64(n.Rule)<<32 | uint64(n.Next)<<16 | uint64(n.List)
}

// settle returns the list by which a match ends a search, 0 if it does not, and the first one
// on trial among the match's lists, 0 if there is none.
func (r *Rules) settle(number int, t key.Tuple, w Where) (list, trial int) {
	for n := number; ; {
		node := r.Node(n)
		if node.List == 0 {
			return n, trial
		}
		if rule := &r.Distinct[node.Rule]; rule.Matches(t, w) {
			if !rule.Trial {
				return int(node.List), trial
			}
			if trial == 0 {
				trial = int(node.List)
			}
		}
		if n = int(node.Next); n == 0 {
			return 0, trial
		}
	}
}

// match returns the list of a set that decides on a packet, or, where none does, the first one
// on trial, or 0.
func (p *Program) match(s *membership.Set, t key.Tuple, w Where) (list int, ok bool, trial int) {
	if p.Rules == nil {
		list, ok = s.Match(t)
		return list, ok, 0
	}
	for number := range s.Matches(t) {
		n, of := p.Rules.settle(number, t, w)
		if n != 0 {
			return n, true, 0
		}
		if trial == 0 {
			trial = of
		}
	}
	return 0, false, trial
}

// Drops reports whether a block list drops a packet of a frame by the packet's own header.
func (p *Program) Drops(frame []byte, pkt packet.Packet) bool {
	_, ok, _ := p.match(p.Block, pkt.Tuple, p.where(frame))
	return ok
}

// where says where a frame is.
func (p *Program) where(frame []byte) Where {
	if p.Rules == nil {
		return Where{}
	}
	return Where{Interface: p.Interface, VLAN: packet.VLAN(frame)}
}
