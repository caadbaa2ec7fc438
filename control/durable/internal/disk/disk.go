// Package disk is the part of the operating system that changes files, so that a test can
// put a disk below package durable that forgets what was not synced.
package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// File is the part of *os.File that a durable file uses.
type File interface {
	io.ReaderAt
	io.WriterAt
	Stat() (fs.FileInfo, error)
	Truncate(size int64) error
	// WriteOut waits until the disk has n bytes from an offset on, which may still be in its
	// cache, or not be part of the file after a crash.
	WriteOut(from, n int64) error
	Sync() error
	Close() error
}

// Disk has the system calls that change files. Paths are as in package os.
type Disk interface {
	Open(path string, flag int, mode fs.FileMode) (File, error)
	Rename(from, to string) error
	Link(from, to string) error
	Remove(path string) error
	Mkdir(path string, mode fs.FileMode) error
	SyncDirectory(path string) error
}

// Current is the disk that package durable uses. Only tests replace it.
var Current Disk = OS{}

// OS is the disk of the operating system.
type OS struct{}

// Open is [os.OpenFile].
func (OS) Open(path string, flag int, mode fs.FileMode) (File, error) {
	f, err := os.OpenFile(path, flag, mode)
	if err != nil {
		return nil, err // not a nil *os.File in an interface
	}
	return file{f}, nil
}

// file is a file of the operating system.
type file struct{ *os.File }

// WriteOut does nothing where the system does not know sync_file_range, or does not permit it.
func (f file) WriteOut(from, n int64) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = c.Control(func(fd uintptr) {
		failed = unix.SyncFileRange(int(fd), from, n,
			unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
	})
	for _, of := range []error{unix.ENOSYS, unix.EPERM, unix.EINVAL, unix.ESPIPE} {
		if failed == of { //nolint:errorlint // as the system call returns it
			failed = nil
		}
	}
	return errors.Join(err, failed)
}

// Rename is [os.Rename].
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Link is [os.Link].
func (OS) Link(from, to string) error { return os.Link(from, to) }

// Remove is [os.Remove].
func (OS) Remove(path string) error { return os.Remove(path) }

// Mkdir is [os.Mkdir].
func (OS) Mkdir(path string, mode fs.FileMode) error { return os.Mkdir(path, mode) }

// SyncDirectory makes the names in a directory durable.
func (OS) SyncDirectory(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
