package ruleset

import (
	"weir/control/api"
	"weir/control/engine"
	"weir/control/explain"
	"weir/control/feed"
	"weir/filter/key"
	"weir/loader"
)

// Explain answers questions as a daemon would, by an engine that p built.
func (p *Ruleset) Explain(e *engine.Generation, asked ...explain.Question) (answers []explain.Answer) {
	wanted := make(Places)
	for _, q := range asked {
		all := explain.Answers(e, q, nil)
		for i := range all {
			all[i].Condense()
			p.DescribeAnswer(&all[i], wanted)
		}
		answers = append(answers, all...)
	}
	wanted.Find(Source.Find)
	return answers
}

// Places are the matches whose place is to be found, by feed.
type Places map[Source][]*explain.Match

// DescribeAnswer adds to the matches of an answer what is known of their entries, and
// to wanted those that are of a feed.
func (p *Ruleset) DescribeAnswer(a *explain.Answer, wanted Places) {
	a.List, a.Incomplete = api.ListOf(a.List), p.Unknown()
	for _, m := range a.Entries() {
		for _, l := range p.Lists {
			switch m.Number {
			case l.SourceNumber:
				m.List = l.Name
				p.describeNotDerived(l, m)
				wanted[l.From] = append(wanted[l.From], m)
			case l.ManualNumber:
				m.List = l.Name
				p.describeManual(m)
				p.describeNotDerived(l, m)
			case l.DerivedNumber:
				m.List = l.Name
				p.describeDerived(l, m)
			}
		}
	}
}

// CountAnswer adds to the matches of an answer how many packets their lists have matched.
func (p *Ruleset) CountAnswer(a *explain.Answer, hits map[string]loader.Counter) {
	for _, m := range a.Entries() {
		for _, l := range p.Lists {
			switch m.Number {
			case l.SourceNumber, l.ManualNumber, l.DerivedNumber:
				m.Packets = p.caughtBy(l, hits, m.Number)
			}
		}
	}
}

func (p *Ruleset) describeManual(m *explain.Match) {
	e, ok := p.Journal.Get(m.List, m.Key)
	if !ok {
		return
	}
	m.Added, m.Reason, m.Client = &e.Added, e.Reason, e.Client
	if e.UID != api.NoUID {
		m.UID = &e.UID
	}
	if !e.Expires.IsZero() {
		m.Expires = &e.Expires
	}
}

// Find finds the places, by a method of sources.
func (w Places) Find(find func(Source, []key.Key) []feed.Origin) {
	for f, matches := range w {
		keys := make([]key.Key, len(matches))
		for i, m := range matches {
			keys[i] = m.Key
		}
		for i, o := range find(f, keys) {
			m := matches[i]
			m.Source, m.Line, m.Reason, m.Origin = o.Source, o.Line, o.Reason, o.By
			if !o.Added.IsZero() {
				m.Added = &o.Added
			}
			if !o.Listed.IsZero() {
				m.Listed, m.Earlier = &o.Listed, o.Earlier
			}
			if !o.Expires.IsZero() {
				m.Expires = &o.Expires
			}
		}
	}
}
