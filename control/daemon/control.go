package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/feed"
	"weir/control/journal"
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/verdict"
)

var _ api.Control = (*Daemon)(nil)

// Change implements [api.Control].
func (d *Daemon) Change(ctx context.Context, c api.Change) (changed api.Changed, err error) {
	name := c.List
	if name == "" {
		name = map[string]string{api.Block: DefaultBlock, api.Allow: DefaultAllow}[c.Action]
	}
	changed.List = name
	err = d.Do(ctx, func() error {
		l := d.state.list(name)
		switch {
		case l == nil:
			return fmt.Errorf("%w: %q", api.ErrNoList, name)
		case string(l.Action) != c.Action:
			return &api.BadRequest{Err: fmt.Errorf("list %s is one to %s by, not to %s by", name, l.Action, c.Action)}
		}
		batch, err := d.batch(l, c)
		if err != nil {
			return err
		}
		n, err := d.change(batch)
		changed.Unchanged = len(batch) - n
		if changed.Added = n; c.Remove {
			changed.Added, changed.Removed = 0, n
		}
		return err
	})
	return changed, err
}

// batch are the changes of the journal that are asked for.
func (d *Daemon) batch(l *aList, c api.Change) ([]journal.Change, error) {
	now := time.Now()
	each := journal.Entry{
		List: l.Name, Allow: l.Action == config.Allow, Added: now, Reason: c.Reason, UID: c.UID,
		Expires: expires(now, time.Duration(c.TTL*float64(time.Second))),
	}
	var entries []list.Entries
	var batch []journal.Change
	seen := make(map[key.Key]bool) // a bulk may say the same twice
	for i, text := range c.Entries {
		e, err := list.ParseEntry(text)
		if err != nil {
			return nil, &api.BadRequest{Entry: &i, Text: text, Err: err}
		}
		entries = append(entries, e)
		meant := keys(l.rule(), e)
		if c.Remove {
			meant = append(meant, d.formerKeys(l, e)...)
		}
		for _, each.Key = range meant {
			if !seen[each.Key] {
				seen[each.Key] = true
				batch = append(batch, journal.Change{Remove: c.Remove, Entry: each})
			}
		}
	}
	refusal := func(n int) error { // of the first entries
		var all list.Entries
		for _, e := range entries[:n] {
			all.V4, all.V6, all.Flows = append(all.V4, e.V4...), append(all.V6, e.V6...), append(all.Flows, e.Flows...)
		}
		return refuse(d.state.config, l.List, all.Set())
	}
	if !c.Remove && refusal(len(entries)) != nil {
		i := sort.Search(len(entries), func(i int) bool { return refusal(i+1) != nil }) // the first that is too much
		return nil, &api.BadRequest{Entry: &i, Text: c.Entries[i], Err: refusal(i + 1)}
	}
	return batch, nil
}

// formerKeys are the keys of entries that were added when the list had another
// direction.
func (d *Daemon) formerKeys(l *aList, e list.Entries) []key.Key {
	both := l.rule()
	both.Direction = engine.Both
	return slices.DeleteFunc(keys(both, e), func(k key.Key) bool {
		_, has := d.journal.Get(l.Name, k)
		return !has
	})
}

// Lists implements [api.Control].
func (d *Daemon) Lists() (lists []api.List) {
	_ = d.Do(d.ctx, func() error {
		hits := d.Hits()
		for _, l := range d.state.lists {
			a := api.List{
				Name: l.Name, Action: string(l.Action), Direction: l.Direction.String(), Priority: l.Priority,
				ByCommand: d.state.contents(l.command).Len(), Packets: d.caught(l, hits[l.command-1]),
			}
			a.Entries = a.ByCommand
			if l.feed != nil {
				a.Entries += d.state.contents(l.sources).Len()
				a.Packets = d.caught(l, hits[l.command-1]+hits[l.sources-1])
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

// caught are the packets that a list has caught, nil where nobody counts them.
func (d *Daemon) caught(l *aList, packets uint64) *uint64 {
	if l.Action == config.Allow || d.state.config.Mode == membership.Approximate {
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

// Refresh implements [api.Control].
func (d *Daemon) Refresh(ctx context.Context, name string) (outcomes []api.FetchOutcome, err error) {
	var feeds map[string]*feed.Feed
	if err := d.Do(ctx, func() error {
		feeds = make(map[string]*feed.Feed)
		for _, l := range d.state.lists {
			if l.feed != nil && (name == "" || name == l.Name) {
				feeds[l.Name] = l.feed
			}
		}
		if name != "" && d.state.list(name) == nil {
			return fmt.Errorf("%w: %q", api.ErrNoList, name)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	for name, f := range feeds {
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

// catchUp puts in force what a feed has read before, by its schedule, where that is
// still to come, and fails where it is not in force then.
func (d *Daemon) catchUp(name string, f *feed.Feed) error {
	l := d.state.list(name)
	switch {
	case l == nil || l.feed != f:
		return nil // another configuration is in force
	case l.taken != f.Version():
		return d.update(l)
	case l.behind:
		return errors.New("it was read before, and is not in force yet: the log says why")
	}
	return l.refused
}

var errQuestion = errors.New(`want an address, "> ADDRESS", or a flow as in "tcp 192.0.2.1:1234 > 198.51.100.7:443"`)

// Explain implements [api.Control].
func (d *Daemon) Explain(ctx context.Context, question string) (e api.Explanation, err error) {
	packets, err := packetsOf(question)
	if err != nil {
		return e, &api.BadRequest{Err: fmt.Errorf("%q: %w", question, err)}
	}
	e = api.Explanation{Question: question, Verdict: verdict.Pass.String()}
	feeds := make(map[*feed.Feed][]sought)
	err = d.Do(ctx, func() error {
		seen := make(map[engine.Found]bool)
		var reason verdict.Reason
		for _, p := range packets {
			reason = max(reason, d.Reason(p)) // those of lists are in the order of their gravity
			for _, f := range d.Find(p) {
				if !seen[f] {
					seen[f] = true
					m, from := d.match(f)
					if e.Matches = append(e.Matches, m); from != nil {
						feeds[from] = append(feeds[from], sought{len(e.Matches) - 1, f.Key})
					}
				}
			}
		}
		e.Reason = reason.String()
		if reason == verdict.Blocked {
			e.Verdict = verdict.Drop.String()
		}
		return nil
	})
	// A long feed takes its time, which the filter has not got.
	for f, all := range feeds {
		var keys []key.Key
		for _, s := range all {
			keys = append(keys, s.Key)
		}
		for i, o := range f.Find(keys) {
			m := &e.Matches[all[i].match]
			m.Source, m.Line = o.Source, o.Line
		}
	}
	return e, err
}

// sought is a match whose place in a feed is looked for.
type sought struct {
	match int
	key.Key
}

// match says what is known of an entry, and which feed has it, nil if none does.
func (d *Daemon) match(f engine.Found) (api.Match, *feed.Feed) {
	hits := d.Hits()
	for _, l := range d.state.lists {
		m := api.Match{List: l.Name, Action: string(l.Action), Entry: f.Key.String()}
		switch f.List {
		case l.sources:
			m.Packets = d.caught(l, hits[f.List-1])
			return m, l.feed
		case l.command:
			m.Packets = d.caught(l, hits[f.List-1])
			if e, ok := d.journal.Get(l.Name, f.Key); ok {
				m.Added, m.Reason = &e.Added, e.Reason
				if e.UID != api.NoUID {
					m.UID = &e.UID
				}
				if !e.Expires.IsZero() {
					m.Expires = &e.Expires
				}
			}
			return m, nil
		}
	}
	return api.Match{Entry: f.Key.String()}, nil
}

// packetsOf are the packets that a question is about: an address alone asks for
// those from it, and those to it.
func packetsOf(question string) ([]key.Tuple, error) {
	e, err := list.ParseEntry(question)
	if err != nil {
		return nil, fmt.Errorf("%w; %w", err, errQuestion)
	}
	other := func(a netip.Addr) netip.Addr {
		if a.Is4() {
			return netip.IPv4Unspecified()
		}
		return netip.IPv6Unspecified()
	}
	var p netip.Prefix
	switch {
	case e.Len() != 1:
		return nil, errQuestion
	case len(e.V4) == 1:
		p = e.V4[0].Prefix()
	case len(e.V6) == 1:
		p = e.V6[0]
	default:
		k := e.Flows[0]
		return []key.Tuple{{
			Src: k.Src, Dst: k.Dst, Proto: k.Proto, SrcPort: k.SrcPort, DstPort: k.DstPort, HasPorts: k.Ports(),
		}}, nil
	}
	if !p.IsSingleIP() {
		return nil, fmt.Errorf("a prefix, where packets have addresses; %w", errQuestion)
	}
	a := p.Addr()
	const none = 255 // a protocol that no list names
	return []key.Tuple{{Src: a, Dst: other(a), Proto: none}, {Src: other(a), Dst: a, Proto: none}}, nil
}
