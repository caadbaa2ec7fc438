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
