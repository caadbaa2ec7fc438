package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"weir/control/api"
	"weir/control/config"
	"weir/control/feed"
	"weir/filter/membership"
	"weir/loader"
)

// Lists implements [api.Daemon].
func (d *Daemon) Lists() (lists []api.List) {
	_ = d.Do(context.Background(), func() error {
		hits := d.meter.Hits()
		for _, l := range d.prepared.lists {
			a := api.List{
				Name: l.Name, Action: string(l.Action), Direction: l.Direction.String(), Priority: l.Priority,
				ByCommand: d.prepared.contents(l.manual).Len(), Packets: d.caught(l, d.hits(hits, l.manual)),
			}
			a.Entries = a.ByCommand
			if l.feed != nil {
				a.Entries += d.prepared.contents(l.source).Len()
				a.Packets = d.caught(l, d.hits(hits, l.manual)+d.hits(hits, l.source))
				for _, s := range l.feed.Status().Sources {
					a.Feeds = append(a.Feeds, feedSource(s, l.refused))
				}
			}
			lists = append(lists, a)
		}
		return nil
	})
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

func feedSource(s feed.SourceStatus, refusal error) api.FeedSource {
	f := api.FeedSource{
		Source: s.Source, Outcome: s.Last.Result.String(), Entries: s.Entries, Failures: s.Failures, Unsaved: s.Unsaved,
	}
	if refusal != nil {
		f.Outcome, f.Failure, f.Error = api.Failed, api.NotInForce, refusal.Error()
	}
	if s.Last.Failure != feed.NoFailure {
		f.Failure = s.Last.Failure.String()
	}
	if s.Last.Err != nil {
		f.Error = s.Last.Err.Error()
	}
	if !s.Read.IsZero() {
		f.Read = &s.Read
	}
	if !s.Next.IsZero() {
		f.Next = &s.Next
	}
	return f
}

// Refresh implements [api.Daemon].
func (d *Daemon) Refresh(ctx context.Context, name string) (outcomes []api.FetchOutcome, err error) {
	var feeds map[string]*feed.Feed
	if err := d.Do(ctx, func() error {
		feeds = make(map[string]*feed.Feed)
		for _, l := range d.prepared.lists {
			if l.feed != nil && (name == "" || name == l.Name) {
				feeds[l.Name] = l.feed
			}
		}
		if name != "" && d.prepared.list(name) == nil {
			return fmt.Errorf("%w: %q", api.ErrNoList, name)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(feeds)) {
		f := feeds[name]
		all, err := f.Fetch(ctx)
		for _, o := range all {
			unenforced := d.fetched(ctx, name, f, o)
			if o.Err == nil && !o.Changed {
				unenforced = d.Do(ctx, func() error { return d.catchUp(name, f) })
			}
			out := api.FetchOutcome{
				List: name, Source: o.Source, Outcome: o.Result.String(), Entries: o.Entries, Changed: o.Changed, Unsaved: o.Unsaved != nil,
			}
			switch {
			case o.Err != nil:
				out.Failure, out.Error = o.Failure.String(), o.Err.Error()
			case unenforced != nil:
				out.Outcome, out.Failure, out.Error, out.Changed = api.Failed, api.NotInForce, unenforced.Error(), false
			}
			outcomes = append(outcomes, out)
		}
		if err != nil {
			return outcomes, err
		}
	}
	return outcomes, nil
}

// catchUp activates what a feed has read before, by its schedule, where that is
// still to be done, and fails where it is not active then.
func (d *Daemon) catchUp(name string, f *feed.Feed) error {
	l := d.prepared.list(name)
	switch {
	case l == nil || l.feed != f:
		return nil // another configuration is active
	case l.taken != f.Version():
		return d.update(l)
	case l.behind:
		return errors.New("it was read before, and is not active yet: the log says why")
	}
	return l.refused
}
