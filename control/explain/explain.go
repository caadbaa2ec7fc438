// Package explain says what becomes of packets, and why: by the lists, the policy and the
// penalties of a generation.
package explain

import (
	"fmt"
	"slices"
	"time"

	"weir/control/api"
	"weir/control/engine"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
)

// Verdict is the fate of packets, in order: the fates that leave more open are greater.
type Verdict uint8

// The verdicts.
const (
	Pass    Verdict = iota
	Limited         // they are of a flow that is rate-limited: what exceeds its rate is dropped
	Drop
)

var verdicts = [...]string{"pass", "limited", "drop"}

func (v Verdict) String() string { return verdicts[v] }

func verdictOf(a verdict.Action) Verdict {
	if a == verdict.Drop {
		return Drop
	}
	return Pass
}

// Limit is the rate limit of a flow. Rates are in units a second.
type Limit struct {
	Key key.Key // of the flow

	Flow    string // in the format of lists
	Rate    float64
	Until   *time.Time
	Tracker string // its key, as in src
	Unit    string // packets or bytes

	// What the flow had in the tracker's last interval; nil: it is not known.
	Offered *float64
}

// LastDrop describes the drops of packets in the last hour, and those that would have been if not for
// monitor mode.
type LastDrop struct {
	Time    time.Time      // of the last one, to ten seconds, or a minute if it is older
	Reason  verdict.Reason // for which most were dropped then
	List    string         // that matched
	Monitor bool           // most would have been dropped then, and passed in monitor mode
	Packets uint64         // in the last hour

	MonitorPackets uint64 // of Packets those that passed in monitor mode
}

// Answer says what becomes of the packets of a question, and why.
type Answer struct {
	Known key.Key // what is known of the packets; without addresses if these are not

	Packet string
	// Direction is out for outgoing packets, in for incoming ones. It is empty where only
	// those are filtered.
	Direction string

	Verdict Verdict
	Reason  verdict.Reason
	Limit   *Limit  // of a flow that all of the packets are of, with [Limited]
	Pattern string  // that drops them, for [verdict.Pattern]
	List    string  // that the packets are counted under, where it is known
	Stages  []Stage // those that the packets reach, in their order
	// Matches are the entries that match all of the packets: those of block lists
	// first, the most specific of each side first.
	Matches []Match
	// Depends says what may change the verdict for some of the packets.
	Depends       []Dependency
	DependsMore   int       // entries that Depends leaves out
	PenaltiesMore int       // penalties that it leaves out
	LastDrop      *LastDrop // nil: none was dropped, or it is unknown
	Inside        *Inside   // of a question for a prefix
	// Spared says which heavy hitters among the packets would be rate-limited or blocked, if
	// that did not cut off something.
	Spared []string
	// FalsePositive is true where the filter drops what no entry matches, as it
	// may in approximate mode.
	FalsePositive bool
	// Incomplete are sources that nothing is known of, whose entries are not in the answer, and
	// the file of manual entries if it was damaged.
	Incomplete []api.NotReady
}

// Stage is a step of the program.
type Stage struct {
	Stage verdict.Stage
	Met   bool       // by all of the packets
	By    string     // what they met: a protocol, a port, a prefix, a flow, a list
	Until *time.Time // when a penalty ends
}

// Match is an entry that matches packets. Beginning with Source, its fields come
// from the list's source.
type Match struct {
	Number uint16 // of the list
	Key    key.Key

	List   string
	Action string // block or allow
	Entry  string

	Trial bool   // the list is on trial
	For   string // the packets for which the list is; "": all

	Derived    *api.Derived // nil: the entry is one of its own
	NotDerived string       // why the prefix around the address is not listed; "": it is, or need not be

	Source  string // "": the entry is manual
	Line    int    // there, from 1; 0: unknown
	Added   *time.Time
	Listed  *time.Time // since when the source lists it; nil: unknown
	Earlier bool       // it did so then, and since when before is not known
	Expires *time.Time // nil: never
	Reason  string
	Origin  string  // of a decision of CrowdSec, which has the scenario as its reason
	UID     *uint32 // of the user who added it
	Client  string  // of another host, who did
	Packets *uint64 // that the list has caught; nil: not counted
}

// Dependency is a condition that some of the packets may meet, and the verdict on these.
type Dependency struct {
	Stage   verdict.Stage
	Packets string // which
	Verdict verdict.Action
	Reason  verdict.Reason
	Until   *time.Time // when a penalty ends
	Match   *Match     // the entry, of a list
	Lists   int        // that Packets stands for, where they are not named: see Condense

	Open   bool // the packets are of any address that a list has
	Source bool // of a source, with Open; otherwise of a destination
}

// Inside are the entries within a prefix, the prefix itself left out.
type Inside struct {
	Entries int // all of them
	First   []Match
}

// Answers answers a question, as far as lists and penalties are active: for incoming
// packets and, where these are filtered, for outgoing ones. Frames are incoming. It counts
// nothing.
func Answers(e *engine.Generation, q Question, penalties []verdict.Penalty) []Answer {
	in := explain(e, q, penalties)
	if e.Out() == nil || q.Frame != nil {
		return []Answer{in}
	}
	in.Direction = "in"
	if q.Known.SrcBits > 0 && !q.Known.Tuple() {
		return []Answer{in} // outgoing packets from somewhere are listed by where they go
	}
	out := explain(e.Out(), q, nil)
	out.Direction = "out"
	return []Answer{in, out}
}

// side is the part of a generation for one direction, with all lists.
type side struct {
	*engine.Generation
	lists []engine.List
}

// explain answers a question for one direction.
func explain(e *engine.Generation, q Question, penalties []verdict.Penalty) Answer {
	g := &side{e, e.LendLists()}
	known := q.Known
	if q.Frame != nil {
		if p, r := packet.Parse(q.Frame); p.HasAddresses {
			if c := g.Carried(q.Frame, p); c.Reason == verdict.Blocked && r == packet.OK && !g.Drops(q.Frame, p) {
				p = c.Packet
			}
			known = p.Tuple.Key()
		}
	}
	var block, allow overlap
	if known.Src.IsValid() {
		block, allow = g.overlap(known, false), g.overlap(known, true)
	}
	var t *verdict.Trace
	if q.Frame != nil {
		t = g.TraceFrame(q.Frame, penalties)
	} else {
		listed := g.listed(verdict.StageBlock, g.Block, known, &block)
		t = g.Trace(known, append(listed, g.listed(verdict.StageAllow, g.Allow, known, &allow)...), penalties)
	}
	a := Answer{
		Known: known, Packet: q.String(), Verdict: verdictOf(t.Action), Reason: t.Reason, List: g.listName(t.List), Matches: []Match{},
		FalsePositive: (t.Reason == verdict.Blocked || t.Reason == verdict.WouldBlock && met(t, verdict.StageBlock)) && len(block.covering) == 0,
	}
	for _, s := range t.Steps {
		a.Stages = append(a.Stages, g.stage(s))
	}
	a.Matches = append(g.matches(block.covering), g.matches(allow.covering)...)
	g.depend(&a, t.Depends, &block, &allow)
	a.limit(t.Depends)
	if q.prefix() {
		a.Inside = &Inside{
			Entries: block.within + allow.within,
			First:   append(g.matches(block.inside), g.matches(allow.inside)...),
		}
	}
	return a
}

// limit sets the limit of a flow that all of the packets are of. What is within it passes.
func (a *Answer) limit(depends []verdict.Condition) {
	for _, c := range depends {
		if c.Reason == verdict.RateLimited && c.Then.Action == verdict.Drop && c.Covers && a.Verdict == Pass {
			a.Verdict, a.Limit = Limited, &Limit{Key: c.Penalty.Flow, Flow: c.Penalty.Flow.String(), Rate: c.Penalty.Rate, Until: until(c.Penalty)}
		}
	}
}

// manyLists is the number of lists from which on Condense does not name them.
const manyLists = 4

// Condense joins dependencies on the addresses of many lists, whichever these are.
func (a *Answer) Condense() {
	same := func(d, e Dependency) bool {
		return d.Open && e.Open && d.Source == e.Source && d.Stage == e.Stage && d.Verdict == e.Verdict && d.Reason == e.Reason
	}
	var all []Dependency
	for _, d := range a.Depends {
		n := 0
		for _, e := range a.Depends {
			if same(d, e) {
				n++
			}
		}
		if n < manyLists {
			all = append(all, d)
			continue
		}
		if slices.ContainsFunc(all, func(e Dependency) bool { return same(d, e) }) {
			continue
		}
		of, side := "block", "to"
		if d.Stage == verdict.StageAllow {
			of = "allow"
		}
		if d.Source {
			side = "from"
		}
		d.Packets, d.Lists = fmt.Sprintf("%s addresses of any of %d %s lists", side, n, of), n
		all = append(all, d)
	}
	a.Depends = all
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
func (g *side) listed(stage verdict.Stage, set *membership.Set, k key.Key, o *overlap) (c []verdict.Condition) {
	reason := verdict.Blocked
	if stage == verdict.StageAllow {
		reason = verdict.Allowed
	}
	if g.Rules != nil {
		return g.ruled(stage, k, o)
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

// ruled is listed where lists have rules: those that drop packets first, then those on trial.
func (g *side) ruled(stage verdict.Stage, k key.Key, o *overlap) (c []verdict.Condition) {
	var enforced, some, trial, someTrial []verdict.Condition
	for _, f := range o.covering {
		rule := g.ruleOf(f.List)
		all, may := rule.Of(k)
		of := verdict.Condition{Stage: stage, All: all, Reason: verdict.Blocked, List: int(f.List)}
		if stage == verdict.StageAllow {
			of.Reason = verdict.Allowed
		}
		if !all {
			of.What = fmt.Sprintf("packets of %s, for which list %s is", rule, g.listName(int(f.List)))
		}
		switch {
		case !may:
		case rule.Trial:
			of.Reason = verdict.WouldBlock
			if all {
				trial = append(trial, of)
			} else {
				someTrial = append(someTrial, of)
			}
		case all:
			enforced = append(enforced, of)
		default:
			some = append(some, of)
		}
	}
	if o.some() {
		reason := verdict.Blocked
		if stage == verdict.StageAllow {
			reason = verdict.Allowed
		}
		some = append(some, verdict.Condition{Stage: stage, Reason: reason})
	}
	return slices.Concat(enforced, some, trial, someTrial)
}

// ruleOf returns the rule of a list, which may be the zero rule.
func (g *side) ruleOf(number uint16) *verdict.Rule {
	if r := g.lists[number-1].Rule; r != nil {
		return r
	}
	return &verdict.Rule{}
}

// whole reports whether the addresses of k's packets are known, as far as any is.
func whole(k key.Key) bool {
	full := uint8(k.MaxBits())
	return (k.SrcBits == 0 || k.SrcBits == full) && (k.DstBits == 0 || k.DstBits == full)
}

func (g *side) listName(number int) string {
	if number == 0 {
		return ""
	}
	return g.lists[number-1].Name
}

func (g *side) stage(s verdict.Step) Stage {
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

func (g *side) matches(found []engine.Found) []Match {
	matches := make([]Match, len(found))
	for i, f := range found {
		l := g.lists[f.List-1]
		matches[i] = Match{Number: f.List, Key: f.Key, List: l.Name, Action: "block", Entry: f.Key.String()}
		if l.Rule != nil {
			matches[i].Trial, matches[i].For = l.Rule.Trial, l.Rule.String()
		}
		if l.Allow {
			matches[i].Action = "allow"
		}
	}
	return matches
}

// aboveRate follows the flow of a rate limit.
const aboveRate = " above its rate"

// depend names what the verdict depends on; of lists, their entries.
func (g *side) depend(a *Answer, on []verdict.Condition, block, allow *overlap) {
	seen := make(map[Dependency]bool)
	for _, c := range on {
		d := Dependency{Stage: c.Stage, Packets: c.What, Verdict: c.Then.Action, Reason: c.Then.Reason}
		var o *overlap
		switch {
		case c.Stage == verdict.StageBlock && c.What == "":
			o = block
		case c.Stage == verdict.StageAllow && c.What == "":
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
		for _, of := range o.open {
			d.Open, d.Source = true, of.source
			d.Packets = "to addresses of list " + g.listName(int(of.list))
			if of.source {
				d.Packets = "from addresses of list " + g.listName(int(of.list))
			}
			g.addDependency(a, d, of.list)
		}
		d.Open = false
		for _, m := range append(g.matches(o.inside), g.matches(o.flows)...) {
			d.Packets, d.Match = m.Entry, &m
			g.addDependency(a, d, m.Number)
		}
		a.DependsMore += o.within - len(o.inside) + o.flowing - len(o.flows)
	}
}

// addDependency adds what the verdict depends on, unless the rule of the list is not for
// packets of the question.
func (g *side) addDependency(a *Answer, d Dependency, number uint16) {
	rule := g.ruleOf(number)
	if _, some := rule.Of(a.Known); !some && a.Known.Src.IsValid() {
		return
	}
	if rule.Narrow() {
		d.Packets += ", of " + rule.String()
	}
	if rule.Trial {
		if a.Reason == verdict.Blocked || a.Reason == verdict.WouldBlock {
			return
		}
		d.Verdict, d.Reason = verdict.Pass, verdict.WouldBlock
	}
	a.Depends = append(a.Depends, d)
}
