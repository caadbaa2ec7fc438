package api

import (
	"testing"

	"weir/control/engine"
)

func TestLimitText(t *testing.T) {
	for _, c := range []struct {
		unit          string
		rate, offered float64 // offered < 0: unknown
		tracker, want string
	}{
		{"packets", 100, 1140, "src", "rate-limited to 100 pps: 1.04 kpps of it are dropped now, 91% (tracker src)"},
		{"packets", 100, 50, "src", "rate-limited to 100 pps: it is within that now (tracker src)"},
		{"bytes", 1e6, 4e6, "dst", "rate-limited to 1 MB/s: 3 MB/s of it are dropped now, 75% (tracker dst)"},
		{"packets", 10, -1, "src/24", "rate-limited to 10 pps (tracker src/24)"},
	} {
		l := &engine.Limit{Rate: c.rate, Tracker: c.tracker, Unit: c.unit}
		if c.offered >= 0 {
			l.Offered = &c.offered
		}
		if got := LimitText(l); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
