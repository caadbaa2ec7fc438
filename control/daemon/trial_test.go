package daemon

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/durable/durabletest"
	"weir/filter/membership"
	"weir/tests/lab"
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
		conf, l := config.Default(), &managedList{}
		l.SetDefaults()
		l.Name, l.Action, l.Enforce = "a", config.Block, c.enforce
		if c.change != nil {
			c.change(conf, &l.List)
		}
		decided := make(trials)
		if c.command != nil {
			c.command.Since = &now
			decided["a"] = *c.command
		}
		l.follow(conf, decided)
		if l.Enforce == c.onTrial || l.commanded() != c.decided || l.configured().Enforce != c.enforce {
			t.Errorf("%s: %t, %+v", c.name, l.Enforce, l.trial)
		}
		if again := l.trialBy(conf, decided); (again == nil) != (l.trial == nil) || again != nil && *again != *l.trial {
			t.Errorf("%s: %+v, and then %+v", c.name, l.trial, again)
		}
	}
}

// The metric of a trial begins and ends with it.
func TestTrialMetric(t *testing.T) {
	r := configure(t, lab.New(t).B)
	r.lists(t, feedFile(t, "a.txt", "198.51.100.1\n"))
	r.c.Lists[0].Enforce = false
	d := begin(t, r)
	onTrial := func() (is bool) {
		for _, l := range d.Metrics().Lists {
			is = is || l.Name == "a" && l.Trial
		}
		return is
	}
	for i, off := range []bool{true, false, true, false} {
		if i > 0 {
			if _, err := d.Enforce(t.Context(), "a", api.EnforceChange{Off: off}); err != nil {
				t.Fatal(err)
			}
		}
		if onTrial() != off {
			t.Errorf("change %d: on trial %t, want %t", i, !off, off)
		}
	}
}

// TestTrialFile lets the machine crash, and steps fail, while trials are saved; what is saved
// is read again, and what is broken or of another version is left to the configuration.
func TestTrialFile(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	since, at := time.Unix(1, 0), time.Unix(1e9, 0)
	on := trials{"a": {Since: &since, EnforcedAt: &at, By: "root"}}
	path := func(dir string) (*config.Config, string) {
		c := config.Default()
		c.StateDir = config.Path(dir)
		return c, trialPath(c)
	}
	durabletest.Test{
		Begin: "none",
		Work: func(t *testing.T, d *durabletest.Disk) {
			c, _ := path(d.Dir)
			daemon := &Daemon{prepared: &Prepared{config: c}}
			for range 2 {
				_ = d.Do(func() error { return daemon.saveTrials(on) }, "on")
				for range 2 { // the second time it may be gone, but not for good
					_ = d.Do(func() error { return daemon.saveTrials(nil) }, "none")
				}
			}
		},
		Read: func(_ *testing.T, dir string, _ int) (string, error) {
			_, p := path(dir)
			same := func(a, b api.Trial) bool {
				return a.EnforcedAt.Equal(*b.EnforcedAt) && a.Since.Equal(*b.Since) && a.By == b.By
			}
			switch got := loadTrials(p, log); {
			case maps.EqualFunc(got, on, same):
				return "on", nil
			case len(got) > 0:
				t.Errorf("read %+v", got)
			}
			return "none", nil
		},
	}.Run(t)
	dir := t.TempDir()
	_, p := path(dir)
	for _, text := range []string{"", "{", "[]", "null", `{"version": 2, "lists": {"a": {"since": "2026-01-02T03:04:05Z"}}}`, `{"version": 1, "lists": {"a": {"enforced": true}}}`} {
		if err := os.WriteFile(filepath.Join(dir, trialFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := loadTrials(p, log); len(got) > 0 {
			t.Errorf("%s: %+v", text, got)
		}
	}
}
