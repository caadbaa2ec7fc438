package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/feed"
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

// noList is the error for the name of a list that does not exist.
func (p *Prepared) noList(name string) error {
	return api.NoListAmong(name, p.lists, func(l *managedList) string { return l.Name })
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

// refresher reads feeds when somebody asks for it. It is safe for concurrent use.
type refresher struct {
	loop   *loop
	active *active
	taker  taker
	audit  auditor
}

// taker activates what feeds have read. It is safe for concurrent use.
type taker interface {
	// fetched takes in the outcome of an attempt to read a source of a list.
	fetched(ctx context.Context, list string, f *feed.Feed, o feed.Outcome) error

	// take activates what a list's feed has read, where that is still to be done.
	take(ctx context.Context, list string, f source) error
}

// Refresh implements [server.Refresher]. Lists are read in the order of the configuration.
func (r *refresher) Refresh(ctx context.Context, name string, accept bool) (outcomes []api.FetchOutcome, err error) {
	type read struct {
		list string
		*feed.Feed
	}
	var feeds []read
	if err := r.loop.Do(ctx, func() error {
		for _, c := range r.active.prepared.config.Lists {
			if l := r.active.prepared.list(c.Name); l.feed != nil && (name == "" || name == l.Name) {
				feeds = append(feeds, read{l.Name, l.feed})
			}
		}
		if name != "" && r.active.prepared.list(name) == nil {
			return r.active.prepared.noList(name)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if accept {
		defer func() { r.audit.Record(audit.Accepted(ctx, name, outcomes)) }()
	}
	stays := context.WithoutCancel(ctx) // what was read becomes active, also where the client is gone
	for _, l := range feeds {
		name, f := l.list, l.Feed
		fetch := f.Fetch
		if accept {
			fetch = f.Accept
		}
		all, err := fetch(ctx)
		for _, o := range all {
			unenforced := r.taker.fetched(stays, name, f, o)
			if o.Err == nil && !o.Changed {
				unenforced = r.taker.take(stays, name, f) // what was read before
			}
			outcomes = append(outcomes, outcomeOf(name, f, o, unenforced))
		}
		if err != nil {
			return outcomes, err
		}
	}
	return outcomes, nil
}

// outcomeOf describes an attempt to change a list's contents, and the error of activating
// them.
func outcomeOf(name string, f *feed.Feed, o feed.Outcome, unenforced error) api.FetchOutcome {
	var last feed.Outcome
	for _, s := range f.Status().Sources {
		if s.Source == o.Source {
			last = s.Last
		}
	}
	if o.Err == nil && unenforced == nil {
		unenforced = last.Err // another reader was first, and its contents are not active
	}
	out := o.API(name, unenforced)
	if o.Err == nil && unenforced != nil && last.Failure != feed.NoFailure {
		out.Failure, out.Entries = last.Failure.String(), last.Entries
	}
	return out
}

// feedOf returns the feed of a list.
func (r *refresher) feedOf(ctx context.Context, name string) (f *feed.Feed, err error) {
	err = r.loop.Do(ctx, func() error {
		l := r.active.prepared.list(name)
		switch {
		case l == nil:
			return r.active.prepared.noList(name)
		case l.feed == nil:
			return &api.BadRequest{Err: fmt.Errorf("list %s has no sources of this host, so that no versions of it are known", name)}
		}
		f = l.feed
		return nil
	})
	return f, err
}

// Versions implements [server.Versioner].
func (r *refresher) Versions(ctx context.Context, name string) (api.ListVersions, error) {
	f, err := r.feedOf(ctx, name)
	if err != nil {
		return api.ListVersions{}, err
	}
	return api.ListVersions{List: name, Sources: f.Versions()}, nil
}

// Rollback implements [server.Versioner].
func (r *refresher) Rollback(ctx context.Context, name string) (out api.FetchOutcome, err error) {
	f, err := r.feedOf(ctx, name)
	if err != nil {
		return out, err
	}
	o, err := f.Rollback(ctx)
	if errors.Is(err, feed.ErrNoVersion) {
		err = &api.BadRequest{Err: fmt.Errorf("list %s: %w", name, err)}
	}
	if err != nil {
		return out, err
	}
	out = outcomeOf(name, f, o, r.taker.fetched(context.WithoutCancel(ctx), name, f, o))
	r.audit.Record(audit.RolledBack(ctx, out))
	return out, nil
}
