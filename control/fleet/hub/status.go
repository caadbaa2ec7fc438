package hub

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/fleet/authority"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/wire"
	"weir/filter/key"
	"weir/filter/ordered"
)

// Fleet implements [server.Hub].
func (h *Hub) Fleet(ctx context.Context) (f api.HubStatus, err error) {
	state := h.publisher.current()
	f = api.HubStatus{Time: time.Now().UTC(), Version: h.o.Version, Connected: state.connected}
	if !state.catalog.IsZero() {
		f.Catalog = &state.catalog
	}
	rival := h.publisher.contest.problem(f.Time, h.publisher.seekInterval())
	f.Problems = state.problems(h.dir.room(), rival)
	if f.Reload = h.reloaded.Load(); f.Reload != nil && f.Reload.Error != "" {
		f.Problems = append(f.Problems, "hub.yaml was not reloaded at "+f.Reload.Time.Format(time.RFC3339)+", the old configuration stays: "+f.Reload.Error)
	}
	f.Problems = slices.Concat(f.Problems, h.nodes.differing(), h.nodes.clocks())
	manual, covering := countManual(h.journal, addresses(h.conf()))
	f.Problems = append(f.Problems, covering...)
	var wanted []wire.ListState
	if err := h.Do(ctx, func() error {
		f.Patterns = live(h.patterns.current(f.Time))
		for _, l := range h.lists.all {
			wanted = append(wanted, l.wanted(l.history.Place()))
			one := api.FleetList{
				Name: l.Name, Action: string(l.Action), Direction: l.Direction.String(), Priority: l.Priority,
				Version: l.history.Place(), Published: state.reached[l.Name], Entries: l.history.Contents().Len(), Manual: manual[l.Name],
				Feeds: []api.FeedSource{}, Trial: !l.enforced(), Decision: l.trial, For: l.Rule().String(), Labels: l.Labels,
			}
			if x := l.released; x != nil && x.Rollout != nil {
				one.Rollout = x.Rollout.show(l.gate, l.waiting)
				if x.Rollout.State == api.RolloutHalted {
					f.Problems = append(f.Problems, "list "+l.Name+": the rollout of version "+x.Rollout.To.String()+" is halted: "+x.Rollout.Reason)
				}
				if stuck := l.gate.stuck; stuck != "" && x.Rollout.State == api.RolloutRunning {
					f.Problems = append(f.Problems, "list "+l.Name+": the rollout of version "+x.Rollout.To.String()+" waits for "+cmp.Or(l.gate.waits, "its nodes")+": "+stuck)
				}
			}
			f.Problems = append(f.Problems, l.problems()...)
			if l.feed != nil {
				for _, s := range l.feed.Status().Sources {
					one.Feeds = append(one.Feeds, s.API(l.refused))
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
	sites, err := h.o.Authority.Sites()
	if err != nil {
		f.Problems = append(f.Problems, "sites cannot be read: "+err.Error())
	}
	f.Problems = append(f.Problems, expiring(h.o.Authority.Expiring(members, sites, f.Time), f.Time)...)
	var drop []string // lists
	for _, l := range f.Lists {
		if l.Action != string(config.Allow) {
			drop = append(drop, l.Name)
		}
	}
	collateral := h.nodes.collateral(members, drop...)
	for i, l := range wanted {
		one := &f.Lists[i]
		one.Wanted, one.Have = h.nodes.shares(members, l)
		one.Collateral = collateral[l.Name]
	}
	f.Nodes, f.Ignored = h.nodes.show(members, wanted, time.Duration(h.conf().MaxAge), time.Now())
	f.Problems = slices.Concat(f.Problems, notEnforcing(f.Nodes), unconnected(f.Nodes, h.nodes.listened(f.Time)), h.assigner.problems(), h.rotation.problems())
	if g := guarded(h.o.Broker); g != nil {
		f.Problems = append(f.Problems, g.Problems()...)
		violations := g.Violations()
		for i := range f.Nodes {
			f.Nodes[i].Violations = violations[f.Nodes[i].Name]
		}
	}
	if h.o.Listeners != nil {
		f.Problems = append(f.Problems, h.o.Listeners.All()...)
	}
	return f, nil
}

// problems returns what is wrong with publishing, where the disk is full or not, and what is said of
// another hub.
func (s *publisherState) problems(full error, rival string) (all []string) {
	if rival != "" {
		all = append(all, rival)
	}
	switch {
	case rival != "" && s.failed == errOverruled.Error():
	case full != nil && (s.failed == "" || s.full):
		all = append(all, full.Error())
	case s.failed != "":
		all = append(all, "publishing failed: "+s.failed)
	}
	for _, problem := range []string{s.unrefreshed, s.unrevoked} {
		if problem != "" {
			all = append(all, problem)
		}
	}
	all = append(all, s.replicas...)
	if s.lost != "" && time.Since(s.lostAt) < lostShown {
		all = append(all, s.lost)
	}
	return all
}

// problems returns what is wrong with a list, but for its rollout and its sources.
func (l *managed) problems() (all []string) {
	if l.overdue != nil {
		all = append(all, l.overdue.Error())
	}
	if l.unread {
		all = append(all, "list "+l.Name+": its sources were not read yet, and nodes keep what they have of it until then")
	}
	if l.refused != nil {
		all = append(all, "list "+l.Name+" keeps its last version: what its sources had is refused: "+l.refused.Error())
	}
	if l.behind.Err != nil {
		all = append(all, "list "+l.Name+": nodes keep what they have until it is in the new epoch: "+l.behind.Err.Error())
	} else if l.unrecorded != nil {
		all = append(all, "list "+l.Name+": "+l.unrecorded.Error())
	}
	return all
}

// maxExpiring bounds the certificates that are among the problems.
const maxExpiring = 10

// expiring returns which certificates have expired, or expire soon.
func expiring(some []authority.Expiry, now time.Time) (all []string) {
	for i, e := range some {
		if i == maxExpiring {
			return append(all, fmt.Sprintf("%d more certificates expire soon, or have expired", len(some)-i))
		}
		when, mend := "expires on ", "enroll it anew"
		if strings.HasPrefix(e.What, "node ") {
			mend = "it should have renewed that by itself, and weir status there says why it has not"
		}
		if e.At.Before(now) {
			when = "has expired on "
		}
		if e.What == "authority" {
			mend = "make new keys, and enroll all nodes anew"
		}
		all = append(all, "the certificate of "+e.What+" "+when+e.At.UTC().Format(time.DateOnly)+": "+mend)
	}
	return all
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
				one.Seen, one.Report, one.NotEnforcing = &seen, &report, report.NotEnforcing()
			}
		}
		all = append(all, one)
	}
	ordered.By(all, func(a, b api.FleetNode) int { return strings.Compare(a.Name, b.Name) })
	return all, n.ignored
}

// notEnforcing returns which nodes that report do not drop what their lists have, and why.
func notEnforcing(all []api.FleetNode) (problems []string) {
	var reporting int
	var monitor, partly []string
	for _, n := range all {
		switch {
		case !api.Reports(n.State):
			continue
		case n.NotEnforcing == "":
		case n.Report.Monitor:
			monitor = append(monitor, n.Name)
		default:
			partly = append(partly, n.Name+" ("+n.NotEnforcing+")")
		}
		reporting++
	}
	for _, p := range []struct {
		nodes []string
		are   string
		mend  string
	}{
		{monitor, "are in monitor mode, and drop nothing", "weir.yaml there needs monitor: false, and a reload"},
		{partly, "do not filter on all of their interfaces", "weir status there says why"},
	} {
		if len(p.nodes) > 0 {
			problems = append(problems, fmt.Sprintf("%d of %d nodes that report %s: %s: %s", len(p.nodes), reporting, p.are, named(p.nodes), p.mend))
		}
	}
	return problems
}

// unconnected says that no node reports, once they have had the time to.
func unconnected(all []api.FleetNode, listened time.Duration) []string {
	enrolled := 0
	for _, n := range all {
		if api.Reports(n.State) {
			return nil
		}
		if n.State != api.NodeRevoked {
			enrolled++
		}
	}
	if enrolled == 0 || listened < settle {
		return nil
	}
	return []string{fmt.Sprintf("0 of %d nodes are connected: weir status on a node says why, and whether it obeys another hub with the same keys", enrolled)}
}

// maxNamed bounds the nodes that a problem names.
const maxNamed = 5

// named names nodes.
func named(nodes []string) string {
	text := strings.Join(nodes[:min(len(nodes), maxNamed)], ", ")
	if more := len(nodes) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// shares returns how many nodes are to have which versions of a list, and how many have them.
func (n *nodes) shares(members map[string]authority.Member, l wire.ListState) (wanted, have []api.FleetShare) {
	wants, has := make(map[wire.Place]int), make(map[wire.Place]int)
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, m := range members {
		if !m.Revoked.IsZero() {
			continue
		}
		place, _, ok := l.For(groups(m))
		if !ok {
			continue
		}
		wants[place]++
		from := n.all[name]
		if from == nil || from.seen.IsZero() {
			continue
		}
		var active wire.Place
		for _, s := range from.status.Lists {
			if s.Name == l.Name {
				active = s.Active
			}
		}
		has[active]++
	}
	return sharesOf(wants), sharesOf(has)
}

func sharesOf(nodes map[wire.Place]int) (all []api.FleetShare) {
	for p, n := range nodes {
		all = append(all, api.FleetShare{Version: p, Nodes: n})
	}
	ordered.By(all, func(a, b api.FleetShare) int {
		return cmp.Or(cmp.Compare(b.Nodes, a.Nodes), cmp.Compare(b.Version.Epoch, a.Version.Epoch), cmp.Compare(b.Version.Version, a.Version.Version))
	})
	return all[:min(len(all), api.MaxShares)]
}

// stateOf returns the state of a node, nil if nothing came from it.
func (n *node) stateOf(m authority.Member, wanted []wire.ListState, maxAge time.Duration, now time.Time) string {
	switch {
	case !m.Revoked.IsZero():
		return api.NodeRevoked
	case n == nil || n.seen.IsZero():
		return api.NodeUnseen
	case now.Sub(n.seen) > max(maxAge, 2*wire.StatusInterval): // one report may be lost
		return api.NodeSilent
	case n.status.Stale:
		return api.NodeStale
	}
	state := api.NodeCurrent
	if n.differs != "" {
		state = api.NodeBehind
	}
	n.lacks(groups(m), wanted, func(string, uint64) { state = api.NodeBehind })
	return state
}

// maxDiffering bounds the nodes whose differences are among the problems.
const maxDiffering = 10

// differing returns in what nodes differ from the hub.
func (n *nodes) differing() (all []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, from := range n.all {
		if from.differs != "" && !from.revoked {
			all = append(all, from.differs)
		}
	}
	slices.Sort(all)
	return all[:min(len(all), maxDiffering)]
}

// wrongClock is from when on a difference of clocks is reported: nodes let entries expire by
// the hub's.
const wrongClock = 10 * time.Second

// clocks returns whose clock is wrong: the hub's, where most nodes that have reported say so,
// or those of some nodes.
func (n *nodes) clocks() (all []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var ahead []time.Duration // of the hub's clock
	for name, from := range n.all {
		if from.status.Time.IsZero() || from.revoked {
			continue
		}
		by := from.status.Time.Sub(from.seen)
		ahead = append(ahead, by)
		if by.Abs() > wrongClock {
			all = append(all, fmt.Sprintf("node %s: its clock is %s: what it logs has wrong times, and certificates seem to end too early or late", name, offset(by, "the hub's")))
		}
	}
	slices.Sort(ahead)
	if 2*len(all) > len(ahead) && len(ahead) > 1 {
		if middle := ahead[len(ahead)/2]; middle.Abs() > wrongClock {
			return []string{fmt.Sprintf("the hub's clock is %s: when it is set, entries with a TTL expire too early or late", offset(-middle, "those of most nodes"))}
		}
	}
	slices.Sort(all)
	return all[:min(len(all), maxDiffering)]
}

// offset says by how much a clock differs from others.
func offset(by time.Duration, of string) string {
	if by < 0 {
		return fmt.Sprintf("%v behind %s", by.Abs().Round(time.Second), of)
	}
	return fmt.Sprintf("%v ahead of %s", by.Round(time.Second), of)
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

// groups returns the groups of a [wire.Release] that a node is in.
func groups(m authority.Member) []string {
	return enrollment.Node{Name: m.Name, Labels: m.Labels}.Groups()
}

// settings returns the list as nodes have it in the catalog.
func (l *managed) settings() wire.Settings {
	as := l.List
	as.Enforce = l.enforced()
	s := wire.Settings{Action: string(l.Action), Direction: l.Direction.String(), Priority: l.Priority, Trial: !as.Enforce, Prefix6: as.Prefix6, Aggregate: wire.Aggregate(as.Aggregate)}
	r := as.Rule()
	if r == nil {
		return s
	}
	s.Action += wire.Limited
	join := func(n int, text func(i int) string) string {
		all := make([]string, n)
		for i := range all {
			all[i] = text(i)
		}
		return strings.Join(all, ",")
	}
	s.Ports = join(len(r.Ports), func(i int) string { return r.Ports[i].String() })
	s.Protocols = join(len(r.Protocols), func(i int) string { return key.ProtoName(r.Protocols[i]) })
	s.VLANs = join(len(r.VLANs), func(i int) string { return strconv.Itoa(int(r.VLANs[i])) })
	return s
}

// wanted returns what nodes are to have of a list that is published up to a version.
func (l *managed) wanted(reached wire.Place) wire.ListState {
	s := wire.ListState{
		Name: l.Name, Releases: []wire.Release{{Place: reached}},
		Settings: l.settings(), Only: l.Labels,
	}
	switch {
	case l.unread, l.behind.Err != nil, reached.Before(l.since):
		s.Releases = []wire.Release{{}}
	case l.released != nil:
		s.Releases = l.released.releases()
	}
	for i := range s.Releases {
		s.Releases[i].ID = l.history.ID(s.Releases[i].Place)
	}
	return s
}
