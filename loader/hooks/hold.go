package hooks

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weir/loader/bpffs"
	"weir/loader/kernelerr"
	"weir/loader/netif"
)

// Hold keeps a program attached to an interface, and outlives the process when it is
// pinned: a link of the kernel, a filter for TC before Linux 6.6, or a program behind
// libxdp's dispatcher. Its methods must not be called concurrently.
type Hold interface {
	// Close releases the hold. The program stays attached if the hold is pinned.
	Close() error

	// Object returns the object to pin.
	Object() bpffs.Object

	// PinName is the name of its pin.
	PinName() string

	// Start attaches the program, unless it is already. The pin exists by then, in this
	// directory, so that nothing is attached that no other process finds.
	Start(p *ebpf.Program, dir string) error

	// Update replaces the program in one step. Where the interface is gone, it does nothing.
	Update(p *ebpf.Program) error

	// Detach detaches the program, also where other processes have the hold open. It fails
	// with [netif.ErrNoNetns] where that takes a network namespace that this process does not find.
	Detach() error

	// ID identifies it among all that are open or pinned.
	ID() (uint32, error)

	// State returns the ID of the program and the index of the interface, both 0 where
	// the interface is gone, or somebody has detached the program.
	State() (program uint32, index int, err error)

	// Order returns the programs at TC, or of the dispatcher, in the order in which
	// packets meet them, its own among them. There is none where others cannot be beside it.
	Order() ([]Neighbour, error)

	// IsOn reports whether the interface is the one that State returns the index of: in
	// another network namespace, another interface may have that.
	IsOn(i *netif.Iface) bool

	// setTarget changes how the interface is named.
	setTarget(t netif.Target)
}

// The names of pins of holds.
const (
	pinLink       = "link"
	pinClsact     = "clsact"
	pinDispatched = "dispatched"
)

// Load opens the hold that is pinned in the directory of an interface. It fails with
// fs.ErrNotExist where there is none. The hook matters to a dispatcher's programs only.
func Load(dir string, t netif.Target, h Hook) (Hold, error) {
	l, err := link.LoadPinnedLink(filepath.Join(dir, pinLink), nil)
	if err == nil {
		return &kernelLink{bpffs.Link{Link: l}, t, NamespaceOf(dir)}, nil
	}
	if err := bpffs.UnlessDamaged(filepath.Join(dir, pinLink), err); err != nil {
		return nil, err
	}
	var loaded Hold
	pin := filepath.Join(dir, pinDispatched)
	if bpffs.Exists(pin) {
		loaded, err = loadDispatched(dir, t, h)
	} else {
		pin = filepath.Join(dir, pinClsact)
		loaded, err = loadClsact(dir, t)
	}
	if err != nil && bpffs.UnlessDamaged(pin, err) == nil {
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err) // something else is pinned there
	}
	return loaded, err
}

// IndexOfLink returns the index of the interface of the kernel's link that is pinned in a
// directory, if one is, 0 where it is severed.
func IndexOfLink(dir string) (index int, ok bool) {
	l, err := link.LoadPinnedLink(filepath.Join(dir, pinLink), nil)
	if err != nil {
		return 0, false
	}
	defer l.Close()
	_, index, err = (&kernelLink{Link: bpffs.Link{Link: l}}).State()
	return index, err == nil
}

// Guess returns what the kernel says of the interface that a hold is pinned for, nil where
// that is gone: for when nothing else says it.
func Guess(dir string, l Hold) (t netif.Target, h Hook) {
	_, index, _ := strings.Cut(strings.TrimSuffix(filepath.Base(dir), outSuffix), ":")
	n, _ := strconv.Atoi(index)
	inode := NamespaceOf(dir)
	t = netif.Target{Netns: netif.NameOf(inode), Iface: "interface " + index, Out: IsOut(dir)}
	switch l := l.(type) {
	case *clsact:
		h = TC
	case *dispatchedProgram:
		h = Dispatcher
	case *kernelLink:
		if info, err := l.Info(); err == nil && info.TCX() != nil {
			h = TC
		}
	}
	_ = t.InNamespace(inode, func() error {
		i, err := netif.ByIndex(inode, n)
		if err != nil {
			return err
		}
		t.Iface = i.Name
		if h == Native && i.Xdp != nil {
			h = modeOf(i)
		}
		return nil
	}) // if it fails, the interface is not known by its name
	if l != nil {
		l.setTarget(t)
	}
	return t, h
}

// kernelLink is a link of XDP or tcx.
type kernelLink struct {
	bpffs.Link
	target netif.Target // as it was named when it was attached
	netns  uint64       // inode of the network namespace
}

func (l *kernelLink) PinName() string { return pinLink }

func (l *kernelLink) Object() bpffs.Object { return l.Link }

func (l *kernelLink) setTarget(t netif.Target) { l.target = t }

func (l *kernelLink) Start(*ebpf.Program, string) error { return nil }

func (l *kernelLink) Update(p *ebpf.Program) error { return unlessSevered(l.Link.Update(p)) }

func (l *kernelLink) Detach() error { return unlessSevered(l.Link.Detach()) }

// unlessSevered returns nil for the error of a link whose interface is gone.
func unlessSevered(err error) error {
	if errors.Is(err, unix.ENOLINK) {
		return nil
	}
	return err
}

func (l *kernelLink) State() (program uint32, index int, err error) {
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

func (l *kernelLink) Order() (all []Neighbour, err error) {
	info, err := l.Info()
	if err != nil || info.TCX() == nil || info.TCX().Ifindex == 0 {
		return nil, err
	}
	own := uint32(info.Program)
	// Another namespace may have its name by now.
	err = l.target.InNamespace(l.netns, func() error {
		found, err := link.QueryPrograms(link.QueryOptions{Target: int(info.TCX().Ifindex), Attach: tcx(l.target.Out)})
		if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.ENODEV) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("query the programs of TC: %w", kernelerr.Permission(err))
		}
		for _, p := range found.Programs {
			if id := uint32(p.ID); id == own {
				all = append(all, Neighbour{ID: id, Weir: true})
			} else {
				all = append(all, neighbour(id))
			}
		}
		return nil
	})
	return all, netif.UnlessNoNetns(err)
}

func (l *kernelLink) IsOn(i *netif.Iface) bool {
	info, err := l.Info()
	if err != nil {
		return true
	}
	if info.TCX() == nil {
		// The ID is 0 where there are programs in several modes.
		return i.Xdp == nil || i.Xdp.Attached && (i.Xdp.ProgId == 0 || i.Xdp.ProgId == uint32(info.Program))
	}
	// A tcx link does not name its namespace, so the interface is asked for its links.
	on := true // if the kernel cannot be asked
	_ = l.target.InNamespace(i.Inode, func() error {
		found, err := link.QueryPrograms(link.QueryOptions{Target: i.Index, Attach: tcx(l.target.Out)})
		if err == nil {
			on = slices.ContainsFunc(found.Programs, func(p link.AttachedProgram) bool {
				id, ok := p.LinkID()
				return ok && id == info.ID
			})
		}
		return err
	})
	return on
}
