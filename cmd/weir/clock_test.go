package main

import (
	"bytes"
	"testing"
	"time"

	"weir/control/api"
)

// weir status has a line for each step of the last day: which way, by how much, when, and what that means.
func TestClockIsShown(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const meaning = "; what has a TTL ends as if it had not been\n"
	for _, c := range []struct {
		ago  time.Duration
		by   float64
		want string
	}{
		{3 * time.Minute, 1, "CLOCK: set forward by 1s, 3m ago" + meaning},
		{time.Hour, -1.26, "CLOCK: set back by 1.3s, 60m ago" + meaning},
		{30 * time.Second, 3650 * 24 * 3600, "CLOCK: set forward by 3650d, 30s ago" + meaning},
		{30 * time.Second, -1772366400, "CLOCK: set back by 20514d, 30s ago" + meaning},
		{clockShown - time.Minute, 3600, "CLOCK: set forward by 60m, 23h ago" + meaning},
		{clockShown + time.Minute, 3600, ""},
	} {
		var w bytes.Buffer
		printClock(&w, &api.Clock{Settings: []api.ClockSetting{{At: now.Add(-c.ago), By: c.by}}}, now)
		if w.String() != c.want {
			t.Errorf("%v ago by %v s: %q, want %q", c.ago, c.by, w.String(), c.want)
		}
	}
	var w bytes.Buffer
	printClock(&w, &api.Clock{Settings: []api.ClockSetting{{At: now.Add(-2 * time.Hour), By: 5}, {At: now.Add(-time.Hour), By: -5}}}, now)
	if n := bytes.Count(w.Bytes(), []byte("\n")); n != 2 {
		t.Errorf("two steps are\n%s", w.String())
	}
	w.Reset()
	if printClock(&w, nil, now); w.Len() > 0 {
		t.Errorf("without a daemon: %q", w.String())
	}
}
