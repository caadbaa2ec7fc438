package ruleset

import (
	"cmp"

	"weir/control/api"
	"weir/control/config"
	"weir/control/engine"
	"weir/filter/membership"
	"weir/loader"
)

// Describe describes the lists as clients see them, with the packets that they have matched, and
// with whom the host has conversed.
func (p *Ruleset) Describe(hits map[string]loader.Counter, conversed *api.Collateral) (lists []api.List) {
	for _, l := range p.Lists {
		a := api.List{
			Name: l.Name, Action: string(l.Action), Direction: l.Direction.String(), Priority: l.Priority,
			Manual: p.Contents(l.ManualNumber).Len(),
		}
		a.Entries = a.Manual
		a.Private, a.FirstPrivate, a.Trial = l.Left.Private, l.Left.firstPrivate, l.Trial
		a.PrivateBlocked = a.Private > 0 && !l.Left.excluded
		if of := conversed.Of(l.Name); of != nil {
			some := *of
			some.Latest = of.Latest[:min(len(of.Latest), api.MaxConversed)]
			a.Collateral = &some
		}
		if r := p.Rules[l.ManualNumber-1].Rule; r.On() {
			a.For = r.String()
		}
		for _, o := range l.Left.failsafe {
			a.LeftOut = append(a.LeftOut, api.LeftOut{Entry: o.entry.String(), Failsafe: o.safe.String()})
		}
		for _, o := range firstOf(l.Left.Objections) {
			a.LeftOut = append(a.LeftOut, api.LeftOut{Entry: o.Entry.String(), CutOff: o.Peer.What})
		}
		a.Spare = l.Left.shapes
		if l.DerivedNumber != 0 {
			a.Derived = p.Contents(l.DerivedNumber).Len()
			a.LeftOut = append(a.LeftOut, p.leftOutDerived(l)...)
		}
		if l.From != nil {
			a.Entries += p.Contents(l.SourceNumber).Len()
			for _, s := range l.From.Status().Sources {
				a.Feeds = append(a.Feeds, s.API(cmp.Or(l.Refused, l.Rejected)))
			}
		}
		a.Packets = p.Caught(l, hits)
		lists = append(lists, a)
	}
	return lists
}

// Caught returns the packets that a list has matched, nil where they are not
// counted.
func (p *Ruleset) Caught(l *List, all map[string]loader.Counter) *uint64 {
	return p.caughtBy(l, all, l.SourceNumber, l.ManualNumber, l.DerivedNumber)
}

// caughtBy is Caught for some of the engine's lists that a list is, by their numbers, of which 0 is none.
func (p *Ruleset) caughtBy(l *List, all map[string]loader.Counter, numbers ...uint16) *uint64 {
	if l.Action == config.Allow || p.Config.Mode == membership.Approximate {
		return nil
	}
	packets := uint64(0)
	for _, n := range numbers {
		if n != 0 {
			packets += all[p.Rules[n-1].Name].Packets
		}
	}
	return &packets
}

// OnTrial returns the names of the lists on trial.
func (p *Ruleset) OnTrial() map[string]bool {
	return p.names(func(l *List) bool {
		r := p.Rules[l.ManualNumber-1].Rule
		return r.On() && r.Trial
	})
}

// Outgoing returns the names of the lists of outgoing packets.
func (p *Ruleset) Outgoing() map[string]bool {
	return p.names(func(l *List) bool { return l.Direction == engine.Out })
}

// names returns the names of some lists, nil for none.
func (p *Ruleset) names(are func(*List) bool) (all map[string]bool) {
	for _, l := range p.Lists {
		if are(l) {
			if all == nil {
				all = make(map[string]bool)
			}
			all[l.Name] = true
		}
	}
	return all
}
