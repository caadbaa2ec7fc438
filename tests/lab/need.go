package lab

import (
	"os"
	"os/exec"
	"testing"
)

// Need ends the test where a program is missing: skipped, but failed under CI=true, which
// installs it.
func Need(t testing.TB, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("needs %s, and under CI=true may not be skipped", program)
	}
	t.Skipf("needs %s", program)
}
