package loader

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weir/bpf"
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
const DefaultPins Pins = bpffs + "/weir"

const (
	bpffs = "/sys/fs/bpf" // the usual mount point

	pinLink   = "link"
	pinClsact = "clsact"

	pinDispatched = "dispatched"

	pinLists    = bpf.WeirMapListStats
	pinMetadata = "about" // the name that earlier versions gave it
	pinOut      = ":out"

	// Prefix of a directory under construction; left over only by a killed process.
	unfinished = "new-"
)

// lock locks the directory of pins, unix.LOCK_SH or unix.LOCK_EX, until unlock is
// called; with unix.LOCK_NB without waiting. For LOCK_EX it creates the directory; for LOCK_SH it fails with
// fs.ErrNotExist where there is none, and none can be hidden.
func (d Pins) lock(how int) (unlock func(), err error) {
	if how&unix.LOCK_EX != 0 {
		if err := d.ensure(); err != nil {
			return nil, err
		}
	}
	f, err := os.Open(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		if err := d.hidden(); err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open directory of pins: %w", explainPermission(err))
	}
	if !isBPFFS(string(d)) {
		f.Close()
		return nil, d.noBPFFS()
	}
	if err := flock(f, how); err != nil {
		return nil, fmt.Errorf("lock directory of pins %s: %w", d, err)
	}
	return func() { f.Close() }, nil
}

// lockPatience bounds the wait for a lock. It is held for milliseconds, so a process that
// holds it for so long does not run.
var lockPatience = 30 * time.Second

// lockPause bounds the time between two attempts to lock.
const lockPause = 5 * time.Millisecond

// lockQueues let one goroutine at a time wait for a file, by its path: hundreds may want it, as
// where many interfaces appear at once.
var lockQueues sync.Map // of chan struct{}, with room for one

// flock locks a file, and closes it if that fails. It tries again and again: a thread that waits
// in the kernel cannot be interrupted.
func flock(f *os.File, how int) error {
	err := tryLock(f, how)
	if errors.Is(err, unix.EWOULDBLOCK) && how&unix.LOCK_NB == 0 {
		err = awaitLock(f, how)
	}
	if err != nil {
		f.Close()
	}
	return err
}

func tryLock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// awaitLock locks a file within lockPatience.
func awaitLock(f *os.File, how int) error {
	end := time.After(lockPatience)
	queue, _ := lockQueues.LoadOrStore(f.Name(), make(chan struct{}, 1))
	turn := queue.(chan struct{})
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-end:
		return errLockHeld(f)
	}
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, lockPause) {
		if err := tryLock(f, how); !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-end:
			return errLockHeld(f)
		}
	}
}

func errLockHeld(f *os.File) error {
	return fmt.Errorf("no lock within %v: %s", lockPatience, lockHolder(f))
}

// lockHolder describes a process that has locked a file, and how to make it let go. Its
// programs filter on without it.
func lockHolder(f *os.File) string {
	var s unix.Stat_t
	locks, err := os.ReadFile("/proc/locks")
	if err != nil || unix.Fstat(int(f.Fd()), &s) != nil {
		return "another process has it"
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(s.Dev), unix.Minor(s.Dev), s.Ino)
	for line := range strings.Lines(string(locks)) {
		// "1: FLOCK ADVISORY WRITE 123 00:1e:456 0 EOF"; with "->" who waits for it
		if held := strings.Fields(line); len(held) > 5 && held[1] == "FLOCK" && held[5] == file {
			return fmt.Sprintf("process %[1]s has it; if that is stopped, continue it with `kill -CONT %[1]s`, or end it with `kill -KILL %[1]s`", held[4])
		}
	}
	return "another process has it"
}

// locked calls fn with the directory locked for writing.
func (d Pins) locked(fn func() error) error {
	unlock, err := d.lock(unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock()
	return fn()
}

// ensure creates the directory where there is none, and mounts the file system for
// it, if the mount outlives the process.
func (d Pins) ensure() error {
	if err := d.hidden(); err != nil {
		return err
	}
	path, above := filepath.Clean(string(d)), d.above()
	if !isBPFFS(above) {
		if err := unix.Mount("bpf", bpffs, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
			return fmt.Errorf("%w: %s: mount one: %w", ErrNoBPFFS, d, err)
		}
	}
	if strings.Contains(strings.TrimPrefix(path, above), ".") {
		return fmt.Errorf("directory of pins %s: the BPF file system allows no dots in names", d)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("make directory of pins: %w", explainPermission(err))
	}
	return nil
}

// above returns the directory of pins, or its nearest ancestor that exists.
func (d Pins) above() string {
	path := filepath.Clean(string(d))
	for !exists(path) {
		path = filepath.Dir(path)
	}
	return path
}

// hidden fails with ErrNoBPFFS where the directory is on no BPF file system and
// none can be mounted to stay: pins may be out of sight.
func (d Pins) hidden() error {
	above := d.above()
	if isBPFFS(above) || above == bpffs && sharesMounts() {
		return nil
	}
	return d.noBPFFS()
}

func (d Pins) noBPFFS() error {
	return fmt.Errorf("%w: %s: mount one with `mount -t bpf bpf %s`; "+
		"`ip netns exec` hides the system's, so name the namespace with --netns or in weir.yaml instead",
		ErrNoBPFFS, d, bpffs)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
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

// path is the directory of an interface in a direction.
func (d Pins) path(i *Iface, out bool) string {
	name := fmt.Sprintf("%d:%d", i.inode, i.Index)
	if out {
		name += pinOut
	}
	return filepath.Join(string(d), name)
}

// sibling is the directory of the other direction of an interface.
func sibling(path string) string {
	if in, out := strings.CutSuffix(path, pinOut); out {
		return in
	}
	return path + pinOut
}

// paths are the directories of all interfaces. Those that earlier versions made
// are named by the interface's name, after a dash, in place of its index.
func (d Pins) paths() ([]string, error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, fmt.Errorf("read directory of pins: %w", explainPermission(err))
	}
	var paths []string
	for _, e := range entries {
		if path := filepath.Join(string(d), e.Name()); e.IsDir() && namespaceOf(path) != 0 {
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// namespaceOf is the inode of the network namespace that an interface's directory
// is for, 0 if path is not such a directory.
func namespaceOf(path string) (inode uint64) {
	name := filepath.Base(path)
	if end := strings.IndexAny(name, ":-"); end > 0 && end < len(name)-1 {
		inode, _ = strconv.ParseUint(name[:end], 10, 64)
	}
	return inode
}

// find opens the attachment of an interface in a direction. It fails with ErrNotAttached where
// there is none, and with ErrForeign where the pins that the interface would have
// belong to one that has left the namespace.
func (d Pins) find(i *Iface, out bool) (*Attachment, error) {
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
	return d.search(i.inode, out, func(index int) bool { return index == i.Index }, func(a *Attachment) bool { return a.isOn(i) })
}

// errAway says that pins belong to an interface that was moved to another network
// namespace, which takes its program along.
func (d Pins) errAway(path string) error {
	return fmt.Errorf("%w: the pins %s belong to an interface that has left the namespace: detach it first", ErrForeign, path)
}

// search opens the first attachment in a network namespace and a direction that wanted
// selects by its link and metadata. It fails with ErrNotAttached where there is none. Where
// the link alone says the index of the interface, 0 if it is severed, and on does not hold for
// that, it reads no metadata: with hundreds of interfaces that takes long.
func (d Pins) search(inode uint64, out bool, on func(index int) bool, wanted func(*Attachment) bool) (*Attachment, error) {
	paths, err := d.paths()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotAttached
	}
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		if namespaceOf(path) != inode || strings.HasSuffix(path, pinOut) != out {
			continue
		}
		if index, known := indexOfLink(path); known && !on(index) {
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

// indexOfLink returns the index of the interface of the kernel's link that is pinned in a
// directory, if one is.
func indexOfLink(path string) (index int, ok bool) {
	l, err := link.LoadPinnedLink(filepath.Join(path, pinLink), nil)
	if err != nil {
		return 0, false
	}
	defer l.Close()
	_, index, err = kernelLink{l}.state()
	return index, err == nil
}

func isSevered(index int) bool { return index == 0 }

func anyIndex(int) bool { return true }

// severed returns the directories that interfaces of a name left when they went.
func (d Pins) severed(inode uint64, t Target) (paths []string, err error) {
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
		if !strings.HasPrefix(e.Name(), unfinished) {
			continue
		}
		path := filepath.Join(string(d), e.Name())
		if finished, bad := d.finish(path); bad != nil || !finished {
			err = errors.Join(err, cmp.Or(bad, os.RemoveAll(path)))
		}
	}
	if err != nil {
		return fmt.Errorf("remove unfinished pins: %w", explainPermission(err))
	}
	return nil
}

// Finish makes pins complete that a killed process has left incomplete, so that what they keep
// attached is found. It changes nothing where there are none.
func (d Pins) Finish() error {
	if !exists(string(d)) {
		return d.hidden()
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
		return list, fmt.Errorf("list attachments: %w", explainPermission(err))
	}
	return list, nil
}

func (d Pins) list() ([]*Attachment, error) {
	paths, err := d.paths()
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
func (d Pins) Open(t Target) (*Attachment, error) {
	a, err := d.openTarget(t)
	if err != nil {
		return nil, fmt.Errorf("open the attachment to %s: %w", t, explainPermission(err))
	}
	return a, nil
}

func (d Pins) openTarget(t Target) (a *Attachment, err error) {
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
