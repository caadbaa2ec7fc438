// Package long marks tests that take longer than others. In a test's source, a mark is also how
// .ci/run finds the tests of its stage long.
//
//	go test -short    leaves out what takes a second of a processor or more, as make test does
//	go test           runs all in their short forms
//	WEIR_LONG=1       allows minutes, and full sizes
//	WEIR_EXHAUSTIVE=1 allows hours: see make test-exhaustive
package long

import (
	"os"
	"testing"
)

// Enabled says that tests may take minutes. It is read before the tests run, which Go's test
// cache does not notice: tests whose results may be cached call Or.
var Enabled = enabled()

func enabled() bool { return os.Getenv("WEIR_LONG") == "1" }

// Or returns whole if tests may take minutes, or else short.
func Or[T any](short, whole T) T {
	if enabled() {
		return whole
	}
	return short
}

// Rounds is Or for what is repeated at random: WEIR_EXHAUSTIVE=1 allows hours, and all rounds. The
// stage long makes a part of them with a seed of its own each time.
func Rounds(short, part, all int) int {
	if os.Getenv("WEIR_EXHAUSTIVE") == "1" {
		return all
	}
	return Or(short, part)
}

// Only skips a test unless tests may take minutes; why says what it takes.
func Only(t testing.TB, why string) {
	t.Helper()
	if !enabled() {
		t.Skipf("needs WEIR_LONG=1: %s", why)
	}
}

// Seconds marks a test that takes about a second of a processor or more: go test -short skips it.
func Seconds(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes seconds, and go test -short leaves it out")
	}
}

// Unraced skips a test under the race detector, with which it would measure the detector's memory
// and time, or take minutes: it computes, or has at a large size what others have at a small one.
func Unraced(t testing.TB) {
	t.Helper()
	if raced {
		t.Skip("says nothing, or takes minutes, under the race detector")
	}
}
