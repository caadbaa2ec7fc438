package lists

import (
	"log/slog"
	"maps"
	"path/filepath"
	"testing"
	"time"

	"weir/control/api"
	ours "weir/control/clock"
	"weir/tests/clock"
	"weir/tests/crash"
	"weir/tests/must"
)

// TestFile lets the machine crash, and steps fail, while trials are saved. Saved decisions are
// read again; a file that is broken or of another version counts for nothing.
func TestFile(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	since, at := time.Unix(1, 0), time.Unix(1e9, 0)
	on := Trials{"a": {Since: &since, EnforcedAt: &at, By: "root"}}
	path := func(dir string) string { return filepath.Join(dir, TrialFile) }
	crash.Test{
		Begin: "none",
		Work: func(t *testing.T, d *crash.Disk) {
			file := path(d.Dir)
			for range 2 {
				_ = d.Do(func() error { return on.Save(file, nil) }, "on")
				for range 2 { // the second time it may be gone, but not for good
					_ = d.Do(func() error { return Trials(nil).Save(file, nil) }, "none")
				}
			}
		},
		Read: func(_ *testing.T, dir string, _ int) (string, error) {
			same := func(a, b api.Trial) bool {
				return a.EnforcedAt.Sub(*b.EnforcedAt).Abs() < time.Second && a.Since.Equal(*b.Since) && a.By == b.By
			}
			switch got := LoadTrials(path(dir), nil, log); {
			case maps.EqualFunc(got, on, same):
				return "on", nil
			case len(got) > 0:
				t.Errorf("read %+v", got)
			}
			return "none", nil
		},
	}.Run(t)
	dir := t.TempDir()
	for _, text := range []string{"", "{", "[]", "null", `{"version": 2, "lists": {"a": {"since": "2026-01-02T03:04:05Z"}}}`, `{"version": 1, "lists": {"a": {"enforced": true}}}`} {
		must.Write(t, path(dir), text)
		if got := LoadTrials(path(dir), nil, log); len(got) > 0 {
			t.Errorf("%s: %+v", text, got)
		}
	}
}

const year = 365 * 24 * time.Hour

// A trial ends once its time has passed, whatever the clock said when the trial began, and when the
// next process reads of it. Only a clock that was right before and after says how long the host was off.
func TestRestart(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, c := range []struct {
		what          string
		before, after time.Duration // that the clock is ahead
		reboots       bool
		synchronized  bool // after that
		left          time.Duration
	}{
		{"the same clock", 0, 0, false, true, 23 * time.Hour},
		{"ahead by a day", 0, 24 * time.Hour, false, true, 23 * time.Hour},
		{"back by a day", 0, -24 * time.Hour, false, true, 23 * time.Hour},
		{"1970", 0, -56 * year, false, false, 23 * time.Hour},
		{"begun in 1970", -56 * year, 0, false, true, 23 * time.Hour},
		{"another boot", 0, 0, true, true, 18 * time.Hour},
		{"another boot, by a clock that may be wrong", 0, 0, true, false, 23 * time.Hour},
		{"another boot, of 1970", 0, -56 * year, true, false, 23 * time.Hour},
		{"another boot, ten years ahead", 0, 10 * year, true, false, 23 * time.Hour},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, TrialFile)
		m := clock.NewMachine(t)
		m.Set(c.before, c.before == 0)
		by := ours.Open(m.Host(), dir, log)
		by.Save()
		if err := (Trials{"l": newTrial(api.EnforceChange{Off: true, After: 86400}, true, "root", m.Now())}).Save(path, by); err != nil {
			t.Fatal(err)
		}
		m.Pass(time.Hour)
		by.Save()
		if c.reboots {
			m.Reboot(5 * time.Hour)
		}
		m.Set(c.after, c.synchronized)
		for range 2 { // as it is saved and read again
			by = ours.Open(m.Host(), dir, log)
			by.Save()
			got := LoadTrials(path, by, log)
			if early := got.Over(m.Now().Add(c.left - time.Minute)); len(early) > 0 {
				t.Errorf("%s: it ends early: %v", c.what, got["l"])
			}
			if late := got.Over(m.Now().Add(c.left + time.Minute)); len(late) == 0 {
				t.Errorf("%s: it ends late: %v", c.what, got["l"])
			}
			if err := got.Save(path, by); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A trial ends once its time has passed, whatever the clock is set to meanwhile.
func TestSet(t *testing.T) {
	now := time.Now()
	d := Trials{"l": newTrial(api.EnforceChange{After: 3600}, false, "root", now)}
	for _, ahead := range []time.Duration{25 * time.Hour, -25 * time.Hour, -50 * year} {
		if len(d.Over(clock.Set(t, now.Add(59*time.Minute), ahead))) > 0 || len(d.Over(clock.Set(t, now.Add(time.Hour), ahead))) != 1 {
			t.Errorf("%v: %v", ahead, d["l"])
		}
	}
}
