package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/lists"
)

// trials has the decisions of commands about lists on trial, as the owner of its keeper. It belongs
// to [Hub.Run].
type trials struct {
	lists.TrialKeeper

	lists   *table
	members *members
	audit   *audit.Log
	wake    func() // there is something to publish
	failed  error  // why no trial that is over could be enforced, as logged
}

// open reads what commands have decided. A trial whose time came while no hub ran is ended by
// the first tick.
func (t *trials) open() {
	t.Load()
	_ = t.Decide(t.Decided()) // never fails
	t.Follow()
}

// Trial implements [lists.TrialOwner].
func (t *trials) Trial(list string) (is *api.Trial, ok bool) {
	l := t.lists.get(list)
	if l == nil {
		return nil, false
	}
	return l.trial, true
}

// Decide implements [lists.TrialOwner]: lists follow what commands have decided. It never fails.
func (t *trials) Decide(next lists.Trials) error {
	over := next.Over(time.Now())
	for _, l := range t.lists.all {
		if !slices.Contains(over, l.Name) {
			l.overdue = nil
		}
		if l.trial = nil; l.Action != config.Allow {
			l.trial = next.Of(l.Name, l.List.Enforce)
		}
	}
	t.wake()
	return nil
}

// enforced reports whether nodes drop what the list's entries match.
func (l *managed) enforced() bool { return l.trial == nil || l.trial.Enforced }

// errUnheard means that nodes have not said yet, since the hub's start, with whom they converse.
var errUnheard = errors.New("the hub has just started, and waits for what nodes report")

// errUnreached means that they could not say so yet.
var errUnreached = errors.New("the hub has not reached its broker yet, and nodes cannot say with whom they converse: use --force (force: true) to enforce it all the same")

// hearAgain is how long to wait before looking again whether nodes have reported.
const hearAgain = 100 * time.Millisecond

// enforce carries out a change of a trial, durably. It fails with errUnheard until settle has
// passed since the hub first reached the broker.
func (t *trials) enforce(name string, c api.EnforceChange, by string) (done api.FleetEnforced, err error) {
	l, err := t.lists.byName.Find(name)
	if err != nil {
		return done, err
	}
	if err := lists.RefuseTrial(name, l.Action == config.Allow, l.enforced(), c); err != nil {
		return done, &api.BadRequest{Err: err}
	}
	done.Enforced, err = t.Command(name, c, by, func() error {
		if !t.members.heard(time.Now()) {
			return errUnheard
		}
		of, err := t.members.collateral(name)
		if err != nil {
			return err
		}
		if err := dropsPartners(of); err != nil {
			return &api.BadRequest{Err: lists.TrialStays(name, err)}
		}
		if of.Unmeasured > 0 {
			done.Warnings = []string{fmt.Sprintf("with whom they have conversed that list %s drops is not measured by %d of %d nodes", name, of.Unmeasured, of.Measured+of.Unmeasured)}
		}
		return nil
	})
	return done, err
}

// dropsPartners returns that a list would drop whom nodes have conversed with lately.
func dropsPartners(of *api.FleetCollateral) error {
	if of.Conversed == 0 {
		return nil
	}
	return lists.ConversedError("nodes have", of.String(), "weir fleet status")
}

// Holds implements [lists.TrialOwner].
func (t *trials) Holds(list string) error {
	of, err := t.members.collateral(list)
	if err == nil {
		err = dropsPartners(of)
	}
	if err != nil {
		return lists.TrialOverdue(list, err, "weir fleet enforce")
	}
	return nil
}

// Ended implements [lists.TrialOwner].
func (t *trials) Ended(list string) {
	t.audit.Record(audit.Record{Change: audit.Enforce, List: list, Changed: 1, Source: "expiry"})
}

// end enforces the lists whose trial is over, once nodes have said with whom they conversed.
func (t *trials) end(now time.Time) {
	if len(t.Decided().Over(now)) == 0 {
		t.failed = nil
		return
	}
	if !t.members.heard(now) {
		return
	}
	held, err := t.End(now)
	if err != nil && (t.failed == nil || err.Error() != t.failed.Error()) {
		t.Log.Error(err.Error())
	}
	t.failed = err
	for name, why := range held {
		l := t.lists.get(name)
		if l.overdue == nil || l.overdue.Error() != why.Error() {
			t.Log.Error(why.Error())
		}
		l.overdue = why
	}
}

// Enforce implements [server.Hub]. When it returns without an error, the change is durable
// here and, unless Published is false, in the broker's stream.
func (h *Hub) Enforce(ctx context.Context, name string, c api.EnforceChange) (done api.FleetEnforced, err error) {
	r := audit.OfTrial(name, c)
	audit.ByCaller(ctx, &r)
	by := audit.Cut(r.Who(), audit.MaxText)
	var wait <-chan struct{}
	enforce := func() (err error) {
		if done, err = h.trials.enforce(name, c, by); err == nil {
			wait = h.publisher.again()
		}
		return err
	}
	began := time.Now()
	for err = h.command(ctx, enforce); errors.Is(err, errUnheard); {
		if time.Since(began) >= settle && h.nodes.listened(time.Now()) == 0 {
			err = &api.BadRequest{Err: fmt.Errorf("list %s stays on trial: %w", name, errUnreached)}
			break
		}
		select {
		case <-time.After(hearAgain):
			err = h.command(ctx, enforce)
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if done.Changed {
		r.Changed = 1
	}
	h.audit.Attempt(r, err)
	if err != nil {
		return done, err
	}
	done.Published = h.publisher.wait(ctx, wait)
	return done, nil
}
