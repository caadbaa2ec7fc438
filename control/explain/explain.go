// Package explain says whether and why a packet would be dropped: what the
// filter answers, and which lines of which lists say so.
package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"weir/control/engine"
	"weir/control/list"
	"weir/control/ruleset"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/verdict"
)

// maxDepends bounds the lines that an answer names because they may matter.
const maxDepends = 20

// Explanation answers a query: one answer, or for an address one for packets
// from it and, where lists have destinations, one for packets to it.
type Explanation struct {
	Query     string   `json:"query"`
	Verdict   string   `json:"verdict"`             // drop if any of the answers is
	Interface string   `json:"interface,omitempty"` // whose lists were asked
	Notes     []string `json:"notes,omitempty"`
	Answers   []Answer `json:"answers"`
}

// Drops tells whether any of the packets would be dropped.
func (e *Explanation) Drops() bool { return e.Verdict == verdict.Drop.String() }

// Answer is the answer for one packet.
type Answer struct {
	Packet  string  `json:"packet"`
	Verdict string  `json:"verdict"` // pass or drop
	Reason  string  `json:"reason"`
	List    string  `json:"list"` // that blocks it, as the filter says; "" if none, or in approximate mode
	Filter  []Probe `json:"filter"`
	// Matches are all lines that list the packet, the most specific first.
	Matches []Match `json:"matches"`
	// Depends are lines that would change the verdict on some such packets,
	// depending on what the query leaves open. DependsMore is how many more
	// there are.
	Depends     []Match `json:"depends,omitempty"`
	DependsMore int     `json:"depends_more,omitempty"`
	// FalsePositive is true where the filter blocks what no line lists, as it
	// may in approximate mode.
	FalsePositive bool `json:"false_positive"`
}

// Probe is what a set of the filter answered for one shape.
type Probe struct {
	Action string `json:"action"` // block or allow
	Shape  string `json:"shape"`
	Key    string `json:"key"`  // what was looked up
	List   string `json:"list"` // "" in approximate mode
}

// Match is a line of a list.
type Match struct {
	Action string `json:"action"` // block or allow
	List   string `json:"list"`
	File   string `json:"file"`
	Line   int    `json:"line"`
	Text   string `json:"text"`
	Entry  string `json:"entry"` // that the line stands for
	Shape  string `json:"shape"`
	bits   int    // how specific the entry is
}

func action(allow bool) string {
	if allow {
		return "allow"
	}
	return "block"
}

// Explain answers a query: an address, "> ADDRESS", or a flow in the list
// format.
func Explain(query string, r ruleset.Rules, progress ruleset.Progress) (*Explanation, error) {
	asked, err := parse(query)
	if err != nil {
		return nil, err
	}
	loaded, err := r.Load(progress)
	if err != nil {
		return nil, err
	}
	g, err := engine.Reference(loaded.Lists(), r.Config)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	if len(asked) > 1 && !hasDestinations(g, asked[0].Src.Is6()) {
		asked = asked[:1]
	}
	e := &Explanation{Query: query, Verdict: verdict.Pass.String()}
	for i := range asked {
		e.Answers = append(e.Answers, answer(&asked[i], g, loaded))
	}
	if ports := failsafePorts(r); ports != "" && !asked[0].transport {
		e.Notes = append(e.Notes, "what goes to failsafe ports passes, whatever is listed: "+ports)
	}
	for _, s := range loaded.Sources {
		if err := search(asked, e.Answers, s, r.Lenient); err != nil {
			return nil, err
		}
	}
	for i := range e.Answers {
		if err := e.Answers[i].finish(); err != nil {
			return nil, err
		}
		if e.Answers[i].Verdict == verdict.Drop.String() {
			e.Verdict = verdict.Drop.String()
		}
	}
	return e, nil
}

// failsafePorts names the failsafe ports.
func failsafePorts(r ruleset.Rules) string {
	var ports []string
	for _, p := range r.FailsafePorts {
		ports = append(ports, p.String())
	}
	return strings.Join(ports, ", ")
}

// hasDestinations tells whether a family's lists have destinations alone.
func hasDestinations(g *engine.Generation, v6 bool) bool {
	shapes := slices.Concat(g.Block.V4, g.Allow.V4)
	if v6 {
		shapes = slices.Concat(g.Block.V6, g.Allow.V6)
	}
	return slices.ContainsFunc(shapes, func(s membership.GatedShape) bool { return s.DstBits > 0 })
}

// answer asks the filter. Shapes for which the question leaves something open
// are not asked.
func answer(q *question, g *engine.Generation, loaded *ruleset.Loaded) Answer {
	p := verdict.Program{Policy: g.Policy, Block: q.restrict(g.Block), Allow: q.restrict(g.Allow)}
	out := p.Decide(packet.Frame(q.Tuple))
	a := Answer{
		Packet: q.String(), Verdict: out.Action.String(), Reason: out.Reason.String(),
		Filter: []Probe{}, Matches: []Match{},
	}
	name := func(number int) string {
		if number == 0 {
			return ""
		}
		return loaded.Sources[number-1].Name
	}
	a.List = name(out.List)
	for _, side := range []struct {
		allow bool
		set   *membership.Set
	}{{false, p.Block}, {true, p.Allow}} {
		shapes := slices.Concat(side.set.V4, side.set.V4Flow, side.set.V6, side.set.V6Flow)
		for _, s := range shapes {
			k, ok := s.Of(q.Tuple)
			if !ok {
				continue
			}
			if number, ok := side.set.Lookup(k.Hash(side.set.Seed)); ok {
				a.Filter = append(a.Filter, Probe{
					Action: action(side.allow), Shape: s.String(), Key: k.String(), List: name(number),
				})
			}
		}
	}
	return a
}

// search looks through a list's file for lines that list the packets asked for.
func search(asked []question, answers []Answer, s ruleset.Source, lenient bool) error {
	for line, err := range list.Scan(s.File, list.Options{Lenient: lenient}) {
		if err != nil {
			return err
		}
		for i := range asked {
			q, a := &asked[i], &answers[i]
			for k := range q.candidates(s.List, line.Entries) {
				switch full, part := q.matches(k); {
				case full:
					a.Matches = append(a.Matches, newMatch(s, line, k))
				case !part || !a.mayChange(s.Allow):
				case len(a.Depends) < maxDepends:
					a.Depends = append(a.Depends, newMatch(s, line, k))
				default:
					a.DependsMore++
				}
			}
		}
	}
	return nil
}

// mayChange tells whether one more list that matches would change the verdict.
func (a *Answer) mayChange(allow bool) bool {
	switch a.Reason {
	case verdict.Clean.String():
		return !allow
	case verdict.Blocked.String(), verdict.Monitored.String():
		return allow
	}
	return false
}

func newMatch(s ruleset.Source, l list.Line, k key.Key) Match {
	return Match{
		Action: action(s.Allow), List: s.Name, File: s.File, Line: l.Number, Text: string(l.Text),
		Entry: k.String(), Shape: k.Shape.String(), bits: int(k.SrcBits) + int(k.DstBits),
	}
}

// finish orders the matches and holds the filter's answer against them.
func (a *Answer) finish() error {
	slices.SortStableFunc(a.Matches, func(x, y Match) int { return cmp.Compare(y.bits, x.bits) })
	blocks := slices.ContainsFunc(a.Matches, func(m Match) bool { return m.Action == "block" })
	allows := slices.ContainsFunc(a.Matches, func(m Match) bool { return m.Action == "allow" })
	switch {
	case a.Reason == verdict.Blocked.String() || a.Reason == verdict.Monitored.String():
		a.FalsePositive = !blocks
	case a.Reason == verdict.Clean.String() && blocks && !allows:
		return fmt.Errorf("the filter lets %s pass, which %s:%d lists: this is a defect of weir, or the file changed just now",
			a.Packet, a.Matches[0].File, a.Matches[0].Line)
	}
	return nil
}
