package ruleset

import (
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/lists"
	"weir/filter/membership"
)

// A command counts as long as the configuration says what it said then.
func TestTrialOf(t *testing.T) {
	now := time.Unix(1, 0)
	for _, c := range []struct {
		name             string
		enforce          bool // by the configuration
		command          *api.Trial
		change           func(*config.Config, *config.List)
		onTrial, decided bool
	}{
		{name: "enforced", enforce: true},
		{name: "on trial", onTrial: true},
		{name: "put on trial", enforce: true, command: &api.Trial{}, onTrial: true, decided: true},
		{name: "trial ended", command: &api.Trial{Configured: true, Enforced: true}, decided: true},
		{name: "trial ended, and configured since", enforce: true, command: &api.Trial{Configured: true, Enforced: true}},
		{name: "put on trial, and configured since", command: &api.Trial{}, onTrial: true},
		{name: "an allow list now", enforce: true, command: &api.Trial{}, change: func(_ *config.Config, l *config.List) { l.Action = config.Allow }},
		{name: "approximate now", enforce: true, command: &api.Trial{}, change: func(c *config.Config, _ *config.List) { c.Mode = membership.Approximate }},
	} {
		conf, l := config.Default(), &List{}
		l.SetDefaults()
		l.Name, l.Action, l.Enforce = "a", config.Block, c.enforce
		if c.change != nil {
			c.change(conf, &l.List)
		}
		decided := make(lists.Trials)
		if c.command != nil {
			c.command.Since = &now
			decided["a"] = *c.command
		}
		l.follow(conf, decided)
		if l.Enforce == c.onTrial || lists.CommandedTrial(l.Trial) != c.decided || l.configured().Enforce != c.enforce {
			t.Errorf("%s: %t, %+v", c.name, l.Enforce, l.Trial)
		}
		if again := l.trialBy(conf, decided); (again == nil) != (l.Trial == nil) || again != nil && *again != *l.Trial {
			t.Errorf("%s: %+v, and then %+v", c.name, l.Trial, again)
		}
	}
}
