package authority

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lock waits until no other command changes the members. Of two commands at once for one node, the
// second would overwrite the record of the first, whose credentials could never be revoked. The
// directory itself is locked: that takes no right to write in it, and leaves no file.
func (a *Authority) lock() (unlock func(), err error) {
	dir, err := os.Open(a.dir)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(dir.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = dir.Close() // nothing was written
		return nil, &os.PathError{Op: "lock", Path: a.dir, Err: err}
	}
	return func() { _ = dir.Close() }, nil
}
