// Package bpffs locks directories on BPF file systems, and pins objects of the kernel there.
package bpffs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"weir/loader/kernelerr"
)

// Mount is the usual mount point of the BPF file system.
const Mount = "/sys/fs/bpf"

// ErrNoBPFFS reports that a directory of pins is on no BPF file system.
var ErrNoBPFFS = errors.New("no BPF file system")

// CheckPlace returns a directory, or its nearest ancestor that exists, and whether it is
// on a BPF file system; if not, LockDir mounts one there. It fails with ErrNoBPFFS where that
// cannot be, and changes nothing.
func CheckPlace(dir string) (at string, mounted bool, err error) {
	if err := CheckHidden(dir); err != nil {
		return "", false, err
	}
	at = above(dir)
	return at, isBPFFS(at), nil
}

// makeDir creates a directory where there is none, and mounts the file system for
// it, if the mount outlives the process.
func makeDir(dir string) error {
	if err := CheckHidden(dir); err != nil {
		return err
	}
	path, above := filepath.Clean(dir), above(dir)
	if !isBPFFS(above) {
		if err := unix.Mount("bpf", Mount, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
			return fmt.Errorf("%w: %s: mount one: %w", ErrNoBPFFS, dir, err)
		}
	}
	if strings.Contains(strings.TrimPrefix(path, above), ".") {
		return fmt.Errorf("directory of pins %s: the BPF file system allows no dots in names", dir)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("make directory of pins: %w", kernelerr.Permission(err))
	}
	return nil
}

// above returns a directory, or its nearest ancestor that exists.
func above(dir string) string {
	path := filepath.Clean(dir)
	for !Exists(path) {
		path = filepath.Dir(path)
	}
	return path
}

// CheckHidden fails with ErrNoBPFFS where a directory is on no BPF file system and
// none can be mounted to stay: pins may be out of sight.
func CheckHidden(dir string) error {
	above := above(dir)
	if isBPFFS(above) || above == Mount && sharesMounts() {
		return nil
	}
	return noBPFFS(dir)
}

func noBPFFS(dir string) error {
	return fmt.Errorf("%w: %s: mount one with `mount -t bpf bpf %s`; "+
		"`ip netns exec` hides the system's, so name the namespace with --netns or in weir.yaml instead",
		ErrNoBPFFS, dir, Mount)
}

// Exists reports whether there is anything at a path.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// IsDir reports whether there is a directory at a path.
func IsDir(path string) bool {
	i, err := os.Lstat(path)
	return err == nil && i.IsDir()
}

func isBPFFS(path string) bool {
	var s unix.Statfs_t
	return unix.Statfs(path, &s) == nil && s.Type == unix.BPF_FS_MAGIC
}

// sharesMounts reports whether what this process mounts outlives it, because the
// first process has the same mounts.
func sharesMounts() bool {
	own, err1 := os.Readlink("/proc/self/ns/mnt")
	first, err2 := os.Readlink("/proc/1/ns/mnt")
	return err1 == nil && err2 == nil && own == first
}
