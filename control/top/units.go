package top

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// si formats a number with three significant digits and an SI prefix: at most
// six characters plus the unit.
func si(x float64, unit string) string {
	prefixes := []string{"", "k", "M", "G", "T", "P"}
	i := 0
	for ; x >= 999.5 && i < len(prefixes)-1; i++ {
		x /= 1000
	}
	digits := 0
	switch {
	case i == 0 && (x == math.Trunc(x) || x >= 9.95): // a few packets have no fractions
	case x < 9.995:
		digits = 2
	case x < 99.95:
		digits = 1
	}
	if i == 0 {
		digits = min(digits, 1)
	}
	return fmt.Sprintf("%.*f %s", digits, x, prefixes[i]+unit)
}

func pps(packets float64) string { return si(packets, "pps") }

// bps formats bytes per second as bits per second.
func bps(bytes float64) string { return si(8*bytes, "bps") }

// count formats a number.
func count(n float64) string { return strings.Replace(si(n, ""), " ", "", 1) }

// percent formats a share of 0 … 1 in at most seven characters.
func percent(share float64) string {
	switch {
	case share > 0 && share < 0.0005:
		return "<0.1 %"
	case share >= 0.9995:
		return "100 %"
	}
	return fmt.Sprintf("%.1f %%", 100*share)
}

// lasting formats a duration in its one or two largest units.
func lasting(d time.Duration) string {
	s := int64(max(d, 0) / time.Second)
	m, h, days := s/60, s/3600, s/86400
	switch {
	case days > 0:
		return fmt.Sprintf("%dd %dh", days, h%24)
	case h > 0:
		return fmt.Sprintf("%dh %dm", h, m%60)
	case m > 0:
		return fmt.Sprintf("%dm %ds", m, s%60)
	}
	return fmt.Sprintf("%ds", s)
}

// remaining formats a duration in one unit, with two digits if possible,
// rounded up, so that it is 0 only when it is over.
func remaining(d time.Duration) string {
	for _, u := range []struct {
		name     string
		of, from time.Duration
	}{{"d", 24 * time.Hour, 99 * time.Hour}, {"h", time.Hour, 99 * time.Minute}, {"m", time.Minute, 99 * time.Second}} {
		if d > u.from {
			return fmt.Sprintf("%d%s", (d+u.of-1)/u.of, u.name)
		}
	}
	return fmt.Sprintf("%ds", max(d+time.Second-1, 0)/time.Second)
}

// seconds converts seconds to a duration.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// bar returns a bar of half cells, a share of the width. A nonzero share is
// always visible.
func bar(share float64, width int) string {
	if !(share > 0) { // also for NaN
		return ""
	}
	halves := max(int(math.Round(2*float64(width)*min(share, 1))), 1)
	return strings.Repeat("━", halves/2) + strings.Repeat("╸", halves%2)
}

// trend draws the last values, as many as fit, as heights relative to a top.
func trend(values []float64, top float64, room int) string {
	const heights = "▁▂▃▄▅▆▇█"
	steps := []rune(heights)
	var b strings.Builder
	for _, v := range values[max(len(values)-room, 0):] {
		if v <= 0 || top <= 0 {
			b.WriteByte(' ')
			continue
		}
		step := int(math.Ceil(v/top*float64(len(steps)))) - 1
		b.WriteRune(steps[min(max(step, 0), len(steps)-1)])
	}
	return b.String()
}
