package hub

import (
	"context"
	"fmt"
	"slices"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/trial"
)

// trialRetry is how long a trial that is over waits where its end could not be recorded.
const trialRetry = 10 * time.Second

func (h *Hub) trialPath() string { return h.dir.path(trial.File) }

// openTrials reads what commands have decided about lists on trial. A trial whose time came
// while no hub ran is ended by the first tick.
func (h *Hub) openTrials() {
	h.decide(trial.Load(h.trialPath(), h.o.Log))
	h.followTrials()
}

// decide has lists follow what commands have decided.
func (h *Hub) decide(next trial.Decisions) {
	h.trials = next
	over := next.Over(time.Now())
	for _, l := range h.lists.all {
		if !slices.Contains(over, l.Name) {
			l.overdue = nil
		}
		if l.trial = nil; l.Action != config.Allow {
			l.trial = next.Of(l.Name, l.List.Enforce)
		}
	}
	if h.publisher != nil {
		h.publisher.wake()
	}
}

// enforced reports whether nodes drop what the list's entries match.
func (l *managed) enforced() bool { return l.trial == nil || l.trial.Enforced }

// commanded reports whether a command decides about the list's trial.
func (l *managed) commanded() bool { return l.trial != nil && l.trial.Since != nil }

// followTrials forgets what commands have decided about lists whose configuration has changed,
// or which are gone, and returns a line for each.
func (h *Hub) followTrials() (lines []string) {
	next, lines := h.trials.Follow(func(name string) int {
		switch l := h.lists.get(name); {
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
	if err := next.Save(h.trialPath()); err != nil {
		h.o.Log.Error("the next start will forget commands that no longer count: " + err.Error())
	}
	h.decide(next)
	for _, line := range lines {
		h.o.Log.Info("trials: " + line)
	}
	return lines
}

// keepTrials notes how much of the trials has passed that are to end, at an interval.
func (h *Hub) keepTrials(now time.Time) {
	if !h.trials.End() || now.Sub(h.keptTrials) < trial.Interval {
		return
	}
	h.keptTrials = now
	next, lines := h.trials.At(now)
	for _, line := range lines {
		h.o.Log.Warn(line)
	}
	if err := next.Save(h.trialPath()); err != nil {
		h.o.Log.Error("trials would end later after a restart of the machine: " + err.Error())
	}
	if len(lines) > 0 {
		h.decide(next)
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
		if done, err = h.setTrial(name, c, by); err == nil {
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
	done.Published = h.waitFor(ctx, wait)
	return done, nil
}

// setTrial carries out a change of a trial, durably.
func (h *Hub) setTrial(name string, c api.EnforceChange, by string) (done api.FleetEnforced, err error) {
	l := h.lists.get(name)
	if l == nil {
		return done, h.lists.missing(name)
	}
	if err := trial.Refuse(name, l.Action == config.Allow, l.enforced(), c); err != nil {
		return done, &api.BadRequest{Err: err}
	}
	if err := h.dir.room(); err != nil {
		return done, err
	}
	t := trial.New(c, l.List.Enforce, by, time.Now())
	if !trial.Changes(l.trial, t) {
		done.Enforced = api.Enforced{List: name, Trial: l.trial}
		return done, nil
	}
	if t.Enforced && !l.enforced() && !c.Force {
		of, err := h.members.collateral(name)
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
	next := h.trials.With(name, t)
	if err := next.Save(h.trialPath()); err != nil {
		return done, fmt.Errorf("list %s stays as it was, since a restart would forget the change: %w", name, err)
	}
	h.decide(next)
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
func (h *Hub) overdue(l *managed) error {
	of, err := h.members.collateral(l.Name)
	if err == nil {
		err = dropsPartners(of)
	}
	if err != nil {
		return trial.Overdue(l.Name, err, "weir fleet enforce")
	}
	return nil
}

// endTrials enforces the lists whose trial is over.
func (h *Hub) endTrials(now time.Time) {
	over := h.trials.Over(now)
	if len(over) == 0 || now.Before(h.retryTrials) || !h.members.heard(now) {
		return
	}
	next := h.trials
	var ended []string
	for _, name := range over {
		l := h.lists.get(name)
		if l == nil || !l.commanded() {
			continue
		}
		before := l.overdue
		if l.overdue = h.overdue(l); l.overdue != nil {
			if before == nil || before.Error() != l.overdue.Error() {
				h.o.Log.Error(l.overdue.Error())
			}
			h.retryTrials = now.Add(trialRetry)
			continue
		}
		next = next.With(name, trial.Ended(h.trials[name]))
		ended = append(ended, name)
	}
	if len(ended) == 0 {
		return
	}
	if err := next.Save(h.trialPath()); err != nil {
		h.o.Log.Error(fmt.Errorf("a trial is over, but its list is not enforced, retrying in %v: %w", trialRetry, err).Error())
		h.retryTrials = now.Add(trialRetry)
		return
	}
	h.decide(next)
	for _, name := range ended {
		h.audit.Record(audit.Record{Change: audit.Enforce, List: name, Changed: 1, Source: "expiry"})
	}
}
