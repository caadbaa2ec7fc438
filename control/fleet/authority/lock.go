package authority

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lock waits until no other command changes who is enrolled. Of two at once for one node, the last
// would overwrite what the first has recorded, whose credentials nobody could revoke then. The directory itself
// is locked: that takes no right to write in it, and leaves no file.
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
