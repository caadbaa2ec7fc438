// Package long says whether tests may take minutes, and use full sizes: with WEIR_LONG=1.
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

// Only skips a test unless tests may take minutes; why says what it takes.
func Only(t testing.TB, why string) {
	t.Helper()
	if !enabled() {
		t.Skipf("needs WEIR_LONG=1: %s", why)
	}
}
