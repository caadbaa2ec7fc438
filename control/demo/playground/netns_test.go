package playground_test

import (
	"fmt"
	"os/exec"
	"runtime"
	"testing"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"weir/control/demo/playground"
	"weir/tests/lab"
)

// A namespace can be deleted after the first `ip netns add` since the machine was started.
func TestNetnsBeforeIP(t *testing.T) {
	lab.Root(t)
	ip := lab.Installed(t, "ip")
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its goroutine
		done <- beforeIP(ip)
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func beforeIP(ip string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "none", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Mount("none", "/run", "tmpfs", 0, ""); err != nil {
		return err
	}
	ns, err := playground.NewNetns("weir-test")
	if err != nil {
		return err
	}
	defer ns.Close()
	if out, err := exec.Command(ip, "netns", "add", "weir-other").CombinedOutput(); err != nil {
		return fmt.Errorf("ip netns add: %w: %s", err, out)
	}
	return netns.DeleteNamed("weir-test")
}
