package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Root and the socket's group may use the API.
const (
	socketMode = 0o660
	dirMode    = 0o755
	maxPath    = 107 // bytes of sun_path, without the zero that ends it: unix(7)
)

// listener removes its socket when it is closed, unless the file is another socket
// by then: it may have been deleted and created again.
type listener struct {
	net.Listener
	path  string
	own   fs.FileInfo
	close func() error
}

func (l *listener) Close() error { return l.close() }

// Listen is ListenGroup with the group of the process.
func Listen(path string) (net.Listener, error) { return ListenGroup(path, "") }

// ListenGroup creates a socket that root and a group's members may use, and its
// directory if that is missing. It replaces the socket of a process that has ended,
// and fails if one still listens.
func ListenGroup(path, group string) (net.Listener, error) {
	l, err := listen(path, group)
	if err != nil {
		return nil, fmt.Errorf("listen for the API: %w", err)
	}
	return l, nil
}

func listen(path, group string) (net.Listener, error) {
	gid, err := groupID(group)
	if err != nil {
		return nil, err
	}
	if len(path) > maxPath {
		return nil, fmt.Errorf("%s: the path has %d bytes, and a socket's may have %d", path, len(path), maxPath)
	}
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, dirMode); err == nil {
		if err := os.Chmod(dir, dirMode); err != nil { // whatever the umask was
			return nil, err
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	unlock, err := lock(path + ".lock")
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := makeRoom(path); err != nil {
		return nil, err
	}
	// The socket has its mode from the start: on Linux the file gets the mode of
	// the descriptor, without the umask's bits.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if bad := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), socketMode) }); bad != nil {
			return bad
		}
		return err
	}}
	made, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	made.(*net.UnixListener).SetUnlinkOnClose(false)
	l := &listener{Listener: made, path: path}
	l.close = sync.OnceValue(l.remove)
	if gid >= 0 { // where nothing is to change, a service that may not change owners listens, too
		if err := os.Lchown(path, -1, gid); err != nil {
			return nil, errors.Join(err, made.Close(), os.Remove(path))
		}
	}
	if err := os.Chmod(path, socketMode); err != nil { // whatever the umask was
		return nil, errors.Join(err, made.Close(), os.Remove(path))
	}
	if l.own, err = os.Lstat(path); err != nil {
		return nil, errors.Join(err, made.Close())
	}
	return l, nil
}

// groupID returns a group's number, -1 for no group.
func groupID(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, fmt.Errorf("the socket's group %q: %w", name, err)
	}
	return strconv.Atoi(g.Gid)
}

// lock keeps other processes from creating the same socket at the same time. It does
// not wait, since the process that holds the lock may be stopped. The lock file stays:
// removing it might remove one that another process has locked.
func lock(path string) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errors.New("another process is creating this socket: stop it, or choose another socket")
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f.Close, nil
}

// makeRoom removes a socket on which no process listens.
func makeRoom(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket: weir does not remove it", path)
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, unix.ECONNREFUSED) { // also when it is too busy to answer
		return fmt.Errorf("%s: another process listens there: stop it, or choose another socket", path)
	}
	return os.Remove(path)
}

// remove removes the socket and closes it. The file goes first, so that no client
// finds a socket on which no process listens.
func (l *listener) remove() error {
	var removed error
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.own) {
		removed = os.Remove(l.path)
	}
	return errors.Join(removed, l.Listener.Close())
}
