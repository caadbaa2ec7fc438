package quantity

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// SI returns a number that is not negative with an SI prefix and a unit, for people.
// Below 1 it has no prefix: mpps would be read as millions.
func SI(x float64, digits int, unit string) string {
	switch {
	case x > 0 && x < 0.01:
		return strings.TrimSpace("<0.01 " + unit)
	case x < 1:
		return strings.TrimSpace(strconv.FormatFloat(x, 'g', 2, 64) + " " + unit)
	}
	return strings.TrimSpace(humanize.SIWithDigits(x, digits, unit))
}

// Limited describes the rate limit of a flow, in packets or bytes a second, and how much
// of the offered traffic exceeds it, where that is known. A tracker has set the limit; "":
// it is unknown which.
func Limited(rate float64, offered *float64, unit, tracker string) string {
	if unit = map[string]string{"bytes": "B/s"}[unit]; unit == "" {
		unit = "pps"
	}
	text := "rate-limited to " + SI(rate, 2, unit)
	if offered != nil {
		if over := *offered - rate; over > 0 {
			text += fmt.Sprintf(": %s of it are dropped now, %.0f%%", SI(over, 2, unit), 100*over / *offered)
		} else {
			text += ": it is within that now"
		}
	}
	if tracker != "" {
		text += fmt.Sprintf(" (tracker %s)", tracker)
	}
	return text
}
