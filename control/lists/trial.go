package lists

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"weir/control/api"
	"weir/control/clock"
	"weir/control/durable"
)

// TrialFile is the name of the file below the state directory with the decisions of commands.
const TrialFile = "trial.json"

// trialVersion is the version of its contents.
const trialVersion = 1

// Trials has the decisions of commands about lists on trial, by list. Once in use they are not changed, as they
// may be read concurrently.
//
// A trial is decided by the configuration (enforce: false), or by a command that overrides it. A command counts
// until the configuration changes: a change of enforce there decides anew, and a list that goes ends its trial.
//
// A trial ends once the time has passed that was asked for: by the monotonic clock in a process, as part of a
// [time.Time], and by the steady time of the host from one to the next.
type Trials map[string]api.Trial

// savedTrials are the contents of the file, with steady times.
type savedTrials struct {
	Version int    `json:"version"`
	Lists   Trials `json:"lists"`
}

// Of returns the trial of a block list that the configuration enforces or not, nil where it
// is enforced and no command has decided that.
func (d Trials) Of(list string, enforce bool) *api.Trial {
	if t, ok := d[list]; ok && t.Configured == !enforce {
		return &t
	}
	if !enforce {
		return &api.Trial{Configured: true}
	}
	return nil
}

// RefuseTrial returns why a change of a list's trial must not be.
func RefuseTrial(list string, allows, enforced bool, c api.EnforceChange) error {
	switch {
	case allows:
		return fmt.Errorf("list %s allows: it drops nothing, and has no trial: name a block list", list)
	case c.After > 0 && !c.Off && enforced:
		return fmt.Errorf("list %s is enforced already: leave out --after (after_seconds), or put it on trial until then by --off (off: true) beside it", list)
	}
	return nil
}

// ConversedError returns that a list would drop with whom hosts have conversed lately. who is they and
// their verb; see is the command that shows the addresses.
func ConversedError(who, addresses, see string) error {
	return fmt.Errorf("in the last 24 hours %s conversed with addresses that it would drop: %s (%s)", who, addresses, see)
}

// TrialStays returns that a list stays on trial, since it would drop whom hosts have conversed with.
func TrialStays(list string, conversed error) error {
	return fmt.Errorf("list %s stays on trial: %w: allow those first, or use --force (force: true)", list, conversed)
}

// TrialOverdue returns that the trial of a list does not end, for the same reason. command enforces the
// list.
func TrialOverdue(list string, conversed error, command string) error {
	return fmt.Errorf("the trial of list %s is over, but it is not enforced: %w: allow those, or %s --force %s", list, conversed, command, list)
}

// newTrial returns the decision of a command that is given now, about a list that the configuration
// enforces or not.
func newTrial(c api.EnforceChange, enforce bool, by string, now time.Time) api.Trial {
	t := api.Trial{Enforced: !c.Off && c.After == 0, Configured: !enforce, Since: &now, By: by}
	if c.After > 0 {
		at := now.Add(time.Duration(c.After * float64(time.Second)))
		t.EnforcedAt = &at
	}
	return t
}

// changesTrial reports whether a decision changes what a list does, or will do, by its trial before.
func changesTrial(before *api.Trial, t api.Trial) bool {
	enforced := before == nil || before.Enforced
	return t.EnforcedAt != nil || t.Enforced != enforced || before != nil && before.EnforcedAt != nil
}

// With returns the decisions with another one. A decision that repeats the
// configuration is left out.
func (d Trials) With(list string, t api.Trial) Trials {
	next := maps.Clone(d)
	if next == nil {
		next = make(Trials)
	}
	next[list] = t
	if t.EnforcedAt == nil && t.Enforced == !t.Configured {
		delete(next, list)
	}
	return next
}

// endedTrial returns the decision about a list whose time has come.
func endedTrial(t api.Trial) api.Trial {
	t.Enforced, t.Since, t.EnforcedAt = true, t.EnforcedAt, nil
	return t
}

// Over returns the lists whose trial is over by a time.
func (d Trials) Over(now time.Time) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(d)) {
		if at := d[name].EnforcedAt; at != nil && !now.Before(*at) {
			all = append(all, name)
		}
	}
	return all
}

// LoadTrials returns the decisions of commands as they were saved in a file, none where its path is
// empty. Trials whose time has come meanwhile are as they were.
func LoadTrials(path string, c *clock.Clock, log *slog.Logger) Trials {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var all savedTrials
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err == nil && all.Version != trialVersion {
		err = fmt.Errorf("it has version %d, and this program knows %d", all.Version, trialVersion)
	}
	if err != nil {
		log.Error("which lists commands have put on trial, or enforced, is unknown, the configuration decides: "+err.Error(), "file", path)
		return nil
	}
	maps.DeleteFunc(all.Lists, func(_ string, t api.Trial) bool { return t.Since == nil }) // of no command
	return all.Lists.by(c.Wall)
}

// by returns the decisions with times by another clock.
func (d Trials) by(to func(time.Time) time.Time) Trials {
	next := maps.Clone(d)
	for name, t := range next {
		t.Since, t.EnforcedAt = clock.Optional(to, t.Since), clock.Optional(to, t.EnforcedAt)
		next[name] = t
	}
	return next
}

// Save makes decisions durable.
func (d Trials) Save(path string, c *clock.Clock) error {
	if len(d) == 0 {
		return durable.Remove(path)
	}
	text, err := json.Marshal(savedTrials{trialVersion, d.by(c.Steady)})
	if err != nil {
		return err
	}
	return durable.WriteFile(path, append(text, '\n'))
}
