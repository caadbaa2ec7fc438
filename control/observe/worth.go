package observe

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/history"
	"weir/control/list"
	"weir/control/observe/traffic"
	"weir/control/ruleset"
	"weir/filter/key"
	"weir/filter/ordered"
	"weir/filter/verdict"
)

// Appraiser says what lists are worth. It is safe for concurrent use.
type Appraiser struct {
	host      ruleset.Host
	meter     *traffic.Meter
	drops     *DropRecorder
	history   *TrafficHistory
	conversed *Conversations

	counting sync.Mutex // held while it is counted what lists are worth
}

// NewAppraiser returns an appraiser of a host's lists, by what its programs and recorders have counted.
func NewAppraiser(host ruleset.Host, meter *traffic.Meter, drops *DropRecorder, history *TrafficHistory, conversed *Conversations) *Appraiser {
	return &Appraiser{host: host, meter: meter, drops: drops, history: history, conversed: conversed}
}

// Worth implements [server.Appraiser]. The loop only lends its sets: a pass over all of
// them takes a while.
func (a *Appraiser) Worth(ctx context.Context) (w api.ListsWorth, err error) {
	a.counting.Lock() // one pass at a time
	defer a.counting.Unlock()
	var p *ruleset.Ruleset
	now := time.Now()
	if err := a.host.Lend(ctx, func(is ruleset.Active) error {
		p = is.Copy()
		hits := a.meter.Hits()
		for _, l := range p.Lists {
			of := api.ListWorth{Name: l.Name, Action: string(l.Action), Entries: p.Contents(l.ManualNumber).Len()}
			if l.SourceNumber != 0 {
				of.Entries += p.Contents(l.SourceNumber).Len()
			}
			of.Packets = is.Caught(l, hits)
			if c := a.conversed.Last().Of(l.Name); c != nil {
				of.Collateral = new(c.Addresses)
			}
			w.Lists = append(w.Lists, of)
		}
		return nil
	}); err != nil {
		return w, err
	}
	dropped := a.drops.Hour.Since(now.Add(-Keep), now)
	w.Since, w.Tracked = dropped.Begin, p.Stages.Trackers.TrackDrops
	months := monthsOf(a.history.Since(now.Add(-history.KeepCoarse), now, history.Coarse))
	overlaps := list.Overlaps(matched(p))
	for i, l := range p.Lists {
		of := &w.Lists[i]
		of.Months = months[l.Name]
		of.Ages = agesOf(p, l, now)
		for j, n := range overlaps[i] {
			if n > 0 {
				of.Overlaps = append(of.Overlaps, api.Overlap{List: p.Lists[j].Name, Entries: n})
			}
		}
		ordered.By(of.Overlaps, func(a, b api.Overlap) int { return cmp.Compare(b.Entries, a.Entries) })
	}
	credit(p, w.Lists, dropped.Flows)
	return w, ctx.Err()
}

// valueInterval is how often the history takes what lists were worth.
const valueInterval = 10 * time.Minute

// Follow has the history know what lists are worth.
func (a *Appraiser) Follow(ctx context.Context) {
	t := time.NewTicker(valueInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			a.Value(ctx, now)
		}
	}
}

// Value adds to the history which packets, of those that were dropped since it was called last, only one
// list would have dropped.
func (a *Appraiser) Value(ctx context.Context, now time.Time) {
	dropped := a.drops.Unvalued.Take()
	if len(dropped.Flows) == 0 {
		return
	}
	var p *ruleset.Ruleset
	if a.host.Lend(ctx, func(is ruleset.Active) error { p = is.Copy(); return nil }) != nil {
		return // the daemon stops
	}
	lists := make([]api.ListWorth, len(p.Lists))
	for i, l := range p.Lists {
		lists[i].Name = l.Name
	}
	credit(p, lists, dropped.Flows)
	var s history.Sample
	for _, l := range lists {
		if l.AlonePackets > 0 {
			s.Lists = append(s.Lists, history.List{Name: l.Name, Alone: l.AlonePackets})
		}
	}
	if len(s.Lists) > 0 {
		a.history.Add(now, s)
	}
}

// matched returns the contents of the lists, in their order, as they are matched.
func matched(p *ruleset.Ruleset) []list.Matched {
	all := make([]list.Matched, len(p.Lists))
	for i, l := range p.Lists {
		sets := []*list.Set{p.Contents(l.ManualNumber)}
		if l.SourceNumber != 0 {
			sets = []*list.Set{p.Contents(l.SourceNumber), sets[0]}
		}
		source, _ := l.Direction.Sides()
		all[i] = list.Matched{Set: list.Union(sets...), Source: source, Directed: true}
	}
	return all
}

// monthsOf returns what lists have matched by month, the latest first.
func monthsOf(all []history.Record) map[string][]api.MonthPackets {
	months := make(map[string][]api.MonthPackets)
	for _, r := range slices.Backward(all) {
		month := r.Begin.Format("2006-01")
		for _, l := range r.Lists {
			of := months[l.Name]
			if last := len(of) - 1; last < 0 || of[last].Month != month {
				of = append(of, api.MonthPackets{Month: month})
			}
			m := &of[len(of)-1]
			m.Packets += l.Packets
			m.Alone += l.Alone
			m.Conversed = max(m.Conversed, l.Conversed)
			months[l.Name] = of
		}
	}
	return months
}

// agesOf returns how long the entries of a list are listed.
func agesOf(p *ruleset.Ruleset, l *ruleset.List, now time.Time) (ages api.EntryAges) {
	const day = 24 * time.Hour
	add := func(since time.Time, earlier bool, n int) {
		switch age := now.Sub(since); {
		case since.IsZero(), earlier && age <= 30*day:
			ages.Unknown += n
		case age <= day:
			ages.Day += n
		case age <= 7*day:
			ages.Week += n
		case age <= 30*day:
			ages.Month += n
		default:
			ages.Older += n
		}
	}
	switch {
	case l.FromFeed != nil:
		for _, a := range l.FromFeed.Ages() {
			add(a.Since, a.Earlier, a.Entries)
		}
	case l.SourceNumber != 0:
		ages.Unknown = p.Contents(l.SourceNumber).Len()
	}
	for k := range p.Contents(l.ManualNumber).All() {
		e, _ := p.Journal.Get(l.Name, k)
		add(e.Added, false, 1)
	}
	return ages
}

// credit adds which lists have, or would have, dropped packets of remote addresses.
func credit(p *ruleset.Ruleset, lists []api.ListWorth, flows map[DroppedFlow]DropCount) {
	type remote struct {
		netip.Addr
		out bool
	}
	type packets struct {
		n  uint64
		by map[string]bool // the lists under which they were counted
	}
	all := make(map[remote]*packets)
	for f, n := range flows {
		if f.Reason != verdict.Blocked && f.Reason != verdict.WouldBlock || !f.Remote.IsValid() {
			continue
		}
		r := remote{f.Remote, f.Out}
		if all[r] == nil {
			all[r] = &packets{by: make(map[string]bool)}
		}
		all[r].n += n.Packets
		if f.List != "" {
			all[r].by[f.List] = true
		}
	}
	number := make(map[string]int)
	for i, l := range lists {
		number[l.Name] = i
	}
	in, out := engine.NewFinder(p.Rules, false), engine.NewFinder(p.Rules, true)
	seen := make(map[int]map[key.Key]bool)
	for r, of := range all {
		whole := netip.PrefixFrom(r.Addr, r.BitLen())
		found := in.Covering(key.Source(whole))
		if r.out {
			found = out.Covering(key.Destination(whole))
		}
		has, drop := make(map[int]bool), make(map[int]bool) // lists that have the address, and those that drop all its packets
		for name := range of.by {
			if i, ok := number[name]; ok {
				has[i], drop[i] = true, true
			}
		}
		for _, f := range found {
			rule := p.Rules[f.List-1]
			i, ok := number[api.ListOf(rule.Name)]
			if !ok || rule.Allow {
				continue
			}
			l := p.Lists[i]
			if !has[i] || !rule.Rule.On() {
				drop[i] = drop[i] || !rule.Rule.On()
			}
			has[i] = true
			if f.List != l.DerivedNumber && seen[i] == nil {
				seen[i] = make(map[key.Key]bool)
			}
			if f.List != l.DerivedNumber {
				seen[i][f.Key] = true
			}
		}
		for i := range has {
			lists[i].Addresses++
			lists[i].AddressPackets += of.n
			others := len(drop)
			if drop[i] {
				others--
			}
			if others == 0 {
				lists[i].Alone++
				lists[i].AlonePackets += of.n
			}
		}
	}
	for i, keys := range seen {
		lists[i].Seen = len(keys)
	}
}
