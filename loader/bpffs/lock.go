package bpffs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir/loader/kernelerr"
)

// LockDir locks a directory of pins, unix.LOCK_SH or unix.LOCK_EX, until unlock is
// called; with unix.LOCK_NB without waiting. For LOCK_EX it creates the directory; for LOCK_SH it fails with
// fs.ErrNotExist where there is none, and none can be hidden.
func LockDir(dir string, how int) (unlock func(), err error) {
	if how&unix.LOCK_EX != 0 {
		if err := makeDir(dir); err != nil {
			return nil, err
		}
	}
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err := CheckHidden(dir); err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open directory of pins: %w", kernelerr.Permission(err))
	}
	if !isBPFFS(dir) {
		f.Close()
		return nil, noBPFFS(dir)
	}
	if err := Lock(f, how); err != nil {
		return nil, fmt.Errorf("lock directory of pins %s: %w", dir, err)
	}
	return func() { f.Close() }, nil
}

// Patience bounds the wait for a lock. It is held for milliseconds, so a process that
// holds it for so long does not run. It is a variable for tests.
var Patience = 30 * time.Second

// lockPause bounds the time between two attempts to lock.
const lockPause = 5 * time.Millisecond

// lockQueues let one goroutine at a time wait for a file, by its path: hundreds may want it, as
// where many interfaces appear at once.
var lockQueues sync.Map // of chan struct{}, with room for one

// Lock locks a file, and closes it if that fails. It tries again and again: a thread that waits
// in the kernel cannot be interrupted.
func Lock(f *os.File, how int) error {
	err := tryLock(f, how)
	if errors.Is(err, unix.EWOULDBLOCK) && how&unix.LOCK_NB == 0 {
		err = awaitLock(f, how)
	}
	if err != nil {
		f.Close()
	}
	return err
}

func tryLock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// awaitLock locks a file within Patience.
func awaitLock(f *os.File, how int) error {
	end := time.After(Patience)
	queue, _ := lockQueues.LoadOrStore(f.Name(), make(chan struct{}, 1))
	turn := queue.(chan struct{})
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-end:
		return errLockHeld(f)
	}
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, lockPause) {
		if err := tryLock(f, how); !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-end:
			return errLockHeld(f)
		}
	}
}

func errLockHeld(f *os.File) error {
	return fmt.Errorf("no lock within %v: %s", Patience, lockHolder(f))
}

// lockHolder describes a process that has locked a file, and how to make it let go. Its
// programs filter on without it.
func lockHolder(f *os.File) string {
	var s unix.Stat_t
	if unix.Fstat(int(f.Fd()), &s) != nil {
		return "another process has it"
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(s.Dev), unix.Minor(s.Dev), s.Ino)
	// The kernel may leave out a lock while others come and go: it is read more than once.
	for range 5 {
		locks, _ := os.ReadFile("/proc/locks")
		for line := range strings.Lines(string(locks)) {
			// "1: FLOCK ADVISORY WRITE 123 00:1e:456 0 EOF"; with "->" who waits for it
			if held := strings.Fields(line); len(held) > 5 && held[1] == "FLOCK" && held[5] == file {
				return fmt.Sprintf("process %[1]s has it; if that is stopped, continue it with `kill -CONT %[1]s`, or end it with `kill -KILL %[1]s`", held[4])
			}
		}
		<-time.After(lockPause)
	}
	return "another process has it"
}
