package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Root and the socket's group may use the API.
const (
	socketMode = 0o660
	dirMode    = 0o755
	maxGroups  = 1 << 16 // of a process: NGROUPS_MAX
	maxPath    = 107     // bytes of sun_path, without the zero that ends it: unix(7)
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

// ListenGroup creates a socket that root and a group's members may use, "" for the group of the
// process, and its directory if that is missing. It replaces the socket of a process that has ended,
// and fails if one still listens.
func ListenGroup(path, group string) (net.Listener, error) {
	l, err := listen(path, group)
	if err != nil {
		return nil, fmt.Errorf("listen for the API: %w", err)
	}
	return l, nil
}

// ListenPeers is ListenGroup for a socket whose file may not decide alone who connects, since its
// mode can be changed: the kernel must say that the other end is root or in the group.
func ListenPeers(path, group string, log *slog.Logger) (net.Listener, error) {
	l, err := listen(path, group)
	if err != nil {
		return nil, fmt.Errorf("listen for the console's proxy: %w", err)
	}
	gid, err := groupID(group)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &peers{l, gid, &complaints{log: log}}, nil
}

// peers is a listener for members of a group, -1 for none, and root.
type peers struct {
	net.Listener
	gid        int
	complaints *complaints
}

// Accept implements [net.Listener].
func (p *peers) Accept() (net.Conn, error) {
	for {
		c, err := p.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if err = p.check(c); err == nil {
			return c, nil
		}
		fmt.Fprintf(p.complaints, "%v: connection refused: %v", p.Addr(), err)
		_ = c.Close()
	}
}

// check returns an error unless a connection's other end is root or in the group.
func (p *peers) check(c net.Conn) error {
	local, ok := c.(*net.UnixConn)
	if !ok {
		return errors.New("no Unix socket")
	}
	raw, err := local.SyscallConn()
	if err != nil {
		return err
	}
	var u *unix.Ucred
	var groups []uint32
	if bad := raw.Control(func(fd uintptr) {
		if u, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			groups, err = peerGroups(fd)
		}
	}); bad != nil || err != nil {
		return errors.Join(bad, err)
	}
	if u.Uid == 0 || p.gid >= 0 && (u.Gid == uint32(p.gid) || slices.Contains(groups, uint32(p.gid))) {
		return nil
	}
	return fmt.Errorf("user %d is neither root nor in group %d", u.Uid, p.gid)
}

// peerGroups returns the supplementary groups of a socket's other end.
func peerGroups(fd uintptr) ([]uint32, error) {
	groups := make([]uint32, maxGroups)
	size := uint32(len(groups) * 4)
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS, uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
	if e != 0 {
		return nil, fmt.Errorf("groups of the other end: %w", e)
	}
	return groups[:size/4], nil
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
