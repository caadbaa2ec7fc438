// Package wait says how long tests wait for something that must happen. A test that measures
// how long it takes has a bar of its own instead.
package wait

import (
	"errors"
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
	Until(t, func() error {
		if !holds() {
			return errors.New(what)
		}
		return nil
	})
}

// Until waits until a condition returns no error, and fails the test with the last one if it does
// not in time. A condition that takes long, as one that runs a command, is asked less often: waiting
// leaves the processor to what is waited for.
func Until(t testing.TB, condition func() error) {
	t.Helper()
	for deadline := Deadline(); ; {
		began := time.Now()
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", Patience, err)
		}
		rest := min(max(10*time.Millisecond, 4*time.Since(began)), 250*time.Millisecond)
		time.Sleep(rest) //nolint:forbidigo // the one place where tests poll
	}
}
