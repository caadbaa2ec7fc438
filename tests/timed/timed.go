// Package timed marks tests that measure, and measures for them.
package timed

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Alone marks a test that measures times, rates or memory, and so measures what runs beside it,
// too: the stage alone of .ci/run runs such tests one by one, and go test -short skips them. Where
// the processor is emulated, where such figures say nothing of weir, it skips the test as well.
func Alone(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("measures, and go test -short leaves it out")
	}
	processors, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Fatal(err)
	}
	if emulated(string(processors)) {
		t.Skip("measures, and this processor is emulated")
	}
}

// emulated reports whether QEMU emulates the processors without KVM, as /proc/cpuinfo
// names them.
func emulated(processors string) bool {
	for line := range strings.Lines(processors) {
		name, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(name) == "model name" && strings.HasPrefix(strings.TrimSpace(value), "QEMU TCG CPU") {
			return true
		}
	}
	return false
}

// Process returns the processor time of this process, which depends less than that of a clock on
// what else the machine does.
func Process(t testing.TB) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}
