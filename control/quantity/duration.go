package quantity

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a time span, such as 500ms, 90s, 36h or 1d12h. A day has 24 hours.
type Duration time.Duration

const day = 24 * time.Hour

// Seconds returns the duration as a floating point number of seconds.
func (d Duration) Seconds() float64 { return time.Duration(d).Seconds() }

// String returns the duration in days, hours, minutes and seconds, without those
// that are 0.
func (d Duration) String() string {
	days, rest := time.Duration(d)/day, time.Duration(d)%day
	s := rest.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	switch {
	case days == 0:
		return s
	case rest == 0:
		s = ""
	}
	return strconv.FormatInt(int64(days), 10) + "d" + s
}

// MarshalText returns the text of String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a duration: days, then what [time.ParseDuration] reads. A
// number without a unit is refused, unless it is 0: some programs would read it
// as seconds, others as milliseconds or minutes.
func (d *Duration) UnmarshalText(text []byte) error {
	const want = "a number and its unit, as in 90s, 10m, 36h or 1d12h"
	digits, suffix, ok := split(text)
	if !ok {
		return invalid("duration", text, want)
	}
	if suffix == "" && strings.Trim(digits, "0.") != "" {
		return invalid("duration", text, want+": did you mean "+digits+"s?")
	}
	var sum time.Duration
	rest := string(text)
	if hours, found := strings.CutPrefix(suffix, "d"); found {
		days, err := strconv.ParseFloat(digits, 64)
		if err != nil || days > float64(math.MaxInt64/day) {
			return invalid("duration", text, "up to 292 years")
		}
		whole, part := math.Modf(days)
		sum = time.Duration(whole)*day + time.Duration(math.Round(part*float64(day)))
		rest = hours
	}
	if rest != "" {
		more, err := time.ParseDuration(rest)
		if err != nil || rest[0] == '-' || rest[0] == '+' {
			return invalid("duration", text, want)
		}
		if more > math.MaxInt64-sum {
			return invalid("duration", text, "up to 292 years")
		}
		sum += more
	}
	*d = Duration(sum)
	return nil
}
