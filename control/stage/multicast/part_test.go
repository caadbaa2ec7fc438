package multicast

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weir/loader/kernelerr"
	"weir/tests/lab"
)

// A probe that the kernel refuses names the capabilities that are missing.
func TestProbeWithoutCapabilities(t *testing.T) {
	lab.Root(t)
	refused := make(chan error)
	go func() {
		runtime.LockOSThread() // it ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		none := [2]unix.CapUserData{}
		if err := unix.Capset(&header, &none[0]); err != nil {
			t.Error(err)
		}
		refused <- checkKernel()
	}()
	err := <-refused
	if !errors.Is(err, kernelerr.ErrPermission) || !strings.Contains(err.Error(), "namely CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON:") {
		t.Errorf("without capabilities: %v", err)
	}
}
