package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weir/loader/bpffs"
	"weir/loader/hooks"
	"weir/loader/kernelerr"
)

// seenPin is a pin that was found, and its object.
type seenPin struct {
	bpffs.Inode
	of bpffs.Object
}

// objects returns the objects to pin in the directory of the attachment, by their paths there.
func (a *Attachment) objects() map[string]bpffs.Object {
	all := map[string]bpffs.Object{a.link.PinName(): a.link.Object()}
	if a.metadataMap != nil {
		all[pinMetadata] = bpffs.Map{Map: a.metadataMap}
	}
	a.stats.read(func(k pinnedMaps) {
		for name, m := range k {
			if !slices.Contains(a.unpinned, name) {
				all[name] = bpffs.Map{Map: m.m}
			}
		}
	})
	for name, m := range a.filter {
		all[filepath.Join(pinFilter, name)] = bpffs.Map{Map: m.m}
	}
	return all
}

// lost returns the objects that are not pinned where they are to be, the hold first and
// the heads last. Pins with the inodes that were seen last are not opened.
func (a *Attachment) lost() (names []string, objects map[string]bpffs.Object, err error) {
	objects = a.objects()
	for name, o := range objects {
		path := filepath.Join(a.path, name)
		i, err := bpffs.InodeOf(path)
		if err == nil {
			seen := seenPin{i, o}
			if a.seen[name] == seen {
				continue
			}
			is, err := o.IsAt(path)
			if err != nil {
				return nil, nil, err
			}
			if is {
				if a.seen == nil {
					a.seen = make(map[string]seenPin)
				}
				a.seen[name] = seen
				continue
			}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
		names = append(names, name)
	}
	hold := a.link.PinName()
	slices.SortFunc(names, func(x, y string) int {
		switch {
		case x == y:
			return 0
		case x == hold:
			return -1
		case y == hold:
			return 1
		}
		return comparePins(x, y)
	})
	return names, objects, nil
}

// noteDir remembers the directory of pins.
func (a *Attachment) noteDir() (err error) {
	was := a.dir
	if a.dir, err = bpffs.InodeOf(string(a.pins)); a.dir != was {
		a.mirror = bpffs.MirrorOf(string(a.pins))
	}
	return err
}

// isElsewhere reports whether the directory of pins is not the one that the attachment's were
// in last: its file system was unmounted, or another one is mounted over it.
func (a *Attachment) isElsewhere() bool {
	now, err := bpffs.InodeOf(string(a.pins))
	return err != nil || now != a.dir
}

// Unpinned returns why the program would not stay attached when this process ends, as
// [Attachment.Repin] has last found, "" if it would. It does not wait for anything.
func (a *Attachment) Unpinned() string {
	if text := a.problem.Load(); text != nil {
		return *text
	}
	return ""
}

// repinPatience bounds the wait of Repin for the lock of the pins.
const repinPatience = time.Second

// Repin makes sure that all that is pinned for the attachment still is, and pins again what is
// not, from the descriptors that this process has open. It returns how many pins it has made.
// Where it fails, the program is detached when this process ends: Unpinned says so until
// another call succeeds. It does nothing for an attachment that is closed, or that another
// process has taken over, nor, where the interface is gone, if only the attachment's own pins
// are gone: that is how others detach.
//
// While nothing is lost, it takes some microseconds. It never waits for long.
func (a *Attachment) Repin() (made int, err error) {
	deadline := time.Now().Add(repinPatience)
	for {
		made, err = a.tryRepin()
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) {
			break
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // a lock of a file cannot be waited for with a deadline
	}
	if err == nil {
		a.problem.Store(nil)
		return made, nil
	}
	a.problem.Store(new(strings.ReplaceAll(err.Error(), "\n", "; ")))
	return made, fmt.Errorf("pin the attachment to %s again: %w", a.Target(), err)
}

func (a *Attachment) tryRepin() (made int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.link == nil {
		return 0, nil
	}
	if names, _, err := a.lost(); err != nil {
		return 0, kernelerr.Exhausted(kernelerr.Permission(err))
	} else if len(names) == 0 && !a.isElsewhere() {
		return 0, a.lostMirror()
	}
	unlock, err := a.pins.lock(unix.LOCK_EX | unix.LOCK_NB)
	if err != nil {
		return 0, kernelerr.Exhausted(err)
	}
	defer unlock()
	if gone, err := a.detached(); gone || err != nil || a.replaced() {
		return 0, err
	}
	return a.restore()
}

// detached reports whether pins that are missing are so because somebody has detached the
// program, or because they went with the interface.
func (a *Attachment) detached() (bool, error) {
	index, err := a.Index()
	return err == nil && index == 0 && !a.isElsewhere(), err
}

// restore pins the objects again that are not pinned any more. Also where this process is killed
// meanwhile, the next one finds no fewer pins than before. The directory of pins must be locked exclusively.
func (a *Attachment) restore() (made int, err error) {
	defer func() {
		if err != nil {
			err = kernelerr.Exhausted(kernelerr.Permission(err))
			return
		}
		err = a.noteDir()
	}()
	names, objects, err := a.lost()
	if err != nil || len(names) == 0 {
		return 0, err
	}
	if err := a.isAnothers(); err != nil {
		return 0, err
	}
	if _, err := os.ReadDir(a.path); err != nil {
		// Whole, or not at all.
		return len(names), a.pinAll(objects)
	}
	for _, name := range names {
		if err := a.pinOver(objects[name], name); err != nil {
			return made, err
		}
		made++
	}
	return made, nil
}

// isAnothers fails with ErrForeign where the pins belong to another attachment, which
// filters.
func (a *Attachment) isAnothers() error {
	there, err := hooks.Load(a.path, a.metadata.Target, a.metadata.Hook)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer there.Close()
	theirs, err1 := there.ID()
	ours, err2 := a.link.ID()
	_, index, err3 := there.State()
	if err := errors.Join(err1, err2, err3); err != nil || theirs == ours || index == 0 {
		return err
	}
	return fmt.Errorf("%w: the pins %s belong to another daemon", kernelerr.ErrForeign, a.path)
}

// pinAll makes the directory of the pins, which appears whole. The hold comes last: the
// pins that a killed process leaves filter only if they are complete.
func (a *Attachment) pinAll(objects map[string]bpffs.Object) (err error) {
	temp, err := os.MkdirTemp(string(a.pins), hooks.Unfinished+filepath.Base(a.path)+"-")
	if err != nil {
		return fmt.Errorf("make directory for pins: %w", err)
	}
	defer func() {
		if err != nil {
			os.RemoveAll(temp)
		}
	}()
	hold := a.link.PinName()
	for name, o := range objects {
		if name == hold {
			continue
		}
		path := filepath.Join(temp, name)
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := bpffs.Pin(o, path); err != nil {
			return err
		}
	}
	if err := bpffs.Pin(objects[hold], filepath.Join(temp, hold)); err != nil {
		return err
	}
	if !bpffs.IsDir(a.path) {
		_ = os.Remove(a.path) // if it fails, Rename does
	}
	if err := os.Rename(temp, a.path); err != nil {
		return fmt.Errorf("rename directory of pins: %w", err)
	}
	return nil
}

// pinOver pins an object in place of another one, in one step.
func (a *Attachment) pinOver(o bpffs.Object, name string) error {
	path := filepath.Join(a.path, name)
	if dir := filepath.Dir(path); dir != a.path && !bpffs.IsDir(dir) {
		_ = os.Remove(dir) // if it fails, Mkdir does
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	if err := a.pinNext(o, name); err != nil {
		return err
	}
	if bpffs.IsDir(path) {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	if err := os.Rename(a.next(name), path); err != nil {
		return fmt.Errorf("replace pin %s: %w", name, err)
	}
	return nil
}

// finish makes a directory that a killed process has left under construction the pins of its
// interface, if it keeps a program attached there that has no others. It reports whether it
// has.
func (d Pins) finish(temp string) (bool, error) {
	path := hooks.FinishedDir(temp)
	if path == "" {
		return false, nil
	}
	filters := func(path string) (bool, error) {
		a := &Attachment{pins: d, path: path}
		defer a.Close()
		if err := a.openLink(); err != nil {
			return false, err
		}
		_, index, err := a.state()
		return index != 0, err
	}
	left, err := filters(temp)
	if err != nil || !left {
		return false, err
	}
	if done, err := filters(path); err != nil || done {
		return false, err
	}
	if err := os.RemoveAll(path); err != nil {
		return false, err
	}
	return true, os.Rename(temp, path)
}

// errMirror says that the pins are on a copy of the host's file system, and the host's is gone.
var errMirror = errors.New("the host has unmounted the BPF file system that the pins are in: this process alone has it still")

// lostMirror fails where the mount of the pins was a slave when the attachment was last seen in
// it, and is none now.
func (a *Attachment) lostMirror() error {
	if a.mirror != 0 && !bpffs.IsMirror(a.mirror) {
		return errMirror
	}
	return nil
}
