package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestClockSet logs steps of the clock, and none of its small corrections.
func TestClockSet(t *testing.T) {
	for _, c := range []struct {
		wall time.Duration
		want string
	}{
		{time.Second, ""},
		{0, ""},
		{9 * time.Second, ""},
		{2*time.Hour + time.Second, "set forward"},
		{-24*time.Hour + time.Second, "set back"},
	} {
		var out bytes.Buffer
		(&wallClock{log: slog.New(slog.NewTextHandler(&out, nil))}).passed(c.wall, time.Second)
		if got := out.String(); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%v: %q", c.wall, got)
		}
	}
	var out bytes.Buffer
	by := wallClock{log: slog.New(slog.NewTextHandler(&out, nil))}
	now := time.Now()
	for i := range 3 { // both clocks go on alike
		by.follow(now.Add(time.Duration(i) * time.Hour))
	}
	if out.Len() > 0 {
		t.Error(out.String())
	}
	by.follow(now.Round(0)) // without a monotonic clock: nothing is known
	if by.last != now.Round(0) {
		t.Error("the last time is not kept")
	}
}
