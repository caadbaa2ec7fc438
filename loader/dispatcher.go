package loader

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The dispatcher of libxdp is an XDP program that calls up to ten others, which replace
// its functions prog0 … prog9. Each change replaces the dispatcher in one step by a new one,
// with the programs that stay and the new one. Every tool that changes it follows this protocol:
// https://github.com/xdp-project/xdp-tools/blob/main/lib/libxdp/protocol.org

const (
	dispatcherName = "xdp_dispatcher"
	dispatcherPins = bpffs + "/xdp" // also the file that is locked

	dispatcherMagic    = 236
	dispatcherVersion  = 2  // 3 can also be bound to a device
	dispatcherSlots    = 10 // programs of a dispatcher
	dispatcherUnfilled = 31 // what a function returns that no program replaces

	defaultPriority = 50
)

// dispatcherConfig is the content of a dispatcher's only map.
type dispatcherConfig struct {
	Magic, Version, Programs, Frags uint8

	Next       [dispatcherSlots]uint32 // bits of the actions after which the next program runs
	Priorities [dispatcherSlots]uint32 // the order of the programs
	Flags      [dispatcherSlots]uint32 // with which they were loaded
}

// encode returns the content of the map.
func (c *dispatcherConfig) encode() []byte {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.NativeEndian, c)
	if c.Version > 2 {
		b.Write(make([]byte, 4)) // not bound to a device
	}
	return b.Bytes()
}

// parseDispatcher parses the content of a dispatcher's map.
func parseDispatcher(text []byte) (c dispatcherConfig, err error) {
	size := binary.Size(c)
	switch {
	case len(text) < 2 || text[0] != dispatcherMagic:
		return c, fmt.Errorf("%w: the dispatcher there is of version 1, libxdp's before 1.3: unload its programs first", ErrForeign)
	case text[1] != 2 && text[1] != 3:
		return c, fmt.Errorf("%w: the dispatcher there is of version %d, which weir does not know", ErrForeign, text[1])
	case len(text) < size, text[1] > 2 && len(text) <= size:
		return c, fmt.Errorf("%w: the dispatcher there has a configuration of %d bytes", ErrForeign, len(text))
	case text[1] > 2 && text[size] != 0:
		return c, fmt.Errorf("%w: the dispatcher there is bound to a device", ErrForeign)
	}
	if _, err = binary.Decode(text[:size], binary.NativeEndian, &c); err != nil {
		return c, err
	}
	if c.Programs > dispatcherSlots {
		return c, fmt.Errorf("%w: the dispatcher there has %d programs", ErrForeign, c.Programs)
	}
	return c, nil
}

// member is one of a dispatcher's programs. That of weir may be yet to be loaded.
type member struct {
	prog                  *ebpf.Program
	id                    uint32
	name, tag             string
	next, priority, flags uint32
	maps                  []ebpf.MapID
}

// uses reports whether the program uses a map.
func (m member) uses(id ebpf.MapID) bool { return slices.Contains(m.maps, id) }

// sortMembers sorts programs by the order in which they are to run.
func sortMembers(all []member) {
	slices.SortStableFunc(all, func(a, b member) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), strings.Compare(a.name, b.name))
	})
}

// dispatcher is a dispatcher with its programs.
type dispatcher struct {
	prog    *ebpf.Program
	dir     string // of its pins
	version uint8
	mode    uint32
	members []member
}

func dispatcherDir(index int, id uint32) string {
	return fmt.Sprintf("%s/dispatch-%d-%d", dispatcherPins, index, id)
}

// Close releases it. It stays attached.
func (d *dispatcher) Close() {
	d.prog.Close()
	for _, m := range d.members {
		if m.prog != nil {
			m.prog.Close()
		}
	}
}

// openMember opens the program that is pinned for a place in a dispatcher.
func openMember(dir string, n int) (m member, err error) {
	if m.prog, err = ebpf.LoadPinnedProgram(fmt.Sprintf("%s/prog%d-prog", dir, n), nil); err != nil {
		return m, err
	}
	info, err := m.prog.Info()
	if err != nil {
		m.prog.Close()
		return m, err
	}
	id, _ := info.ID()
	m.id, m.name, m.tag = uint32(id), info.Name, info.Tag
	m.maps, _ = info.MapIDs()
	return m, nil
}

// openDispatcher opens the dispatcher of an interface, nil where no program is. It fails
// with ErrForeign where another program is.
func openDispatcher(i *netlink.LinkAttrs) (_ *dispatcher, err error) {
	if i.Xdp == nil || !i.Xdp.Attached {
		return nil, nil
	}
	id := i.Xdp.ProgId
	if id == 0 {
		return nil, fmt.Errorf("%w: programs in several modes", ErrForeign)
	}
	d := &dispatcher{dir: dispatcherDir(i.Index, id), mode: i.Xdp.AttachMode}
	if d.prog, err = ebpf.NewProgramFromID(ebpf.ProgramID(id)); err != nil {
		return nil, fmt.Errorf("open the dispatcher, which takes CAP_SYS_ADMIN: %w", err)
	}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	config, err := readDispatcher(d.prog)
	if err != nil {
		return nil, err
	}
	d.version = config.Version
	for n := range int(config.Programs) {
		m, err := openMember(d.dir, n)
		if err != nil {
			return nil, fmt.Errorf("open the programs of the dispatcher: %w", err)
		}
		m.next, m.priority, m.flags = config.Next[n], config.Priorities[n], config.Flags[n]
		d.members = append(d.members, m)
	}
	return d, nil
}

// readDispatcher reads the configuration of a dispatcher. It fails with ErrForeign where
// the program is none.
func readDispatcher(p *ebpf.Program) (c dispatcherConfig, err error) {
	info, err := p.Info()
	if err != nil {
		return c, err
	}
	maps, _ := info.MapIDs()
	if info.Name != dispatcherName || len(maps) != 1 {
		id, _ := info.ID()
		return c, fmt.Errorf("%w: %s, which is not libxdp's dispatcher, so that `attach: dispatcher` cannot join it: stop its owner first",
			ErrForeign, Neighbour{ID: uint32(id), Name: info.Name})
	}
	m, err := ebpf.NewMapFromID(maps[0])
	if err != nil {
		return c, fmt.Errorf("open the configuration of the dispatcher: %w", err)
	}
	defer m.Close()
	text, err := m.LookupBytes(uint32(0))
	if err != nil {
		return c, fmt.Errorf("read the configuration of the dispatcher: %w", err)
	}
	return parseDispatcher(text)
}

// xdpFunction is the type of a dispatcher's functions.
var xdpFunction = &btf.FuncProto{
	Return: &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed},
	Params: []btf.FuncParam{{Name: "ctx", Type: &btf.Pointer{Target: &btf.Struct{Name: "xdp_md"}}}},
}

// function begins a function of a program.
func function(name string, body ...asm.Instruction) asm.Instructions {
	body[0] = btf.WithFuncMetadata(body[0].WithSymbol(name), &btf.Func{Name: name, Type: xdpFunction, Linkage: btf.GlobalFunc})
	return body
}

// dispatcherSpec returns a dispatcher for programs in their order.
func dispatcherSpec(version uint8, members []member) (config *ebpf.MapSpec, spec *ebpf.ProgramSpec) {
	c := dispatcherConfig{Magic: dispatcherMagic, Version: version, Programs: uint8(len(members))}
	frags := len(members) > 0
	for n, m := range members {
		c.Next[n], c.Priorities[n], c.Flags[n] = m.next|1<<dispatcherUnfilled, m.priority, m.flags
		frags = frags && m.flags&unix.BPF_F_XDP_HAS_FRAGS != 0
	}
	spec = &ebpf.ProgramSpec{Name: dispatcherName, Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "Dual BSD/GPL"}
	if frags {
		c.Frags, spec.Flags = 1, unix.BPF_F_XDP_HAS_FRAGS
	}
	text := c.encode()
	config = &ebpf.MapSpec{
		Name: "xdp_disp.rodata", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(text)), MaxEntries: 1,
		Flags: unix.BPF_F_RDONLY_PROG, Contents: []ebpf.MapKV{{Key: uint32(0), Value: text}},
	}

	main := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMapValue(asm.R0, 0, 0).WithReference(config.Name), // bpftool and libxdp look for it
	}
	for n := range members {
		main = append(main,
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Call.Label(fmt.Sprintf("prog%d", n)),
			asm.Mov.Imm32(asm.R1, 1),
			asm.LSh.Reg32(asm.R1, asm.R0),
			asm.And.Imm32(asm.R1, int32(c.Next[n])),
			asm.JEq.Imm32(asm.R1, 0, "out"),
		)
	}
	main = append(main, asm.Mov.Imm(asm.R0, ActionPass), asm.Return().WithSymbol("out"))
	spec.Instructions = function(dispatcherName, main...)
	for n := range members {
		spec.Instructions = append(spec.Instructions, function(fmt.Sprintf("prog%d", n),
			// It changes nothing, but Linux lets only such a function be replaced by one
			// that changes packets.
			asm.Mov.Imm(asm.R2, 0),
			asm.FnXdpAdjustTail.Call(),
			asm.Mov.Imm(asm.R0, dispatcherUnfilled),
			asm.Return(),
		)...)
	}
	return config, spec
}

// newDispatcher loads a dispatcher with programs, and pins it for an interface. load
// loads a member that is not yet.
func newDispatcher(index int, version uint8, members []member, load func(into *ebpf.Program, function string) (*ebpf.Program, error)) (_ *dispatcher, err error) {
	if len(members) > dispatcherSlots {
		return nil, fmt.Errorf("%w: the dispatcher has %d programs already, the most that it can have", ErrForeign, dispatcherSlots)
	}
	config, spec := dispatcherSpec(version, members)
	m, err := ebpf.NewMap(config)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	if err := m.Freeze(); err != nil {
		return nil, err
	}
	if err := spec.Instructions.AssociateMap(config.Name, m); err != nil {
		return nil, err
	}
	prog, err := ebpf.NewProgram(spec)
	if err != nil {
		return nil, fmt.Errorf("load a dispatcher: %w", err)
	}
	d := &dispatcher{prog: prog, version: version}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.unpin())
			d.Close()
		}
	}()
	info, err := prog.Info()
	if err != nil {
		return nil, err
	}
	id, _ := info.ID()
	d.dir = dispatcherDir(index, uint32(id))
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		return nil, err
	}
	for n, m := range members {
		if err := d.join(n, m, load); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// join has a program replace one of the dispatcher's functions, and pins it.
func (d *dispatcher) join(n int, m member, load func(*ebpf.Program, string) (*ebpf.Program, error)) (err error) {
	name := fmt.Sprintf("prog%d", n)
	if m.prog == nil {
		if m.prog, err = load(d.prog, name); err != nil {
			return fmt.Errorf("%w: this kernel refuses `attach: dispatcher`, namely %s as a program that replaces a function (freplace) "+
				"and jumps to others, which takes Linux 6.2 or 6.1.4: %w", ErrUnsupported, m.name, err)
		}
	} else if m.prog, err = m.prog.Clone(); err != nil {
		return err
	}
	d.members = append(d.members, m)
	l, err := link.AttachFreplace(d.prog, name, m.prog)
	if err != nil {
		return fmt.Errorf("make %s one of a dispatcher's programs: %w", m.name, err)
	}
	defer l.Close()
	return errors.Join(l.Pin(filepath.Join(d.dir, name+"-link")), m.prog.Pin(filepath.Join(d.dir, name+"-prog")))
}

// unpin removes the pins. What is attached stays.
func (d *dispatcher) unpin() error {
	if d.dir == "" {
		return nil
	}
	if err := os.RemoveAll(d.dir); err != nil {
		return fmt.Errorf("remove the pins of a dispatcher: %w", err)
	}
	return nil
}

// lockDispatchers locks all dispatchers, as libxdp does, until unlock is called.
func lockDispatchers() (unlock func(), err error) {
	if err := os.Mkdir(dispatcherPins, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make libxdp's directory of pins: %w", err)
	}
	f, err := os.Open(dispatcherPins)
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", dispatcherPins, err)
	}
	return func() { f.Close() }, nil
}

// errMode says that a dispatcher is attached in another mode.
func errMode(mode uint32) error {
	if mode == nl.XDP_ATTACHED_SKB {
		return fmt.Errorf("%w: the dispatcher there is attached in generic mode: use `xdp: generic` (--xdp generic)", ErrForeign)
	}
	return fmt.Errorf("%w: the dispatcher there is attached in native mode: use that, too", ErrForeign)
}

// dispatcherChange is a change of the programs of an interface's dispatcher.
type dispatcherChange struct {
	index int // of the interface, in the present network namespace
	hook  Hook

	// wanted returns the programs that are to run, given those that do. If there are none,
	// there is to be no dispatcher.
	wanted func(present []member) []member

	// load loads the program of weir, to replace a function.
	load func(into *ebpf.Program, function string) (*ebpf.Program, error)

	// explain says why a dispatcher cannot be attached.
	explain func(*netlink.LinkAttrs, *ebpf.Program, error) error
}

// make makes the change. It leaves everything as it is if it fails.
func (c dispatcherChange) make() error {
	unlock, err := lockDispatchers()
	if err != nil {
		return err
	}
	defer unlock()
	sweepDispatchers()
	for tries := 0; ; tries++ {
		again, err := c.try()
		if !again || tries == 10 {
			return err
		}
	}
}

// try is make; again says that another process has changed the dispatcher meanwhile.
func (c dispatcherChange) try() (again bool, err error) {
	l, err := netlink.LinkByIndex(c.index)
	if _, ok := errors.AsType[netlink.LinkNotFoundError](err); ok {
		return false, ErrNoInterface
	}
	if err != nil {
		return false, fmt.Errorf("find interface: %w", err)
	}
	old, err := openDispatcher(l.Attrs())
	if err != nil {
		return errors.Is(err, fs.ErrNotExist), err // its pins go when it is replaced
	}
	var present []member
	fd, expected := -1, 0
	flags, version := uint32(unix.XDP_FLAGS_UPDATE_IF_NOEXIST), uint8(dispatcherVersion)
	if old != nil {
		defer old.Close()
		if (old.mode == nl.XDP_ATTACHED_SKB) != (c.hook == DispatcherGeneric) {
			return false, errMode(old.mode)
		}
		present = slices.DeleteFunc(slices.Clone(old.members), member.dead)
		flags, expected, version = unix.XDP_FLAGS_REPLACE, old.prog.FD(), old.version
	}
	wanted := c.wanted(present)
	if len(wanted) == 0 && old == nil {
		return false, nil
	}
	sortMembers(wanted)
	var next *dispatcher
	if len(wanted) > 0 {
		if next, err = newDispatcher(c.index, version, wanted, c.load); err != nil {
			return false, err
		}
		defer next.Close()
		fd = next.prog.FD()
	}
	err = setXDP(c.index, fd, flags|uint32(c.hook.flag()), expected)
	if err == nil {
		if old != nil {
			_ = old.unpin() // if it fails, it is left in memory
		}
		return false, nil
	}
	again = errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY)
	if next != nil {
		_ = next.unpin()
		err = c.explain(l.Attrs(), next.prog, err)
	}
	return again, err
}

// dead reports whether a program is a stub of weir's whose attachment is gone.
func (m member) dead() bool {
	if m.name != stubName || len(m.maps) != 1 {
		return false
	}
	programs, err := ebpf.NewMapFromID(m.maps[0])
	if err != nil {
		return false
	}
	defer programs.Close()
	var id uint32
	return programs.Type() == ebpf.ProgramArray && errors.Is(programs.Lookup(uint32(0), &id), ebpf.ErrKeyNotExist)
}

// sweepDispatchers removes the pins of dispatchers that have only stubs of weir's whose
// attachments are gone, as where the interface was deleted.
func sweepDispatchers() {
	dirs, _ := filepath.Glob(dispatcherPins + "/dispatch-*")
	for _, dir := range dirs {
		dead := 0
		for n := range dispatcherSlots {
			m, err := openMember(dir, n)
			if err != nil {
				if !errors.Is(err, fs.ErrNotExist) {
					dead = 0 // it may be another's, which runs
				}
				break
			}
			m.prog.Close()
			if !m.dead() {
				dead = 0
				break
			}
			dead++
		}
		if dead > 0 {
			os.RemoveAll(dir) // if it fails, it is left in memory
		}
	}
}
