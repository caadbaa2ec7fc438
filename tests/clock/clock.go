// Package clock sets the wall clock for tests that measure by the monotonic one.
package clock

import (
	"testing"
	"time"
	"unsafe"
)

// Set returns the time that [time.Now] would have returned instead of now with the wall clock set
// ahead, or back by a negative duration. It takes whole seconds, and a time with a monotonic
// reading.
func Set(t testing.TB, now time.Time, ahead time.Duration) time.Time {
	t.Helper()
	after := now
	// The first word of a time: a flag, 33 bits of seconds, 30 of nanoseconds.
	*(*int64)(unsafe.Pointer(&after)) += int64(ahead/time.Second) << 30
	if after.Sub(now) != 0 || after.Round(0).Sub(now.Round(0)) != ahead {
		t.Fatalf("%v is not %v with another clock", after, now)
	}
	return after
}
