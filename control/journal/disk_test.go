package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/tests/must"
)

// inMemory mounts a small file system that only this test sees, and returns its
// path. It requires root.
func inMemory(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting a file system requires root")
	}
	dir := t.TempDir()
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := errors.Join(
		unix.Unshare(unix.CLONE_NEWNS),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("weir", dir, "tmpfs", 0, "size=256k"),
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// remount changes the options of such a file system.
func remount(t *testing.T, dir string, flags uintptr, options string) {
	t.Helper()
	if err := unix.Mount("weir", dir, "tmpfs", unix.MS_REMOUNT|flags, options); err != nil {
		t.Fatal(err)
	}
}

// TestFullDisk adds entries until the disk is full, and continues when there is
// room again.
func TestFullDisk(t *testing.T) {
	dir := inMemory(t)
	path := filepath.Join(dir, "journal")
	j, _ := open(t, path)
	const batch = 7
	n := 0
	var err error
	for ; err == nil; n++ {
		err = j.Apply(add(n*batch, (n+1)*batch))
	}
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), path) || n < 100 {
		t.Errorf("batch %d: %v", n, err)
	}
	full := add(0, (n-1)*batch)
	check(t, j, after(full))
	j.Close()
	j, log := open(t, path)
	check(t, j, after(full))
	if log.Len() > 0 {
		t.Error(log)
	}
	if err := j.Apply(add(0, 1000)); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	// There is no room for a rewrite, which must not fail Apply.
	if err := j.rewrite(); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	check(t, j, after(full))
	remount(t, dir, 0, "size=4m")
	apply(t, j, add(5000, 5100))
	j.Close()
	j, _ = open(t, path)
	check(t, j, after(slices.Concat(full, add(5000, 5100))))
}

// TestOpenOnFullDisk opens a journal that does not exist while the disk is full, and one while the disk
// is read-only. Both take entries once there is room, without another start.
func TestOpenOnFullDisk(t *testing.T) {
	dir := inMemory(t)
	path := filepath.Join(dir, "journal")
	fill := filepath.Join(dir, "fill")
	if err := os.WriteFile(fill, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	j, _ := open(t, path)
	if err := j.Apply(add(0, 1)); !errors.Is(err, ErrReadOnly) || !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	if err := j.Check(); !errors.Is(err, ErrReadOnly) {
		t.Error(err)
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	j.reopenAt = time.Now().Add(time.Hour) // as if the last attempt had taken long
	if err := errors.Join(j.Apply(add(0, 1)), j.Check()); !errors.Is(err, ErrReadOnly) || !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("tried again at once: %v", err)
	}
	j.reopenAt = time.Time{}
	apply(t, j, add(0, 9))
	j.Close()
	remount(t, dir, unix.MS_RDONLY, "")
	j, _ = open(t, path)
	check(t, j, after(add(0, 9)))
	if err := j.Apply(add(9, 10)); !errors.Is(err, ErrReadOnly) || !errors.Is(err, unix.EROFS) {
		t.Error(err)
	}
	remount(t, dir, 0, "")
	j.reopenAt = time.Time{} // however slow this machine is
	if err := j.Check(); err != nil {
		t.Error(err)
	}
	apply(t, j, add(9, 20))
	j.Close()
	j, _ = open(t, path)
	check(t, j, after(add(0, 20)))
	j.Close()
}

// TestLongTailOnFullDisk keeps what is cut off an end, once there is room for it, before the journal is
// written anew or cut: both where the disk was read-only when the journal was opened and where it was full.
// The log says when it is found, and when it is cut off.
func TestLongTailOnFullDisk(t *testing.T) {
	for _, readOnly := range []bool{true, false} {
		dir := inMemory(t)
		path := filepath.Join(dir, "journal")
		whole, ends := write(t, add(0, 10))
		tail := bytes.Repeat([]byte("lost "), 10_000)
		must.Write(t, path, append(whole[:ends[8]:ends[8]], tail...))
		must.Write(t, path+".lock", "")
		var j *Journal
		var log *bytes.Buffer
		if readOnly {
			remount(t, dir, unix.MS_RDONLY, "")
			j, log = open(t, path)
			remount(t, dir, 0, "")
		}
		fill := filepath.Join(dir, "fill")
		if err := os.WriteFile(fill, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		if err := os.Truncate(fill, 256<<10-80<<10); err != nil { // room for the journal, but not for the tail
			t.Fatal(err)
		}
		if !readOnly {
			j, log = open(t, path)
		}
		const cut = "cut off, kept in "
		where := fmt.Sprintf("offset=%d bytes=%d", ends[8], len(tail))
		if text := log.String(); !strings.Contains(text, "journal ends with a damaged part") || !strings.Contains(text, where) || strings.Contains(text, cut) {
			t.Errorf("read-only first: %t: %s", readOnly, text)
		}
		check(t, j, after(add(0, 9)))
		if err := j.Apply(add(9, 10)); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("read-only first: %t: %v", readOnly, err)
		}
		if err := os.Remove(fill); err != nil {
			t.Fatal(err)
		}
		j.reopenAt = time.Time{}
		log.Reset()
		apply(t, j, add(9, 10))
		j.Close()
		if text := log.String(); !strings.Contains(text, cut+path+".torn") || !strings.Contains(text, where) {
			t.Errorf("read-only first: %t: then %s", readOnly, text)
		}
		if kept, err := os.ReadFile(path + ".torn"); err != nil || !bytes.Equal(kept, tail) {
			t.Errorf("read-only first: %t: %d bytes are kept: %v", readOnly, len(kept), err)
		}
		j, log = open(t, path)
		check(t, j, after(add(0, 10)))
		j.Close()
		if log.Len() > 0 {
			t.Error(log)
		}
	}
}

// TestReopenAfter rests after an attempt that has taken long, unlike after a short one.
func TestReopenAfter(t *testing.T) {
	now := time.Now()
	for _, c := range []struct{ took, rest time.Duration }{{0, 0}, {50 * time.Millisecond, 0}, {100 * time.Millisecond, 2 * time.Second}, {time.Minute, 20 * time.Minute}} {
		if got := reopenAfter(now.Add(-c.took), now).Sub(now); got != c.rest {
			t.Errorf("after %v: %v", c.took, got)
		}
	}
}

// TestReadOnly checks that a journal on a read-only disk can still be read, and says that it cannot be
// written, also where there is no file to lock.
func TestReadOnly(t *testing.T) {
	dir := inMemory(t)
	path := filepath.Join(dir, "journal")
	j, _ := open(t, path)
	apply(t, j, add(0, 9))
	j.Close()
	for _, want := range [][]Change{add(0, 9), nil} {
		remount(t, dir, unix.MS_RDONLY, "")
		j, log := open(t, path)
		check(t, j, after(want))
		if err := j.Apply(add(20, 21)); !errors.Is(err, ErrReadOnly) || !errors.Is(err, unix.EROFS) {
			t.Error(err)
		}
		check(t, j, after(want))
		if err := j.Check(); !errors.Is(err, ErrReadOnly) || !errors.Is(err, unix.EROFS) || strings.Contains(err.Error(), "restart weir") == j.Exclusive() {
			t.Error(err)
		}
		if !strings.Contains(log.String(), "read-only file system") {
			t.Errorf("log: %s", log)
		}
		j.Close()
		remount(t, dir, 0, "")
		if err := errors.Join(os.RemoveAll(path), os.RemoveAll(path+".lock")); err != nil {
			t.Fatal(err)
		}
	}
}
