// Package binary builds weir's commands for the tests that run them: once for all
// packages, and anew only where a source has changed.
package binary

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Build puts a command of ./cmd into dir, as a file with a name. It is of version "dev"
// unless a flag of go build says otherwise. Nothing that is built later changes the file.
//
// What was built stays in dist/tests, under the same name: go build links it again only
// where its sources, the flags or the environment have changed since.
func Build(dir, name, command string, flags ...string) error {
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("build %s: go env GOMOD: %w", command, err)
	}
	root := filepath.Dir(string(bytes.TrimSpace(mod)))
	if _, err := os.Stat(filepath.Join(root, "cmd", command)); errors.Is(err, fs.ErrNotExist) {
		root = filepath.Join(root, "../..") // from a module of tests/
	}
	built := filepath.Join(root, "dist", "tests", name)
	if err := os.MkdirAll(filepath.Dir(built), 0o755); err != nil {
		return err
	}
	unlock, err := lock(built + ".lock")
	if err != nil {
		return err
	}
	defer unlock()

	// go build trusts the build ID that a file begins with. Where it was killed while it
	// wrote the file, it left a beginning only, under the name that is removed here.
	linking := built + ".linking"
	if err := os.Remove(linking); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(built, linking); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// Without debug information, a third of linking. Stack traces do not
	// need it.
	args := slices.Concat([]string{"build", "-C", root, "-buildvcs=false", "-ldflags=-w", "-o", linking}, flags, []string{"./cmd/" + command})
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	if err := os.Rename(linking, built); err != nil {
		return err
	}
	return link(built, filepath.Join(dir, name))
}

// lock waits until no other process builds the file.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// link adds a second name to a file, or copies it to another file system. go build writes
// new files: the one behind the second name stays.
func link(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, source)
	return errors.Join(err, f.Close())
}
