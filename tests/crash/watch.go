package crash

import (
	"io/fs"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"weir/control/durable"
)

// Watched counts the syncs of files with a name, and makes them fail. It is safe for concurrent use.
type Watched struct {
	durable.Disk
	name string

	mu    sync.Mutex
	syncs int
	fails bool
}

// Watch watches files with a name, in any directory, until the test ends. Only files that are
// opened afterwards count.
func Watch(t *testing.T, name string) *Watched {
	t.Helper()
	w := &Watched{name: name}
	w.Disk = durable.UseDisk(w)
	t.Cleanup(func() { durable.UseDisk(w.Disk) })
	return w
}

// Syncs returns how many syncs there were, and counts from 0 again.
func (w *Watched) Syncs() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.syncs
	w.syncs = 0
	return n
}

// Fail makes syncs fail from now on, or succeed.
func (w *Watched) Fail(fails bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fails = fails
}

// Open opens a file of the disk below.
func (w *Watched) Open(path string, flag int, mode fs.FileMode) (durable.DiskFile, error) {
	f, err := w.Disk.Open(path, flag, mode)
	if err != nil {
		return nil, err
	}
	return &watchedFile{f, path, w}, nil
}

type watchedFile struct {
	durable.DiskFile
	path string
	of   *Watched
}

// Sync counts, and fails on demand.
func (f *watchedFile) Sync() error {
	w := f.of
	if name := filepath.Base(f.path); name == w.name || name == w.name+".new" {
		w.mu.Lock()
		w.syncs++
		fails := w.fails
		w.mu.Unlock()
		if fails {
			return &fs.PathError{Op: "sync", Path: f.path, Err: unix.EIO}
		}
	}
	return f.DiskFile.Sync()
}
