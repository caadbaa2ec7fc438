package client

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"weir/tests/lab"
)

func TestClientNamesTheGroup(t *testing.T) {
	denied := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EACCES)}
	path := filepath.Join(t.TempDir(), "weir.sock")
	err := Dial(path).unreachable(t.Context(), denied)
	if err == nil || !strings.HasSuffix(err.Error(), "you need to be root") {
		t.Errorf("hidden: %v", err)
	}
	lab.Root(t) // to give the socket to another group
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	err = Dial(path).unreachable(t.Context(), denied)
	if err == nil || !strings.HasSuffix(err.Error(), "you need to be root") {
		t.Errorf("root's: %v", err)
	}
	const unnamed = 4242424
	if err := os.Chown(path, 0, unnamed); err != nil {
		t.Fatal(err)
	}
	err = Dial(path).unreachable(t.Context(), denied)
	if err == nil || !strings.HasSuffix(err.Error(), "you need to be root or in group 4242424") {
		t.Errorf("with a group: %v", err)
	}
}

// A daemon may begin to listen between the attempt to connect and the look at its socket:
// the attempt found none, and the change is to wait for it.
func TestDaemonStartsMeanwhile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, errno := range []syscall.Errno{syscall.ENOENT, syscall.ECONNREFUSED} {
		missed := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", errno)}
		if err := Dial(path).unreachable(t.Context(), missed); !errors.Is(err, ErrNotRunning) {
			t.Errorf("%v: %v", errno, err)
		}
	}
}
