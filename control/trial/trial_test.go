package trial

import (
	"encoding/json"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/durable/durabletest"
	"weir/tests/clock"
)

// TestFile lets the machine crash, and steps fail, while trials are saved. Saved decisions are
// read again; a file that is broken or of another version counts for nothing.
func TestFile(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	since, at := time.Unix(1, 0), time.Unix(1e9, 0)
	on := Decisions{"a": {Since: &since, EnforcedAt: &at, By: "root"}}
	path := func(dir string) string { return filepath.Join(dir, File) }
	durabletest.Test{
		Begin: "none",
		Work: func(t *testing.T, d *durabletest.Disk) {
			file := path(d.Dir)
			for range 2 {
				_ = d.Do(func() error { return on.Save(file) }, "on")
				for range 2 { // the second time it may be gone, but not for good
					_ = d.Do(func() error { return Decisions(nil).Save(file) }, "none")
				}
			}
		},
		Read: func(_ *testing.T, dir string, _ int) (string, error) {
			same := func(a, b api.Trial) bool {
				return a.EnforcedAt.Sub(*b.EnforcedAt).Abs() < time.Second && a.Since.Equal(*b.Since) && a.By == b.By
			}
			switch got := Load(path(dir), log); {
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
		if err := os.WriteFile(path(dir), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := Load(path(dir), log); len(got) > 0 {
			t.Errorf("%s: %+v", text, got)
		}
	}
}

const year = 365 * 24 * time.Hour

// A trial ends once its time has passed, whatever the clock said when the trial began, and when the
// next process reads of it.
func TestRestart(t *testing.T) {
	real := machine
	defer func() { machine = real }()
	path := filepath.Join(t.TempDir(), File)
	const after = 24 * time.Hour
	for _, c := range []struct {
		what  string
		clock time.Duration // of the former process, against the present one
		boot  string        // the present one
		ran   time.Duration // of the machine since
		left  time.Duration
		log   string
	}{
		{"the same clock", 0, "a", 0, after, ""},
		{"an hour later", -time.Hour, "a", time.Hour, 23 * time.Hour, ""},
		{"ahead by a day", -25 * time.Hour, "a", time.Hour, 23 * time.Hour, "ends at"},
		{"back by a day", 23 * time.Hour, "a", time.Hour, 23 * time.Hour, "ends at"},
		{"1970", 56 * year, "a", time.Hour, 23 * time.Hour, "ends at"},
		{"begun in 1970", -56 * year, "a", time.Hour, 23 * time.Hour, "ends at"},
		{"over in 1970", 56 * year, "a", 25 * time.Hour, -time.Hour, "ends at"},
		{"another boot", 0, "b", -time.Hour, after, ""},
		{"another boot, days later", -72 * time.Hour, "b", time.Hour, after, "ends at"},
		{"another boot, of 1970", 56 * year, "b", time.Hour, after, "ends at"},
		{"an unknown boot", -72 * time.Hour, "", time.Hour, after, "ends at"},
		{"a machine that has run for less", 0, "a", -time.Minute, after, ""},
	} {
		machine = func() (string, time.Duration) { return "a", 5 * time.Hour }
		now := time.Now()
		if err := (Decisions{"l": New(api.EnforceChange{Off: true, After: after.Seconds()}, true, "root", now)}).Save(path); err != nil {
			t.Fatal(err)
		}
		rewrite(t, path, func(s *saved) {
			d := s.Lists["l"]
			s.At, d.EnforcedAt, d.Since = s.At.Add(c.clock), new(d.EnforcedAt.Add(c.clock)), new(d.Since.Add(c.clock))
			s.Lists["l"] = d
		})
		machine = func() (string, time.Duration) { return c.boot, 5*time.Hour + c.ran }
		for range 2 { // as it is saved and read again
			var log strings.Builder
			got := Load(path, slog.New(slog.NewTextHandler(&log, nil)))
			now = time.Now()
			if early := got.Over(now.Add(c.left - time.Minute)); len(early) > 0 {
				t.Errorf("%s: it ends early: %v", c.what, got["l"])
			}
			if late := got.Over(now.Add(c.left + time.Minute)); len(late) == 0 {
				t.Errorf("%s: it ends late: %v", c.what, got["l"])
			}
			if !got.End() || (log.Len() > 0) != (c.log != "") || !strings.Contains(log.String(), c.log) {
				t.Errorf("%s: %q", c.what, log.String())
			}
			if err := got.Save(path); err != nil {
				t.Fatal(err)
			}
			c.log = ""
		}
	}

	// A version that did not say when it saved goes by the clock.
	rewrite(t, path, func(s *saved) {
		d := s.Lists["l"]
		s.At, s.Boot, s.Ran, d.EnforcedAt = time.Time{}, "", 0, new(time.Now().Add(-time.Second))
		s.Lists["l"] = d
	})
	if got := Load(path, slog.New(slog.DiscardHandler)); len(got.Over(time.Now())) != 1 {
		t.Errorf("%+v", got)
	}
}

// rewrite changes what is saved.
func rewrite(t *testing.T, path string, change func(*saved)) {
	t.Helper()
	text, err := os.ReadFile(path)
	var s saved
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err == nil {
		change(&s)
		text, err = json.Marshal(s)
	}
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A trial ends once its time has passed, whatever the clock is set to meanwhile, and says when
// that is by the clock.
func TestSet(t *testing.T) {
	now := time.Now()
	began := Decisions{"l": New(api.EnforceChange{After: 3600}, false, "root", now), "other": {Since: &now}}
	for _, ahead := range []time.Duration{25 * time.Hour, -25 * time.Hour, -50 * year} {
		d := began
		if over := d.Over(clock.Set(t, now.Add(59*time.Minute), ahead)); len(over) > 0 {
			t.Errorf("%v: it ends early", ahead)
		}
		d, lines := d.At(clock.Set(t, now.Add(time.Minute), ahead))
		if len(lines) != 1 || !strings.HasPrefix(lines[0], "list l: its trial ends at ") {
			t.Errorf("%v: %q", ahead, lines)
		}
		if want := now.Round(0).Add(time.Hour + ahead); !d["l"].EnforcedAt.Round(0).Equal(want) {
			t.Errorf("%v: it ends at %v by the clock, want %v", ahead, d["l"].EnforcedAt, want)
		}
		if _, again := d.At(clock.Set(t, now.Add(2*time.Minute), ahead)); len(again) > 0 {
			t.Errorf("%v: %q again", ahead, again)
		}
		if len(d.Over(clock.Set(t, now.Add(59*time.Minute), ahead))) > 0 || len(d.Over(clock.Set(t, now.Add(time.Hour), ahead))) != 1 {
			t.Errorf("%v: %v", ahead, d["l"])
		}
	}
}
