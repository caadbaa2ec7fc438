package notify

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A command does not inherit the capabilities that a service gives to the daemon.
func TestNoAmbientCapabilities(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it raises ambient capabilities")
	}
	all := func(trap, a, b, c uintptr) {
		t.Helper()
		if _, _, err := syscall.AllThreadsSyscall(trap, a, b, c); err == syscall.ENOTSUP {
			t.Skip("needs a build without cgo")
		} else if err != 0 {
			t.Fatal(err)
		}
	}
	header, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	before := data
	defer func() {
		all(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0)
		all(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&before[0])), 0)
	}()
	data[0].Inheritable |= 1 << unix.CAP_NET_ADMIN
	all(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	all(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_NET_ADMIN)

	n, _ := newNotifier(t, Target{Name: "a", Command: script(t, "grep CapAmb /proc/self/status")})
	tested, err := n.Test(t.Context(), "")
	if err != nil || len(tested) != 1 || strings.TrimLeft(strings.TrimPrefix(tested[0].Answer, "CapAmb:"), " 0") != "" || tested[0].Answer == "" {
		t.Errorf("%+v, %v", tested, err)
	}
}
