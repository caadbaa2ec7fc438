package quantity

import (
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
