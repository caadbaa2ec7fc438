package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"weir/loader/bpffs"
	"weir/loader/hooks"
	"weir/loader/kernelerr"
	"weir/loader/netif"
)

// Reattach attaches the program, with its counters, to the interface that
// replaces one that is gone. Nothing is loaded, so it takes no longer than the
// kernel's attaching. Without i, the interface is looked up by name. Where the
// program is attached, Reattach does nothing.
//
// It fails with [netif.ErrNoInterface] or [netif.ErrNoNetns] while there is no such
// interface, with [ErrNotAttached] where somebody has removed the pins in order
// to detach, and with [ErrReplaced] where another process has attached its own
// program.
func (a *Attachment) Reattach(i *netif.Iface) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if index, err := a.Index(); err != nil || index != 0 {
		return err
	}
	if err := a.reattach(i); err != nil {
		return fmt.Errorf("reattach to %s: %w", a.metadata.Target, err)
	}
	return nil
}

func (a *Attachment) reattach(i *netif.Iface) (err error) {
	switch {
	case a.prog == nil:
		return ErrSevered
	case i == nil && a.owns() != nil:
		// Detached, or another process is about to attach its own program: wait for
		// its lock to know which. Otherwise do not wait: the interface may appear any
		// moment.
		if err := a.lockedIfAny(a.ownsOrLost); err != nil {
			return err
		}
	case i != nil && i.Index == a.ifindex:
		return netif.ErrNoInterface // a message from before the interface's end
	}
	if i == nil {
		if i, err = a.metadata.Target.Find(); err != nil {
			return err
		}
	}
	if a.stats.entry.Load() != entryOf(a.metadata.Hook, i) {
		return ErrSevered // it is of another kind, for which another program is to be loaded
	}
	l, err := hooks.Attach(string(a.pins), a.metadata.Target, a.metadata.Hook, i, a.prog)
	if err != nil {
		return err
	}
	begun := false
	err = a.lockedIfAny(func() error {
		if err := a.pinHold(l, a.pins.path(i, a.metadata.Target.Out)); err != nil {
			return err
		}
		begun = true // also where begin fails
		if err := a.begin(l, a.prog); err != nil {
			return err
		}
		a.ifindex, a.program = i.Index, a.ProgramID()
		return nil
	})
	if !begun {
		err = errors.Join(err, l.Close()) // else it filters on, and no reload replaces its program
	}
	return err
}

// pinHold pins a hold in place of the severed one, and moves the pins to path. Where they are
// lost and cannot be made again, the program filters without.
func (a *Attachment) pinHold(l hooks.Hold, path string) error {
	if err := a.ownsOrLost(); err != nil {
		return err
	}
	if !bpffs.Exists(a.path) {
		a.path = path
		return nil
	}
	if err := a.move(path); err != nil {
		return err
	}
	name := l.PinName()
	if err := a.pinNext(l.Object(), name); err != nil {
		return err
	}
	if err := os.Rename(a.next(name), filepath.Join(a.path, name)); err != nil {
		return fmt.Errorf("replace pin %s: %w", name, err)
	}
	if last := a.link.PinName(); last != name {
		return os.Remove(filepath.Join(a.path, last))
	}
	return nil
}

// ownsOrLost is owns, but pins that were lost are made again if they can be, and it is no
// error if they cannot: the severed attachment was not detached.
func (a *Attachment) ownsOrLost() error {
	err := a.owns()
	if errors.Is(err, ErrNotAttached) && a.isElsewhere() {
		_, _ = a.restore() // Repin says that it fails
		return nil
	}
	return err
}

// move moves the pins to another directory.
func (a *Attachment) move(path string) error {
	if path == a.path {
		return nil
	}
	if old, err := a.pins.open(path); err == nil {
		severed := old.Severed()
		if err := old.Close(); err != nil {
			return err
		}
		if severed {
			os.RemoveAll(path) // else Rename fails
		}
	}
	if err := os.Rename(a.path, path); err != nil {
		return fmt.Errorf("move pins: %w", kernelerr.Permission(err))
	}
	a.path = path
	return nil
}

// Name returns the present name of the interface, by which it may have been
// renamed since it was attached to. It fails with [netif.ErrNoInterface] where the
// interface is gone or has left the namespace, and with [netif.ErrNoNetns] where that is.
func (a *Attachment) Name() (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	index, err := a.Index()
	if err != nil {
		return "", err
	}
	if index == 0 {
		return "", netif.ErrNoInterface
	}
	i, err := a.metadata.Target.FindIndex(index)
	if err != nil {
		return "", err
	}
	if hooks.NamespaceOf(a.path) != i.Inode || !a.isOn(i) {
		return "", netif.ErrNoInterface
	}
	return i.Name, nil
}

// Rename records that the interface has another name now, for Target and for
// Reattach. It fails with [ErrReplaced] where another process has taken over.
func (a *Attachment) Rename(name string) error {
	return a.locked("rename the attachment to", func() error {
		if a.replaced() {
			return ErrReplaced
		}
		m := a.metadata
		m.Target.Iface = name
		return a.writeMetadata(m)
	})
}

// owns fails with ErrNotAttached where the pins are gone, and with ErrReplaced
// where they belong to another attachment.
func (a *Attachment) owns() error {
	pinned, err := hooks.Load(a.path, a.metadata.Target, a.metadata.Hook)
	if errors.Is(err, fs.ErrNotExist) {
		return a.superseded()
	}
	if err != nil {
		return kernelerr.Permission(err)
	}
	defer pinned.Close()
	theirs, err := pinned.ID()
	if err != nil {
		return err
	}
	ours, err := a.link.ID()
	if err != nil {
		return err
	}
	if theirs != ours {
		return ErrReplaced
	}
	return nil
}

// superseded returns ErrReplaced where an interface of the same name has pins of
// its own, and ErrNotAttached where there are none.
func (a *Attachment) superseded() error {
	next, err := a.pins.search(hooks.NamespaceOf(a.path), a.metadata.Target.Out, anyIndex, func(b *Attachment) bool {
		return b.metadata.Target.Iface == a.metadata.Target.Iface
	})
	if err != nil {
		return err
	}
	return errors.Join(ErrReplaced, next.Close())
}
