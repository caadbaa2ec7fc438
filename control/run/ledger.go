package run

import (
	"bytes"
	"maps"
	"slices"
	"sync"

	"weir/control/metrics"
	"weir/control/status"
	"weir/filter/verdict"
	"weir/loader"
)

// ledger adds up what the interfaces count, so that no sum ever goes back: the
// counters of an interface that comes back begin anew, and a list's counter is
// another's when that takes its number. What was counted before weir began, by
// a program that is adopted, counts. The methods may be called concurrently.
type ledger struct {
	mu       sync.Mutex
	accounts []*account
	hits     map[string]loader.Counter // by block list, "" of none
}

// account is what an interface has counted.
type account struct {
	loader.Target
	xdp       string        // "" while it is not filtered
	stats     *loader.Stats // nil while nothing has been there to filter
	penalties *int

	about       []byte             // what the description was read from
	description status.Description // the interface's own
	seen        Counters           // the counters, as they were last read
	seenLists   []loader.Counter   // by number
	lost        uint64             // events
	seenLost    uint64
	loops       [loader.LoopOutcomes]uint64
	seenLoops   [loader.LoopOutcomes]uint64
	total       [verdict.NumReasons]struct{ passed, dropped loader.Counter }
}

// read gives what was counted up to now.
func (l *ledger) read() (all []metrics.Interface, hits map[string]loader.Counter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.accounts {
		l.advance(a)
		i := metrics.Interface{Target: a.Target, XDP: a.xdp, Penalties: a.penalties, Lost: a.lost, Counts: a.counts()}
		if a.description.Loop != nil {
			loops := a.loops
			i.Loops = &loops
		}
		all = append(all, i)
	}
	return all, maps.Clone(l.hits)
}

// follow goes over to the interfaces that are filtered now. Those that are
// named have an account in any case; others, of which any number may come and
// go, have it while they are there.
func (l *ledger) follow(there []found, named []loader.Target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range named {
		l.account(t)
	}
	for _, n := range there { // which may have been renamed
		for _, a := range l.accounts {
			if a.stats != nil && a.stats == n.Stats() {
				a.Target = n.Target()
			}
		}
	}
	for _, a := range l.accounts {
		if !slices.ContainsFunc(there, func(n found) bool { return n.Target() == a.Target }) {
			l.advance(a)
			a.xdp, a.stats, a.penalties = "", nil, nil
		}
	}
	l.accounts = slices.DeleteFunc(l.accounts, func(a *account) bool {
		return a.stats == nil && !slices.Contains(named, a.Target)
	})
	for _, n := range there {
		a := l.account(n.Target())
		if a.xdp, a.penalties = n.Hook().String(), n.penalties; n.gone {
			a.xdp = ""
		}
		if stats := n.Stats(); stats != a.stats {
			l.advance(a)
			a.stats, a.seen, a.seenLists = stats, Counters{}, nil
			a.seenLost, a.seenLoops = 0, [loader.LoopOutcomes]uint64{}
			a.about, a.description = nil, status.Description{}
		}
		if about := n.Metadata(); !bytes.Equal(a.about, about) {
			a.about = about
			if d, err := status.DescriptionOf(n.Attachment); err == nil {
				l.rename(a, d.Lists)
				a.description = d
			}
		}
		l.advance(a)
	}
}

// account finds the account of an interface, or opens one.
func (l *ledger) account(t loader.Target) *account {
	i := slices.IndexFunc(l.accounts, func(a *account) bool { return a.Target == t })
	if i < 0 {
		i, l.accounts = len(l.accounts), append(l.accounts, &account{Target: t})
	}
	return l.accounts[i]
}

// rename goes over to other lists: up to where a number begins to be another's,
// what it counted is the former one's.
func (l *ledger) rename(a *account, lists []status.List) {
	if l.hits == nil {
		l.hits = make(map[string]loader.Counter)
	}
	before := a.description.Lists
	a.seenLists = append(a.seenLists, make([]loader.Counter, max(0, 1+len(lists)-len(a.seenLists)))...)
	for i, list := range lists {
		grown := since(list.Before, &a.seenLists[i+1])
		if i < len(before) {
			l.hit(before[i], grown)
		}
		l.hit(list, loader.Counter{}) // it is there, with 0
	}
	l.hit(status.List{}, loader.Counter{})
}

func (l *ledger) hit(list status.List, n loader.Counter) {
	if !list.Allow {
		l.hits[list.Name] = sum(l.hits[list.Name], n)
	}
}

// advance adds what an interface has counted since it was last asked.
func (l *ledger) advance(a *account) {
	for i, c := range a.stats.Reasons(nil) {
		grown := since(c, &a.seen[i])
		if t := &a.total[i]; a.description.Drops(verdict.Reason(i)) {
			t.dropped = sum(t.dropped, grown)
		} else {
			t.passed = sum(t.passed, grown)
		}
	}
	now := a.stats.EventsLost()
	a.lost += max(now, a.seenLost) - a.seenLost
	a.seenLost = max(now, a.seenLost)
	for i, n := range a.stats.Loops() {
		a.loops[i] += max(n, a.seenLoops[i]) - a.seenLoops[i]
		a.seenLoops[i] = max(n, a.seenLoops[i])
	}
	for i, c := range a.stats.Lists(nil) {
		switch {
		case i >= len(a.seenLists):
			return // there are no such lists
		case i == 0:
			l.hit(status.List{}, since(c, &a.seenLists[0]))
		case i <= len(a.description.Lists):
			l.hit(a.description.Lists[i-1], since(c, &a.seenLists[i]))
		}
	}
}

// counts are all reasons with the verdict that they have, and with another
// where packets have left with that.
func (a *account) counts() []metrics.Count {
	var all []metrics.Count
	for i, t := range a.total {
		reason := verdict.Reason(i)
		drops := a.description.Drops(reason)
		if drops || t.dropped.Packets > 0 {
			all = append(all, metrics.Count{Reason: reason.String(), Drops: true, Counter: t.dropped})
		}
		if !drops || t.passed.Packets > 0 {
			all = append(all, metrics.Count{Reason: reason.String(), Counter: t.passed})
		}
	}
	return all
}

// since is by how much a counter has grown since it was last seen. While its
// memory is being exchanged, it may stand a little behind; it catches up.
func since(now loader.Counter, seen *loader.Counter) loader.Counter {
	grown := loader.Counter{
		Packets: max(now.Packets, seen.Packets) - seen.Packets,
		Bytes:   max(now.Bytes, seen.Bytes) - seen.Bytes,
	}
	*seen = sum(*seen, grown)
	return grown
}

func sum(a, b loader.Counter) loader.Counter {
	return loader.Counter{Packets: a.Packets + b.Packets, Bytes: a.Bytes + b.Bytes}
}
