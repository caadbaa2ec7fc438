package quantity

import "testing"

func TestSI(t *testing.T) {
	for _, c := range []struct {
		x      float64
		digits int
		unit   string
		want   string
	}{
		{0, 1, "pps", "0 pps"},
		{0.0004, 1, "pps", "<0.01 pps"},
		{0.0862, 1, "pps", "0.086 pps"},
		{0.37, 1, "pps", "0.37 pps"},
		{0.5, 2, "", "0.5"},
		{1, 1, "pps", "1 pps"},
		{12, 2, "", "12"},
		{15_240, 1, "pps", "15.2 kpps"},
		{2.5e9, 2, "bit/s", "2.5 Gbit/s"},
	} {
		if got := SI(c.x, c.digits, c.unit); got != c.want {
			t.Errorf("SI(%v, %d, %q) = %q, want %q", c.x, c.digits, c.unit, got, c.want)
		}
	}
}

func TestLimited(t *testing.T) {
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
		var offered *float64
		if c.offered >= 0 {
			offered = &c.offered
		}
		if got := Limited(c.rate, offered, c.unit, c.tracker); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
