package lab

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// KernelAtLeast reports whether the kernel has a version, or a later one.
func KernelAtLeast(t testing.TB, major, minor int) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	var a, b int
	if _, err := fmt.Sscanf(release, "%d.%d", &a, &b); err != nil {
		t.Fatalf("kernel %s: %v", release, err)
	}
	return a > major || a == major && b >= minor
}
