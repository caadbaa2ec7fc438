// Package verdict is the reference implementation of the data plane's decision
// on a frame: bpf/pipeline.h is tested against it, and it is the Go engine of
// `weir replay`.
package verdict

import (
	"fmt"
	"net/netip"
	"slices"

	"weir/filter/conntrack"
	"weir/filter/flood"
	"weir/filter/icarus"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/penalty"
	"weir/filter/sketch"
)

// Reason is the reason under which a packet is counted. The numbers and their
// order are the numbers of enum reason in bpf/packet.h.
type Reason uint8

const (
	Clean       Reason = iota // pass: no list matches
	NotIP                     // configurable: neither IP nor ARP nor of the link itself
	ARP                       // pass: before any list
	ND                        // pass: before any list
	DHCP                      // pass: before any list
	Failsafe                  // pass: a failsafe port, prefix or kind of ICMP
	Allowed                   // pass: would be dropped, but an allow list matches
	WouldBlock                // pass: would be dropped, but monitor mode is on, or the list is on trial
	Blocked                   // drop: a block list matches
	Truncated                 // configurable: the packet ends within a header
	Malformed                 // configurable: a header is inconsistent
	Unparsed                  // configurable: more headers than weir parses
	RateLimited               // drop: over the rate limit of a heavy hitter, or of a source
	Heavy                     // drop: a heavy hitter's flow is blocked
	Looped                    // configurable: in a routing loop
	Overtagged                // drop: too many VLAN tags or MPLS labels to find the addresses
	Link                      // pass: a protocol of the link itself
	Policed                   // drop: over the rate of the interface
	Reply                     // pass: would be dropped by a list, but answers a connection of this host
	Pattern                   // drop: over the rate of a pattern of header fields, which may be none
	NumReasons
)

var reasonNames = [NumReasons]string{
	"clean", "not-ip", "arp", "nd", "dhcp", "failsafe", "allowed", "would-block",
	"blocked", "truncated", "malformed", "unparsed", "rate-limited", "heavy",
	"looped", "overtagged", "link", "policed", "reply", "pattern",
}

// String returns the reason's name in commands, metrics and JSON.
func (r Reason) String() string {
	if r < NumReasons {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason-%d", uint8(r))
}

// Action is the action on a packet.
type Action uint8

const (
	Pass Action = iota
	Drop
)

func (a Action) String() string {
	if a == Drop {
		return "drop"
	}
	return "pass"
}

// MarshalText returns the action's name.
func (a Action) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText sets the action by its name.
func (a *Action) UnmarshalText(text []byte) error {
	switch string(text) {
	case "pass":
		*a = Pass
	case "drop":
		*a = Drop
	default:
		return fmt.Errorf("unknown action %q: want pass or drop", text)
	}
	return nil
}

// Policy is everything that a verdict depends on, except for the sets.
type Policy struct {
	FailsafePorts    []FailsafePort // at most MaxFailsafe
	FailsafePrefixes []netip.Prefix // of sources; at most MaxFailsafe of each family
	FailsafeICMP     []FailsafeICMP // kinds of messages
	Out              bool           // the packets leave the host: failsafe has their sides exchanged
	DropMalformed    bool           // drop truncated, malformed and unparsed packets
	DropNotIP        bool           // drop what is neither IP nor ARP nor of the link itself
	Inner            bool           // headers in tunnels are matched by the lists, too
	DHCPServer       bool           // the host serves or relays DHCP
	DropLooped       bool           // drop packets in a loop; otherwise only report them
	Monitor          bool           // count, but drop nothing
}

// Action returns the action on a packet that is counted under a reason. Its twin
// is action_of in bpf/pipeline.h.
func (p *Policy) Action(r Reason) Action {
	drop := false
	switch r {
	case Blocked, RateLimited, Heavy, Policed, Pattern:
		drop = true // in monitor mode the reason is WouldBlock
	case Truncated, Malformed, Unparsed:
		drop = p.DropMalformed && !p.Monitor
	case NotIP:
		drop = p.DropNotIP && !p.Monitor
	case Looped:
		drop = p.DropLooped && !p.Monitor
	case Overtagged:
		drop = !p.Monitor
	}
	if drop {
		return Drop
	}
	return Pass
}

// unwanted reports whether the packet is dropped, or would be if not for monitor
// mode.
func (p *Policy) unwanted(r Reason) bool {
	enforced := *p
	enforced.Monitor = false
	return r == WouldBlock || enforced.Action(r) == Drop
}

// Program is a policy with the sets of blocked and allowed keys: everything
// that a data-plane program is specialised to. The zero Program passes every
// packet that is not overtagged.
type Program struct {
	Policy
	Block, Allow *membership.Set
	Rules        *Rules                // of the lists; nil: they have none
	Interface    string                // that the packets cross, by which rules match
	Tracked      *Trackers             // nil: no flows are counted
	Limits       *penalty.Limits       // of sources; nil: none has one
	Patterns     *flood.Patterns       // nil: there are none
	Loop         *icarus.Node          // inside a domain; nil: no loop detection
	Watcher      Watcher               // of packets with addresses; nil: there is none
	Replies      *conntrack.Replies    // that pass the block lists; nil: none do
	Collateral   *conntrack.Collateral // nil: conversations are not recorded
}

// Watcher sees the packets with addresses, whatever becomes of them.
type Watcher interface {
	// Observe takes in a packet, the decision on it, and the length of its frame.
	Observe(p packet.Packet, o Outcome, length int)
}

// Outcome is the decision on one frame.
type Outcome struct {
	Action Action
	Reason Reason
	// List is the number of the matching block list: from 1 on in exact mode, 0
	// in approximate mode and if no list matched.
	List int
}

// Decide returns the outcome for a whole Ethernet frame, and counts it.
func (p *Program) Decide(frame []byte) Outcome {
	v := view{program: p, frame: frame}
	v.parse()
	return v.outcome()
}

// dropsMalformed reports whether the parse error alone would drop the packet, if not for
// monitor mode.
func (p *Policy) dropsMalformed(r Reason) bool {
	return r == Overtagged || p.DropMalformed && (r == Truncated || r == Malformed || r == Unparsed)
}

// parsed has the reasons of the parser's results.
var parsed = [...]Reason{
	packet.OK: Clean, packet.NotIP: NotIP, packet.ARP: ARP,
	packet.Truncated: Truncated, packet.Malformed: Malformed, packet.Unparsed: Unparsed, packet.Overtagged: Overtagged, packet.Link: Link,
}

// view is a packet as the stages of a program see it: a frame, which they
// examine, or what is known of a packet, as conditions that were examined
// before; see [Program.Trace].
type view struct {
	program *Program

	frame  []byte
	packet packet.Packet // or the one in a tunnel that is listed
	outer  packet.Packet
	parsed Reason // Clean, or why the parser stopped

	pattern  int    // that would drop it, from 1; 0: none
	enforced Reason // of WouldBlock: the reason without monitor mode; WouldBlock of a list on trial

	trace   *Trace // nil: the stages examine the frame
	assumed int    // index of the condition that is assumed to be met, or -1
}

func (v *view) parse() {
	pkt, result := packet.Parse(v.frame)
	v.packet, v.outer = pkt, pkt
	v.parsed = parsed[result]
}

// outcome takes the packet through the stages.
func (v *view) outcome() Outcome {
	o := v.decide()
	o.Action = v.program.Action(o.Reason)
	if p := v.program; v.trace == nil && v.packet.HasAddresses && p.unwanted(o.Reason) {
		cause := sketch.Cause{Reason: uint8(o.Reason)}
		if o.Reason == WouldBlock {
			cause.Reason = uint8(v.enforced)
		}
		if r := Reason(cause.Reason); r == Blocked || r == WouldBlock {
			cause.List = uint16(o.List)
		}
		p.Tracked.drop(v.packet.Tuple, len(v.frame), cause)
	}
	if v.trace == nil && v.packet.HasAddresses {
		if w := v.program.Watcher; w != nil {
			w.Observe(v.packet, o, len(v.frame))
		}
		if r := v.program.Replies; r != nil && v.program.Out && o.Action == Pass {
			r.Remember(v.frame, v.outer, v.program.Collateral)
		}
	}
	return o
}

// decide consults a stage only where its answer matters, as bpf/pipeline.h does.
func (v *view) decide() Outcome {
	p := v.program
	if !v.packet.HasAddresses {
		return Outcome{Reason: v.parsed}
	}
	exempt := v.exempt()
	if exempt == Clean && v.failsafe() {
		exempt = Failsafe
	}
	if exempt != Clean {
		v.punished(true)
		return Outcome{Reason: exempt}
	}
	looped := v.looped()
	if looped && p.Action(Looped) == Drop {
		if v.allowed() {
			return Outcome{Reason: Allowed}
		}
		return Outcome{Reason: Looped}
	}
	punished := v.punished(false)
	list, blocked, trial := v.blocked()
	if !blocked && punished == Clean && !v.refused() {
		switch {
		case trial != 0:
			return v.onTrial(trial)
		case looped:
			return Outcome{Reason: Looped}
		}
		return Outcome{Reason: v.parsed}
	}
	if v.allowed() {
		return Outcome{Reason: Allowed}
	}
	if blocked {
		v.conversed()
	}
	if blocked && v.reply() {
		if punished == Clean {
			return Outcome{Reason: Reply}
		}
		list, blocked = 0, false
	}
	switch {
	case !blocked && punished == Clean:
		return Outcome{Reason: v.parsed}
	case p.Monitor:
		v.enforced = Blocked
		if !blocked {
			v.enforced = punished
		}
		return Outcome{Reason: WouldBlock, List: list}
	case !blocked:
		return v.penalized(punished)
	}
	return Outcome{Reason: Blocked, List: list}
}

// penalized returns the outcome for a packet that leaves for a penalty, a limit or a pattern.
func (v *view) penalized(r Reason) Outcome {
	if r == Pattern && v.pattern > 0 {
		v.program.Patterns.Dropped[v.pattern-1]++
	}
	return Outcome{Reason: r}
}

// onTrial decides on a packet that a list on trial would drop, and nothing else would.
func (v *view) onTrial(list int) Outcome {
	if v.allowed() {
		return Outcome{Reason: Allowed}
	}
	v.conversed()
	if v.reply() {
		return Outcome{Reason: Reply}
	}
	v.enforced = WouldBlock
	return Outcome{Reason: WouldBlock, List: list}
}

func (v *view) exempt() Reason {
	switch {
	case v.trace != nil:
		return v.met(StageExempt).Reason
	case v.packet.ND:
		return ND
	case v.program.isDHCP(v.packet):
		return DHCP
	}
	return Clean
}

func (v *view) failsafe() bool {
	if v.trace != nil {
		return v.met(StageFailsafe).Reason != Clean
	}
	return v.program.failsafe(v.packet)
}

func (v *view) looped() bool {
	if v.trace != nil {
		return v.met(StageLoop).Reason != Clean
	}
	return v.program.isLooped(v.frame, v.packet)
}

// punished counts the packet in the trackers, and returns the reason to drop it for
// a penalty, the limit of its source, or a pattern.
func (v *view) punished(exempt bool) Reason {
	switch {
	case v.trace == nil:
		r := v.program.Tracked.count(v.frame, v.packet, exempt)
		if l := v.program.Limits; l != nil && r == Clean && !exempt {
			r = punishments[l.Check(v.packet.Src, uint64(len(v.frame)))]
		}
		if ps := v.program.Patterns; ps != nil && r == Clean && !exempt {
			if fields, ok := flood.Of(v.frame, len(v.frame)); ok {
				if v.pattern = ps.Drops(&fields, len(v.frame)); v.pattern > 0 {
					r = Pattern
				}
			}
		}
		return r
	case exempt:
		return Clean
	}
	return v.met(StagePenalty).Reason
}

// blocked returns the list that drops the packet, or where there is none, the first one on
// trial, or 0.
func (v *view) blocked() (list int, ok bool, trial int) {
	if v.trace != nil {
		if c := v.met(StageBlock); c.Reason == Blocked {
			return c.List, true, 0
		} else if c.Reason == WouldBlock {
			trial = c.List
		}
		return 0, false, trial
	}
	p := v.program
	list, ok, trial = p.match(p.Block, v.packet.Tuple, p.where(v.frame))
	if ok || v.parsed != Clean {
		return list, ok, trial
	}
	c := p.Carried(v.frame, v.packet)
	if c.Reason == Blocked {
		v.packet = c.Packet
		return c.List, true, 0
	}
	if trial == 0 {
		trial = c.Trial
	}
	v.parsed = c.Reason
	return 0, false, trial
}

// refused reports whether the parse error alone would drop the packet.
func (v *view) refused() bool {
	if v.trace != nil {
		if r := v.met(StageMalformed).Reason; r != Clean {
			v.parsed = r
		}
	}
	return v.program.dropsMalformed(v.parsed)
}

func (v *view) allowed() bool {
	if v.trace != nil {
		return v.met(StageAllow).Reason != Clean
	}
	return v.program.allows(v.frame, v.packet)
}

// allows reports whether an allow list matches a packet of a frame.
func (p *Program) allows(frame []byte, pkt packet.Packet) bool {
	_, ok, _ := p.match(p.Allow, pkt.Tuple, p.where(frame))
	return ok
}

// reply reports whether the packet answers a connection of this host. What is in a tunnel
// is not known to.
func (v *view) reply() bool {
	switch {
	case v.program.Replies == nil || v.program.Replies.Drop || v.program.Out:
		return false
	case v.trace != nil:
		return v.met(StageReply).Reason != Clean
	}
	return v.packet == v.outer && v.program.Replies.IsReply(v.frame, v.packet)
}

// conversed records the conversation of a packet that a list matches, if it is of any.
func (v *view) conversed() {
	p := v.program
	if p.Collateral != nil && p.Replies != nil && v.trace == nil && v.packet == v.outer {
		p.Collateral.Record(p.Replies, v.frame, v.packet, p.Out)
	}
}

// dhcp returns what passes as DHCP: from a server to a client, which any host
// may be, and the other ways on a host that serves or relays it. Routers do not
// forward to or from link-local addresses.
func (p *Policy) dhcp(v6 bool) []key.Key {
	of := func(src, dst netip.Prefix, srcPort, dstPort uint16) key.Key {
		k := key.Key{Shape: key.Shape{
			Fields:  key.FieldProto | key.FieldSrcPort | key.FieldDstPort,
			SrcBits: uint8(src.Bits()), DstBits: uint8(dst.Bits()),
		}, Src: src.Addr(), Dst: dst.Addr(), Proto: protoUDP, SrcPort: srcPort, DstPort: dstPort}
		if v6 {
			k.Fields |= key.FieldV6
		}
		return k
	}
	keys := []key.Key{of(all4, all4, 67, 68)}
	if p.DHCPServer {
		keys = append(keys, of(all4, all4, 68, 67), of(all4, all4, 67, 67))
	}
	if v6 {
		keys = []key.Key{of(all6, linkLocal, 547, 546)}
		if p.DHCPServer {
			keys = append(keys, of(linkLocal, all6, 546, 547), of(all6, all6, 547, 547))
		}
	}
	for i, k := range keys {
		keys[i] = p.inbound(k)
	}
	return keys
}

// inbound returns the key of packets that pass where those of k would on the way in.
func (p *Policy) inbound(k key.Key) key.Key {
	if p.Out {
		return k.Reverse()
	}
	return k
}

var (
	all4      = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	all6      = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	linkLocal = netip.MustParsePrefix("fe80::/10")
)

func (p *Policy) isDHCP(pkt packet.Packet) bool {
	return pkt.Plain && pkt.HasPorts && pkt.Proto == protoUDP &&
		slices.ContainsFunc(p.dhcp(pkt.Src.Is6()), func(k key.Key) bool {
			found, ok := k.Of(pkt.Tuple)
			return ok && found == k
		})
}

// isLooped reports whether a packet has passed this node before. One in PPPoE or
// MPLS is not forwarded by its IP header.
func (p *Program) isLooped(frame []byte, pkt packet.Packet) bool {
	return p.Loop != nil && !pkt.Encapsulated && p.Loop.Check(frame[pkt.Network:]) == icarus.Looped
}

func (p *Policy) failsafe(pkt packet.Packet) bool {
	remote, port := pkt.Src, pkt.DstPort
	if p.Out {
		remote, port = pkt.Dst, pkt.SrcPort
	}
	for _, f := range p.FailsafePorts {
		if pkt.HasPorts && pkt.Plain && pkt.Proto == f.Proto && port == f.Port {
			return true
		}
	}
	for _, f := range p.FailsafePrefixes {
		if covers(f, remote) {
			return true
		}
	}
	return slices.ContainsFunc(p.FailsafeICMP, func(f FailsafeICMP) bool { return pkt.ICMP == p.icmp(f) })
}

// icmp returns the kind of messages that pass where those of f would on the way in.
func (p *Policy) icmp(f FailsafeICMP) packet.ICMP {
	if p.Out {
		return f.ICMP.Answers()
	}
	return f.ICMP
}

// covers is like Prefix.Contains, but treats an IPv4-mapped IPv6 address as
// IPv6, which it is on the wire.
func covers(f netip.Prefix, a netip.Addr) bool {
	if f.Addr().Is4() != a.Is4() {
		return false
	}
	masked, err := a.Prefix(f.Bits())
	return err == nil && masked.Addr() == f.Masked().Addr()
}
