package hub

import (
	"context"
	"slices"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/fleet/authority"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/wire"
)

// Fleet implements [api.Hub].
func (h *Hub) Fleet(ctx context.Context) (f api.HubStatus, err error) {
	state, reached := h.publisher.current()
	f = api.HubStatus{Time: time.Now().UTC(), Version: h.o.Version, Connected: state.connected}
	if !state.catalog.IsZero() {
		f.Catalog = &state.catalog
	}
	if state.failed != "" {
		f.Problems = append(f.Problems, "publishing failed: "+state.failed)
	}
	manual := h.countManual()
	var wanted []wire.ListState
	if err := h.Do(ctx, func() error {
		for _, l := range h.lists {
			wanted = append(wanted, l.wanted(reached[l.Name]))
			one := api.FleetList{
				Name: l.Name, Action: string(l.Action), Direction: l.Direction.String(), Priority: l.Priority,
				Version: l.history.Place(), Published: reached[l.Name], Entries: l.history.Contents().Len(), Manual: manual[l.Name],
				Feeds: []api.FeedSource{},
			}
			if x := l.released; x != nil && x.Rollout != nil {
				one.Rollout = x.Rollout.show(l.gate, l.waiting)
				if x.Rollout.State == api.RolloutHalted {
					f.Problems = append(f.Problems, "list "+l.Name+": the rollout of version "+x.Rollout.To.String()+" is halted: "+x.Rollout.Reason)
				}
			}
			if l.unread {
				f.Problems = append(f.Problems, "list "+l.Name+": nodes keep what they have until its sources were read: the hub has lost what it knew, or is new")
			}
			if l.refused != nil {
				f.Problems = append(f.Problems, "list "+l.Name+" keeps its last version: what its sources had is refused: "+l.refused.Error())
			}
			if l.behind != nil {
				f.Problems = append(f.Problems, "list "+l.Name+": "+l.behind.Error())
			}
			if l.feed != nil {
				for _, s := range l.feed.Status().Sources {
					one.Feeds = append(one.Feeds, api.NewFeedSource(s, l.refused))
					if s.Last.Err != nil {
						f.Problems = append(f.Problems, "list "+l.Name+": "+s.Source+": "+s.Last.Err.Error())
					}
				}
			}
			f.Lists = append(f.Lists, one)
		}
		return nil
	}); err != nil {
		return f, err
	}
	members, err := h.o.Authority.Members()
	if err != nil {
		return f, err
	}
	f.Nodes, f.Ignored = h.nodes.show(members, wanted, time.Duration(h.o.Config.MaxAge), time.Now())
	return f, nil
}

// show returns the nodes that were enrolled, by name, and the number of reports that
// were ignored.
func (n *nodes) show(members map[string]authority.Member, wanted []wire.ListState, maxAge time.Duration, now time.Time) ([]api.FleetNode, uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []api.FleetNode
	for name, m := range members {
		from := n.all[name]
		one := api.FleetNode{Name: name, Labels: append([]string{}, m.Labels...), State: from.stateOf(m, wanted, maxAge, now)}
		if from != nil {
			one.Ignored = from.ignored
			if !from.seen.IsZero() {
				seen, report := from.seen, from.status
				one.Seen, one.Report = &seen, &report
			}
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b api.FleetNode) int { return strings.Compare(a.Name, b.Name) })
	return all, n.ignored
}

// stateOf returns the state of a node, nil if nothing came from it.
func (n *node) stateOf(m authority.Member, wanted []wire.ListState, maxAge time.Duration, now time.Time) string {
	switch {
	case !m.Revoked.IsZero():
		return api.NodeRevoked
	case n == nil || n.seen.IsZero():
		return api.NodeUnseen
	case now.Sub(n.seen) > maxAge:
		return api.NodeSilent
	case n.status.Stale:
		return api.NodeStale
	}
	state := api.NodeCurrent
	n.lacks(groups(m), wanted, func(string, uint64) { state = api.NodeBehind })
	return state
}

// lacks calls fn with each list of which the node is to have a later version, and the
// number of versions that it lacks.
func (n *node) lacks(groups []string, wanted []wire.ListState, fn func(list string, versions uint64)) {
	active := make(map[string]wire.Place)
	for _, l := range n.status.Lists {
		active[l.Name] = l.Active
	}
	for _, l := range wanted {
		place, _, _ := l.For(groups)
		switch at := active[l.Name]; {
		case !at.Before(place):
		case at.Epoch == place.Epoch:
			fn(l.Name, place.Version-at.Version)
		default:
			fn(l.Name, max(place.Version, 1))
		}
	}
}

// countManual returns the number of manual entries, by list.
func (h *Hub) countManual() map[string]int {
	manual := make(map[string]int)
	for e := range h.journal.Entries() {
		manual[e.List]++
	}
	return manual
}

// groups returns the groups of a [wire.Release] that a node is in.
func groups(m authority.Member) []string {
	return enrollment.Node{Name: m.Name, Labels: m.Labels}.Groups()
}

// wanted returns what nodes are to have of a list that is published up to a version.
func (l *managed) wanted(reached wire.Place) wire.ListState {
	s := wire.ListState{
		Name: l.Name, Releases: []wire.Release{{Place: reached}},
		Settings: wire.Settings{Action: string(l.Action), Direction: l.Direction.String(), Priority: l.Priority},
	}
	switch {
	case l.unread:
		s.Releases = []wire.Release{{}}
	case l.released != nil:
		s.Releases = l.released.releases()
	}
	return s
}
