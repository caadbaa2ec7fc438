package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// dispatchedProgram is a program behind libxdp's dispatcher. The dispatcher calls
// a stub, which jumps to the only program in a pinned map. So the program is replaced in
// one step, without the dispatcher and the tools that change it.
type dispatchedProgram struct {
	pins    Pins
	target  Target // as it was named when it was attached
	hook    Hook
	program *ebpf.Map // of one
	mapID   ebpf.MapID
	netns   uint64 // inode of the network namespace
	index   int    // of the interface

	// Where the stub was found last.
	dispatcher uint32
	place      int
}

const stubName = "weir"

func newDispatched(d Pins, m metadata, i *Iface) (*dispatchedProgram, error) {
	p, err := ebpf.NewMap(&ebpf.MapSpec{Name: pinDispatched, Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return nil, explainPermission(err)
	}
	return openDispatched(&dispatchedProgram{pins: d, target: m.Target, hook: m.Hook, program: p, netns: i.inode, index: i.Index})
}

// loadDispatched opens the pinned map of an attachment. It fails with fs.ErrNotExist where
// there is none.
func loadDispatched(path string, m metadata) (hold, error) {
	p, err := ebpf.LoadPinnedMap(filepath.Join(path, pinDispatched), nil)
	if err != nil {
		return nil, err
	}
	if of := unfinishedPath(path); of != "" {
		path = of
	}
	_, index, _ := strings.Cut(filepath.Base(path), ":")
	n, err := strconv.Atoi(index)
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("no index of an interface: %w", err)
	}
	return openDispatched(&dispatchedProgram{pins: Pins(filepath.Dir(path)), target: m.Target, hook: m.Hook, program: p, netns: namespaceOf(path), index: n})
}

func openDispatched(c *dispatchedProgram) (*dispatchedProgram, error) {
	info, err := c.program.Info()
	if err != nil {
		c.program.Close()
		return nil, err
	}
	c.mapID, _ = info.ID()
	return c, nil
}

func (c *dispatchedProgram) object() pinnable    { return pinnableMap{c.program} }
func (c *dispatchedProgram) Close() error        { return c.program.Close() }
func (c *dispatchedProgram) pinName() string     { return pinDispatched }
func (c *dispatchedProgram) id() (uint32, error) { return uint32(c.mapID), nil }

// in calls fn in the network namespace of the interface.
func (c *dispatchedProgram) in(fn func() error) error { return c.target.inNamespace(c.netns, fn) }

// load loads the stub.
func (c *dispatchedProgram) load(into *ebpf.Program, name string) (*ebpf.Program, error) {
	const tail = pinDispatched
	spec := &ebpf.ProgramSpec{
		Name: stubName, Type: ebpf.Extension, AttachTarget: into, AttachTo: name, License: "Dual BSD/GPL",
		Instructions: function(stubName,
			asm.LoadMapPtr(asm.R2, 0).WithReference(tail),
			asm.Mov.Imm(asm.R3, 0),
			asm.FnTailCall.Call(),
			asm.Mov.Imm(asm.R0, ActionPass), // weir was detached
			asm.Return(),
		),
	}
	flags, err := stubFlags()
	if err != nil {
		return nil, err
	}
	spec.Flags = flags
	if err := spec.Instructions.AssociateMap(tail, c.program); err != nil {
		return nil, err
	}
	return ebpf.NewProgram(spec)
}

// stubFlags returns the flags of a stub, the same as of the program that it jumps to.
func stubFlags() (uint32, error) {
	frags, err := haveFrags()
	if err != nil || !frags {
		return 0, err
	}
	return unix.BPF_F_XDP_HAS_FRAGS, nil
}

func (c *dispatchedProgram) start(p *ebpf.Program, _ string) error {
	flags, err := stubFlags()
	if err != nil {
		return err
	}
	if err := c.update(p); err != nil {
		return err
	}
	return c.in(func() error {
		return c.change(func(all []member) []member {
			return append(slices.Clone(all), member{name: stubName, priority: defaultPriority, next: 1 << ActionPass, flags: flags})
		})
	})
}

// change changes the dispatcher's programs. It is called in the interface's namespace.
func (c *dispatchedProgram) change(wanted func([]member) []member) error {
	if has, err := capabilities(); err == nil && has>>unix.CAP_SYS_ADMIN&1 == 0 {
		return fmt.Errorf("%w, namely CAP_SYS_ADMIN, which `attach: dispatcher` takes to open programs of others", ErrPermission)
	}
	err := dispatcherChange{
		index: c.index, hook: c.hook, wanted: wanted, load: c.load,
		explain: func(i *netlink.LinkAttrs, p *ebpf.Program, err error) error {
			return c.pins.explainAttach(err, c.target, i, p, c.hook)
		},
	}.make()
	if errors.Is(err, ErrUnsupported) {
		return err
	}
	return explainPermission(err)
}

func (c *dispatchedProgram) update(p *ebpf.Program) error {
	return c.program.Put(uint32(0), p)
}

func (c *dispatchedProgram) detach() error {
	err := c.in(func() error {
		if found, err := c.find(); err != nil || !found {
			return err
		}
		return c.change(func(all []member) []member {
			return slices.DeleteFunc(slices.Clone(all), func(m member) bool { return m.uses(c.mapID) })
		})
	})
	// Without its program the stub passes all, also where the interface cannot be reached.
	if err != nil && !errors.Is(err, ErrNoInterface) && !errors.Is(err, ErrNoNetns) {
		return err
	}
	if err := c.program.Delete(uint32(0)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// find reports whether the stub is one of the programs of the interface's dispatcher. It
// is called in the interface's namespace.
func (c *dispatchedProgram) find() (bool, error) {
	for last := uint32(0); ; {
		l, err := netlink.LinkByIndex(c.index)
		if _, ok := errors.AsType[netlink.LinkNotFoundError](err); ok {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		xdp := l.Attrs().Xdp
		if xdp == nil || !xdp.Attached || xdp.ProgId == 0 {
			return false, nil
		}
		dir := dispatcherDir(c.index, xdp.ProgId)
		if xdp.ProgId != c.dispatcher {
			if err := c.look(dir, xdp.ProgId); err != nil {
				return false, err
			}
		}
		if xdp.ProgId == c.dispatcher && exists(fmt.Sprintf("%s/prog%d-link", dir, c.place)) {
			return true, nil
		}
		if xdp.ProgId == last {
			return false, nil
		}
		last = xdp.ProgId // it may just be replaced, and its pins gone
	}
}

// look looks for the stub among a dispatcher's programs.
func (c *dispatchedProgram) look(dir string, id uint32) error {
	for n := range dispatcherSlots {
		m, err := openMember(dir, n)
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return fmt.Errorf("open the programs of the dispatcher: %w", explainPermission(err))
		}
		m.prog.Close()
		if m.uses(c.mapID) {
			c.dispatcher, c.place = id, n
			break
		}
	}
	return nil
}

func (c *dispatchedProgram) state() (program uint32, index int, err error) {
	err = c.in(func() error {
		found, err := c.find()
		if err != nil || !found {
			return err
		}
		err = c.program.Lookup(uint32(0), &program)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		index = c.index
		return err
	})
	return program, index, unlessNoNetns(err)
}

// order returns the dispatcher's programs in the order in which packets meet them.
func (c *dispatchedProgram) order() (programs []Neighbour, err error) {
	err = c.in(func() error {
		found, err := c.find()
		if err != nil || !found {
			return err
		}
		for n := range dispatcherSlots {
			m, err := openMember(dispatcherDir(c.index, c.dispatcher), n)
			if err != nil {
				break
			}
			m.prog.Close()
			programs = append(programs, Neighbour{ID: m.id, Name: m.name, Tag: m.tag, Weir: m.uses(c.mapID)})
		}
		return nil
	})
	return programs, unlessNoNetns(err)
}
