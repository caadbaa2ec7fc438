package server

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dialAs connects to a socket as a user, with supplementary groups.
func dialAs(t *testing.T, path string, uid, gid uintptr, groups ...uint32) error {
	t.Helper()
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // which ends with the goroutine, and with it these identities
		result <- func() error {
			all := append(slices.Clone(groups), 0) // not empty
			if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&all[0])), 0); e != 0 {
				return e
			}
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid); e != 0 {
				return e
			}
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); e != 0 {
				return e
			}
			c, err := net.Dial("unix", path)
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = io.ReadFull(c, make([]byte, 1))
			return err
		}()
	}()
	return <-result
}

// A socket for a group is for its members and root alone, also when its file is open to all.
func TestListenPeers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	for _, open := range []string{filepath.Dir(dir), dir} {
		if err := os.Chmod(open, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "socket")
	const nogroup, other = 65534, 65533
	l, err := ListenPeers(path, "nogroup", slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Fatalf("%v, %v", info.Mode(), err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte{1})
			time.AfterFunc(time.Second, func() { c.Close() })
		}
	}()
	if err := dialAs(t, path, other, other); !errors.Is(err, unix.EACCES) {
		t.Errorf("the mode of the file: %v", err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		uid, gid uintptr
		groups   []uint32
		let      bool
	}{
		{0, 0, nil, true}, {other, nogroup, nil, true}, {other, other, []uint32{7, nogroup}, true},
		{other, other, nil, false}, {other, 0, nil, false}, {nogroup, other, []uint32{7}, false},
	} {
		if err := dialAs(t, path, c.uid, c.gid, c.groups...); (err == nil) != c.let || !c.let && errors.Is(err, unix.EACCES) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
