package feed_test

import (
	"os"

	"weir/tests/long"
)

// files returns how many random files of a format a test tries: few, more where tests may take
// minutes, and 10,000, half of them listings, with WEIR_EXHAUSTIVE=1, which takes an hour.
func files(short, whole int) int {
	if os.Getenv("WEIR_EXHAUSTIVE") == "1" {
		return 5000
	}
	return long.Or(short, whole)
}
