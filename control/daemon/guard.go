package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path"
	"reflect"
	"slices"
	"sync"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/guard"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/lists"
	"weir/control/observe/flows"
	"weir/control/observe/heavy"
	"weir/filter/key"
	"weir/filter/ordered"
	"weir/filter/verdict"
)

// leftOut has the entries of a list's sources that are not blocked.
type leftOut struct {
	failsafe   []overFailsafe    // entries that cover failsafe prefixes
	objections []guard.Objection // what it would cut off
	private    int               // entries of private networks
	excluded   bool              // those are left out as well
	shapes     []api.SpareShape  // of flows for which a set has no room
}

// peers returns what must not be blocked on the interfaces of a configuration.
// What cannot be found out is returned as an error beside the rest. notified are the
// servers of notifications and exports, by what they are of.
func peers(c *config.Config, lists []*managedList, notified map[string][]netip.Addr) (all []guard.Peer, failed error) {
	byNetns := make(map[string][]string)
	for _, i := range c.Interfaces {
		byNetns[i.Netns] = append(byNetns[i.Netns], i.Name)
	}
	for netns, names := range byNetns {
		some, own, err := guard.Networks(netns, func(name string) bool {
			return slices.ContainsFunc(names, func(pattern string) bool {
				ok, _ := path.Match(pattern, name)
				return ok || pattern == name
			})
		})
		if err != nil {
			failed = fmt.Errorf("guard: %w", err)
			continue
		}
		all = append(all, some...)
		if netns != "" {
			continue // the daemon's own connections are elsewhere
		}
		all = append(all, guard.Resolvers(own)...)
		all = append(all, guard.Logins(own)...)
		for _, l := range lists {
			if l.from == nil {
				continue
			}
			for _, s := range l.from.Status().Sources {
				all = append(all, guard.Servers("list "+l.Name, s.Servers, own)...)
			}
		}
		for _, target := range slices.Sorted(maps.Keys(notified)) {
			all = append(all, guard.Servers(target, notified[target], own)...)
		}
		if p, ok := guard.Connection("the SSH session", startedBy()); ok {
			all = append(all, p)
		}
	}
	return all, failed
}

// startedBy is the SSH session that this process was started from.
var startedBy = sync.OnceValue(guard.SSHConnection)

// policyOf returns what passes before lists are asked.
func policyOf(c *config.Config) *verdict.Policy {
	p := &verdict.Policy{FailsafePorts: c.Failsafe.Ports}
	for _, f := range c.Failsafe.Prefixes {
		p.FailsafePrefixes = append(p.FailsafePrefixes, f.Prefix)
	}
	return p
}

// leaveOut leaves out of the contents of sources what would cut off peers, and
// private networks where that is wanted.
func (p *Prepared) leaveOut(peers []guard.Peer) {
	p.peers = peers
	objections := guard.Check(p.rules, policyOf(p.config), peers)
	for _, l := range p.lists {
		if l.source != 0 {
			p.rules[l.source-1].Contents, l.left = l.without(p.config, p.contents(l.source), objections)
		}
		if over := p.lingeringOver(l, objections); len(over) > 0 {
			p.rules[l.manual-1].Contents = guard.WithoutKeys(p.contents(l.manual), over...)
		}
	}
}

// lingeringOver returns the entries that have left a list's feed, stay for its TTL, and would cut
// off a peer: unlike those of commands, no operator wants them.
func (p *Prepared) lingeringOver(l *managedList, objections []guard.Objection) (over []key.Key) {
	if l.TTL == 0 || !l.Guard {
		return nil
	}
	for _, o := range objections {
		if e, ok := p.journal.Get(l.Name, o.Entry); o.List == l.manual && ok && lingers(e) && !slices.Contains(over, o.Entry) {
			over = append(over, o.Entry)
		}
	}
	return over
}

// dropLingering ends the stay of entries that would cut off a peer by now.
func (d *Daemon) dropLingering(objections []guard.Objection) error {
	var batch []journal.Change
	var behind []*managedList
	for _, l := range d.active.prepared.lists {
		over := d.active.prepared.lingeringOver(l, objections)
		if len(over) > 0 {
			behind = append(behind, l)
		}
		for _, k := range over {
			batch = append(batch, journal.Change{Remove: true, Entry: journal.Entry{List: l.Name, Key: k}})
			d.o.Log.Warn("an entry that has left its feed would cut off a peer by now, and no longer stays for the TTL", "list", l.Name, "entry", k.String())
		}
	}
	if len(batch) == 0 {
		return nil
	}
	unrecorded := d.journal.Apply(batch) // first: another engine has what the journal has
	_, err := d.enforce(batch)
	if err != nil {
		err = d.backlog.late(err, behind...)
	}
	return errors.Join(unrecorded, err)
}

// objected pairs a list with objections to active contents of its sources.
type objected struct {
	*managedList
	objections []guard.Objection
}

// applyWith is apply together with what leaveOutWith has returned, which does not count.
func (d *Daemon) applyWith(changes, more []engine.Change, left []objected) (int, error) {
	n, err := d.apply(slices.Concat(changes, more))
	if err != nil {
		return 0, err
	}
	for _, c := range more {
		n -= c.Len()
	}
	for _, of := range left {
		before := of.left
		of.left.objections = slices.Concat(before.objections, of.objections)
		of.logLeftOut(d.o.Log, before)
	}
	return n, nil
}

// leaveOutWith returns what changes require of other lists: where an allow list no longer has an
// entry, block lists must not have what would then cut off a peer. What has left their sources ends
// its stay at once. The lists that change are returned, too, with what is to be left out. Commands
// may change entries meanwhile.
func (d *Daemon) leaveOutWith(changes []engine.Change) (more []engine.Change, left []objected) {
	if !slices.ContainsFunc(changes, func(c engine.Change) bool { return d.active.prepared.rules[c.List-1].Allow && c.Remove.Len() > 0 }) {
		return nil, nil
	}
	d.guards.refresh()
	d.guards.lookAgain = time.Time{}
	p := d.active.prepared.copied()
	var objections []guard.Objection
	d.loop.aside(func() {
		rules, _, err := engine.With(p.rules, changes)
		if err != nil {
			return // they will not be made
		}
		objections = guard.Check(rules, policyOf(p.config), p.peers)
		for _, l := range p.lists {
			of := objected{l, slices.DeleteFunc(slices.Clone(objections), func(o guard.Objection) bool { return o.List != l.source || !l.Guard })}
			if len(of.objections) > 0 {
				active := p.contents(l.source)
				more = append(more, engine.Change{List: l.source, Delta: guard.Without(active, l.source, of.objections).Diff(active)})
				left = append(left, of)
			}
		}
	})
	if err := d.dropLingering(objections); err != nil {
		d.o.Log.Error("entries that have left their feeds: " + err.Error())
	}
	return more, left
}

// admit returns the contents of a list's sources without what is left out.
func (p *Prepared) admit(l *managedList, contents *list.Set) (*list.Set, leftOut) {
	return p.admission([]read{{l, contents}}).admit(read{l, contents})
}

// read pairs a list with the contents of its sources.
type read struct {
	*managedList
	contents *list.Set
}

// admission decides what is left out of what sources contain. It asks once for all of
// them, since each question takes as long as there are lists.
type admission struct {
	config     *config.Config
	objections []guard.Objection
	census     *engine.Census
}

// admission returns what decides about what was read.
func (p *Prepared) admission(all []read) *admission {
	active, rules := slices.Clip(p.rules), slices.Clone(p.rules)
	for _, r := range all {
		if int(r.source) > len(rules) { // a list that is not there yet
			active, rules = append(active, r.rule()), append(rules, r.rule())
		}
		rules[r.source-1].Contents = r.contents
	}
	return &admission{p.config, guard.Check(rules, policyOf(p.config), p.peers), engine.NewCensus(active)}
}

// admit returns contents without what is left out.
func (a *admission) admit(r read) (*list.Set, leftOut) {
	contents, left := r.without(a.config, r.contents, a.objections)
	active := a.census.Contents(r.source)
	a.census.Set(r.source, contents)
	if rest, shapes := withoutSpare(a.census, r.source); len(shapes) > 0 {
		contents, left.shapes = rest, shapes
	}
	a.census.Set(r.source, active)
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

// makeRoom leaves out flows of feeds, the last ones first, until those of all lists
// fit: manual entries take precedence. It returns what undoes that of what is left
// out.
func (p *Prepared) makeRoom() (undo func()) {
	left := make(map[*managedList][]api.SpareShape)
	census := engine.NewCensus(p.rules)
	for _, l := range slices.Backward(p.lists) {
		if l.source == 0 {
			continue
		}
		contents, shapes := withoutSpare(census, l.source)
		if len(shapes) > 0 {
			census.Set(l.source, contents)
			left[l] = l.left.shapes
			p.rules[l.source-1].Contents = contents
			l.left.shapes = slices.Concat(l.left.shapes, shapes)
		}
	}
	return func() {
		for l, shapes := range left {
			l.left.shapes = shapes
		}
	}
}

// spare returns the number of flows for which a set has no room.
func (o *leftOut) spare() (n int) {
	for _, s := range o.shapes {
		n += s.Entries
	}
	return n
}

// entries returns the number of entries that are left out for other reasons than
// that they are of private networks.
func (o *leftOut) entries() int { return len(o.failsafe) + len(firstOf(o.objections)) + o.spare() }

// without returns contents without what is left out.
func (l *managedList) without(c *config.Config, contents *list.Set, objections []guard.Objection) (*list.Set, leftOut) {
	var left leftOut
	if l.Action == config.Allow {
		return contents, left
	}
	inside := lists.Private(contents)
	left.private, left.excluded = inside.Len(), l.ExcludePrivate
	if l.ExcludePrivate && left.private > 0 {
		contents, _ = contents.Apply(list.Delta{Remove: inside})
	}
	left.failsafe = coverFailsafe(c, l.List, contents)
	over := make([]key.Key, len(left.failsafe))
	for i, o := range left.failsafe {
		over[i] = o.entry
	}
	contents = guard.WithoutKeys(contents, over...)
	if l.Guard {
		for _, o := range objections {
			if o.List == l.source && (!l.ExcludePrivate || !inside.Has(o.Entry)) && !slices.Contains(over, o.Entry) {
				left.objections = append(left.objections, o)
			}
		}
		contents = guard.Without(contents, l.source, left.objections)
	}
	return contents, left
}

// warnings returns warnings about the entries that are left out.
func (l *managedList) warnings() (all []string) {
	for _, o := range l.left.failsafe {
		all = append(all, fmt.Sprintf("list %s: left out: %v", l.Name, o))
	}
	for _, o := range firstOf(l.left.objections) {
		all = append(all, fmt.Sprintf("list %s: left out: %v (allow that, or set guard: false)", l.Name, o))
	}
	for n, s := range l.left.shapes {
		if n == maxBadLines {
			all = append(all, fmt.Sprintf("list %s: left out: flows of %d more combinations of fields and prefix lengths", l.Name, len(l.left.shapes)-n))
			break
		}
		all = append(all, fmt.Sprintf("list %s: left out: %v", l.Name, s))
	}
	if l.left.private > 0 && !l.left.excluded {
		all = append(all, fmt.Sprintf("list %s: entries of private, loopback or similar networks: %d (exclude_private: true leaves them out)", l.Name, l.left.private))
	}
	return all
}

// firstOf returns an objection of each entry.
func firstOf(all []guard.Objection) (first []guard.Objection) {
	for _, o := range all {
		if !slices.ContainsFunc(first, func(f guard.Objection) bool { return f.Entry == o.Entry }) {
			first = append(first, o)
		}
	}
	return first
}

// logLeftOut logs what is left out of a list, if that has changed.
func (l *managedList) logLeftOut(log *slog.Logger, before leftOut) {
	if reflect.DeepEqual(firstOf(before.objections), firstOf(l.left.objections)) && before.private == l.left.private && slices.Equal(before.failsafe, l.left.failsafe) && slices.Equal(before.shapes, l.left.shapes) {
		return
	}
	for _, o := range l.left.failsafe {
		log.Warn("an entry is left out, because it covers a failsafe prefix", "list", l.Name, "entry", o.entry.String(), "prefix", o.safe.String())
	}
	for _, o := range firstOf(l.left.objections) {
		log.Warn("an entry is left out, because of what it would cut off", "list", l.Name, "entry", o.Entry.String(), "would_cut_off", o.Peer.What)
	}
	if len(l.left.shapes) > 0 {
		var first []string
		for _, s := range l.left.shapes[:min(len(l.left.shapes), maxBadLines)] {
			first = append(first, s.String())
		}
		log.Warn("flows of too many combinations of fields and prefix lengths are left out, the rarest", "list", l.Name,
			"entries", l.left.spare(), "combinations", len(l.left.shapes), "first", first)
	}
	if l.left.private > 0 {
		log.Info("entries of private, loopback or similar networks", "list", l.Name, "entries", l.left.private, "left_out", l.left.excluded)
	}
}

// guardInterval is how often the daemon looks whom it must not cut off.
const guardInterval = 10 * time.Second

// followPeers looks whom the host must not be cut off from now, and takes in again the
// lists of which another part is to be left out.
func (d *Daemon) followPeers(now time.Time) {
	if now.Before(d.guards.lookAgain) {
		return
	}
	d.guards.lookAgain = now.Add(guardInterval)
	d.loop.doing("it is checked whom the lists would cut off", "")
	d.guards.find(now)
	var changed []*managedList
	var objections []guard.Objection
	p := d.active.prepared.copied()
	d.loop.aside(func() { changed, objections = p.leftOutAnew() })
	if err := d.dropLingering(objections); err != nil {
		d.o.Log.Error("entries that have left their feeds: " + err.Error())
	}
	for _, l := range changed {
		before := *l
		if err := d.update(l); err != nil {
			d.o.Log.Error(err.Error(), "list", l.Name)
		} else if l.reverted() { // what its sources have is still not active
			l.refused, l.failed, l.seenVersion = before.refused, before.failed, before.seenVersion
		}
	}
	if _, _, n, err := d.active.prepared.withDerived(nil); n > 0 || err != nil {
		if _, err := d.apply(nil); err != nil {
			d.o.Log.Error("prefixes around addresses of lists: " + err.Error())
		}
	}
}

// reverted reports whether the feed has returned to the contents that are active, since later ones could
// not be.
func (l *managedList) reverted() bool { return l.feed != nil && l.feed.Reverted() }

// leftOutAnew returns the lists of which another part is to be left out than before, and the
// objections to manual entries, beside some to other entries.
func (p *Prepared) leftOutAnew() (changed []*managedList, objections []guard.Objection) {
	var all []read
	entries := 0
	admit := func() {
		a := p.admission(all)
		objections = a.objections // manual entries are the same each time
		for _, r := range all {
			if _, left := a.admit(r); !reflect.DeepEqual(left, r.left) {
				changed = append(changed, r.managedList)
			}
		}
		all, entries = nil, 0
	}
	for _, l := range p.lists {
		if l.source == 0 || l.Action == config.Allow || l.rejected != nil || !l.reverted() && (l.refused != nil || l.seenVersion != l.from.Version()) {
			continue
		}
		all = append(all, read{l, l.from.Contents()})
		// Those of several sources together are memory of their own.
		if entries += all[len(all)-1].contents.Len(); entries >= manyEntries {
			admit()
		}
	}
	admit()
	return changed, objections
}

// guards knows whom the host must not be cut off from. Run's goroutine owns it.
type guards struct {
	active    *active
	observers *observers
	readings  *readings
	notifier  *notifier
	exports   *flows.Exports
	log       *slog.Logger

	looked    time.Time // when peers were last looked for
	lookAgain time.Time // for peers
	problem   problem   // why some of them are unknown
	cutOff    []string  // feeds whose servers are blocked, as logged
}

// receivers returns the servers of notifications and exports.
func (g *guards) receivers() map[string][]netip.Addr {
	all := make(map[string][]netip.Addr)
	for name, servers := range g.notifier.Servers() {
		all["notification target "+name] = servers
	}
	for name, servers := range g.exports.Servers() {
		all["collector "+name] = servers
	}
	return all
}

// find finds what must not be blocked now.
func (g *guards) find(now time.Time) {
	g.looked = now
	g.active.prepared.notified = g.receivers()
	all, err := peers(g.active.prepared.config, g.active.prepared.lists, g.active.prepared.notified)
	text := ""
	if err != nil {
		text = err.Error()
	}
	g.problem.log(text, g.log.Warn)
	g.active.prepared.peers = all
	g.observers.protect(g.active.prepared)
	protected := []api.Protected{}
	for _, p := range all {
		protected = append(protected, api.Protected{What: p.What, Entry: p.Key.String()})
	}
	g.readings.protected.Store(&protected)
}

// refresh finds what must not be blocked, unless that was just found.
func (g *guards) refresh() {
	if now := time.Now(); now.Sub(g.looked) > 2*time.Second {
		g.find(now)
	}
}

// cutsOff returns which peers a change of manual entries would cut off, the caller
// among them, as an error of the caller's.
func (g *guards) cutsOff(batch []journal.Change, caller ...guard.Peer) error {
	g.refresh()
	before := g.active.prepared.rules
	after, _, err := engine.With(before, g.active.prepared.changesOf(batch))
	if err != nil {
		return err
	}
	all, policy := slices.Concat(caller, g.active.prepared.peers), policyOf(g.active.prepared.config)
	if worse := guard.New(guard.Check(after, policy, all), guard.Check(before, policy, all)); len(worse) > 0 {
		return guard.Error(worse)
	}
	return nil
}

// enforcingCutsOff returns which peers the manual entries of lists on trial would cut off
// once they are enforced. What sources have is left out then.
func (g *guards) enforcingCutsOff(lists []*managedList, caller ...guard.Peer) error {
	g.refresh()
	before := g.active.prepared.rules
	after := slices.Clone(before)
	for _, l := range lists {
		if r := after[l.manual-1].Rule; r != nil {
			enforced := *r
			enforced.Trial = false
			after[l.manual-1].Rule = &enforced
		}
	}
	all, policy := slices.Concat(caller, g.active.prepared.peers), policyOf(g.active.prepared.config)
	if worse := guard.New(guard.Check(after, policy, all), guard.Check(before, policy, all)); len(worse) > 0 {
		return fmt.Errorf("entry %w", guard.Error(worse))
	}
	return nil
}

// orForce ends the error of a change that would cut somebody off.
const orForce = "allow that first, or use --force (force: true)"

// refuseCutOff returns why a request must not be carried out, because of whom it
// would cut off.
func (g *guards) refuseCutOff(l *managedList, c api.Change, batch []journal.Change) error {
	caller := callers(c.SSH, c.Connection)
	err := g.cutsOff(batch, caller...)
	if err == nil {
		return nil
	}
	bad := &api.BadRequest{Err: fmt.Errorf("%w: %s", err, orForce)}
	for i, text := range c.Entries { // the first that is not harmless by itself
		e, parsed := list.ParseEntry(text)
		if parsed != nil {
			continue
		}
		var alone []journal.Change
		for _, k := range keys(l.rule(), e) {
			alone = append(alone, journal.Change{Remove: c.Remove, Entry: journal.Entry{List: l.Name, Key: k}})
		}
		if why := g.cutsOff(alone, caller...); why != nil {
			bad.Entry, bad.Text = &i, text
			break
		}
	}
	return bad
}

// Advice returns what could lock somebody out.
func (p *Prepared) Advice() (all []string) {
	c := p.config
	if p.blind != "" {
		all = append(all, p.blind)
	}
	if !c.Monitor && p.blocked() > 0 && len(c.Failsafe.Ports)+len(c.Failsafe.Prefixes) == 0 {
		all = append(all, "packets are dropped, and nothing is failsafe: a wrong entry could lock you out (failsafe: ports, prefixes; --failsafe-port)")
	}
	for i, t := range p.trackers {
		if t.Action == heavy.Block {
			place := fmt.Sprintf("trackers[%d]", i)
			if t.Guard() {
				place = fmt.Sprintf("guards[%d]", i-len(c.Trackers))
			}
			all = append(all, fmt.Sprintf("%s: action block: who forges the address of another can have it blocked, unless that would cut off this host; "+
				"action limit leaves it some packets, and allow lists and failsafe spare it", place))
		}
	}
	return all
}
