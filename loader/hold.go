package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// hold keeps a program attached to an interface, and outlives the process when it is
// pinned: a link of the kernel, or, for TC before Linux 6.6, a filter.
type hold interface {
	Close() error

	// object returns the object to pin.
	object() pinnable

	// pinName is the name of its pin.
	pinName() string

	// start attaches the program, unless it is already. The pin exists by then, so that
	// nothing is attached that no other process finds. sibling is the directory of the
	// pins of the interface's other direction.
	start(p *ebpf.Program, sibling string) error

	// update replaces the program in one step. Where the interface is gone, it does nothing.
	update(p *ebpf.Program) error

	// detach detaches the program, also where other processes have the hold open. It fails
	// with ErrNoNetns where that takes a network namespace that this process does not find.
	detach() error

	// id identifies it among all that are open or pinned.
	id() (uint32, error)

	// state returns the ID of the program and the index of the interface, both 0 where
	// the interface is gone, or somebody has detached the program.
	state() (program uint32, index int, err error)
}

// loadHold opens the pinned hold in the directory of an attachment. It fails with
// fs.ErrNotExist where there is none.
func loadHold(path string, m metadata) (hold, error) {
	l, err := link.LoadPinnedLink(filepath.Join(path, pinLink), nil)
	if err == nil {
		return kernelLink{l}, nil
	}
	if err := unlessDamaged(filepath.Join(path, pinLink), err); err != nil {
		return nil, err
	}
	load, pin := loadClsact, filepath.Join(path, pinClsact)
	if other := filepath.Join(path, pinDispatched); exists(other) {
		load, pin = loadDispatched, other
	}
	h, err := load(path, m)
	if err != nil && unlessDamaged(pin, err) == nil {
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err) // something else is pinned there
	}
	return h, err
}

// kernelLink is a link of XDP or tcx.
type kernelLink struct{ link.Link }

func (l kernelLink) pinName() string { return pinLink }

func (l kernelLink) object() pinnable { return l }

func (l kernelLink) start(*ebpf.Program, string) error { return nil }

func (l kernelLink) update(p *ebpf.Program) error { return unlessSevered(l.Update(p)) }

func (l kernelLink) detach() error { return unlessSevered(l.Detach()) }

// unlessSevered returns nil for the error of a link whose interface is gone.
func unlessSevered(err error) error {
	if errors.Is(err, unix.ENOLINK) {
		return nil
	}
	return err
}

func (l kernelLink) id() (uint32, error) {
	info, err := l.Info()
	if err != nil {
		return 0, err
	}
	return uint32(info.ID), nil
}

func (l kernelLink) state() (program uint32, index int, err error) {
	info, err := l.Info()
	if err != nil {
		return 0, 0, err
	}
	if xdp := info.XDP(); xdp != nil {
		return uint32(info.Program), int(xdp.Ifindex), nil
	}
	if tcx := info.TCX(); tcx != nil {
		return uint32(info.Program), int(tcx.Ifindex), nil
	}
	return 0, 0, errors.New("the pinned link is neither of XDP nor of TC")
}
