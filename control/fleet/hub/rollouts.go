package hub

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/fleet/store"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/control/lists"
	"weir/filter/snapshot"
)

// releases makes versions of lists, and decides which nodes are to have them: at once, or by a
// rollout. It belongs to [Hub.Run].
type releases struct {
	log     *slog.Logger
	store   *store.Store
	lists   *table
	members *members
	wake    func() // there is something to publish

	// saved has the records of the store by list, also for lists that are not configured now:
	// their histories stay, too. It is replaced, not changed.
	saved map[string]*released
}

// open reads which versions are released to which nodes.
func (a *releases) open() error {
	a.saved = make(map[string]*released)
	if err := a.store.Extra(&a.saved); err != nil {
		return fmt.Errorf("rollouts: %w", err)
	}
	for _, l := range a.lists.all {
		l.released = l.planned(a.last(l))
		l.rebased()
	}
	return a.save(a.lists.all)
}

// last returns the saved record of a list, nil if there is none, or if it is of a history that
// was removed since.
func (a *releases) last(l *managed) *released {
	x := a.saved[l.Name]
	if x == nil {
		return nil
	}
	at := l.history.Place()
	if l.history.Contents().Len() == 0 && (at.Before(x.Stable) || x.Rollout != nil && at.Before(x.Rollout.To)) {
		return nil
	}
	return x
}

// planned returns what is released of a list that had x released before, nil: all nodes are
// to have the last version.
func (l *managed) planned(x *released) *released {
	switch {
	case l.plan == nil && (x == nil || !x.Rollout.active() && x.Refused == ""):
		return nil
	case x != nil:
		return x
	case l.history.Contents().Len() > 0:
		return &released{Stable: l.history.Place()}
	}
	return &released{}
}

// plan has lists follow the plans of a configuration, or changes nothing.
func (a *releases) plan(c *config.Hub, lists []*managed) error {
	type planned struct {
		plan     *config.Rollout
		released *released
	}
	before := make(map[*managed]planned)
	for _, l := range lists {
		before[l] = planned{l.plan, l.released}
		l.plan = c.RolloutOf(l.List)
		l.released = l.planned(l.released)
		l.rebased()
	}
	err := a.save(lists)
	if err != nil {
		for l, was := range before {
			l.plan, l.released = was.plan, was.released
		}
	}
	return err
}

// save saves which versions of lists are released to which nodes. The records of other lists
// stay: a list that comes back goes on from there, rather than to all nodes at once.
func (a *releases) save(lists []*managed) error {
	all := make(map[string]*released)
	maps.Copy(all, a.saved)
	for _, l := range lists {
		if delete(all, l.Name); l.released != nil {
			all[l.Name] = l.released
		}
	}
	err := a.store.SetExtra(all)
	if err == nil {
		a.saved = all
	}
	return err
}

// release changes, durably, which versions of a list are released to which nodes.
func (a *releases) release(l *managed, x released) error {
	before := l.released
	l.released = &x
	if err := a.save(a.lists.all); err != nil {
		l.released = before
		return err
	}
	a.wake()
	return nil
}

// rebased adapts to a new epoch, in which the list has its last version only. An active
// rollout begins anew, and nodes keep what they have until it reaches them. One that is halted
// stays so. Which of the entries its version had added is not known any more: each may be one.
func (l *managed) rebased() {
	if l.released == nil {
		return
	}
	x, at := *l.released, l.history.Place()
	if x.Stable.Epoch == at.Epoch || x.Stable == (wire.Place{}) && (x.Rollout == nil || x.Rollout.To.Epoch == at.Epoch) {
		return
	}
	active := x.Rollout.active()
	if x.Stable = at; active || l.history.Contents().Len() == 0 {
		x.Stable = wire.Place{}
	}
	if active {
		r := *x.Rollout
		r.From, r.To, r.Wave, r.Entered = wire.Place{}, at, 0, time.Now()
		r.Confirmed, r.Settled, r.Absent, r.Accepted = time.Time{}, false, nil, false
		x.Rollout = &r
	}
	l.released = &x
}

// newEpoch begins an epoch after another one. Lists that cannot enter it follow.
func (a *releases) newEpoch(after uint64) error {
	before := a.store.Epoch()
	if err := a.store.NewEpoch(after); a.store.Epoch() == before {
		return err
	}
	for _, l := range a.lists.all {
		if l.history.Place().Epoch != a.store.Epoch() {
			_ = a.enter(l) // once more, for the list's own error
		}
		l.rebased()
	}
	return a.save(a.lists.all)
}

// enter has a list enter the epoch of the store, if it has not.
func (a *releases) enter(l *managed) error {
	entered, err := a.store.Enter(l.Name)
	if err != nil {
		if l.behind.Err == nil || l.behind.Err.Error() != err.Error() {
			a.log.Error("nodes keep what they have of a list until it is in the new epoch: "+err.Error(), "list", l.Name)
		}
		l.behind.Fail(err, time.Now(), lastPause)
		return err
	}
	l.behind = lists.Retry{}
	if !entered {
		return nil
	}
	a.log.Info("list is in the new epoch", "list", l.Name, "version", l.history.Place().String())
	l.rebased()
	a.wake()
	return a.save(a.lists.all)
}

// sumOf returns the checksum of contents.
func sumOf(c store.Change) string { return snapshot.Of(c.Contents.Groups()).String() }

// commit makes the list's entries a version, if they have changed.
func (a *releases) commit(l *managed) error {
	if l.unread {
		return nil
	}
	if err := a.enter(l); err != nil {
		l.unrecorded = err
		return err
	}
	change := l.change()
	if l.released != nil {
		l.unrecorded = a.roll(l, change)
		return l.unrecorded
	}
	changed, err := l.history.Commit(change)
	if l.unrecorded = err; err != nil {
		return err
	}
	if !changed {
		return nil
	}
	a.rebase(l)
	a.wake()
	return nil
}

// rebase makes the last version of a list the base if the log is large.
func (a *releases) rebase(l *managed) {
	if !l.history.Bulky() {
		return
	}
	if err := l.history.Rebase(); err != nil {
		a.log.Error("the log of a list keeps growing: "+err.Error(), "list", l.Name)
	}
}

// catchUp tries again to record what could not be.
func (a *releases) catchUp(now time.Time) {
	for _, l := range a.lists.all {
		if l.history.Place().Epoch != a.store.Epoch() && (!l.behind.Due(now) || a.enter(l) != nil) {
			continue
		}
		if l.unrecorded != nil {
			if err := a.commit(l); err == nil {
				a.log.Info("list recorded", "list", l.Name)
			}
		}
	}
}

// roll begins the rollout of new contents, unless one is under way: they follow it.
func (a *releases) roll(l *managed, next store.Change) error {
	x := *l.released
	current := l.history.Contents()
	same := next.Contents.Diff(current).Len() == 0
	if r := x.Rollout; r.active() && r.State != api.RolloutHalted {
		l.waiting = !same
		return nil
	}
	l.waiting = false
	at := l.history.Place()
	if r := x.Rollout; same && (at == x.Stable || r != nil && at == r.To || current.Len() == 0) {
		return nil
	}
	if x.Rollout.active() && same { // halted: these contents halted it
		return nil
	}
	if x.Refused != "" && x.Refused == sumOf(next) {
		return nil
	}
	if l.unmeasured(next.Contents) {
		a.log.Warn("the rollout stays halted: the new contents add some of the same addresses, which nodes that drop them already cannot measure", "list", l.Name)
		l.waiting = true
		return nil
	}
	if at == x.Stable {
		a.rebase(l)
	}
	if !same {
		next.Stepwise = true
		if _, err := l.history.Commit(next); err != nil {
			return err
		}
	}
	now := time.Now()
	if l.plan == nil { // those that are under way are the last
		return a.settle(l, released{Stable: l.history.Place()})
	}
	if l.plan.First == config.AtOnce && x.Rollout == nil && x.Stable == (wire.Place{}) {
		a.log.Info("the first contents of a list go to all nodes at once", "list", l.Name, "version", l.history.Place().String())
		return a.settle(l, released{Stable: l.history.Place()})
	}
	x.Refused = ""
	x.Rollout = newRollout(l.plan, l.Action, x.Stable, l.history.Place(), now)
	if err := a.release(l, x); err != nil {
		return err
	}
	a.log.Info("rollout begins", "list", l.Name, "version", x.Rollout.To.String(), "waves", len(x.Rollout.Waves))
	return nil
}

// unmeasured reports whether contents add addresses that a halted version adds, too, and nodes
// enforce that version: they measure the next one against their own, and would let it pass.
func (l *managed) unmeasured(next *list.Set) bool {
	r, stable := l.released.Rollout, new(list.Set)
	if r == nil || r.State != api.RolloutHalted || !r.Conversed || l.plan == nil || l.plan.MaxConversed == config.AnyNumber {
		return false
	}
	if l.released.Stable.Version != 0 {
		c, err := l.history.At(l.released.Stable)
		if err != nil {
			return true // the additions are not known
		}
		stable = c.Contents
	}
	adds, halted := next.Diff(stable).Add, l.history.Contents().Diff(stable).Add
	if l.Prefix6 > 0 || l.Aggregate.IPv4 > 0 || l.Aggregate.IPv6 > 0 { // nodes also drop addresses around entries
		return adds.Len() > 0
	}
	return meet(adds, halted)
}

// meet reports whether sets have entries with addresses in common; of flows that is not known, and
// they are taken to have.
func meet(a, b *list.Set) bool {
	if a.Len() == 0 || b.Len() == 0 {
		return false
	}
	type entry struct {
		netip.Prefix
		of int // the set
	}
	var all []entry
	for i, s := range []*list.Set{a, b} {
		for k := range s.All() {
			if k.Tuple() {
				return true
			}
			p, _ := list.PrefixOf(k)
			all = append(all, entry{p, i})
		}
	}
	slices.SortFunc(all, func(x, y entry) int { // a prefix comes before those within it
		return cmp.Or(x.Addr().Compare(y.Addr()), cmp.Compare(x.Bits(), y.Bits()))
	})
	var last [2]netip.Prefix // of each set, the widest
	for _, e := range all {
		if last[1-e.of].Contains(e.Addr()) {
			return true
		}
		if !last[e.of].Contains(e.Addr()) {
			last[e.of] = e.Prefix
		}
	}
	return false
}

// settle is release for a list whose rollout has ended.
func (a *releases) settle(l *managed, x released) error {
	if err := a.release(l, x); err != nil {
		return err
	}
	l.gate = gate{}
	return nil
}

// advance advances the active rollouts, by the nodes' reports.
func (a *releases) advance(now time.Time, maxAge time.Duration) {
	rolling := a.lists.rolling()
	if len(rolling) == 0 {
		return
	}
	all, err := a.members.observe(rolling)
	if err != nil {
		a.log.Error("rollouts wait: which nodes are enrolled is unknown: " + err.Error())
		return
	}
	for _, l := range rolling {
		a.step(l, now, maxAge, all[l.Name])
	}
}

// rolling returns the lists whose rollout is active.
func (a *table) rolling() (some []*managed) {
	for _, l := range a.all {
		if l.released != nil && l.behind.Err == nil && l.released.Rollout.active() {
			some = append(some, l)
		}
	}
	return some
}

// step advances the rollout of a list.
func (a *releases) step(l *managed, now time.Time, maxAge time.Duration, nodes []observed) {
	before := l.released.Rollout
	after, g := before.step(now, a.members.nodes.listened(now), maxAge, nodes)
	l.gate = g
	if after.State == before.State && after.Wave == before.Wave && after.Settled == before.Settled && after.Confirmed.Equal(before.Confirmed) {
		return
	}
	x := *l.released
	x.Rollout = &after
	if after.State == api.RolloutDone {
		x.Stable = after.To
	}
	if err := a.release(l, x); err != nil {
		a.log.Error("a rollout waits: its state cannot be recorded: "+err.Error(), "list", l.Name)
		return
	}
	log := a.log.With("list", l.Name, "version", after.To.String())
	switch {
	case after.State == api.RolloutHalted:
		log.Error("rollout halted: " + after.Reason)
	case after.State == api.RolloutDone:
		log.Info("rollout done: all nodes are to have the version")
		a.follow(l)
	case after.Wave != before.Wave:
		log.Info("rollout goes on", "wave", after.Wave+1, "of", len(after.Waves))
	case !after.Confirmed.IsZero() && before.Confirmed.IsZero():
		log.Info("the nodes of a wave have confirmed", "wave", after.Wave+1, "nodes", g.confirmed)
	}
}

// follow begins the rollout of the contents that arrived during the last one.
func (a *releases) follow(l *managed) {
	if err := a.commit(l); err != nil {
		a.log.Error("the next rollout: "+err.Error(), "list", l.Name)
	}
}

// rollAll pauses what runs, or resumes what is paused.
func (a *releases) rollAll(do string) (lists []string, err error) {
	state := api.RolloutRunning
	if do == api.RollResume {
		state = api.RolloutPaused
	}
	for _, l := range a.lists.all {
		if l.released == nil || l.released.Rollout == nil || l.released.Rollout.State != state {
			continue
		}
		if err := a.rollOne(l, do); err != nil {
			return lists, err
		}
		lists = append(lists, l.Name)
	}
	if lists == nil {
		return nil, &api.BadRequest{Err: fmt.Errorf("no rollout is %s", state)}
	}
	return lists, nil
}

// rollOne changes the course of a list's rollout.
func (a *releases) rollOne(l *managed, do string) error {
	refuse := func(format string, args ...any) error {
		return &api.BadRequest{Err: fmt.Errorf("list "+l.Name+": "+format, args...)}
	}
	if err := a.enter(l); err != nil {
		return err
	}
	if l.released == nil {
		return refuse("its changes reach all nodes at once: hub.yaml has no waves for it; weir fleet refresh %s --rollback takes back the last change of its source", l.Name)
	}
	x := *l.released
	if x.Rollout == nil {
		return refuse("there was no rollout yet")
	}
	r := *x.Rollout
	now := time.Now()
	switch do {
	case api.RollPause:
		if r.State != api.RolloutRunning {
			return refuse("the rollout of version %v is %s, not running", r.To, r.State)
		}
		r.State, r.Confirmed = api.RolloutPaused, time.Time{}
	case api.RollResume:
		switch r.State {
		case api.RolloutPaused:
		case api.RolloutHalted:
			r.Accepted = true
		case api.RolloutRolledBack:
			if l.plan == nil {
				return refuse("hub.yaml has no waves for it")
			}
			x.Refused = ""
			if err := a.release(l, x); err != nil {
				return err
			}
			return a.commit(l)
		default:
			return refuse("the rollout of version %v is %s", r.To, r.State)
		}
		r.State, r.Reason, r.Entered, r.Confirmed, r.Conversed = api.RolloutRunning, "", now, time.Time{}, false
	case api.RollForward:
		if r.State == api.RolloutRolledBack { // it begins anew, and then goes to all
			if err := a.rollOne(l, api.RollResume); err != nil {
				return err
			}
			if r = *l.released.Rollout; !r.active() {
				return nil // the feed has what was rolled back to
			}
			x = *l.released
		}
		if !r.active() {
			return refuse("the rollout of version %v is %s", r.To, r.State)
		}
		r.State, r.Reason, r.Wave = api.RolloutDone, "", len(r.Waves)
		x.Stable = r.To
	case api.RollRollback:
		return a.rollBack(l, x, refuse)
	}
	x.Rollout = &r
	a.log.Warn("rollout: "+do, "list", l.Name, "version", r.To.String(), "wave", r.Wave+1)
	if err := a.release(l, x); err != nil {
		return err
	}
	if !r.active() {
		a.follow(l)
	}
	return nil
}

// rollBack releases what a rollout began from, as a new version.
func (a *releases) rollBack(l *managed, x released, refuse func(string, ...any) error) error {
	r := *x.Rollout
	if r.State == api.RolloutRolledBack {
		return refuse("version %v is rolled back already", r.To)
	}
	from := r.From
	if from == (wire.Place{}) { // the list was empty, or what it had is not known
		from = l.history.Base().Place
		if l.history.Base().Entries > 0 && r.Conversed {
			return refuse("its contents before version %v are not known: have weir fleet allow let pass what must, and then resume", r.To)
		}
		if l.history.Base().Entries > 0 {
			return refuse("its contents before version %v are not known: correct its feed, or use weir fleet allow", r.To)
		}
	}
	old, err := l.history.At(from)
	if err != nil {
		return refuse("%w", err)
	}
	refused := sumOf(l.change())
	old.Stepwise = true
	if _, err := l.history.Commit(old); err != nil {
		return err
	}
	at := l.history.Place()
	a.log.Warn("rollout: rolled back", "list", l.Name, "version", r.To.String(), "to", r.From.String(), "as", at.String())
	r.State, r.Reason, r.To = api.RolloutRolledBack, "", at
	x.Rollout, x.Refused = &r, refused
	if x.Stable.Version != 0 {
		x.Stable = at
	}
	return a.release(l, x)
}

// Roll implements [server.Hub].
func (h *Hub) Roll(ctx context.Context, asked api.FleetRoll) (done api.FleetRolled, err error) {
	var wait <-chan struct{}
	err = h.command(ctx, func() error {
		if asked.List == "" {
			done.Lists, err = h.releases.rollAll(asked.Do)
		} else if l, bad := h.lists.byName.Find(asked.List); bad != nil {
			err = bad
		} else if err = h.releases.rollOne(l, asked.Do); err == nil {
			done.Lists = []string{l.Name}
		}
		if err == nil {
			wait = h.publisher.again()
		}
		return err
	})
	r := audit.Record{Change: asked.Do, List: asked.List, Entries: len(done.Lists), Changed: len(done.Lists)}
	if asked.List == "" {
		r.First = done.Lists
	}
	audit.ByCaller(ctx, &r)
	h.audit.Attempt(r, err)
	if err != nil {
		return done, err
	}
	done.Published = h.publisher.wait(ctx, wait)
	return done, nil
}
