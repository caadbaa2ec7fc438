package hub

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/trial"
)

// trialRetry is how long a trial that is over waits where its end could not be recorded.
const trialRetry = 10 * time.Second

// trials has the decisions of commands about lists on trial. It belongs to [Hub.Run].
type trials struct {
	log     *slog.Logger
	dir     stateDir
	lists   *lists
	members *members
	audit   *audit.Log
	wake    func() // there is something to publish

	decided trial.Decisions
	retry   time.Time // when the end of a trial is tried again
	kept    time.Time // when what has passed was last saved
}

func (t *trials) path() string { return t.dir.path(trial.File) }

// open reads what commands have decided. A trial whose time came while no hub ran is ended by
// the first tick.
func (t *trials) open() {
	t.decide(trial.Load(t.path(), t.log))
	t.follow()
}

// decide has lists follow what commands have decided.
func (t *trials) decide(next trial.Decisions) {
	t.decided = next
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
}

// enforced reports whether nodes drop what the list's entries match.
func (l *managed) enforced() bool { return l.trial == nil || l.trial.Enforced }

// commanded reports whether a command decides about the list's trial.
func (l *managed) commanded() bool { return l.trial != nil && l.trial.Since != nil }

// follow forgets what commands have decided about lists whose configuration has changed,
// or which are gone, and returns a line for each.
func (t *trials) follow() (lines []string) {
	next, lines := t.decided.Follow(func(name string) int {
		switch l := t.lists.get(name); {
		case l == nil:
			return trial.Gone
		case l.commanded():
			return trial.Counts
		}
		return trial.Changed
	})
	if len(lines) == 0 {
		return nil
	}
	if err := next.Save(t.path()); err != nil {
		t.log.Error("the next start will forget commands that no longer count: " + err.Error())
	}
	t.decide(next)
	for _, line := range lines {
		t.log.Info("trials: " + line)
	}
	return lines
}

// keep notes how much of the trials has passed that are to end, at an interval.
func (t *trials) keep(now time.Time) {
	if !t.decided.End() || now.Sub(t.kept) < trial.Interval {
		return
	}
	t.kept = now
	next, lines := t.decided.At(now)
	for _, line := range lines {
		t.log.Warn(line)
	}
	if err := next.Save(t.path()); err != nil {
		t.log.Error("trials would end later after a restart of the machine: " + err.Error())
	}
	if len(lines) > 0 {
		t.decide(next)
	}
}

// set carries out a change of a trial, durably.
func (t *trials) set(name string, c api.EnforceChange, by string) (done api.FleetEnforced, err error) {
	l := t.lists.get(name)
	if l == nil {
		return done, t.lists.missing(name)
	}
	if err := trial.Refuse(name, l.Action == config.Allow, l.enforced(), c); err != nil {
		return done, &api.BadRequest{Err: err}
	}
	if err := t.dir.room(); err != nil {
		return done, err
	}
	next := trial.New(c, l.List.Enforce, by, time.Now())
	if !trial.Changes(l.trial, next) {
		done.Enforced = api.Enforced{List: name, Trial: l.trial}
		return done, nil
	}
	if next.Enforced && !l.enforced() && !c.Force {
		of, err := t.members.collateral(name)
		if err != nil {
			return done, err
		}
		if err := dropsPartners(of); err != nil {
			return done, &api.BadRequest{Err: trial.Stays(name, err)}
		}
		if of.Unmeasured > 0 {
			done.Warnings = []string{fmt.Sprintf("with whom they have conversed that list %s drops is not measured by %d of %d nodes", name, of.Unmeasured, of.Measured+of.Unmeasured)}
		}
	}
	decided := t.decided.With(name, next)
	if err := decided.Save(t.path()); err != nil {
		return done, fmt.Errorf("list %s stays as it was, since a restart would forget the change: %w", name, err)
	}
	t.decide(decided)
	done.Enforced = api.Enforced{List: name, Changed: true, Trial: l.trial}
	return done, nil
}

// dropsPartners returns that a list would drop whom nodes have conversed with lately.
func dropsPartners(of *api.FleetCollateral) error {
	if of.Conversed == 0 {
		return nil
	}
	return trial.Conversed("nodes have", of.String(), "weir fleet status")
}

// overdue returns why the trial of a list that is over does not end: nodes have conversed with whom
// it would drop.
func (t *trials) overdue(l *managed) error {
	of, err := t.members.collateral(l.Name)
	if err == nil {
		err = dropsPartners(of)
	}
	if err != nil {
		return trial.Overdue(l.Name, err, "weir fleet enforce")
	}
	return nil
}

// end enforces the lists whose trial is over.
func (t *trials) end(now time.Time) {
	over := t.decided.Over(now)
	if len(over) == 0 || now.Before(t.retry) || !t.members.heard(now) {
		return
	}
	next := t.decided
	var ended []string
	for _, name := range over {
		l := t.lists.get(name)
		if l == nil || !l.commanded() {
			continue
		}
		before := l.overdue
		if l.overdue = t.overdue(l); l.overdue != nil {
			if before == nil || before.Error() != l.overdue.Error() {
				t.log.Error(l.overdue.Error())
			}
			t.retry = now.Add(trialRetry)
			continue
		}
		next = next.With(name, trial.Ended(t.decided[name]))
		ended = append(ended, name)
	}
	if len(ended) == 0 {
		return
	}
	if err := next.Save(t.path()); err != nil {
		t.log.Error(fmt.Errorf("a trial is over, but its list is not enforced, retrying in %v: %w", trialRetry, err).Error())
		t.retry = now.Add(trialRetry)
		return
	}
	t.decide(next)
	for _, name := range ended {
		t.audit.Record(audit.Record{Change: audit.Enforce, List: name, Changed: 1, Source: "expiry"})
	}
}

// Enforce implements [server.Hub]. When it returns without an error, the change is durable
// here and, unless Published is false, in the broker's stream.
func (h *Hub) Enforce(ctx context.Context, name string, c api.EnforceChange) (done api.FleetEnforced, err error) {
	r := audit.OfTrial(name, c)
	audit.ByCaller(ctx, &r)
	by := audit.Cut(r.Who(), audit.MaxText)
	var wait <-chan struct{}
	err = h.Do(ctx, func() (err error) {
		if done, err = h.trials.set(name, c, by); err == nil {
			wait = h.publisher.again()
		}
		return err
	})
	if done.Changed {
		r.Changed = 1
	}
	h.audited(r, err)
	if err != nil {
		return done, err
	}
	done.Published = h.publisher.wait(ctx, wait)
	return done, nil
}
