package playground

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Without the privilege to create namespaces, the error says so in one line.
func TestWithoutPrivilege(t *testing.T) {
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its goroutine
		if os.Geteuid() == 0 {
			none := [2]unix.CapUserData{}
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			if err := unix.Capset(&header, &none[0]); err != nil {
				failed <- err
				return
			}
		}
		p, err := New("weir-test")
		if err == nil {
			p.Close()
		}
		failed <- err
	}()
	err := <-failed
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.HasSuffix(err.Error(), "needs root") {
		t.Errorf("got %v", err)
	}
}
