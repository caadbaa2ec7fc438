package node

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"time"

	"weir/control/feed"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/filter/key"
)

// List is a list of the fleet, as far as it is known: the last version that was
// verified. It has the methods of a [feed.Feed] that readers of lists need. A list
// whose settings change becomes another.
type List struct {
	f        *follower
	settings wire.Settings
}

// Name returns the name that the hub has for the list.
func (l *List) Name() string { return l.f.name }

// Settings returns what the entries mean.
func (l *List) Settings() wire.Settings { return l.settings }

// Contents returns the entries that have not expired.
func (l *List) Contents() *list.Set {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	return l.f.contents
}

// Version counts the changes of Contents: a caller that reads Version before Contents
// misses no change.
func (l *List) Version() uint64 {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	return l.f.version
}

// Accepted reports whether the contents are wanted whatever they cover. The hub has no
// say in that.
func (l *List) Accepted() bool { return false }

// Keep saves the contents up to a version, and reports them to the hub: they are
// active. It waits for the disk.
func (l *List) Keep(version uint64) error { return l.f.keep(version) }

// Revert reports to the hub that the contents up to a version could not be activated,
// for a reason.
func (l *List) Revert(_ uint64, reason error) {
	l.f.mu.Lock()
	l.f.refused = reason
	l.f.mu.Unlock()
	l.f.n.reportSoon()
}

// Status returns the state of the list as that of a feed with one source.
func (l *List) Status() feed.Status {
	f := l.f
	age, servers := f.n.Age(), f.n.servers.addresses() // before f.mu, which is taken after n.mu
	f.mu.Lock()
	defer f.mu.Unlock()
	s := feed.SourceStatus{
		Source: wire.Source, Version: f.active.place().String(), Entries: f.contents.Len(), Read: age.Confirmed,
		Unsaved: f.unsaved != nil, Servers: servers,
	}
	s.Last = feed.Outcome{Source: wire.Source, Result: feed.New, Entries: s.Entries, Unsaved: f.unsaved}
	if f.version == f.loaded {
		s.Last.Result = feed.Loaded
	}
	switch err := cmp.Or(f.refused, f.err, age.Err()); {
	case err == nil:
	case errors.Is(err, wire.ErrForged):
		s.Last.Failure = feed.BadSignature
		fallthrough
	default:
		s.Last.Result, s.Last.Err, s.Failures = feed.Failed, err, max(1, f.failures)
		if s.Last.Failure == feed.NoFailure {
			s.Last.Failure = feed.Unreachable
		}
		if f.refused != nil {
			s.Last.Failure = feed.Uncompiled
		}
	}
	return feed.Status{Name: f.n.c.Prefix + f.name, Entries: s.Entries, Sources: []feed.SourceStatus{s}}
}

// Find returns where the entries of some keys come from, as far as the hub says, with times by this host's clock.
func (l *List) Find(keys []key.Key) []feed.Origin {
	origins := l.FindHere(keys)
	var ours []key.Key
	var at []int
	for i, k := range keys {
		if origins[i].Source != "" {
			ours, at = append(ours, k), append(at, i)
		}
	}
	for i, o := range l.f.n.origins(l.f.name, ours) {
		here := &origins[at[i]]
		here.Line, here.Added, here.Reason, here.By = o.Line, l.f.n.clock.here(o.Added), o.Reason, o.By
		here.Expires = l.f.n.clock.here(here.Expires)
		if o.Source != "" {
			here.Source = wire.Source + ": " + o.Source
		}
	}
	return origins
}

// FindHere is Find without asking the hub, with times by the hub's clock.
func (l *List) FindHere(keys []key.Key) []feed.Origin {
	l.f.mu.Lock()
	contents, known := l.f.contents, l.f.newest
	l.f.mu.Unlock()
	origins := make([]feed.Origin, len(keys))
	for i, k := range keys {
		if contents.Has(k) {
			origins[i] = feed.Origin{Source: wire.Source, Expires: known.expiryOf(k)}
		}
	}
	return origins
}

// expiryOf returns when the entry of a key expires; zero: it does not.
func (s *state) expiryOf(k key.Key) time.Time {
	if s == nil {
		return time.Time{}
	}
	p, _ := list.PrefixOf(k)
	for _, t := range s.timed {
		var is bool
		switch {
		case k.Tuple():
			is = slices.Contains(t.entry.Flows, k)
		case p.Addr().Is4():
			is = slices.Contains(t.entry.V4, list.V4Of(p)) || slices.Contains(t.entry.Flows, k)
		default:
			is = slices.ContainsFunc(t.entry.V6, func(o netip.Prefix) bool { return o == p }) || slices.Contains(t.entry.Flows, k)
		}
		if is {
			return t.At
		}
	}
	return time.Time{}
}

// is reports whether a state has the wanted version.
func (s *state) is(want wanted) bool {
	return s != nil && s.Place == want.Place && !differ(s.id, want.id)
}

func (s *state) place() (p wire.Place) {
	if s != nil {
		p = s.Place
	}
	return p
}
