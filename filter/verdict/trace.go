package verdict

import (
	"fmt"
	"net/netip"
	"slices"

	"weir/filter/conntrack"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/penalty"
)

// Stage is a stage of the program.
type Stage uint8

// The stages, in the order of the program.
const (
	StageExempt    Stage = iota // protocols that no list stops: ARP, neighbor discovery, DHCP
	StageFailsafe               // failsafe ports, prefixes and kinds of ICMP
	StageLoop                   // packets in a loop
	StagePenalty                // heavy hitters
	StageBlock                  // block lists
	StageMalformed              // parse errors
	StageAllow                  // allow lists, consulted when another stage would drop the packet
	StageReply                  // replies to connections of this host, when a block list would drop the packet
	numStages
)

var stageNames = [numStages]string{"exempt", "failsafe", "loop", "penalty", "block", "malformed", "allow", "reply"}

func (s Stage) String() string {
	if s < numStages {
		return stageNames[s]
	}
	return fmt.Sprintf("stage-%d", uint8(s))
}

// Penalty is the penalty of a heavy hitter's flow.
type Penalty struct {
	Flow key.Key // as its tracker counts it: a packet without ports has ports 0
	penalty.Penalty
}

// Condition is a property of packets that a stage tests.
type Condition struct {
	Stage Stage
	What  string // a protocol, a port, a prefix, a flow; "" for a list's entries
	// All reports whether every packet of the question meets the condition.
	// Otherwise some of them do, depending on what the question leaves open.
	All bool
	// Covers reports whether every packet is of the flow of a penalty. One that is a rate limit
	// is met by some of them all the same.
	Covers bool
	// Reason is the stage's reason for a packet that meets the condition, or
	// Clean.
	Reason  Reason
	List    int // of StageBlock; see [Outcome]
	Penalty *Penalty

	// Then is the outcome for packets that meet the condition, but none of the
	// other conditions in Depends.
	Then Outcome
}

// Step is a stage that was reached.
type Step struct {
	Stage Stage
	Met   *Condition // nil: none
}

// Trace describes how a program reaches its outcome.
type Trace struct {
	// Outcome is the outcome of packets that meet none of the conditions in Depends.
	Outcome
	Steps   []Step      // up to the last one reached, in order
	Depends []Condition // met by some packets only, with another outcome

	conditions []Condition
}

// Verdict returns the outcome without details that do not matter for a packet
// that passes: the exemption that let it pass, and the parser's complaint.
func (o Outcome) Verdict() Reason {
	if o.Action == Pass && o.Reason != WouldBlock && o.Reason != Looped {
		return Clean
	}
	return o.Reason
}

// Trace returns how the program decides on the packets that match a key, as far
// as the key determines it. A key with ports stands for plain packets: it does
// not say what an extension header or a fragment would change. It decides as [Program.Decide] does, and counts
// nothing.
//
// The caller looks up the lists: for each of StageBlock and StageAllow it
// passes a condition that all the packets meet, or one that some of them meet,
// or both. Penalties are in the order of their trackers.
func (p *Program) Trace(k key.Key, listed []Condition, penalties []Penalty) *Trace {
	v := p.begin()
	v.packet.HasAddresses = true
	if k.V6() && !k.Ports() && (k.Fields&key.FieldProto == 0 || k.Proto == protoICMPv6) {
		v.add(Condition{Stage: StageExempt, What: "neighbor discovery", Reason: ND})
	}
	v.exemptions(k, true)
	if p.Loop != nil {
		v.add(Condition{Stage: StageLoop, What: "packets that have passed this node before", Reason: Looped})
	}
	v.penalties(k, penalties, false)
	v.trace.conditions = append(v.trace.conditions, listed...)
	tunnel := mayBeIn(k)
	inner := p.Inner && tunnel != ""
	if inner {
		v.add(Condition{Stage: StageBlock, What: "packets with a listed header in " + tunnel, Reason: Blocked})
	}
	if p.DropMalformed && !k.Ports() { // a packet with ports was parsed to its end
		v.add(Condition{Stage: StageMalformed, What: "malformed packets", Reason: Malformed})
	}
	if inner && p.DropMalformed {
		v.add(Condition{Stage: StageMalformed, What: "packets with a malformed header in " + tunnel, Reason: Malformed})
	}
	if inner { // in a tunnel without tags, too, another one may have them
		v.add(Condition{Stage: StageMalformed, What: fmt.Sprintf("packets with more than %d VLAN tags in %s", packet.MaxVLANTags, tunnel), Reason: Overtagged})
	}
	v.replies(k)
	return v.finish()
}

// TraceFrame returns how the program decides on a whole Ethernet frame. Only
// rate limits and replies remain open, since they depend on other packets.
func (p *Program) TraceFrame(frame []byte, penalties []Penalty) *Trace {
	v := p.begin()
	v.frame = frame
	v.parse()
	pkt := v.packet
	if !pkt.HasAddresses {
		stage := StageMalformed
		if v.parsed == ARP || v.parsed == Link || v.parsed == NotIP && p.Action(NotIP) == Pass {
			stage = StageExempt
		}
		v.add(Condition{Stage: stage, What: v.parsed.String(), All: true, Reason: v.parsed})
		v.met(stage)
		return v.finish()
	}
	k := pkt.Tuple.Key()
	if pkt.ND {
		v.add(Condition{Stage: StageExempt, What: "neighbor discovery", All: true, Reason: ND})
	}
	v.exemptions(k, pkt.Plain)
	if slices.ContainsFunc(p.FailsafeICMP, func(f FailsafeICMP) bool { return p.icmp(f) == pkt.ICMP }) {
		v.add(Condition{Stage: StageFailsafe, What: icmpWords[pkt.ICMP], All: true, Reason: Failsafe})
	}
	// Unknown ports do not exist.
	v.trace.conditions = slices.DeleteFunc(v.trace.conditions, func(c Condition) bool { return !c.All })
	if p.isLooped(frame, pkt) {
		v.add(Condition{Stage: StageLoop, What: "this node is in the packet's filter", All: true, Reason: Looped})
	}
	v.penalties(k, penalties, !pkt.HasPorts)
	within := ""
	list, ok, trial := p.match(p.Block, pkt.Tuple, p.where(frame))
	if ok {
		v.add(Condition{Stage: StageBlock, All: true, Reason: Blocked, List: list})
	} else if v.parsed == Clean {
		c := p.Carried(frame, pkt)
		if trial == 0 {
			trial = c.Trial
		}
		switch c.Reason {
		case Clean:
		case Blocked:
			v.add(Condition{Stage: StageBlock, What: inTunnel(c), All: true, Reason: Blocked, List: c.List})
			pkt = c.Packet
		default:
			v.parsed, within = c.Reason, " in "+tunnelName(c.Tunnel)
		}
	}
	v.elsewhere(pkt)
	if trial != 0 {
		v.add(Condition{Stage: StageBlock, All: true, Reason: WouldBlock, List: trial})
	}
	if p.dropsMalformed(v.parsed) {
		v.add(Condition{Stage: StageMalformed, What: v.parsed.String() + within, All: true, Reason: v.parsed})
	}
	if p.allows(frame, pkt) {
		v.add(Condition{Stage: StageAllow, All: true, Reason: Allowed})
	}
	if conntrack.Tracks(pkt) && pkt == v.outer {
		v.replies(k)
	}
	return v.finish()
}

// elsewhere adds what lists for interfaces do where the packet crosses one of these: which it
// does is not asked.
func (v *view) elsewhere(pkt packet.Packet) {
	p := v.program
	if p.Rules == nil || p.Interface != "" {
		return
	}
	for _, r := range p.Rules.Distinct {
		for _, name := range r.Interfaces {
			at := Where{Interface: name, VLAN: packet.VLAN(v.frame)}
			if list, ok, _ := p.match(p.Block, pkt.Tuple, at); ok {
				v.add(Condition{Stage: StageBlock, What: "packets on " + name, Reason: Blocked, List: list})
			}
		}
	}
}

// mayBeIn returns the outermost tunnel that packets of k may belong to, as people write
// it, or "".
func mayBeIn(k key.Key) string {
	proto, hasPort := k.Proto, k.Fields&key.FieldDstPort != 0
	if k.Fields&key.FieldProto == 0 {
		if !k.Ports() {
			return "a tunnel"
		}
		proto = protoUDP // which alone has ports and carries tunnels
	}
	if proto == protoUDP && !hasPort {
		return "a tunnel"
	}
	pkt := packet.Packet{Tuple: key.Tuple{Proto: proto, HasPorts: hasPort, DstPort: k.DstPort}}
	if t := pkt.Tunnel(); t != packet.NoTunnel {
		return tunnelName(t)
	}
	return ""
}

// tunnelName returns a tunnel as people write it.
func tunnelName(t packet.Tunnel) string {
	return [packet.NumTunnels]string{"no tunnel", "IP in IP", "GRE", "VXLAN", "GTP-U"}[t]
}

func inTunnel(c Carried) string {
	return fmt.Sprintf("%v > %v in %s", c.Packet.Src, c.Packet.Dst, tunnelName(c.Tunnel))
}

const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
)

func (p *Program) begin() *view { return &view{program: p, trace: &Trace{}, assumed: -1} }

func (v *view) add(c Condition) { v.trace.conditions = append(v.trace.conditions, c) }

// meet adds a condition that packets of one key meet, unless none of k's do.
func (v *view) meet(c Condition, met, k key.Key) {
	if met.Overlaps(k) {
		c.All = met.Covers(k)
		v.add(c)
	}
}

// exemptions adds the exemptions of Policy and program by addresses and ports.
// Those by ports are for plain packets alone.
func (v *view) exemptions(k key.Key, plain bool) {
	family := k.Fields & key.FieldV6
	zero := netip.IPv4Unspecified()
	if k.V6() {
		zero = netip.IPv6Unspecified()
	}
	if plain {
		for _, met := range v.program.dhcp(k.V6()) {
			v.meet(Condition{Stage: StageExempt, What: "DHCP", Reason: DHCP}, met, k)
		}
		for _, f := range v.program.FailsafePorts {
			what := fmt.Sprintf("%s/%d", key.ProtoName(f.Proto), f.Port)
			if v.program.Out {
				what = "from port " + what
			}
			v.meet(Condition{Stage: StageFailsafe, What: what, Reason: Failsafe}, v.program.inbound(key.Key{
				Shape: key.Shape{Fields: family | key.FieldProto | key.FieldDstPort},
				Proto: f.Proto, DstPort: f.Port, Src: zero, Dst: zero,
			}), k)
		}
		if proto := icmpOf(k); !k.Ports() && (k.Fields&key.FieldProto == 0 || k.Proto == proto) {
			for _, f := range v.program.FailsafeICMP { // a key does not say of which kind
				v.add(Condition{Stage: StageFailsafe, What: icmpWords[v.program.icmp(f)], Reason: Failsafe})
			}
		}
	}
	for _, f := range v.program.FailsafePrefixes {
		what := "from " + f.String()
		if v.program.Out {
			what = "to " + f.String()
		}
		v.meet(Condition{Stage: StageFailsafe, What: what, Reason: Failsafe}, v.program.inbound(key.Source(f)), k)
	}
}

// icmpWords are kinds of ICMP as people write them.
var icmpWords = [packet.NumICMP]string{
	packet.ICMPError: "ICMP errors", packet.EchoRequest: "ICMP echo requests", packet.EchoReply: "ICMP echo replies",
}

// icmpOf returns the ICMP of a key's family.
func icmpOf(k key.Key) uint8 {
	if k.V6() {
		return protoICMPv6
	}
	return protoICMP
}

// replies adds what passes if this host has opened a connection, which is not asked.
func (v *view) replies(k key.Key) {
	if r := v.program.Replies; r != nil && !r.Drop && !v.program.Out && (k.Fields&key.FieldProto == 0 || k.Proto == protoTCP || k.Proto == protoUDP) {
		v.add(Condition{Stage: StageReply, What: "replies to connections that this host has opened", Reason: Reply})
	}
}

// penalties adds the penalties of flows that packets of k belong to. A rate
// limit drops some packets of its flow, so no packet is certain to meet it.
func (v *view) penalties(k key.Key, all []Penalty, portless bool) {
	if portless || k.Fields&key.FieldProto != 0 && !key.HasPorts(k.Proto) {
		k.Fields |= key.FieldSrcPort | key.FieldDstPort // 0
	}
	for i := range all {
		c := Condition{Stage: StagePenalty, What: all[i].Flow.String(), Reason: Heavy, Penalty: &all[i]}
		if !flowsMeet(all[i].Flow, k) {
			continue
		}
		c.All = all[i].Flow.Shape.Within(k.Shape)
		c.Covers = c.All
		if all[i].Rate > 0 {
			c.All, c.Reason = false, RateLimited
		}
		v.add(c)
	}
}

// Meets reports whether packets of k may be of the penalty's flow.
func (p Penalty) Meets(k key.Key) bool { return flowsMeet(p.Flow, k) }

// flowsMeet is like Overlaps, but a packet without ports has ports 0.
func flowsMeet(flow, k key.Key) bool {
	for _, f := range []*key.Key{&flow, &k} {
		if f.Fields&key.FieldProto != 0 && !key.HasPorts(f.Proto) && f.SrcPort == 0 && f.DstPort == 0 {
			f.Fields &^= key.FieldSrcPort | key.FieldDstPort
		}
	}
	return flow.Overlaps(k)
}

// met returns the first condition of a stage that the packet meets, or the zero
// Condition.
func (v *view) met(s Stage) Condition {
	t, step := v.trace, Step{Stage: s}
	for i := range t.conditions {
		if c := &t.conditions[i]; c.Stage == s && (c.All || i == v.assumed) {
			step.Met = c
			break
		}
	}
	if v.assumed < 0 {
		t.Steps = append(t.Steps, step)
	}
	if step.Met == nil {
		return Condition{}
	}
	return *step.Met
}

// finish decides, and finds the conditions on which the decision depends.
func (v *view) finish() *Trace {
	t, parsed := v.trace, v.parsed
	t.Outcome = v.outcome()
	for i, c := range t.conditions {
		if c.All {
			continue
		}
		v.assumed, v.parsed = i, parsed
		if c.Then = v.outcome(); c.Then.Verdict() != t.Verdict() {
			t.Depends = append(t.Depends, c)
		}
	}
	return t
}
