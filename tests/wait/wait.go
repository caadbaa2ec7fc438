// Package wait says how long tests wait for something that must happen. A test that measures
// how long it takes has a bar of its own instead.
package wait

import (
	"os"
	"testing"
	"time"
)

// Patience is the longest wait: a minute, or five where CI=true or WEIR_LONG=1, since such a
// machine may be slow and all tests run beside each other. Only a fault takes that long.
// WEIR_PATIENCE sets it for tests that are to fail.
var Patience = patience(os.Getenv("WEIR_PATIENCE"), os.Getenv("CI") == "true" || os.Getenv("WEIR_LONG") == "1")

func patience(set string, busy bool) time.Duration {
	if d, err := time.ParseDuration(set); err == nil {
		return d
	}
	if busy {
		return 5 * time.Minute
	}
	return time.Minute
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
