package lists

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"weir/control/api"
	"weir/control/clock"
)

// trialRetry is how long a trial that is over waits where it could not be ended.
const trialRetry = 10 * time.Second

// TrialOwner has the lists that decisions are about.
type TrialOwner interface {
	// Trial returns the trial of a list, and whether there is such a list.
	Trial(list string) (t *api.Trial, ok bool)
	// Decide makes the lists follow decisions. When it fails, nothing has changed.
	Decide(next Trials) error
	// Holds returns why a list whose trial is over stays on trial, or nil.
	Holds(list string) error
	// Ended notes that a list is enforced since its trial is over.
	Ended(list string)
}

// TrialKeeper has the decisions of commands, has its owner's lists follow them, and keeps them in a
// file. It belongs to the owner's loop.
type TrialKeeper struct {
	Owner TrialOwner
	Path  string // of the file; "": nothing is saved
	Clock *clock.Clock
	Log   *slog.Logger

	decided Trials
	retry   time.Time        // when a trial that is over is tried again
	held    map[string]error // of the last attempt, as failed
	failed  error
}

// Decided returns the decisions.
func (k *TrialKeeper) Decided() Trials { return k.decided }

// Load reads the file of a new keeper. The lists are to follow its decisions. A trial whose time has
// come meanwhile is ended by the first [TrialKeeper.End].
func (k *TrialKeeper) Load() { k.decided = LoadTrials(k.Path, k.Clock, k.Log) }

// Save writes the file.
func (k *TrialKeeper) Save() error { return k.save(k.decided) }

func (k *TrialKeeper) save(d Trials) error {
	if k.Path == "" {
		return nil
	}
	return d.Save(k.Path, k.Clock)
}

// decide has the lists follow other decisions. When it fails, nothing has changed.
func (k *TrialKeeper) decide(next Trials) error {
	before := k.decided
	k.decided = next
	err := k.Owner.Decide(next)
	if err != nil {
		k.decided = before
	}
	return err
}

// Set carries out a decision about a list: first durably, then in the lists.
func (k *TrialKeeper) Set(list string, t api.Trial) error {
	before, next := k.decided, k.decided.With(list, t)
	if err := k.save(next); err != nil {
		return fmt.Errorf("list %s stays as it was, since a restart would forget the change: %w", list, err)
	}
	if err := k.decide(next); err != nil {
		return errors.Join(fmt.Errorf("list %s stays as it was: %w", list, err), k.save(before))
	}
	return nil
}

// Command carries out a command about a list that is given now. may returns why the list must not be
// enforced, unless that is forced.
func (k *TrialKeeper) Command(list string, c api.EnforceChange, by string, may func() error) (api.Enforced, error) {
	before, _ := k.Owner.Trial(list)
	next := newTrial(c, before == nil || !before.Configured, by, time.Now())
	if !changesTrial(before, next) {
		return api.Enforced{List: list, Trial: before}, nil
	}
	if next.Enforced && before != nil && !before.Enforced && !c.Force {
		if err := may(); err != nil {
			return api.Enforced{}, err
		}
	}
	if err := k.Set(list, next); err != nil {
		return api.Enforced{}, err
	}
	now, _ := k.Owner.Trial(list)
	return api.Enforced{List: list, Changed: true, Trial: now}, nil
}

// Follow forgets the decisions about lists whose configuration has changed, or which are gone, and
// returns a line for each.
func (k *TrialKeeper) Follow() []string {
	next := maps.Clone(k.decided)
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(k.decided)) {
		why := "the configuration has changed"
		if t, ok := k.Owner.Trial(name); !ok {
			why = "the list is gone"
		} else if CommandedTrial(t) {
			continue
		}
		d, was := k.decided[name], "enforce --off"
		if d.Enforced {
			was = "enforce"
		}
		lines = append(lines, fmt.Sprintf("list %s: `%s` of %s no longer counts: %s", name, was, d.Since.Local().Format(time.DateTime), why))
		delete(next, name)
	}
	if len(lines) == 0 {
		return nil
	}
	if err := k.decide(next); err != nil {
		k.Log.Error(err.Error())
		return nil
	}
	if err := k.Save(); err != nil {
		k.Log.Error("the next start will forget commands that no longer count: " + err.Error())
	}
	for _, line := range lines {
		k.Log.Info("trials: " + line)
	}
	return lines
}

// CommandedTrial reports whether a command decides about a list, whose trial may be nil.
func CommandedTrial(t *api.Trial) bool { return t != nil && t.Since != nil }

// End enforces the lists whose trial is over by a time. It returns why others stay on trial, by
// list, and an error where none could be enforced; both are tried again after [trialRetry], and are the
// last ones until then.
func (k *TrialKeeper) End(now time.Time) (held map[string]error, err error) {
	over := k.decided.Over(now)
	switch {
	case len(over) == 0:
		return nil, nil
	case now.Before(k.retry):
		return k.held, k.failed
	}
	next := k.decided
	var ended []string
	held = make(map[string]error)
	for _, name := range over {
		if t, ok := k.Owner.Trial(name); !ok || !CommandedTrial(t) {
			continue
		}
		if err := k.Owner.Holds(name); err != nil {
			held[name] = err
			continue
		}
		next = next.With(name, endedTrial(k.decided[name]))
		ended = append(ended, name)
	}
	if len(ended) > 0 {
		if err := k.save(next); err != nil { // the next start finds that it is over
			k.Log.Error("trials are over, and a restart would have to end them again: " + err.Error())
		}
		if err = k.decide(next); err != nil {
			err = fmt.Errorf("a trial is over, but its list could not be enforced, retrying in %v: %w", trialRetry, err)
			ended = nil
		}
	}
	for _, name := range ended {
		k.Owner.Ended(name)
	}
	if err != nil || len(held) > 0 {
		k.retry = now.Add(trialRetry)
	}
	k.held, k.failed = held, err
	return held, err
}
