package daemon

import (
	"cmp"
	"context"
	"errors"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/feed"
	"weir/filter/membership"
	"weir/loader"
)

// listsWait is how long a question for the lists waits for Run's goroutine. Those of
// the last second answer it otherwise: a list that keeps the daemon busy is among them.
const listsWait = 250 * time.Millisecond

// Lists implements [server.Daemon].
func (d *Daemon) Lists() (lists []api.List) {
	ctx, cancel := context.WithTimeout(context.Background(), listsWait)
	defer cancel()
	if err := d.Do(ctx, func() error { lists = d.describeLists(); return nil }); errors.Is(err, context.DeadlineExceeded) {
		if last := d.lists.Load(); last != nil {
			return *last
		}
	}
	return lists
}

// describeLists describes the lists as they are.
func (d *Daemon) describeLists() (lists []api.List) {
	hits := d.meter.Hits()
	for _, l := range d.prepared.lists {
		a := api.List{
			Name: l.Name, Action: string(l.Action), Direction: l.Direction.String(), Priority: l.Priority,
			Manual: d.prepared.contents(l.manual).Len(), Packets: d.caught(l, d.hits(hits, l.manual)),
		}
		a.Entries = a.Manual
		a.Private = l.left.private
		for _, o := range l.left.failsafe {
			a.LeftOut = append(a.LeftOut, api.LeftOut{Entry: o.entry.String(), Failsafe: o.safe.String()})
		}
		for _, o := range firstOf(l.left.objections) {
			a.LeftOut = append(a.LeftOut, api.LeftOut{Entry: o.Entry.String(), CutOff: o.Peer.What})
		}
		a.Spare = l.left.shapes
		if l.from != nil {
			a.Entries += d.prepared.contents(l.source).Len()
			a.Packets = d.caught(l, d.hits(hits, l.manual)+d.hits(hits, l.source))
			for _, s := range l.from.Status().Sources {
				a.Feeds = append(a.Feeds, s.API(cmp.Or(l.refused, l.rejected)))
			}
		}
		lists = append(lists, a)
	}
	return lists
}

// hits returns the packets that a list has matched, by its number.
func (d *Daemon) hits(all map[string]loader.Counter, number uint16) uint64 {
	return all[d.prepared.rules[number-1].Name].Packets
}

// caught returns the packets that a list has matched, nil where they are not
// counted.
func (d *Daemon) caught(l *managedList, packets uint64) *uint64 {
	if l.Action == config.Allow || d.prepared.config.Mode == membership.Approximate {
		return nil
	}
	return &packets
}

// noList is the error for the name of a list that does not exist.
func (d *Daemon) noList(name string) error {
	exist := make([]string, 0, len(d.prepared.lists))
	for _, l := range d.prepared.lists {
		exist = append(exist, l.Name)
	}
	return api.NoList(name, exist)
}

// Refresh implements [server.Daemon]. Lists are read in the order of the configuration.
func (d *Daemon) Refresh(ctx context.Context, name string, accept bool) (outcomes []api.FetchOutcome, err error) {
	type read struct {
		list string
		*feed.Feed
	}
	var feeds []read
	if err := d.Do(ctx, func() error {
		for _, c := range d.prepared.config.Lists {
			if l := d.prepared.list(c.Name); l.feed != nil && (name == "" || name == l.Name) {
				feeds = append(feeds, read{l.Name, l.feed})
			}
		}
		if name != "" && d.prepared.list(name) == nil {
			return d.noList(name)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if accept {
		defer func() { d.audit.Record(audit.Accepted(ctx, name, outcomes)) }()
	}
	for _, l := range feeds {
		name, f := l.list, l.Feed
		fetch := f.Fetch
		if accept {
			fetch = f.Accept
		}
		all, err := fetch(ctx)
		for _, o := range all {
			unenforced := d.fetched(ctx, name, f, o)
			if o.Err == nil && !o.Changed {
				unenforced = d.take(ctx, name, f) // what was read before
			}
			out := api.FetchOutcome{
				List: name, Source: o.Source, Outcome: o.Result.String(), Entries: o.Entries, Changed: o.Changed, Unsaved: o.Unsaved != nil,
			}
			var last feed.Outcome
			for _, s := range f.Status().Sources {
				if s.Source == o.Source {
					last = s.Last
				}
			}
			if o.Err == nil && unenforced == nil {
				unenforced = last.Err // another reader was first, and its contents are not active
			}
			switch {
			case o.Err != nil:
				out.Failure, out.Error = o.Failure.String(), o.Err.Error()
			case unenforced != nil:
				out.Outcome, out.Failure, out.Error, out.Changed = api.Failed, api.Inactive, unenforced.Error(), false
				if last.Failure != feed.NoFailure {
					out.Failure, out.Entries = last.Failure.String(), last.Entries
				}
			}
			outcomes = append(outcomes, out)
		}
		if err != nil {
			return outcomes, err
		}
	}
	return outcomes, nil
}
