package engine

import (
	"time"

	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
)

// Answer says what becomes of the packets of a question, and why.
type Answer struct {
	Packet string `json:"packet"`
	// Direction is out for outgoing packets, in for incoming ones. It is empty where only
	// those are filtered.
	Direction string `json:"direction,omitempty"`

	Verdict verdict.Action `json:"verdict"`
	Reason  verdict.Reason `json:"reason"`
	List    string         `json:"list,omitempty"` // that the packets are counted under, where it is known
	Stages  []Stage        `json:"stages"`         // those that the packets reach, in their order
	// Matches are the entries that match all of the packets: those of block lists
	// first, the most specific of each side first.
	Matches []Match `json:"matches"`
	// Depends says what may change the verdict for some of the packets.
	Depends     []Dependency `json:"depends,omitempty"`
	DependsMore int          `json:"depends_more,omitempty"` // entries that Depends leaves out
	Inside      *Inside      `json:"inside,omitempty"`       // of a question for a prefix
	// FalsePositive is true where the filter drops what no entry matches, as it
	// may in approximate mode.
	FalsePositive bool `json:"false_positive"`
}

// Stage is a step of the program.
type Stage struct {
	Stage verdict.Stage `json:"stage"`
	Met   bool          `json:"met"`             // by all of the packets
	By    string        `json:"by,omitempty"`    // what they met: a protocol, a port, a prefix, a flow, a list
	Until *time.Time    `json:"until,omitempty"` // when a penalty ends
}

// Match is an entry that matches packets. Beginning with Source, its fields come
// from the list's source.
type Match struct {
	Number uint16  `json:"-"` // of the list
	Key    key.Key `json:"-"`

	List   string `json:"list"`
	Action string `json:"action"` // block or allow
	Entry  string `json:"entry"`

	Source  string     `json:"source,omitempty"` // "": the entry is manual
	Line    int        `json:"line,omitempty"`   // there, from 1; 0: unknown
	Added   *time.Time `json:"added,omitempty"`
	Expires *time.Time `json:"expires,omitempty"` // nil: never
	Reason  string     `json:"reason,omitempty"`
	Origin  string     `json:"origin,omitempty"`        // of a decision of CrowdSec, which has the scenario as its reason
	UID     *uint32    `json:"uid,omitempty"`           // of the user who added it
	Packets *uint64    `json:"total_packets,omitempty"` // that the list has caught; nil: not counted
}

// Dependency is what some of the packets may meet, and the verdict on them.
type Dependency struct {
	Stage   verdict.Stage  `json:"stage"`
	Packets string         `json:"packets"` // which
	Verdict verdict.Action `json:"verdict"`
	Reason  verdict.Reason `json:"reason"`
	Until   *time.Time     `json:"until,omitempty"` // when a penalty ends
	Match   *Match         `json:"match,omitempty"` // the entry, of a list
}

// Inside are the entries within a prefix, the prefix itself left out.
type Inside struct {
	Entries int     `json:"entries"` // all of them
	First   []Match `json:"first"`
}

// Explain answers a question, as far as lists and penalties are active: for incoming
// packets and, where these are filtered, for outgoing ones. Frames are incoming. It counts
// nothing.
func (g *Generation) Explain(q Question, penalties []verdict.Penalty) []Answer {
	in := g.explain(q, penalties)
	if g.out == nil || q.Frame != nil {
		return []Answer{in}
	}
	in.Direction = "in"
	if q.Known.SrcBits > 0 && !q.Known.Tuple() {
		return []Answer{in} // outgoing packets from somewhere are listed by where they go
	}
	out := g.out.explain(q, nil)
	out.Direction = "out"
	return []Answer{in, out}
}

// explain answers a question for one direction.
func (g *Generation) explain(q Question, penalties []verdict.Penalty) Answer {
	known := q.Known
	if q.Frame != nil {
		if p, r := packet.Parse(q.Frame); p.HasAddresses {
			_, listed := g.Block.Match(p.Tuple)
			if c := g.Carried(q.Frame, p); c.Reason == verdict.Blocked && r == packet.OK && !listed {
				p = c.Packet
			}
			known = p.Tuple.Key()
		}
	}
	var block, allow overlap
	if known.Src.IsValid() {
		block, allow = g.index.block.overlap(known), g.index.allow.overlap(known)
	}
	var t *verdict.Trace
	if q.Frame != nil {
		t = g.TraceFrame(q.Frame, penalties)
	} else {
		listed := g.listed(verdict.StageBlock, g.Block, known, &block)
		t = g.Trace(known, append(listed, g.listed(verdict.StageAllow, g.Allow, known, &allow)...), penalties)
	}
	a := Answer{
		Packet: q.String(), Verdict: t.Action, Reason: t.Reason, List: g.listName(t.List), Matches: []Match{},
		FalsePositive: (t.Reason == verdict.Blocked || t.Reason == verdict.WouldBlock && met(t, verdict.StageBlock)) && len(block.covering) == 0,
	}
	for _, s := range t.Steps {
		a.Stages = append(a.Stages, g.stage(s))
	}
	a.Matches = append(g.matches(block.covering), g.matches(allow.covering)...)
	g.depend(&a, t.Depends, &block, &allow)
	if q.prefix() {
		a.Inside = &Inside{
			Entries: block.within + allow.within,
			First:   append(g.matches(block.inside), g.matches(allow.inside)...),
		}
	}
	return a
}

// Entries returns all entries that the answer names.
func (a *Answer) Entries() (all []*Match) {
	for i := range a.Matches {
		all = append(all, &a.Matches[i])
	}
	for _, d := range a.Depends {
		if d.Match != nil {
			all = append(all, d.Match)
		}
	}
	if a.Inside != nil {
		for i := range a.Inside.First {
			all = append(all, &a.Inside.First[i])
		}
	}
	return all
}

func met(t *verdict.Trace, s verdict.Stage) bool {
	for _, step := range t.Steps {
		if step.Stage == s {
			return step.Met != nil
		}
	}
	return false
}

// listed says what the lists of one action match: all of the packets of k, or
// some.
func (g *Generation) listed(stage verdict.Stage, set *membership.Set, k key.Key, o *overlap) (c []verdict.Condition) {
	reason := verdict.Blocked
	if stage == verdict.StageAllow {
		reason = verdict.Allowed
	}
	number, all := set.MatchAll(k)
	if !all && len(o.covering) > 0 && !whole(k) {
		// A prefix is in the set as longer ones, which the set is not asked for.
		all = true
		if set.Mode == membership.Exact {
			number = int(o.covering[0].List)
		}
	}
	if all {
		c = append(c, verdict.Condition{Stage: stage, All: true, Reason: reason, List: number})
	}
	if o.some() {
		c = append(c, verdict.Condition{Stage: stage, Reason: reason})
	}
	return c
}

// whole reports whether the addresses of k's packets are known, as far as any is.
func whole(k key.Key) bool {
	full := uint8(k.MaxBits())
	return (k.SrcBits == 0 || k.SrcBits == full) && (k.DstBits == 0 || k.DstBits == full)
}

func (g *Generation) listName(number int) string {
	if number == 0 {
		return ""
	}
	return g.index.lists[number-1].Name
}

func (g *Generation) stage(s verdict.Step) Stage {
	out := Stage{Stage: s.Stage, Met: s.Met != nil}
	if out.Met {
		out.By, out.Until = s.Met.What, until(s.Met.Penalty)
		if s.Stage == verdict.StageBlock && s.Met.List > 0 {
			out.By = "list " + g.listName(s.Met.List)
			if s.Met.What != "" { // which header
				out.By += ": " + s.Met.What
			}
		}
	}
	return out
}

// until is when a penalty ends, by the wall clock.
func until(p *verdict.Penalty) *time.Time {
	if p == nil {
		return nil
	}
	t := time.Now().Add(p.Until - loader.Monotonic()).Truncate(time.Second)
	return &t
}

func (g *Generation) matches(found []Found) []Match {
	matches := make([]Match, len(found))
	for i, f := range found {
		l := g.index.lists[f.List-1]
		matches[i] = Match{Number: f.List, Key: f.Key, List: l.Name, Action: "block", Entry: f.Key.String()}
		if l.Allow {
			matches[i].Action = "allow"
		}
	}
	return matches
}

// aboveRate follows the flow of a rate limit.
const aboveRate = " above its rate"

// depend names what the verdict depends on; of lists, their entries.
func (g *Generation) depend(a *Answer, on []verdict.Condition, block, allow *overlap) {
	seen := make(map[Dependency]bool)
	for _, c := range on {
		d := Dependency{Stage: c.Stage, Packets: c.What, Verdict: c.Then.Action, Reason: c.Then.Reason}
		var o *overlap
		switch {
		case c.Stage == verdict.StageBlock && c.What == "":
			o = block
		case c.Stage == verdict.StageAllow:
			o = allow
		default:
			if !seen[d] { // DHCP has several ports
				seen[d] = true
				d.Until = until(c.Penalty)
				if c.Reason == verdict.RateLimited {
					d.Packets += aboveRate
				}
				a.Depends = append(a.Depends, d)
			}
			continue
		}
		for _, side := range o.open {
			d.Packets = "to addresses of list " + g.listName(int(side.list))
			if side.source {
				d.Packets = "from addresses of list " + g.listName(int(side.list))
			}
			a.Depends = append(a.Depends, d)
		}
		for _, m := range append(g.matches(o.inside), g.matches(o.flows)...) {
			d.Packets, d.Match = m.Entry, &m
			a.Depends = append(a.Depends, d)
		}
		a.DependsMore += o.within - len(o.inside) + o.flowing - len(o.flows)
	}
}
