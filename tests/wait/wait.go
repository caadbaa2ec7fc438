// Package wait says how long tests wait for something that must happen. A test that measures
// how long it takes has a bar of its own instead.
package wait

import (
	"os"
	"testing"
	"time"
)

// Patience is the longest wait, five minutes: only a fault takes that long, even where all tests
// run beside each other on half a processor. WEIR_PATIENCE sets it for tests that are to fail.
var Patience = patience(os.Getenv("WEIR_PATIENCE"))

func patience(set string) time.Duration {
	if d, err := time.ParseDuration(set); err == nil {
		return d
	}
	return 5 * time.Minute
}

// Deadline returns the end of a wait that begins now.
func Deadline() time.Time { return time.Now().Add(Patience) }

// For waits until a condition holds, and fails the test if it does not in time; what names the
// condition.
func For(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := Deadline(); !holds(); time.Sleep(10 * time.Millisecond) { //nolint:forbidigo // the one place where tests poll
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", Patience, what)
		}
	}
}
