package loader

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"weir/bpf"
	"weir/loader/bpffs"
	"weir/loader/hooks"
	"weir/loader/kernelerr"
	"weir/loader/netif"
)

// Pins is a directory on a BPF file system. It holds a directory for each
// attached interface, named <inode of the network namespace>:<interface index>,
// because names change while a program filters. That of a program for outgoing packets
// has ":out" behind the index.
//
//	link          keeps the program attached; for TC before Linux 6.6
//	clsact        says which filter does; behind libxdp's dispatcher
//	dispatched    has the program
//	reason_stats  counters,
//	list_stats,
//	ethertype_stats,
//	inner_stats
//	tracker_…     trackers of heavy hitters
//	penalties,
//	thresholds,
//	windows
//	events        and their sampling rates,
//	sampling_now
//	…             memory of stages: see [Keeper]
//	about         metadata, as JSON text in pieces of 64 KiB; written anew and renamed
//	filter/…      the block set, if another process can go on with it
//
// Such a directory appears complete or not at all. Readers lock the directory of
// pins shared, writers exclusively. Only its owner may read it, because the program
// and the maps reveal secrets.
type Pins string

// DefaultPins is the default directory of pins.
const DefaultPins Pins = bpffs.Mount + "/weir"

const (
	pinLists    = bpf.WeirMapListStats
	pinMetadata = "about" // the name that earlier versions gave it
)

// lock is [bpffs.LockDir].
func (d Pins) lock(how int) (unlock func(), err error) { return bpffs.LockDir(string(d), how) }

// locked calls fn with the directory locked for writing.
func (d Pins) locked(fn func() error) error {
	unlock, err := d.lock(unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock()
	return fn()
}

// path is the directory of an interface in a direction.
func (d Pins) path(i *netif.Iface, out bool) string { return hooks.DirOf(string(d), i, out) }

// find opens the attachment of an interface in a direction. It fails with ErrNotAttached where
// there is none, and with kernelerr.ErrForeign where the pins that the interface would have
// belong to one that has left the namespace.
func (d Pins) find(i *netif.Iface, out bool) (*Attachment, error) {
	a, err := d.open(d.path(i, out))
	switch {
	case err == nil && a.isOn(i):
		return a, nil
	case err == nil && !a.Severed():
		return nil, errors.Join(d.errAway(a.path), a.Close())
	case err == nil:
		a.Close()
	case !errors.Is(err, ErrNotAttached):
		return nil, err
	}
	return d.search(i.Inode, out, func(index int) bool { return index == i.Index }, func(a *Attachment) bool { return a.isOn(i) })
}

// errAway says that pins belong to an interface that was moved to another network
// namespace, which takes its program along.
func (d Pins) errAway(path string) error {
	return fmt.Errorf("%w: the pins %s belong to an interface that has left the namespace: detach it first", kernelerr.ErrForeign, path)
}

// search opens the first attachment in a network namespace and a direction that wanted
// selects by its link and metadata. It fails with ErrNotAttached where there is none. Where
// the link alone says the index of the interface, 0 if it is severed, and on does not hold for
// that, it reads no metadata: with hundreds of interfaces that takes long.
func (d Pins) search(inode uint64, out bool, on func(index int) bool, wanted func(*Attachment) bool) (*Attachment, error) {
	paths, err := hooks.Dirs(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotAttached
	}
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		if hooks.NamespaceOf(path) != inode || hooks.IsOut(path) != out {
			continue
		}
		if index, known := hooks.IndexOfLink(path); known && !on(index) {
			continue
		}
		a := &Attachment{pins: d, path: path}
		found := a.openLink() == nil && wanted(a) // List reports damaged pins
		a.Close()
		if found {
			return d.open(path)
		}
	}
	return nil, ErrNotAttached
}

func isSevered(index int) bool { return index == 0 }

func anyIndex(int) bool { return true }

// severed returns the directories that interfaces of a name left when they went.
func (d Pins) severed(inode uint64, t netif.Target) (paths []string, err error) {
	_, err = d.search(inode, t.Out, isSevered, func(a *Attachment) bool {
		if index, err := a.Index(); err == nil && index == 0 && a.metadata.Target.Iface == t.Iface {
			paths = append(paths, a.path)
		}
		return false
	})
	if errors.Is(err, ErrNotAttached) {
		err = nil
	}
	return paths, err
}

// sweep finishes the unfinished work of killed processes, where it keeps a program attached,
// or else removes it. The directory must be locked exclusively.
func (d Pins) sweep() error {
	entries, err := os.ReadDir(string(d))
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), hooks.Unfinished) {
			continue
		}
		path := filepath.Join(string(d), e.Name())
		if finished, bad := d.finish(path); bad != nil || !finished {
			err = errors.Join(err, cmp.Or(bad, os.RemoveAll(path)))
		}
	}
	if err != nil {
		return fmt.Errorf("remove unfinished pins: %w", kernelerr.Permission(err))
	}
	return nil
}

// Finish makes pins complete that a killed process has left incomplete, so that what they keep
// attached is found. It changes nothing where there are none.
func (d Pins) Finish() error {
	if !bpffs.Exists(string(d)) {
		return bpffs.CheckHidden(string(d))
	}
	return d.locked(d.sweep)
}

// List opens the pinned attachments, including those severed from their interface.
// Where some cannot be opened, it returns the others together with an error.
func (d Pins) List() ([]*Attachment, error) {
	unlock, err := d.lock(unix.LOCK_SH)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list attachments: %w", err)
	}
	defer unlock()
	list, err := d.list()
	if err != nil {
		return list, fmt.Errorf("list attachments: %w", kernelerr.Permission(err))
	}
	return list, nil
}

func (d Pins) list() ([]*Attachment, error) {
	paths, err := hooks.Dirs(string(d))
	if err != nil {
		return nil, err
	}
	var list []*Attachment
	var errs []error
	for _, path := range paths {
		a, err := d.open(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		list = append(list, a)
	}
	return list, errors.Join(errs...)
}

// Open opens the attachment of one interface, also when it is severed from it.
// It fails with [ErrNotAttached] where weir has pinned none.
func (d Pins) Open(t netif.Target) (*Attachment, error) {
	a, err := d.openTarget(t)
	if err != nil {
		return nil, fmt.Errorf("open the attachment to %s: %w", t, kernelerr.Permission(err))
	}
	return a, nil
}

func (d Pins) openTarget(t netif.Target) (a *Attachment, err error) {
	unlock, err := d.lock(unix.LOCK_SH)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotAttached
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	inode, err := t.Namespace()
	if err != nil {
		return nil, err
	}
	i, err := t.Find()
	if err == nil {
		if a, err = d.find(i, t.Out); !errors.Is(err, ErrNotAttached) {
			return a, err
		}
	}
	// Its pins may be left; or, if it was renamed, it has them by its former name.
	return d.search(inode, t.Out, func(index int) bool { return index == 0 || i == nil }, func(a *Attachment) bool {
		index, err := a.Index()
		return a.metadata.Target.Iface == t.Iface && err == nil && (index == 0 || i == nil)
	})
}
