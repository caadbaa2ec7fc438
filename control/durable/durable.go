// Package durable changes files so that the changes survive a crash: a file is replaced
// whole or not at all, and what was appended stays.
//
// A change includes its names: functions that make one durable sync the directory too,
// also where a process before, which was killed, may have left that to be done. [Create],
// [Open], [File.Write] and [File.Discard] make nothing durable. Files can be written
// also where their directory may not be read, or cannot be synced on its file system: a
// crash may undo their names then.
package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// File is a file that is appended to, or that is written to replace another. It is not
// safe for concurrent use.
type File struct {
	path    string
	file    DiskFile // nil: closed
	size    int64    // what is behind it is no part of the file
	out     int64    // what is before it was written out
	torn    bool     // there may be something behind it
	unnamed bool     // a crash may undo that the file is at path
	failed  error    // of Write
}

// Create creates an empty file, which only its owner may read, or empties the one there
// is. It is durable once [File.Append] or [File.Replace] has returned without an error.
func Create(path string) (*File, error) {
	f, err := disk.Open(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	return &File{path: path, file: f, unnamed: true}, nil
}

// Open opens a regular file to append to it. The flags, such as [os.O_CREATE], are added
// to those that this requires.
func Open(path string, flags int) (*File, error) {
	f, err := disk.Open(path, os.O_RDWR|unix.O_NONBLOCK|flags, 0o600)
	if err != nil {
		return nil, err
	}
	s, err := f.Stat()
	if err == nil && !s.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &File{path: path, file: f, size: s.Size(), out: s.Size(), unnamed: true}, nil
}

// Path returns where the file is.
func (f *File) Path() string { return f.path }

// Size returns the number of bytes that were written.
func (f *File) Size() int64 { return f.size }

// InPlace reports whether the file is at its path and of its size. It may have been removed,
// replaced or overwritten since. Where that cannot be found out, it returns true.
func (f *File) InPlace() bool {
	if f.file == nil {
		return false
	}
	own, err := f.file.Stat()
	if err != nil {
		return true
	}
	if !f.torn && own.Size() != f.size {
		return false
	}
	there, err := os.Lstat(f.path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false
	}
	return err != nil || os.SameFile(own, there)
}

// ReadAt implements [io.ReaderAt].
func (f *File) ReadAt(b []byte, at int64) (int, error) {
	if f.file == nil {
		return 0, fs.ErrClosed
	}
	return f.file.ReadAt(b, at)
}

// maxCached is how many bytes Write leaves in memory. The sync of a large file would keep the
// disk busy with all of them, and syncs of other files would wait for it.
const maxCached = 4 << 20

// Write writes to the end of the file. What it has written is not durable yet: that is
// left to [File.Replace], which also returns the first error.
func (f *File) Write(b []byte) (n int, err error) {
	if f.failed == nil && (f.file == nil || f.torn) {
		f.failed = f.mend()
	}
	for f.failed == nil && n < len(b) {
		f.out = min(f.out, f.size)
		room := min(len(b)-n, maxCached-int(f.size-f.out))
		k := 0
		k, f.failed = f.file.WriteAt(b[n:n+room], f.size)
		n, f.size = n+k, f.size+int64(k)
		if f.failed == nil && f.size-f.out == maxCached {
			// A later sync would not return its error again.
			f.failed = f.file.WriteOut(f.out, maxCached)
			f.out = f.size
		}
	}
	return n, f.failed
}

// Append appends to the file, durably. If it fails, nothing was appended, and what was
// written of it is cut off, at the latest by the next Append.
func (f *File) Append(b []byte) error {
	if f.failed != nil {
		return f.failed
	}
	if err := f.mend(); err != nil {
		return err
	}
	f.torn = true // until everything is written
	_, err := f.file.WriteAt(b, f.size)
	if err == nil {
		err = f.file.Sync()
	}
	if err != nil {
		if bad := f.mend(); bad != nil {
			err = fmt.Errorf("%w; undoing the write failed too, it may reappear after a restart: %w", err, bad)
		}
		return err
	}
	f.torn = false
	f.size += int64(len(b))
	f.out = f.size
	return nil
}

// Cut cuts off what is behind a size, such as a torn record, and makes the rest durable:
// a process that was killed may not have come to sync it.
func (f *File) Cut(size int64) error {
	if size > f.size {
		return fmt.Errorf("%s has %d bytes, not %d", f.path, f.size, size)
	}
	if size == f.size && !f.torn && f.file != nil {
		if err := f.file.Sync(); err != nil {
			return err
		}
		return f.mend()
	}
	f.size, f.torn = size, true
	return f.mend()
}

// Replace renames the written file to another path, durably. After a crash in
// between, there is the old file or the new one.
//
// If it fails, the new file is removed, unless all is done but to make its place
// durable: then it is at its new path, and the next Append tries that again.
func (f *File) Replace(path string) error {
	if f.file == nil {
		return fs.ErrClosed
	}
	err := f.failed
	if err == nil {
		err = f.file.Sync()
	}
	if err == nil {
		err = disk.Rename(f.path, path)
	}
	if err != nil {
		f.Discard()
		return err
	}
	f.path, f.unnamed = path, true
	return f.mend()
}

// mend cuts off what an error has left, and makes the file's place durable.
func (f *File) mend() error {
	if f.file == nil {
		return fs.ErrClosed
	}
	if f.torn {
		if err := f.file.Truncate(f.size); err != nil {
			return err
		}
		if err := f.file.Sync(); err != nil {
			return err
		}
		f.torn = false
	}
	if f.unnamed {
		if err := syncIfPossible(filepath.Dir(f.path)); err != nil {
			return err
		}
		f.unnamed = false
	}
	return nil
}

// Close closes the file.
func (f *File) Close() error {
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return err
}

// Discard closes and removes a file that is useless, and may fill a disk.
func (f *File) Discard() {
	_ = f.Close()
	_ = disk.Remove(f.path)
}

// WriteFile replaces a file by the parts, one after another, which only its owner may
// read. After a crash at any instant there is the old file or the new one, and after
// WriteFile has returned without an error, the new one. It writes to path.new first.
func WriteFile(path string, parts ...[]byte) error {
	f, err := Create(path + ".new")
	if err != nil {
		return err
	}
	for _, p := range parts {
		_, _ = f.Write(p) // Replace returns the error
	}
	return errors.Join(f.Replace(path), f.Close())
}

// Rename renames a file within its directory, durably.
func Rename(from, to string) error {
	if err := disk.Rename(from, to); err != nil {
		return err
	}
	return disk.SyncDirectory(filepath.Dir(to))
}

// Link makes another name of a file in its directory, durably, in place of a file of that name.
// Where the file system has no links, or permits none to this file, the file is renamed.
func Link(from, to string) error {
	if err := disk.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := disk.Link(from, to)
	if errors.Is(err, unix.EPERM) || errors.Is(err, errors.ErrUnsupported) {
		return Rename(from, to)
	}
	if err != nil {
		return err
	}
	return disk.SyncDirectory(filepath.Dir(to))
}

// Remove removes a file durably, if it exists.
func Remove(path string) error {
	err := disk.Remove(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	gone := err != nil
	err = disk.SyncDirectory(filepath.Dir(path))
	if gone && errors.Is(err, fs.ErrNotExist) {
		return nil // nor is there a directory
	}
	return err
}

// MkdirAll makes a directory durably, and those above it that are missing. Only their
// owner may enter them.
func MkdirAll(path string) error {
	path = filepath.Clean(path)
	parent := filepath.Dir(path)
	s, err := os.Stat(path)
	switch {
	case err == nil && !s.IsDir():
		return &fs.PathError{Op: "mkdir", Path: path, Err: unix.ENOTDIR}
	case err == nil:
		return syncIfPossible(parent) // a process that was killed may have made it
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := MkdirAll(parent); err != nil {
		return err
	}
	if err := disk.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return disk.SyncDirectory(parent)
}

// Full reports whether an error is that a disk is full, or a quota used up.
func Full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// syncIfPossible makes the names in a directory durable. That it may not be read, or
// cannot be synced on this file system, is no reason to fail.
func syncIfPossible(path string) error {
	err := disk.SyncDirectory(path)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}
