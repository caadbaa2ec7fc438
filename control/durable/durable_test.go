package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// written is a disk that remembers the ranges its files have written out, and fails for one.
type written struct {
	Disk
	ranges []string
	fails  int // the number of the range
}

func (w *written) Open(path string, flag int, mode fs.FileMode) (DiskFile, error) {
	f, err := w.Disk.Open(path, flag, mode)
	return &writtenFile{f, w}, err
}

type writtenFile struct {
	DiskFile
	of *written
}

func (f *writtenFile) WriteOut(from, n int64) error {
	if f.of.ranges = append(f.of.ranges, fmt.Sprintf("%d+%d", from, n)); len(f.of.ranges) == f.of.fails {
		return unix.EIO
	}
	return f.DiskFile.WriteOut(from, n)
}

// A large file is written out bit by bit, so that syncs of others need not wait for it, and
// replaces another only where all of that succeeded.
func TestWriteOut(t *testing.T) {
	w := &written{Disk: disk}
	disk = w
	t.Cleanup(func() { disk = w.Disk })
	whole := bytes.Repeat([]byte("0123456789"), 2*maxCached/10)
	path := filepath.Join(t.TempDir(), "file")
	for _, fails := range []int{0, 2, 1} {
		w.ranges, w.fails = nil, fails
		err := WriteFile(path, whole[:5], whole[5:100], whole[100:], whole[:100])
		if fails > 0 != errors.Is(err, unix.EIO) {
			t.Errorf("range %d fails: %v", fails, err)
		}
		want := []string{fmt.Sprintf("0+%d", maxCached), fmt.Sprintf("%d+%[1]d", maxCached)}
		if fails == 1 {
			want = want[:1]
		}
		if !slices.Equal(w.ranges, want) {
			t.Errorf("wrote out %v, want %v", w.ranges, want)
		}
		got, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, append(slices.Clone(whole), whole[:100]...)) {
			t.Errorf("range %d fails: %d bytes, %v", fails, len(got), err)
		}
	}
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, want := range []string{"first", "second, longer", ""} {
		half := len(want) / 2
		if err := WriteFile(path, []byte(want[:half]), []byte(want[half:])); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	if err := os.Mkdir(filepath.Join(dir, "directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(filepath.Join(dir, "directory"), []byte("text")); err == nil {
		t.Error("a directory was replaced")
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 2 {
		t.Errorf("left behind: %v, %v", all, err)
	}
}
