package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/control/observe"
	"weir/control/ruleset"
)

// dropLingering ends the stay of entries that would cut off a peer by now.
func (d *Daemon) dropLingering(objections []ruleset.Objection) error {
	var batch []journal.Change
	var behind []*ruleset.List
	for _, l := range d.active.prepared.Lists {
		over := d.active.prepared.LingeringOver(l, objections)
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
	*ruleset.List
	objections []ruleset.Objection
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
		before := of.Left
		of.Left.Objections = slices.Concat(before.Objections, of.objections)
		of.LogLeftOut(d.o.Log, before)
	}
	return n, nil
}

// leaveOutWith returns what changes require of other lists: where an allow list no longer has an
// entry, block lists must not have what would then cut off a peer. What has left their sources ends
// its stay at once. The lists that change are returned, too, with what is to be left out. Commands
// may change entries meanwhile.
func (d *Daemon) leaveOutWith(changes []engine.Change) (more []engine.Change, left []objected) {
	if !slices.ContainsFunc(changes, func(c engine.Change) bool { return d.active.prepared.Rules[c.List-1].Allow && c.Remove.Len() > 0 }) {
		return nil, nil
	}
	d.antiLockout.refresh()
	d.antiLockout.lookAgain = time.Time{}
	p := d.active.prepared.Copy()
	var objections []ruleset.Objection
	d.loop.aside(func() {
		rules, _, err := engine.With(p.Rules, changes)
		if err != nil {
			return // they will not be made
		}
		objections = ruleset.Objections(rules, ruleset.PolicyOf(p.Config), p.Peers)
		more, left = activeWithout(p, p.Lists, objections)
	})
	if err := d.dropLingering(objections); err != nil {
		d.o.Log.Error("entries that have left their feeds: " + err.Error())
	}
	return more, left
}

// activeWithout returns the changes that leave out of the active contents of lists what would cut off a
// peer, and these lists with it.
func activeWithout(p *ruleset.Ruleset, lists []*ruleset.List, objections []ruleset.Objection) (changes []engine.Change, left []objected) {
	for _, l := range lists {
		of := objected{l, slices.DeleteFunc(slices.Clone(objections), func(o ruleset.Objection) bool { return o.List != l.SourceNumber || !l.AntiLockout })}
		if len(of.objections) == 0 {
			continue
		}
		active := p.Contents(l.SourceNumber)
		if delta := ruleset.Without(active, l.SourceNumber, of.objections).Diff(active); delta.Len() > 0 {
			changes = append(changes, engine.Change{List: l.SourceNumber, Delta: delta})
			left = append(left, of)
		}
	}
	return changes, left
}

// leaveOut leaves out of the active contents of lists what would cut off a peer.
func (d *Daemon) leaveOut(lists []*ruleset.List, objections []ruleset.Objection) (err error) {
	var changes []engine.Change
	var left []objected
	p := d.active.prepared.Copy()
	d.loop.aside(func() { changes, left = activeWithout(p, lists, objections) })
	if len(changes) > 0 {
		_, err = d.applyWith(nil, changes, left)
	}
	return err
}

// lockoutInterval is how often the daemon looks whom it must not cut off.
const lockoutInterval = 10 * time.Second

// followPeers looks whom the host must not be cut off from now, and takes in again the
// lists of which another part is to be left out. Of those that cannot be taken in now, less stays active.
func (d *Daemon) followPeers(now time.Time) {
	if now.Before(d.antiLockout.lookAgain) {
		return
	}
	d.antiLockout.lookAgain = now.Add(lockoutInterval)
	d.loop.Doing("it is checked whom the lists would cut off", "")
	d.antiLockout.find(now)
	var changed, stuck []*ruleset.List
	var objections []ruleset.Objection
	p := d.active.prepared.Copy()
	d.loop.aside(func() { changed, stuck, objections = p.LeftOutAnew() })
	if err := d.dropLingering(objections); err != nil {
		d.o.Log.Error("entries that have left their feeds: " + err.Error())
	}
	for _, l := range changed {
		before := *l
		if err := d.update(l); err != nil {
			d.o.Log.Error(err.Error(), "list", l.Name)
			stuck = append(stuck, l)
		} else {
			l.Keep(&before)
		}
	}
	if len(stuck) > 0 {
		if err := d.leaveOut(stuck, objections); err != nil {
			d.o.Log.Error("entries that would cut off a peer are not left out: " + err.Error())
		}
	}
	if _, _, n, err := d.active.prepared.WithDerived(nil); n > 0 || err != nil {
		if _, err := d.apply(nil); err != nil {
			d.o.Log.Error("prefixes around addresses of lists: " + err.Error())
		}
	}
}

// antiLockout knows whom the host must not be cut off from. Run's goroutine owns it.
type antiLockout struct {
	active    *active
	observers *observers
	readings  *readings
	notifier  *notices
	exports   *observe.Exports
	log       *slog.Logger

	looked    time.Time // when peers were last looked for
	lookAgain time.Time // for peers
	problem   problem   // why some of them are unknown
	cutOff    []string  // feeds whose servers are blocked, as logged
}

// receivers returns the servers of notifications and exports.
func (g *antiLockout) receivers() map[string][]netip.Addr {
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
func (g *antiLockout) find(now time.Time) {
	g.looked = now
	err := g.active.prepared.LookForPeers(g.receivers())
	text := ""
	if err != nil {
		text = err.Error()
	}
	g.problem.log(text, g.log.Warn)
	g.observers.protect(g.active.prepared)
	protected := []api.Protected{}
	for _, p := range g.active.prepared.Peers {
		protected = append(protected, api.Protected{What: p.What, Entry: p.Key.String()})
	}
	g.readings.protected.Store(&protected)
}

// refresh finds what must not be blocked, unless that was just found.
func (g *antiLockout) refresh() {
	if now := time.Now(); now.Sub(g.looked) > 2*time.Second {
		g.find(now)
	}
}

// cutsOff returns which peers a change of manual entries would cut off, the caller
// among them, as an error of the caller's.
func (g *antiLockout) cutsOff(batch []journal.Change, caller ...ruleset.Peer) error {
	g.refresh()
	before := g.active.prepared.Rules
	after, _, err := engine.With(before, g.active.prepared.ChangesOf(batch))
	if err != nil {
		return err
	}
	all, policy := slices.Concat(caller, g.active.prepared.Peers), ruleset.PolicyOf(g.active.prepared.Config)
	if worse := ruleset.NewObjections(ruleset.Objections(after, policy, all), ruleset.Objections(before, policy, all)); len(worse) > 0 {
		return ruleset.ObjectionsError(worse)
	}
	return nil
}

// enforcingCutsOff returns which peers the manual entries of lists on trial would cut off
// once they are enforced. What sources have is left out then.
func (g *antiLockout) enforcingCutsOff(lists []*ruleset.List, caller ...ruleset.Peer) error {
	g.refresh()
	before := g.active.prepared.Rules
	after := slices.Clone(before)
	for _, l := range lists {
		if r := after[l.ManualNumber-1].Rule; r != nil {
			enforced := *r
			enforced.Trial = false
			after[l.ManualNumber-1].Rule = &enforced
		}
	}
	all, policy := slices.Concat(caller, g.active.prepared.Peers), ruleset.PolicyOf(g.active.prepared.Config)
	if worse := ruleset.NewObjections(ruleset.Objections(after, policy, all), ruleset.Objections(before, policy, all)); len(worse) > 0 {
		return fmt.Errorf("entry %w", ruleset.ObjectionsError(worse))
	}
	return nil
}

// passes reports whether failsafe or an allow list lets packets of a peer pass, whatever else would
// drop them.
func (g *antiLockout) passes(peer ruleset.Peer) bool {
	p := g.active.prepared
	rules := append(slices.Clone(p.Rules), engine.List{Contents: list.SetOf(peer.Key)})
	return len(ruleset.Objections(rules, ruleset.PolicyOf(p.Config), []ruleset.Peer{peer})) == 0
}

// orForce ends the error of a change that would cut somebody off.
const orForce = "allow that first, or use --force (force: true)"

// refuseCutOff returns why a request must not be carried out, because of whom it
// would cut off.
func (g *antiLockout) refuseCutOff(l *ruleset.List, c api.Change, batch []journal.Change) error {
	caller := callers(c.SSH, c.Connection)
	err := g.cutsOff(batch, caller...)
	if err == nil {
		return nil
	}
	bad := &api.BadRequest{Err: fmt.Errorf("%w: %s", err, orForce)}
	for i, text := range c.Entries { // the first that is not harmless by itself
		e, parsed := listfile.ParseEntry(text)
		if parsed != nil {
			continue
		}
		var alone []journal.Change
		for _, k := range ruleset.Keys(l.EngineList(), e) {
			alone = append(alone, journal.Change{Remove: c.Remove, Entry: journal.Entry{List: l.Name, Key: k}})
		}
		if why := g.cutsOff(alone, caller...); why != nil {
			bad.Entry, bad.Text = &i, text
			break
		}
	}
	return bad
}
