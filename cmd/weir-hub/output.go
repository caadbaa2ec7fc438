package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// output is a new file that only its owner may read. It gets its name when it is whole.
type output struct {
	*os.File
	name  string
	named bool // from the beginning: the file system knows no files without a name
}

// create creates a file for a name that must be free.
func create(name string) (*output, error) {
	if _, err := os.Lstat(name); err == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: unix.EEXIST}
	}
	f, err := os.OpenFile(filepath.Dir(name), os.O_WRONLY|unix.O_TMPFILE, 0o600)
	named := err != nil
	if named {
		f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if err != nil {
		return nil, err
	}
	return &output{f, name, named}, nil
}

// end closes the file, which is to stay if err is nil. Otherwise nothing is left of it.
func (o *output) end(err error) error {
	if err == nil {
		err = o.Sync()
	}
	if err == nil && !o.named {
		if err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", o.Fd()), unix.AT_FDCWD, o.name, unix.AT_SYMLINK_FOLLOW); err != nil {
			err = &fs.PathError{Op: "link", Path: o.name, Err: err}
		}
	}
	if err != nil && o.named {
		err = errors.Join(err, os.Remove(o.name))
	}
	return errors.Join(err, o.Close())
}
