package hooks

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"weir/loader/bpffs"
	"weir/loader/kernelerr"
	"weir/loader/netif"
)

// Weir's programs are known by their name, and by one of their maps, that of counters.
const (
	ownName = "weir"
	ownMap  = "reason_stats"
)

// isWeirs reports whether a program is one of weir's. It is
// false without CAP_SYS_ADMIN, which it takes to open a program by its ID.
func isWeirs(id uint32) bool {
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return false
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil || info.Name != ownName {
		return false
	}
	maps, _ := info.MapIDs()
	return slices.ContainsFunc(maps, func(id ebpf.MapID) bool {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return false
		}
		defer m.Close()
		of, err := m.Info()
		return err == nil && of.Name == ownMap
	})
}

// Orphan opens the hold of an orphan on an interface in a direction, at XDP in any mode or at TC as
// wanted; nil where there is none. An orphan is a program of weir's that filters without pins, nor a
// process that has it open: its file system was unmounted, but another mount namespace, such as a
// container's, has it still. The program goes on until that ends, and nothing else can be
// attached there.
func Orphan(root string, t netif.Target, i *netif.Iface, wanted Hook) (l Hold, h Hook, err error) {
	switch {
	case wanted.ByDispatcher(), kernelerr.LacksSysAdmin(): // or it is not to be seen
		return nil, wanted, nil
	case wanted == TC:
		err = t.In(func(inode uint64) error {
			if err := i.In(inode); err != nil {
				return err
			}
			l, err = orphanAtTC(root, t, i)
			return err
		})
		return l, TC, err
	}
	if xdp := i.Xdp; xdp != nil && xdp.Attached && isForsaken(xdp.ProgId) {
		l, err = openForsaken(linkOf(xdp.ProgId, i.Index), t, i)
	}
	return l, modeOf(i), err
}

// orphanAtTC is Orphan for TC. It is called in the interface's namespace.
func orphanAtTC(root string, t netif.Target, i *netif.Iface) (Hold, error) {
	if found, err := link.QueryPrograms(link.QueryOptions{Target: i.Index, Attach: tcx(t.Out)}); err == nil {
		for _, p := range found.Programs {
			if id, ok := p.LinkID(); ok && isForsaken(uint32(p.ID)) {
				if l, err := openForsaken(id, t, i); l != nil || err != nil {
					return l, err
				}
			}
		}
	}
	c, err := newClsact(root, t, i)
	if err != nil {
		return nil, err
	}
	f, err := c.own()
	if err != nil || f == nil || !isUnheld(uint32(f.Id)) {
		c.Close()
		return nil, nil // also where there is no such qdisc
	}
	c.Made = 1 // most likely
	if err := c.record.Put(uint32(0), c.clsactRecord); err != nil {
		return nil, errors.Join(kernelerr.Permission(err), c.Close())
	}
	return c, nil
}

// isForsaken reports whether a program is one of weir's that no process holds.
func isForsaken(id uint32) bool { return isWeirs(id) && isUnheld(id) }

// isUnheld reports whether no process has a program open, nor anything of its own pinned
// where this process sees it.
func isUnheld(id uint32) bool { return len(holdersOf(id)) == 0 && pinnedFor(id, "") == "" }

// openForsaken opens a link by its ID, nil where it is gone.
func openForsaken(id link.ID, t netif.Target, i *netif.Iface) (Hold, error) {
	l, err := link.NewFromID(id)
	if errors.Is(err, fs.ErrNotExist) || id == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, kernelerr.Permission(err)
	}
	return &kernelLink{bpffs.Link{Link: l}, t, i.Inode}, nil
}

// maxDirectories bounds how many directories pinnedFor looks through.
const maxDirectories = 10_000

// pinnedFor returns the directory of pins of weir, on any BPF file system that this process
// sees but one, that keeps a program attached, or "".
func pinnedFor(program uint32, except string) (found string) {
	looked := 0
	for _, mount := range bpffs.Mounts() {
		// Where a directory cannot be read, there is none to be seen.
		_ = filepath.WalkDir(mount, func(path string, e fs.DirEntry, err error) error {
			if looked++; looked > maxDirectories {
				return fs.SkipAll
			}
			if err != nil || !e.IsDir() {
				return nil
			}
			if NamespaceOf(path) == 0 && FinishedDir(path) == "" {
				return nil
			}
			if filepath.Dir(path) == filepath.Clean(except) {
				return fs.SkipDir
			}
			if programOf(path) == program {
				found = filepath.Dir(path)
				return fs.SkipAll
			}
			return fs.SkipDir
		})
	}
	return found
}

// ownerOf returns the directory of an interface below root that keeps a program attached, or "":
// an interface that is moved to another namespace takes its program along.
func ownerOf(root string, program uint32) (owner string) {
	dirs, _ := Dirs(root)
	for _, dir := range dirs {
		if programOf(dir) == program {
			owner = dir
		}
	}
	return owner
}

// programOf returns the ID of the program that the pins in the directory of an interface keep attached,
// 0 if there is none.
func programOf(dir string) uint32 {
	l, err := Load(dir, netif.Target{Out: IsOut(cmp.Or(FinishedDir(dir), dir))}, Dispatcher)
	if err != nil {
		return 0
	}
	defer l.Close()
	id, _, _ := l.State()
	return id
}

// explainOwn describes a program of weir's that keeps another from being attached, and says
// what to do.
func explainOwn(root string, id uint32, mode Hook) error {
	if holders := holdersOf(id); len(holders) > 0 {
		return fmt.Errorf("%w: it is weir's (program %d), of %s: stop that first", kernelerr.ErrForeign, id, strings.Join(holders, ", "))
	}
	if pins := pinnedFor(id, root); pins != "" {
		return fmt.Errorf("%w: it is weir's (program %d), and its pins are in %s: filter with `pins: %s` (--pins)", kernelerr.ErrForeign, id, pins, pins)
	}
	return fmt.Errorf("%w: it is weir's (program %d), whose pins are lost: start weir with `xdp: %s` once, with CAP_SYS_ADMIN (as with `sudo weir run`), "+
		"to take it over without a gap", kernelerr.ErrForeign, id, mode)
}
