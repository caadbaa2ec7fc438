package hub

import (
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/feed"
	"weir/control/fleet/authority"
	"weir/control/fleet/wire"
	"weir/control/metrics"
)

// noted is a copy of Run's state, so that a scrape does not wait for it.
type noted struct {
	lists   []metrics.HubList
	feeds   []metrics.Feed
	wanted  []wire.ListState
	members map[string]authority.Member
	sites   []authority.Site
	stamp   authority.Stamp // of both
}

// note updates the copy for metrics.
func (h *Hub) note() {
	var n noted
	if all, err := h.members.read(); err == nil {
		n.members, n.sites, n.stamp = all, h.members.sites, h.members.stamp
	} else if before := h.noted.Load(); before != nil {
		n.members, n.sites, n.stamp = before.members, before.sites, before.stamp
	}
	h.nodes.set(h.lists.all)
	reached := h.publisher.current().reached
	for _, l := range h.lists.all {
		at, published := l.history.Place(), reached[l.Name]
		one := metrics.HubList{
			Name: l.Name, Action: string(l.Action), Entries: l.history.Contents().Len(),
			Epoch: at.Epoch, Version: at.Version, Unrecorded: l.unrecorded != nil, Refused: l.refuses(),
			Trial: !l.enforced(), Overdue: l.overdue != nil,
		}
		if published.Epoch == at.Epoch {
			one.Published = published.Version
		}
		if x := l.released; x != nil && x.Rollout != nil {
			one.Rollout = x.Rollout.metrics(l.gate)
		}
		n.lists = append(n.lists, one)
		n.wanted = append(n.wanted, l.wanted(at))
		if l.feed != nil {
			n.feeds = append(n.feeds, l.feed)
		}
	}
	h.noted.Store(&n)
}

// refuses reports whether the list does not have what its sources have.
func (l *managed) refuses() bool {
	return l.refused != nil || l.feed != nil && slices.ContainsFunc(l.feed.Status().Sources, func(s feed.SourceStatus) bool {
		return s.Last.Failure == feed.Refused || s.Last.Failure == feed.Uncompiled
	})
}

func (r *rollout) metrics(g gate) *metrics.HubRollout {
	m := &metrics.HubRollout{State: r.State, Wave: r.Wave + 1, Waves: len(r.Waves), Nodes: g.nodes, Confirmed: g.confirmed, Looked: g.looked}
	if g.collateral.Measured > 0 {
		m.Conversed = new(g.collateral.Largest())
	}
	if g.stuck != "" && r.State == api.RolloutRunning {
		m.Waiting = g.waited.Seconds()
	}
	if g.passed > 0 {
		m.WouldDrop = float64(g.wouldDrop) / float64(g.passed)
	}
	return m
}

// Metrics implements [metrics.HubSource].
func (h *Hub) Metrics() metrics.HubSnapshot {
	known := h.noted.Load()
	state := h.publisher.current()
	s := metrics.HubSnapshot{
		Version: h.o.Version, Connected: state.connected, Failing: state.failed != "", Contested: closed(h.publisher.contest.stops()), Catalog: state.catalog,
		Published: state.published, Failures: state.failures, StreamBytes: state.stream,
		Asking: len(h.asker.slots), Answered: h.asker.answered.Load(), Unanswered: h.asker.failed.Load(), RefusedQuestions: h.asker.declined.Load(),
		Feeds: known.feeds,
	}
	if b, ok := h.o.Broker.(interface{ Connections() int }); ok {
		s.Connections = new(b.Connections())
	}
	if g := guarded(h.o.Broker); g != nil {
		s.Misuse = &metrics.HubMisuse{}
		s.Misuse.Violations, s.Misuse.Twice, s.Misuse.Slow = g.Misuse()
		s.Misuse.Waiting, s.Misuse.Late = g.Handshakes()
	}
	s.Expiring = len(h.o.Authority.Expiring(known.members, known.sites, time.Now()))
	s.StoreBytes = sizeOf(h.dir.path(storeDir))
	if free, size, err := h.dir.disk(); err == nil {
		s.DiskBytes, s.DiskFree = size, free
	}
	manual, _ := countManual(h.journal, addresses(h.conf()))
	lag := h.nodes.measure(&s, known, time.Duration(h.conf().MaxAge), time.Now())
	var drop []string // lists
	for _, l := range known.lists {
		if l.Action != string(config.Allow) {
			drop = append(drop, l.Name)
		}
	}
	collateral := h.nodes.collateral(known.members, drop...)
	for _, l := range known.lists {
		l.Manual, l.Lag = manual[l.Name], lag[l.Name]
		if c := collateral[l.Name]; c != nil && c.Measured > 0 {
			l.Conversed, l.Conversing = new(c.Largest()), c.Conversed
		}
		s.Lists = append(s.Lists, l)
	}
	return s
}

// measure adds what nodes report to a snapshot, and returns how many versions of each
// list the slowest of those that report lacks.
func (n *nodes) measure(s *metrics.HubSnapshot, known *noted, maxAge time.Duration, now time.Time) (lag map[string]uint64) {
	s.Nodes = map[string]int{
		api.NodeCurrent: 0, api.NodeBehind: 0, api.NodeStale: 0, api.NodeSilent: 0, api.NodeUnseen: 0, api.NodeRevoked: 0,
	}
	lag = make(map[string]uint64)
	n.mu.Lock()
	defer n.mu.Unlock()
	s.Passed, s.Dropped, s.IgnoredReports = n.passed, n.dropped, n.ignored
	for name, m := range known.members {
		from := n.all[name]
		state := from.stateOf(m, known.wanted, maxAge, now)
		s.Nodes[state]++
		if api.Reports(state) && from.status.NotEnforcing() != "" {
			s.NotEnforcing++
		}
		if state == api.NodeBehind || state == api.NodeStale {
			from.lacks(groups(m), known.wanted, func(list string, versions uint64) { lag[list] = max(lag[list], versions) })
		}
	}
	return lag
}

// sizeOf returns the size of the files below a directory.
func sizeOf(dir string) (size uint64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // it is gone
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			size += uint64(info.Size())
		}
		return nil
	})
	return size
}
