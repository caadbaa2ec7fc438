package daemon

import (
	"context"
	"strings"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/feed"
	"weir/filter/key"
	"weir/loader"
)

// Explain implements [api.Daemon].
func (d *Daemon) Explain(ctx context.Context, asked []engine.Question) (answers []engine.Answer, err error) {
	answers, wanted, err := d.explain(ctx, asked)
	wanted.find(source.Find) // outside of the loop, as it reads the feeds
	return answers, err
}

// explain answers questions, but for the places of entries, which it returns.
func (d *Daemon) explain(ctx context.Context, asked []engine.Question) (answers []engine.Answer, wanted places, err error) {
	wanted = make(places)
	for _, q := range asked { // each in a turn of its own: there may be many
		if err := d.Do(ctx, func() error {
			hits := d.meter.Hits()
			all := d.engine.Explain(q, d.observers.heavy.Penalties(loader.Monotonic()))
			for i := range all {
				d.prepared.describe(&all[i], wanted, func(l *managedList, number uint16) *uint64 { return d.caught(l, d.hits(hits, number)) })
			}
			answers = append(answers, all...)
			return nil
		}); err != nil {
			return nil, nil, err
		}
	}
	return answers, wanted, nil
}

// Explain answers questions as a daemon would, by an engine that p built.
func (p *Prepared) Explain(e *engine.Generation, asked ...engine.Question) (answers []engine.Answer) {
	wanted := make(places)
	for _, q := range asked {
		all := e.Explain(q, nil)
		for i := range all {
			p.describe(&all[i], wanted, func(*managedList, uint16) *uint64 { return nil })
		}
		answers = append(answers, all...)
	}
	wanted.find(source.Find)
	return answers
}

// places are the matches whose place is to be found, by feed.
type places map[source][]*engine.Match

// describe adds to the matches of an answer what is known of their entries, and
// to wanted those that are of a feed.
func (p *Prepared) describe(a *engine.Answer, wanted places, packets func(*managedList, uint16) *uint64) {
	a.List = strings.TrimSuffix(a.List, api.ManualSuffix)
	for _, m := range a.Entries() {
		for _, l := range p.lists {
			switch m.Number {
			case l.source:
				m.List, m.Packets = l.Name, packets(l, m.Number)
				wanted[l.from] = append(wanted[l.from], m)
			case l.manual:
				m.List, m.Packets = l.Name, packets(l, m.Number)
				p.describeManual(m)
			}
		}
	}
}

func (p *Prepared) describeManual(m *engine.Match) {
	e, ok := p.journal.Get(m.List, m.Key)
	if !ok {
		return
	}
	m.Added, m.Reason = &e.Added, e.Reason
	if e.UID != api.NoUID {
		m.UID = &e.UID
	}
	if !e.Expires.IsZero() {
		m.Expires = &e.Expires
	}
}

// find finds the places, by a method of sources.
func (w places) find(find func(source, []key.Key) []feed.Origin) {
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
			if !o.Expires.IsZero() {
				m.Expires = &o.Expires
			}
		}
	}
}
