package hub

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"weir/control/api"
	"weir/control/fleet/authority"
	"weir/control/fleet/store"
	"weir/control/fleet/wire"
)

// Limits on what nodes report, so that no node takes the hub's time from the others.
const (
	maxNodes = 100_000

	// Limits on what waits to be read. The excess is dropped here, before the broker ends
	// a connection on which too much is waiting.
	maxWaiting      = 8192
	maxWaitingBytes = 16 << 20
)

// nodes has the last reports of the nodes.
type nodes struct {
	log *slog.Logger

	// compare says what a node has and the hub has not, and found takes that in.
	compare func(node string, s *wire.Status) (l *lost, differs string)
	found   func(l *lost)
	heard   func() // is called when enough nodes have been heard

	mu      sync.Mutex
	since   time.Time       // when their reports could first be heard; zero: not yet
	awaited map[string]bool // nodes that have not been heard since the start
	members int             // that were awaited at the start
	all     map[string]*node
	only    map[string][]string // labels of the nodes that have a list; none: all nodes
	ignored uint64              // reports: too many, or invalid
	passed  float64             // packets of all nodes since the hub started
	dropped float64
	warned  bool // of a misdirected message
}

type node struct {
	status  wire.Status
	seen    time.Time
	reports *rate.Limiter
	ignored uint64
	differs string // from what the hub has; "": in nothing
	judged  bool   // its settings have been compared with those that it is to have, and are the same since
	revoked bool   // what it has reported last is no problem
}

func newNodes(log *slog.Logger) *nodes { return &nodes{log: log, all: make(map[string]*node)} }

// subscribe begins to read what nodes report.
func (n *nodes) subscribe(c *nats.Conn) error {
	s, err := c.Subscribe(wire.StatusSubject("*"), func(m *nats.Msg) {
		if len(m.Header) > 0 {
			n.misdirected(m.Subject)
			return
		}
		n.report(m.Subject, m.Data, time.Now())
	})
	if err != nil {
		return err
	}
	return s.SetPendingLimits(maxWaiting, maxWaitingBytes)
}

// listen notes that the reports of nodes can be heard.
func (n *nodes) listen(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.since.IsZero() {
		n.since = now
	}
}

// listened returns for how long nodes have had the time to report, 0 where they could not yet.
func (n *nodes) listened(now time.Time) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.since.IsZero() {
		return 0
	}
	return now.Sub(n.since)
}

// misdirected notes a message that is no node's: reports have no headers. A node may
// have the broker deliver what it fetches to the subject of another node, which must
// not suffer for it.
func (n *nodes) misdirected(subject string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ignored++
	if !n.warned {
		n.warned = true
		n.log.Warn("a node directs what it fetches to subjects of the hub: it is ignored", "subject", subject)
	}
}

// report takes in what a node reports. The broker lets each publish to its own
// subject only.
func (n *nodes) report(subject string, text []byte, now time.Time) {
	parts := strings.Split(subject, ".")
	name := parts[len(parts)-2]
	if l := n.take(name, text, now); l != nil {
		n.found(l)
	}
}

// take takes in a report. It returns what the node has and the hub has not.
func (n *nodes) take(name string, text []byte, now time.Time) (l *lost) {
	n.mu.Lock()
	defer n.mu.Unlock()
	from := n.all[name]
	if from == nil {
		if len(n.all) >= maxNodes {
			n.ignored++
			return nil
		}
		from = &node{reports: rate.NewLimiter(rate.Every(wire.ReportEvery), wire.ReportBurst)}
		n.all[name] = from
	}
	if !from.reports.AllowN(now, 1) {
		if from.ignored++; from.ignored == 1 {
			n.log.Warn("a node reports too often: excess reports are ignored", "node", name)
		}
		n.ignored++
		return nil
	}
	s, err := wire.ParseStatus(text)
	if err != nil {
		if from.ignored++; from.ignored == 1 {
			n.log.Warn("a node's report is ignored: "+err.Error(), "node", name)
		}
		n.ignored++
		return nil
	}
	if !from.seen.IsZero() {
		n.passed += since(from.status.Passed, s.Passed)
		n.dropped += since(from.status.Dropped, s.Dropped)
	}
	if before := from.status.Settings; before == nil || s.Settings == nil || !s.Settings.Equal(*before) {
		from.judged = false
	}
	from.status, from.seen = s, now
	if n.compare != nil {
		l, from.differs = n.compare(name, &s)
	}
	if waits := !n.most(); n.awaited[name] {
		delete(n.awaited, name)
		if waits && n.most() {
			n.heard()
		}
	}
	return l
}

// await begins to wait for the first reports of the members that are not revoked.
func (n *nodes) await(members map[string]authority.Member) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.awaited = make(map[string]bool)
	for name, m := range members {
		if m.Revoked.IsZero() {
			n.awaited[name] = true
		}
	}
	n.members = len(n.awaited)
}

// keep forgets the reports of nodes that are no members any more.
func (n *nodes) keep(members map[string]authority.Member) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, from := range n.all {
		m, ok := members[name]
		if !ok {
			delete(n.all, name)
		}
		from.revoked = !m.Revoked.IsZero()
	}
}

// allHeard reports whether all members have been heard.
func (n *nodes) allHeard(members map[string]authority.Member) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, m := range members {
		if from := n.all[name]; m.Revoked.IsZero() && (from == nil || from.seen.IsZero()) {
			return false
		}
	}
	return true
}

// set takes in which nodes have which lists.
func (n *nodes) set(lists []*managed) {
	only := make(map[string][]string, len(lists))
	for _, l := range lists {
		only[l.Name] = l.Labels
	}
	n.mu.Lock()
	n.only = only
	n.mu.Unlock()
}

// have reports whether a member is to have a list. n.mu is held.
func (n *nodes) have(list string, m authority.Member) bool {
	only := n.only[list]
	return len(only) == 0 || wire.Names(only, groups(m))
}

// reportsAge is for how long it counts what a node has said of the last 24 hours.
const reportsAge = 24 * time.Hour

// collateral returns with whom nodes have conversed that lists would drop, by their last reports,
// for each of the lists.
func (n *nodes) collateral(members map[string]authority.Member, lists ...string) map[string]*api.FleetCollateral {
	all := make(map[string]*api.FleetCollateral, len(lists))
	for _, list := range lists {
		all[list] = &api.FleetCollateral{}
	}
	said := make(map[string]*wire.Conversed)
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, m := range members {
		if !m.Revoked.IsZero() {
			continue
		}
		clear(said)
		if from := n.all[name]; from != nil && time.Since(from.seen) < reportsAge {
			for _, s := range from.status.Lists {
				said[s.Name] = s.Conversed
			}
		}
		for list, c := range all {
			if n.have(list, m) {
				c.Add(name, said[list])
			}
		}
	}
	return all
}

// observe returns the last reports of members on lists, by list.
func (n *nodes) observe(members map[string]authority.Member, lists []*managed) map[string][]observed {
	all := make(map[string][]observed)
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, m := range members {
		if !m.Revoked.IsZero() {
			continue
		}
		o, from := observed{name: name, labels: m.Labels}, n.all[name]
		if from != nil {
			o.seen, o.idle = from.seen, from.status.DropsNothing()
		}
		for _, l := range lists {
			if n.have(l.Name, m) {
				all[l.Name] = append(all[l.Name], o)
			}
		}
		if from == nil {
			continue
		}
		for _, s := range from.status.Lists {
			if of := all[s.Name]; len(of) > 0 && of[len(of)-1].name == name {
				of[len(of)-1].list = s
			}
		}
	}
	return all
}

// enforcing returns how many members there are, how many enforce a change by their reports, and how many
// that report have not answered yet. A node that drops nothing enforces no entry that blocks, and one that has a
// version of another history has none of the hub's, whatever its number.
func (n *nodes) enforcing(members map[string]authority.Member, changed *api.FleetChanged, history *store.List, c api.Change, maxAge time.Duration, now time.Time) (all, enforcing, pending int) {
	least := changed.Version
	if epoch := history.Epoch(); epoch > least.Epoch { // all of whose versions have the change
		least = wire.Place{Epoch: epoch}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, m := range members {
		if !m.Revoked.IsZero() || !n.have(changed.List, m) {
			continue
		}
		all++
		from := n.all[name]
		if !api.Reports(from.stateOf(m, nil, maxAge, now)) {
			continue
		}
		i := slices.IndexFunc(from.status.Lists, func(l wire.ListStatus) bool { return l.Name == changed.List })
		drops := from.status.NotEnforcing() == "" || c.Remove || c.Action == api.Allow
		var has wire.ListStatus
		if i >= 0 {
			has = from.status.Lists[i]
		}
		switch {
		case i < 0 || has.Active.Before(least) ||
			history.Compare(wire.Version{Place: has.Active, ID: has.ID, Sum: has.Sum}) > store.Earlier:
			if !has.Refused {
				pending++
			}
		case drops:
			enforcing++
		}
	}
	return all, enforcing, pending
}

// reporting returns some of the nodes whose last report is not old, by name.
func (n *nodes) reporting(maxAge time.Duration, now time.Time) (names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, from := range n.all {
		if api.Reports(from.stateOf(authority.Member{}, nil, maxAge, now)) && !from.revoked {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names[:min(len(names), wire.MaxHubNodes)]
}

// mostHeard reports whether more than half of the awaited nodes have been heard.
func (n *nodes) mostHeard() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.most()
}

// awaitedHeard reports whether all awaited nodes have been heard.
func (n *nodes) awaitedHeard() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.awaited) == 0
}

// having is a node that reports a version of a list.
type having struct {
	node    string
	version wire.Version
}

// having returns the nodes that report a version of a list which is wanted, the ones with the latest first, and few of
// them.
func (n *nodes) having(list string, wanted func(v wire.Version, seal string) bool) (all []having) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, one := range n.all {
		for _, l := range one.status.Lists {
			v := wire.Version{Place: l.Active, ID: l.ID, Sum: l.Sum}
			if l.Name == list && !one.revoked && wanted(v, l.Seal) {
				all = append(all, having{name, v})
			}
		}
	}
	slices.SortFunc(all, func(a, b having) int {
		x, y := a.version, b.version
		return cmp.Or(cmp.Compare(y.Epoch, x.Epoch), cmp.Compare(y.Version, x.Version), cmp.Compare(a.node, b.node))
	})
	return all[:min(len(all), 3)]
}

// most is mostHeard. n.mu is held.
func (n *nodes) most() bool { return 2*len(n.awaited) < n.members || n.members == 0 }

// since returns by how much a node's counter has grown: one that is smaller than before
// has begun anew.
func since(before, now uint64) float64 {
	if now < before {
		return float64(now)
	}
	return float64(now - before)
}
