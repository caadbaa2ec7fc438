package ruleset

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path"
	"reflect"
	"slices"
	"sync"

	"weir/control/api"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/list"
	"weir/control/lists"
	"weir/filter/key"
	"weir/filter/ordered"
	"weir/filter/verdict"
)

// LeftOut has the entries of a list's sources that are not blocked.
type LeftOut struct {
	failsafe   []overFailsafe   // entries that cover failsafe prefixes
	Objections []Objection      // what it would cut off
	shapes     []api.SpareShape // of flows for which a set has no room

	Private      int      // entries of private networks
	firstPrivate []string // the first of these
	excluded     bool     // they are left out as well
}

// peers returns what must not be blocked on the interfaces of a configuration.
// What cannot be found out is returned as an error beside the rest. notified are the
// servers of notifications and exports, by what they are of.
func peers(c *config.Config, lists []*List, notified map[string][]netip.Addr) (all []Peer, failed error) {
	byNetns := make(map[string][]string)
	for _, i := range c.Interfaces {
		byNetns[i.Netns] = append(byNetns[i.Netns], i.Name)
	}
	for netns, names := range byNetns {
		some, own, err := networkPeers(netns, func(name string) bool {
			return slices.ContainsFunc(names, func(pattern string) bool {
				ok, _ := path.Match(pattern, name)
				return ok || pattern == name
			})
		})
		if err != nil {
			failed = fmt.Errorf("anti_lockout: %w", err)
			continue
		}
		all = append(all, some...)
		if netns != "" {
			continue // the daemon's own connections are elsewhere
		}
		all = append(all, resolvers(resolvFile, upstreamFile, own)...)
		all = append(all, logins(sessionsDir, own)...)
		for _, l := range lists {
			if l.From == nil {
				continue
			}
			for _, s := range l.From.Status().Sources {
				all = append(all, serverPeers("list "+l.Name, s.Servers, own)...)
			}
		}
		for _, target := range slices.Sorted(maps.Keys(notified)) {
			all = append(all, serverPeers(target, notified[target], own)...)
		}
		if p, ok := ConnectionPeer("the SSH session", startedBy()); ok {
			all = append(all, p)
		}
	}
	return all, failed
}

// LookForPeers finds what must not be blocked now. What cannot be found out is returned as an error;
// the rest counts.
func (p *Ruleset) LookForPeers(notified map[string][]netip.Addr) (err error) {
	p.notified = notified
	p.Peers, err = peers(p.Config, p.Lists, notified)
	return err
}

// startedBy is the SSH session that this process was started from.
var startedBy = sync.OnceValue(SSHConnection)

// PolicyOf returns what passes before lists are asked.
func PolicyOf(c *config.Config) *verdict.Policy {
	p := &verdict.Policy{FailsafePorts: c.Failsafe.Ports}
	for _, f := range c.Failsafe.Prefixes {
		p.FailsafePrefixes = append(p.FailsafePrefixes, f.Prefix)
	}
	return p
}

// leaveOut leaves out of the contents of sources what would cut off peers, and
// private networks where that is wanted.
func (p *Ruleset) leaveOut(peers []Peer) {
	p.Peers = peers
	objections := Objections(p.Rules, PolicyOf(p.Config), peers)
	for _, l := range p.Lists {
		if l.SourceNumber != 0 {
			p.Rules[l.SourceNumber-1].Contents, l.Left = l.without(p.Config, p.Contents(l.SourceNumber), objections)
		}
		if over := p.LingeringOver(l, objections); len(over) > 0 {
			p.Rules[l.ManualNumber-1].Contents = withoutKeys(p.Contents(l.ManualNumber), over...)
		}
	}
}

// LingeringOver returns the entries that have left a list's feed, stay for its TTL, and would cut
// off a peer: unlike those of commands, no operator wants them.
func (p *Ruleset) LingeringOver(l *List, objections []Objection) (over []key.Key) {
	if l.TTL == 0 || !l.AntiLockout {
		return nil
	}
	for _, o := range objections {
		if e, ok := p.Journal.Get(l.Name, o.Entry); o.List == l.ManualNumber && ok && lists.Lingers(e) && !slices.Contains(over, o.Entry) {
			over = append(over, o.Entry)
		}
	}
	return over
}

// Admit returns the contents of a list's sources without what is left out.
func (p *Ruleset) Admit(l *List, contents *list.Set) (*list.Set, LeftOut) {
	return p.admission([]read{{l, contents}}).admit(read{l, contents})
}

// Read pairs a list with the contents of its sources.
type read struct {
	*List
	contents *list.Set
}

// admission leaves out entries that sources contain. It asks once for all of
// them, since each question takes as long as there are lists.
type admission struct {
	config     *config.Config
	objections []Objection
	census     *engine.Census
}

// admission returns what decides about what was read.
func (p *Ruleset) admission(all []read) *admission {
	active, rules := slices.Clip(p.Rules), slices.Clone(p.Rules)
	for _, r := range all {
		if int(r.SourceNumber) > len(rules) { // a list that is not there yet
			active, rules = append(active, r.EngineList()), append(rules, r.EngineList())
		}
		rules[r.SourceNumber-1].Contents = r.contents
	}
	return &admission{p.Config, Objections(rules, PolicyOf(p.Config), p.Peers), engine.NewCensus(active)}
}

// Admit returns contents without what is left out.
func (a *admission) admit(r read) (*list.Set, LeftOut) {
	contents, left := r.without(a.config, r.contents, a.objections)
	active := a.census.Contents(r.SourceNumber)
	a.census.Set(r.SourceNumber, contents)
	if rest, shapes := withoutSpare(a.census, r.SourceNumber); len(shapes) > 0 {
		contents, left.shapes = rest, shapes
	}
	a.census.Set(r.SourceNumber, active)
	return contents, left
}

// withoutSpare returns the contents of list number n without the flows of its rarest
// shapes for which a set has no room beside the other lists.
func withoutSpare(census *engine.Census, n uint16) (*list.Set, []api.SpareShape) {
	contents := census.Contents(n)
	spare := census.Spare(n)
	if len(spare) == 0 {
		return contents, nil
	}
	var shapes []api.SpareShape
	for _, k := range spare { // in runs of one shape
		if last := len(shapes) - 1; last < 0 || shapes[last].Shape != k.Shape.String() {
			shapes = append(shapes, api.SpareShape{Shape: k.Shape.String(), First: k.String()})
		}
		shapes[len(shapes)-1].Entries++
	}
	ordered.By(shapes, func(a, b api.SpareShape) int { return b.Entries - a.Entries })
	contents, _ = contents.Apply(list.Delta{Remove: list.SetOf(spare...)})
	return contents, shapes
}

// MakeRoom leaves out flows of feeds, the last ones first, until those of all lists fit: manual entries
// take precedence. undo restores what each list says is left out, but not its contents.
func (p *Ruleset) MakeRoom() (undo func()) {
	left := make(map[*List][]api.SpareShape)
	census := engine.NewCensus(p.Rules)
	for _, l := range slices.Backward(p.Lists) {
		if l.SourceNumber == 0 {
			continue
		}
		contents, shapes := withoutSpare(census, l.SourceNumber)
		if len(shapes) > 0 {
			census.Set(l.SourceNumber, contents)
			left[l] = l.Left.shapes
			p.Rules[l.SourceNumber-1].Contents = contents
			l.Left.shapes = slices.Concat(l.Left.shapes, shapes)
		}
	}
	return func() {
		for l, shapes := range left {
			l.Left.shapes = shapes
		}
	}
}

// spare returns the number of flows for which a set has no room.
func (o *LeftOut) spare() (n int) {
	for _, s := range o.shapes {
		n += s.Entries
	}
	return n
}

// Entries returns the number of entries that are left out for other reasons than
// that they are of private networks.
func (o *LeftOut) Entries() int { return len(o.failsafe) + len(firstOf(o.Objections)) + o.spare() }

// without returns contents without what is left out.
func (l *List) without(c *config.Config, contents *list.Set, objections []Objection) (*list.Set, LeftOut) {
	var left LeftOut
	if l.Action == config.Allow {
		return contents, left
	}
	inside := lists.Private(contents)
	left.Private, left.excluded = inside.Len(), l.ExcludePrivate
	for k := range inside.All() {
		if left.firstPrivate = append(left.firstPrivate, k.String()); len(left.firstPrivate) == maxBadLines {
			break
		}
	}
	if l.ExcludePrivate && left.Private > 0 {
		contents, _ = contents.Apply(list.Delta{Remove: inside})
	}
	left.failsafe = coverFailsafe(c, l.List, contents)
	over := make([]key.Key, len(left.failsafe))
	for i, o := range left.failsafe {
		over[i] = o.entry
	}
	contents = withoutKeys(contents, over...)
	if l.AntiLockout {
		for _, o := range objections {
			if o.List == l.SourceNumber && (!l.ExcludePrivate || !inside.Has(o.Entry)) && !slices.Contains(over, o.Entry) {
				left.Objections = append(left.Objections, o)
			}
		}
		contents = Without(contents, l.SourceNumber, left.Objections)
	}
	return contents, left
}

// NewWarnings returns warnings about the entries that are left out.
func (l *List) warnings() (all []string) {
	for _, o := range l.Left.failsafe {
		all = append(all, fmt.Sprintf("list %s: left out: %v", l.Name, o))
	}
	for _, o := range firstOf(l.Left.Objections) {
		all = append(all, fmt.Sprintf("list %s: left out: %v (allow that, or set anti_lockout: false)", l.Name, o))
	}
	for n, s := range l.Left.shapes {
		if n == maxBadLines {
			all = append(all, fmt.Sprintf("list %s: left out: flows of %d more combinations of fields and prefix lengths", l.Name, len(l.Left.shapes)-n))
			break
		}
		all = append(all, fmt.Sprintf("list %s: left out: %v", l.Name, s))
	}
	if l.Left.Private > 0 {
		all = append(all, "list "+l.Name+": "+api.PrivateNetworks(l.Left.Private, l.Left.firstPrivate, !l.Left.excluded))
	}
	return all
}

// firstOf returns an objection of each entry.
func firstOf(all []Objection) (first []Objection) {
	for _, o := range all {
		if !slices.ContainsFunc(first, func(f Objection) bool { return f.Entry == o.Entry }) {
			first = append(first, o)
		}
	}
	return first
}

// LogLeftOut logs what is left out of a list, if that has changed.
func (l *List) LogLeftOut(log *slog.Logger, before LeftOut) {
	if reflect.DeepEqual(firstOf(before.Objections), firstOf(l.Left.Objections)) && slices.Equal(before.firstPrivate, l.Left.firstPrivate) && before.Private == l.Left.Private && before.excluded == l.Left.excluded && slices.Equal(before.failsafe, l.Left.failsafe) && slices.Equal(before.shapes, l.Left.shapes) {
		return
	}
	for _, o := range l.Left.failsafe {
		log.Warn("an entry is left out, because it covers a failsafe prefix", "list", l.Name, "entry", o.entry.String(), "prefix", o.safe.String())
	}
	for _, o := range firstOf(l.Left.Objections) {
		log.Warn("an entry is left out, since it would cut off a protected address", "list", l.Name, "entry", o.Entry.String(), "would_cut_off", o.Peer.What)
	}
	if len(l.Left.shapes) > 0 {
		var first []string
		for _, s := range l.Left.shapes[:min(len(l.Left.shapes), maxBadLines)] {
			first = append(first, s.String())
		}
		log.Warn("flows of too many combinations of fields and prefix lengths are left out, the rarest", "list", l.Name,
			"entries", l.Left.spare(), "combinations", len(l.Left.shapes), "first", first)
	}
	if n := l.Left.Private; n > 0 {
		level, what := slog.LevelInfo, "private networks are left out"
		if !l.Left.excluded {
			level, what = slog.LevelWarn, "private networks are blocked"
		}
		log.Log(context.Background(), level, what, "list", l.Name, "entries", n, "first", l.Left.firstPrivate)
	}
}

// LeftOutAnew returns the lists of which other entries are to be left out than before, or are no longer to stay, and those
// whose sources have what is not active: that is refused, or yet to be decided about. objections has all those to manual
// entries and to active contents of the latter, beside some to other entries.
func (p *Ruleset) LeftOutAnew() (changed, stuck []*List, objections []Objection) {
	var all []read
	var considered []*List
	entries := 0
	admit := func() {
		a := p.admission(all)
		objections = a.objections // those to what is active are the same each time
		for _, r := range all {
			if _, left := a.admit(r); !reflect.DeepEqual(left, r.Left) {
				changed = append(changed, r.List)
			}
		}
		all, entries = nil, 0
	}
	for _, l := range p.Lists {
		if l.SourceNumber == 0 || l.Action == config.Allow {
			continue
		}
		if l.Rejected != nil || !l.reverted() && (l.Problem() != nil || l.Unseen()) {
			stuck = append(stuck, l)
			continue
		}
		considered, all = append(considered, l), append(all, read{l, l.From.Contents()})
		// Those of several sources together are memory of their own.
		if entries += all[len(all)-1].contents.Len(); entries >= manyEntries {
			admit()
		}
	}
	admit()
	for _, l := range p.stayingOver(considered) {
		if !slices.Contains(changed, l) {
			changed = append(changed, l)
		}
	}
	return changed, stuck, objections
}

// stayingOver returns the lists with entries that would cut off a peer, and that stay only because their
// expiry could not be recorded.
func (p *Ruleset) stayingOver(lists []*List) (over []*List) {
	lists = slices.DeleteFunc(lists, func(l *List) bool { return !l.Stays() || !l.AntiLockout })
	if len(lists) == 0 {
		return nil
	}
	objections := Objections(p.Rules, PolicyOf(p.Config), p.Peers)
	return slices.DeleteFunc(lists, func(l *List) bool {
		return !slices.ContainsFunc(objections, func(o Objection) bool { return o.List == l.SourceNumber })
	})
}

// LogAdvice logs the advice.
func (p *Ruleset) LogAdvice(log *slog.Logger) {
	for _, advice := range p.Advice() {
		log.Warn(advice)
	}
}

// Advice returns what could lock somebody out.
func (p *Ruleset) Advice() (all []string) {
	if p.blind != "" {
		all = append(all, p.blind)
	}
	drops := slices.ContainsFunc(p.Lists, func(l *List) bool {
		return l.Action == config.Block && l.Enforce && slices.ContainsFunc(p.Rules, func(r engine.List) bool {
			return api.ListOf(r.Name) == l.Name && r.Contents.Len() > 0
		})
	})
	return append(append(all, p.Config.Advice(drops)...), p.Stages.Trackers.Advice()...)
}

// manyEntries is from when on the contents of lists take memory that is worth giving back.
const manyEntries = 1 << 19
