package durable

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// DiskFile is the part of *os.File that a durable file uses.
type DiskFile interface {
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

// Disk has the system calls that change files, so that a test can use a disk that forgets what was not synced.
// Paths are as in package os.
type Disk interface {
	Open(path string, flag int, mode fs.FileMode) (DiskFile, error)
	Rename(from, to string) error
	Link(from, to string) error
	Remove(path string) error
	Mkdir(path string, mode fs.FileMode) error
	SyncDirectory(path string) error
}

// disk is the disk that this package uses.
var disk Disk = SystemDisk{}

// UseDisk replaces the disk that this package uses, for tests, and returns the one before.
func UseDisk(d Disk) (before Disk) {
	before, disk = disk, d
	return before
}

// SystemDisk is the disk of the operating system.
type SystemDisk struct{}

// Open is [os.OpenFile].
func (SystemDisk) Open(path string, flag int, mode fs.FileMode) (DiskFile, error) {
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
func (SystemDisk) Rename(from, to string) error { return os.Rename(from, to) }

// Link is [os.Link].
func (SystemDisk) Link(from, to string) error { return os.Link(from, to) }

// Remove is [os.Remove].
func (SystemDisk) Remove(path string) error { return os.Remove(path) }

// Mkdir is [os.Mkdir].
func (SystemDisk) Mkdir(path string, mode fs.FileMode) error { return os.Mkdir(path, mode) }

// SyncDirectory makes the names in a directory durable.
func (SystemDisk) SyncDirectory(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
