package explain

import "weir/control/api"

// API returns the answer as clients of the daemon see it.
func (a *Answer) API() api.Answer {
	b := api.Answer{
		Packet: a.Packet, Direction: a.Direction, Verdict: a.Verdict.String(), Reason: a.Reason.String(), Pattern: a.Pattern, List: a.List,
		Stages: make([]api.Stage, len(a.Stages)), Matches: matchesOf(a.Matches), DependsMore: a.DependsMore,
		PenaltiesMore: a.PenaltiesMore, Spared: a.Spared, FalsePositive: a.FalsePositive,
		Incomplete: a.Incomplete,
	}
	if l := a.Limit; l != nil {
		b.Limit = &api.Limit{Flow: l.Flow, Rate: l.Rate, Until: l.Until, Tracker: l.Tracker, Unit: l.Unit, Offered: l.Offered}
	}
	for i, s := range a.Stages {
		b.Stages[i] = api.Stage{Stage: s.Stage.String(), Met: s.Met, By: s.By, Until: s.Until}
	}
	for _, d := range a.Depends {
		on := api.Dependency{
			Stage: d.Stage.String(), Packets: d.Packets, Verdict: d.Verdict.String(), Reason: d.Reason.String(), Until: d.Until, Lists: d.Lists,
		}
		if d.Match != nil {
			m := d.Match.api()
			on.Match = &m
		}
		b.Depends = append(b.Depends, on)
	}
	if l := a.LastDrop; l != nil {
		b.LastDrop = &api.LastDrop{
			Time: l.Time, Reason: l.Reason.String(), List: l.List, Monitor: l.Monitor, Packets: l.Packets, MonitorPackets: l.MonitorPackets,
		}
	}
	if a.Inside != nil {
		b.Inside = &api.Inside{Entries: a.Inside.Entries, First: matchesOf(a.Inside.First)}
	}
	return b
}

func matchesOf(all []Match) []api.Match {
	matches := make([]api.Match, len(all))
	for i, m := range all {
		matches[i] = m.api()
	}
	return matches
}

func (m *Match) api() api.Match {
	return api.Match{
		List: m.List, Action: m.Action, Entry: m.Entry, Trial: m.Trial, For: m.For, Derived: m.Derived, NotDerived: m.NotDerived, Source: m.Source, Line: m.Line, Added: m.Added, Listed: m.Listed,
		Earlier: m.Earlier, Expires: m.Expires, Reason: m.Reason, Origin: m.Origin, UID: m.UID, Client: m.Client, Packets: m.Packets,
	}
}
