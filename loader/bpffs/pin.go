package bpffs

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weir/loader/kernelerr"
)

// Object is an object of the kernel that is pinned.
type Object interface {
	// PinAt pins it at a path, wherever else it is pinned.
	PinAt(path string) error

	// IsAt reports whether it is the object that is pinned at a path.
	IsAt(path string) (bool, error)
}

// Pin pins an object at a path.
func Pin(o Object, path string) error {
	if err := o.PinAt(path); err != nil {
		return fmt.Errorf("pin %s: %w", filepath.Base(path), kernelerr.Permission(err))
	}
	return nil
}

// Map is a map. [ebpf.Map.Pin] moves the pin of a map that it knows to be pinned, and
// does nothing where it believes that the map is pinned there.
type Map struct{ *ebpf.Map }

// PinAt implements [Object].
func (m Map) PinAt(path string) error {
	c, err := m.Clone()
	if err != nil {
		return err
	}
	return errors.Join(c.Pin(path), c.Close())
}

// IsAt implements [Object].
func (m Map) IsAt(path string) (bool, error) {
	there, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		return false, UnlessDamaged(path, err)
	}
	defer there.Close()
	theirs, err1 := MapID(there)
	ours, err2 := MapID(m.Map)
	return theirs == ours, errors.Join(err1, err2)
}

// MapID returns the ID of a map.
func MapID(m *ebpf.Map) (ebpf.MapID, error) {
	info, err := m.Info()
	if err != nil {
		return 0, err
	}
	id, _ := info.ID()
	return id, nil
}

// Link is a link.
type Link struct{ link.Link }

// PinAt implements [Object].
func (l Link) PinAt(path string) error {
	raw, ok := l.Link.(interface{ FD() int })
	if !ok {
		return errors.New("a link without a file descriptor")
	}
	fd, err := unix.FcntlInt(uintptr(raw.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	c, err := link.NewFromFD(fd)
	if err != nil {
		return err
	}
	return errors.Join(c.Pin(path), c.Close())
}

// IsAt implements [Object].
func (l Link) IsAt(path string) (bool, error) {
	there, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return false, UnlessDamaged(path, err)
	}
	defer there.Close()
	theirs, err1 := Link{there}.ID()
	ours, err2 := l.ID()
	return theirs == ours, errors.Join(err1, err2)
}

// ID returns the ID of the link.
func (l Link) ID() (uint32, error) {
	info, err := l.Info()
	if err != nil {
		return 0, err
	}
	return uint32(info.ID), nil
}

// UnlessDamaged returns an error in opening a pin, unless it says that the pin is gone,
// or that another object is pinned there.
func UnlessDamaged(path string, err error) error {
	if kernelerr.IsExhausted(err) && !IsDir(path) {
		return err
	}
	return nil
}

// Inode identifies a file on any file system.
type Inode struct{ dev, ino uint64 }

// InodeOf fails with fs.ErrNotExist where there is no such file.
func InodeOf(path string) (Inode, error) {
	var s unix.Stat_t
	if err := unix.Lstat(path, &s); err != nil {
		if errors.Is(err, unix.ENOTDIR) {
			err = fs.ErrNotExist
		}
		return Inode{}, err
	}
	return Inode{s.Dev, s.Ino}, nil
}
