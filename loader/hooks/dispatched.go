package hooks

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"weir/loader/bpffs"
	"weir/loader/dispatcher"
	"weir/loader/kernelerr"
	"weir/loader/netif"
)

// dispatchedProgram is a program behind libxdp's dispatcher. The dispatcher calls
// a stub, which jumps to the only program in a pinned map. So the program is replaced in
// one step, without the dispatcher and the tools that change it.
type dispatchedProgram struct {
	root    string       // of pins
	target  netif.Target // as it was named when it was attached
	hook    Hook
	program *ebpf.Map // of one
	mapID   ebpf.MapID
	netns   uint64 // inode of the network namespace
	index   int    // of the interface

	// Where the stub was found last: the ID of the dispatcher, and the place in it.
	lastSeen uint32
	place    int
}

func newDispatched(root string, t netif.Target, h Hook, i *netif.Iface) (*dispatchedProgram, error) {
	p, err := ebpf.NewMap(&ebpf.MapSpec{Name: pinDispatched, Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return nil, kernelerr.Permission(err)
	}
	return openDispatched(&dispatchedProgram{root: root, target: t, hook: h, program: p, netns: i.Inode, index: i.Index})
}

// loadDispatched opens the pinned map of an attachment. It fails with fs.ErrNotExist where
// there is none.
func loadDispatched(dir string, t netif.Target, h Hook) (Hold, error) {
	p, err := ebpf.LoadPinnedMap(filepath.Join(dir, pinDispatched), nil)
	if err != nil {
		return nil, err
	}
	if of := FinishedDir(dir); of != "" {
		dir = of
	}
	_, index, _ := strings.Cut(filepath.Base(dir), ":")
	n, err := strconv.Atoi(index)
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("no index of an interface: %w", err)
	}
	return openDispatched(&dispatchedProgram{root: filepath.Dir(dir), target: t, hook: h, program: p, netns: NamespaceOf(dir), index: n})
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

func (c *dispatchedProgram) Object() bpffs.Object { return bpffs.Map{Map: c.program} }
func (c *dispatchedProgram) Close() error         { return c.program.Close() }
func (c *dispatchedProgram) PinName() string      { return pinDispatched }
func (c *dispatchedProgram) ID() (uint32, error)  { return uint32(c.mapID), nil }

func (c *dispatchedProgram) setTarget(t netif.Target) { c.target = t }

// IsOn is true for equal indexes: State looks in the right namespace.
func (c *dispatchedProgram) IsOn(*netif.Iface) bool { return true }

// in calls fn in the network namespace of the interface.
func (c *dispatchedProgram) in(fn func() error) error { return c.target.InNamespace(c.netns, fn) }

// load loads the stub.
func (c *dispatchedProgram) load(into *ebpf.Program, name string) (*ebpf.Program, error) {
	const tail = pinDispatched
	spec := &ebpf.ProgramSpec{
		Name: dispatcher.StubName, Type: ebpf.Extension, AttachTarget: into, AttachTo: name, License: "Dual BSD/GPL",
		Instructions: dispatcher.Function(dispatcher.StubName,
			asm.LoadMapPtr(asm.R2, 0).WithReference(tail),
			asm.Mov.Imm(asm.R3, 0),
			asm.FnTailCall.Call(),
			asm.Mov.Imm(asm.R0, xdpPass), // weir was detached
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
	frags, err := HasFrags()
	if err != nil || !frags {
		return 0, err
	}
	return unix.BPF_F_XDP_HAS_FRAGS, nil
}

func (c *dispatchedProgram) Start(p *ebpf.Program, _ string) error {
	flags, err := stubFlags()
	if err != nil {
		return err
	}
	if err := c.Update(p); err != nil {
		return err
	}
	return c.in(func() error {
		return c.change(func(all []dispatcher.Member) []dispatcher.Member {
			return append(slices.Clone(all), dispatcher.Member{
				Name: dispatcher.StubName, Priority: dispatcher.DefaultPriority, Next: 1 << xdpPass, Flags: flags,
			})
		})
	})
}

// change changes the dispatcher's programs. It is called in the interface's namespace.
func (c *dispatchedProgram) change(wanted func([]dispatcher.Member) []dispatcher.Member) error {
	if kernelerr.LacksSysAdmin() {
		return fmt.Errorf("%w, namely CAP_SYS_ADMIN, which `attach: dispatcher` takes to open programs of others", kernelerr.ErrPermission)
	}
	err := dispatcher.Change{
		Netns: c.netns, Index: c.index, Generic: c.hook == DispatcherGeneric, Wanted: wanted, Load: c.load,
		Explain: func(i *netif.Iface, p *ebpf.Program, err error) error {
			return explainAttach(c.root, err, c.target, i, p, c.hook)
		},
	}.Make()
	if errors.Is(err, kernelerr.ErrUnsupported) {
		return err
	}
	return kernelerr.Permission(err)
}

func (c *dispatchedProgram) Update(p *ebpf.Program) error {
	return c.program.Put(uint32(0), p)
}

func (c *dispatchedProgram) Detach() error {
	err := c.in(func() error {
		if found, err := c.find(); err != nil || !found {
			return err
		}
		return c.change(func(all []dispatcher.Member) []dispatcher.Member {
			return slices.DeleteFunc(slices.Clone(all), c.isStub)
		})
	})
	// Without its program the stub passes all, also where the interface cannot be reached.
	if err != nil && !errors.Is(err, netif.ErrNoInterface) && !errors.Is(err, netif.ErrNoNetns) {
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
		i, err := netif.ByIndex(c.netns, c.index)
		if errors.Is(err, netif.ErrNoInterface) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		xdp := i.Xdp
		if xdp == nil || !xdp.Attached || xdp.ProgId == 0 {
			return false, nil
		}
		if xdp.ProgId != c.lastSeen {
			if err := c.look(xdp.ProgId); err != nil {
				return false, err
			}
		}
		if xdp.ProgId == c.lastSeen && dispatcher.Has(c.index, xdp.ProgId, c.place) {
			return true, nil
		}
		if xdp.ProgId == last {
			return false, nil
		}
		last = xdp.ProgId // it may just be replaced, and its pins gone
	}
}

// look looks for the stub among a dispatcher's programs.
func (c *dispatchedProgram) look(id uint32) error {
	all, err := dispatcher.Members(c.index, id)
	if n := slices.IndexFunc(all, c.isStub); n >= 0 {
		c.lastSeen, c.place = id, n
		return nil
	}
	return err
}

// isStub reports whether a program is the one that jumps to this one.
func (c *dispatchedProgram) isStub(m dispatcher.Member) bool { return m.Uses(c.mapID) }

func (c *dispatchedProgram) State() (program uint32, index int, err error) {
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
	return program, index, netif.UnlessNoNetns(err)
}

// order returns the dispatcher's programs in the order in which packets meet them.
func (c *dispatchedProgram) Order() (programs []Neighbour, err error) {
	err = c.in(func() error {
		found, err := c.find()
		if err != nil || !found {
			return err
		}
		all, _ := dispatcher.Members(c.index, c.lastSeen)
		for _, m := range all {
			programs = append(programs, Neighbour{ID: m.ID, Name: m.Name, Tag: m.Tag, Weir: c.isStub(m)})
		}
		return nil
	})
	return programs, netif.UnlessNoNetns(err)
}
