package feed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// noticeEvery is how often at most events are read. The kernel joins equal ones meanwhile: a log
// that is written to in a watched directory wakes the process no more often.
const noticeEvery = 100 * time.Millisecond

// Events of a directory and its files.
const (
	put     = unix.IN_CREATE | unix.IN_MOVED_TO
	altered = unix.IN_ATTRIB
	others  = unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_MOVED_FROM | unix.IN_MOVE_SELF | unix.IN_DELETE | unix.IN_DELETE_SELF
)

// notifier is an inotify instance that watches directories.
type notifier struct {
	file   *os.File
	end    sync.Once
	closed chan struct{}

	mu   sync.Mutex
	dirs map[string]int   // their watches
	at   map[int][]string // directories of a watch: several names may be of one
}

func newNotifier() (*notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch files: %w", err)
	}
	return &notifier{file: os.NewFile(uintptr(fd), "inotify"), closed: make(chan struct{}), dirs: make(map[string]int), at: make(map[int][]string)}, nil
}

// Close has run return.
func (n *notifier) Close() error {
	n.end.Do(func() { close(n.closed) })
	return n.file.Close()
}

// control calls fn with the descriptor.
func (n *notifier) control(fn func(fd int) error) error {
	c, err := n.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	return errors.Join(c.Control(func(fd uintptr) { failed = fn(int(fd)) }), failed)
}

// add watches a directory, or the one that has come to its name since.
func (n *notifier) add(dir string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	watch := 0
	if err := n.control(func(fd int) (err error) {
		watch, err = unix.InotifyAddWatch(fd, dir, put|altered|others|unix.IN_ONLYDIR)
		return err
	}); err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	if before, ok := n.dirs[dir]; ok && before != watch {
		n.forget(dir, before)
	}
	n.dirs[dir] = watch
	if !slices.Contains(n.at[watch], dir) {
		n.at[watch] = append(n.at[watch], dir)
	}
	return nil
}

func (n *notifier) remove(dir string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if watch, ok := n.dirs[dir]; ok {
		n.forget(dir, watch)
	}
}

// forget ends a watch, unless it has other directories. The caller has locked mu.
func (n *notifier) forget(dir string, watch int) {
	delete(n.dirs, dir)
	n.at[watch] = slices.DeleteFunc(n.at[watch], func(of string) bool { return of == dir })
	if len(n.at[watch]) == 0 {
		delete(n.at, watch)
		_ = n.control(func(fd int) error { // fails where the directory is gone
			_, err := unix.InotifyRmWatch(fd, uint32(watch))
			return err
		})
	}
}

// run calls changed for each event with the path and its kind, or with "" where
// events were lost, until the notifier is closed.
func (n *notifier) run(changed func(name string, how uint32)) error {
	b := make([]byte, 64<<10)
	for {
		k, err := n.file.Read(b)
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		for rest := b[:k]; len(rest) >= unix.SizeofInotifyEvent; {
			watch, how := int(int32(binary.NativeEndian.Uint32(rest))), binary.NativeEndian.Uint32(rest[4:])
			end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(rest[12:]))
			if end > len(rest) {
				break
			}
			name := string(bytes.TrimRight(rest[unix.SizeofInotifyEvent:end], "\x00"))
			rest = rest[end:]
			if how&unix.IN_Q_OVERFLOW != 0 {
				changed("", how)
			}
			for _, dir := range n.named(watch, how) {
				changed(filepath.Join(dir, name), how)
			}
		}
		select {
		case <-time.After(noticeEvery):
		case <-n.closed:
			return nil
		}
	}
}

// named returns the directories of a watch. It forgets one that has ended, as for a directory
// that is gone.
func (n *notifier) named(watch int, how uint32) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	dirs := slices.Clone(n.at[watch])
	if how&unix.IN_IGNORED != 0 {
		for _, dir := range dirs {
			delete(n.dirs, dir)
		}
		delete(n.at, watch)
		return nil
	}
	return dirs
}
