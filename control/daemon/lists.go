package daemon

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/observe/traffic"
	"weir/filter/membership"
	"weir/loader"
)

// listsWait is how long a question for the lists waits for Run's goroutine. Those of
// the last second answer it otherwise, also while the daemon stops: a list that keeps it busy is
// among them.
const listsWait = 250 * time.Millisecond

// lister describes the lists. It is safe for concurrent use, but for what says otherwise.
type lister struct {
	loop       *loop
	active     *active
	meter      *traffic.Meter
	collateral *collateral
	last       atomic.Pointer[[]api.List] // as last described
}

// Lists implements [server.Snapshots].
func (n *lister) Lists() (lists []api.List) {
	ctx, cancel := context.WithTimeout(context.Background(), listsWait)
	defer cancel()
	if err := n.loop.Do(ctx, func() error { lists = n.describe(); return nil }); err != nil {
		if last := n.last.Load(); last != nil {
			return *last
		}
	}
	return lists
}

// describe describes the lists as they are. It is for Run's goroutine.
func (n *lister) describe() (lists []api.List) {
	hits := n.meter.Hits()
	for _, l := range n.active.prepared.lists {
		a := api.List{
			Name: l.Name, Action: string(l.Action), Direction: l.Direction.String(), Priority: l.Priority,
			Manual: n.active.prepared.contents(l.manual).Len(),
		}
		a.Entries = a.Manual
		a.Private, a.Trial = l.left.private, l.trial
		if of := n.collateral.of(l.Name); of != nil {
			some := *of
			some.Latest = of.Latest[:min(len(of.Latest), api.MaxConversed)]
			a.Collateral = &some
		}
		if r := n.active.prepared.rules[l.manual-1].Rule; r.On() {
			a.For = r.String()
		}
		for _, o := range l.left.failsafe {
			a.LeftOut = append(a.LeftOut, api.LeftOut{Entry: o.entry.String(), Failsafe: o.safe.String()})
		}
		for _, o := range firstOf(l.left.objections) {
			a.LeftOut = append(a.LeftOut, api.LeftOut{Entry: o.Entry.String(), CutOff: o.Peer.What})
		}
		a.Spare = l.left.shapes
		packets := n.active.prepared.hits(hits, l.manual)
		if l.derived != 0 {
			a.Derived = n.active.prepared.contents(l.derived).Len()
			a.LeftOut = append(a.LeftOut, n.active.prepared.leftOutDerived(l)...)
			packets += n.active.prepared.hits(hits, l.derived)
		}
		if l.from != nil {
			a.Entries += n.active.prepared.contents(l.source).Len()
			packets += n.active.prepared.hits(hits, l.source)
			for _, s := range l.from.Status().Sources {
				a.Feeds = append(a.Feeds, s.API(cmp.Or(l.refused, l.rejected)))
			}
		}
		a.Packets = n.active.prepared.caught(l, packets)
		lists = append(lists, a)
	}
	return lists
}

// hits returns the packets that a list has matched, by its number.
func (p *Prepared) hits(all map[string]loader.Counter, number uint16) uint64 {
	return all[p.rules[number-1].Name].Packets
}

// caught returns the packets that a list has matched, nil where they are not
// counted.
func (p *Prepared) caught(l *managedList, packets uint64) *uint64 {
	if l.Action == config.Allow || p.config.Mode == membership.Approximate {
		return nil
	}
	return &packets
}

// onTrial returns the names of the lists on trial.
func (p *Prepared) onTrial() map[string]bool {
	return p.names(func(l *managedList) bool {
		r := p.rules[l.manual-1].Rule
		return r.On() && r.Trial
	})
}

// outgoing returns the names of the lists of outgoing packets.
func (p *Prepared) outgoing() map[string]bool {
	return p.names(func(l *managedList) bool { return l.Direction == engine.Out })
}

// names returns the names of some lists, nil for none.
func (p *Prepared) names(are func(*managedList) bool) (all map[string]bool) {
	for _, l := range p.lists {
		if are(l) {
			if all == nil {
				all = make(map[string]bool)
			}
			all[l.Name] = true
		}
	}
	return all
}
