// Package dispatcher changes the programs of libxdp's dispatcher on an interface.
package dispatcher

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
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir/loader/bpffs"
	"weir/loader/kernelerr"
	"weir/loader/netif"
)

// The dispatcher of libxdp is an XDP program that calls up to ten others, which replace
// its functions prog0 … prog9. Each change replaces the dispatcher in one step by a new one,
// with the programs that stay and the new one. Every tool that changes it follows this protocol:
// https://github.com/xdp-project/xdp-tools/blob/main/lib/libxdp/protocol.org

const (
	// Name is the name of the dispatcher's program.
	Name = "xdp_dispatcher"
	// StubName is the name of weir's program in a dispatcher.
	StubName = "weir"
	// DefaultPriority is the priority of a program that asks for none.
	DefaultPriority = 50

	root = bpffs.Mount + "/xdp" // of the pins; also the file that is locked

	magic          = 236
	defaultVersion = 2  // 3 can also be bound to a device
	slots          = 10 // programs of a dispatcher
	unfilled       = 31 // what a function returns that no program replaces

	pass = 2 // XDP_PASS
)

// config is the content of a dispatcher's only map.
type config struct {
	Magic, Version, Programs, Frags uint8

	Next       [slots]uint32 // bits of the actions after which the next program runs
	Priorities [slots]uint32 // the order of the programs
	Flags      [slots]uint32 // with which they were loaded
}

// encode returns the content of the map.
func (c *config) encode() []byte {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.NativeEndian, c)
	if c.Version > 2 {
		b.Write(make([]byte, 4)) // not bound to a device
	}
	return b.Bytes()
}

// parse parses the content of a dispatcher's map.
func parse(text []byte) (c config, err error) {
	size := binary.Size(c)
	switch {
	case len(text) < 2 || text[0] != magic:
		return c, fmt.Errorf("%w: the dispatcher there is of version 1, libxdp's before 1.3: unload its programs first", kernelerr.ErrForeign)
	case text[1] != 2 && text[1] != 3:
		return c, fmt.Errorf("%w: the dispatcher there is of version %d, which weir does not know", kernelerr.ErrForeign, text[1])
	case len(text) < size, text[1] > 2 && len(text) <= size:
		return c, fmt.Errorf("%w: the dispatcher there has a configuration of %d bytes", kernelerr.ErrForeign, len(text))
	case text[1] > 2 && text[size] != 0:
		return c, fmt.Errorf("%w: the dispatcher there is bound to a device", kernelerr.ErrForeign)
	}
	if _, err = binary.Decode(text[:size], binary.NativeEndian, &c); err != nil {
		return c, err
	}
	if c.Programs > slots {
		return c, fmt.Errorf("%w: the dispatcher there has %d programs", kernelerr.ErrForeign, c.Programs)
	}
	return c, nil
}

// Member is one of a dispatcher's programs.
type Member struct {
	ID        uint32
	Name, Tag string
	Next      uint32 // bits of the actions after which the next program runs
	Priority  uint32 // the order of the programs
	Flags     uint32 // with which it was loaded

	prog *ebpf.Program // nil: it is yet to be loaded
	maps []ebpf.MapID
}

// Uses reports whether the program uses a map.
func (m Member) Uses(id ebpf.MapID) bool { return slices.Contains(m.maps, id) }

// sortMembers sorts programs by the order in which they are to run.
func sortMembers(all []Member) {
	slices.SortStableFunc(all, func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), strings.Compare(a.Name, b.Name))
	})
}

// dispatcher is a dispatcher with its programs.
type dispatcher struct {
	prog    *ebpf.Program
	dir     string // of its pins
	version uint8
	mode    uint32
	members []Member
}

func dirOf(index int, id uint32) string {
	return fmt.Sprintf("%s/dispatch-%d-%d", root, index, id)
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

// open opens the program that is pinned for a place in a dispatcher.
func open(dir string, n int) (m Member, err error) {
	if m.prog, err = ebpf.LoadPinnedProgram(fmt.Sprintf("%s/prog%d-prog", dir, n), nil); err != nil {
		return m, err
	}
	info, err := m.prog.Info()
	if err != nil {
		m.prog.Close()
		return m, err
	}
	id, _ := info.ID()
	m.ID, m.Name, m.Tag = uint32(id), info.Name, info.Tag
	m.maps, _ = info.MapIDs()
	return m, nil
}

// Members returns the programs of an interface's dispatcher, by the dispatcher's ID, in their
// order. Where it fails, it also returns those before.
func Members(index int, id uint32) ([]Member, error) { return membersIn(dirOf(index, id)) }

// membersIn returns the programs that are pinned in the directory of a dispatcher.
func membersIn(dir string) (all []Member, err error) {
	for n := range slots {
		m, err := open(dir, n)
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return all, fmt.Errorf("open the programs of the dispatcher: %w", kernelerr.Permission(err))
		}
		m.prog.Close()
		m.prog = nil
		all = append(all, m)
	}
	return all, nil
}

// Has reports whether a dispatcher has a program at a place.
func Has(index int, id uint32, place int) bool {
	return bpffs.Exists(fmt.Sprintf("%s/prog%d-link", dirOf(index, id), place))
}

// openDispatcher opens the dispatcher of an interface, nil where no program is. It fails
// with kernelerr.ErrForeign where another program is.
func openDispatcher(i *netif.Iface) (_ *dispatcher, err error) {
	if i.Xdp == nil || !i.Xdp.Attached {
		return nil, nil
	}
	id := i.Xdp.ProgId
	if id == 0 {
		return nil, fmt.Errorf("%w: programs in several modes", kernelerr.ErrForeign)
	}
	d := &dispatcher{dir: dirOf(i.Index, id), mode: i.Xdp.AttachMode}
	if d.prog, err = ebpf.NewProgramFromID(ebpf.ProgramID(id)); err != nil {
		return nil, fmt.Errorf("open the dispatcher, which takes CAP_SYS_ADMIN: %w", err)
	}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	c, err := readDispatcher(d.prog)
	if err != nil {
		return nil, err
	}
	d.version = c.Version
	for n := range int(c.Programs) {
		m, err := open(d.dir, n)
		if err != nil {
			return nil, fmt.Errorf("open the programs of the dispatcher: %w", err)
		}
		m.Next, m.Priority, m.Flags = c.Next[n], c.Priorities[n], c.Flags[n]
		d.members = append(d.members, m)
	}
	return d, nil
}

// readDispatcher reads the configuration of a dispatcher. It fails with kernelerr.ErrForeign where
// the program is none.
func readDispatcher(p *ebpf.Program) (c config, err error) {
	info, err := p.Info()
	if err != nil {
		return c, err
	}
	maps, _ := info.MapIDs()
	if info.Name != Name || len(maps) != 1 {
		id, _ := info.ID()
		text := fmt.Sprintf("id %d", id)
		if info.Name != "" {
			text = fmt.Sprintf("%s (%s)", info.Name, text)
		}
		return c, fmt.Errorf("%w: %s, which is not libxdp's dispatcher, so that `attach: dispatcher` cannot join it: stop its owner first",
			kernelerr.ErrForeign, text)
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
	return parse(text)
}

// xdpFunction is the type of a dispatcher's functions.
var xdpFunction = &btf.FuncProto{
	Return: &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed},
	Params: []btf.FuncParam{{Name: "ctx", Type: &btf.Pointer{Target: &btf.Struct{Name: "xdp_md"}}}},
}

// Function begins a function of a program that a dispatcher calls.
func Function(name string, body ...asm.Instruction) asm.Instructions {
	body[0] = btf.WithFuncMetadata(body[0].WithSymbol(name), &btf.Func{Name: name, Type: xdpFunction, Linkage: btf.GlobalFunc})
	return body
}

// specOf returns a dispatcher for programs in their order.
func specOf(version uint8, members []Member) (data *ebpf.MapSpec, spec *ebpf.ProgramSpec) {
	c := config{Magic: magic, Version: version, Programs: uint8(len(members))}
	frags := len(members) > 0
	for n, m := range members {
		c.Next[n], c.Priorities[n], c.Flags[n] = m.Next|1<<unfilled, m.Priority, m.Flags
		frags = frags && m.Flags&unix.BPF_F_XDP_HAS_FRAGS != 0
	}
	spec = &ebpf.ProgramSpec{Name: Name, Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "Dual BSD/GPL"}
	if frags {
		c.Frags, spec.Flags = 1, unix.BPF_F_XDP_HAS_FRAGS
	}
	text := c.encode()
	data = &ebpf.MapSpec{
		Name: "xdp_disp.rodata", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(text)), MaxEntries: 1,
		Flags: unix.BPF_F_RDONLY_PROG, Contents: []ebpf.MapKV{{Key: uint32(0), Value: text}},
	}

	main := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMapValue(asm.R0, 0, 0).WithReference(data.Name), // bpftool and libxdp look for it
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
	main = append(main, asm.Mov.Imm(asm.R0, pass), asm.Return().WithSymbol("out"))
	spec.Instructions = Function(Name, main...)
	for n := range members {
		spec.Instructions = append(spec.Instructions, Function(fmt.Sprintf("prog%d", n),
			// It changes nothing, but Linux lets only such a function be replaced by one
			// that changes packets.
			asm.Mov.Imm(asm.R2, 0),
			asm.FnXdpAdjustTail.Call(),
			asm.Mov.Imm(asm.R0, unfilled),
			asm.Return(),
		)...)
	}
	return data, spec
}

// newDispatcher loads a dispatcher with programs, and pins it for an interface. load
// loads a member that is not yet.
func newDispatcher(index int, version uint8, members []Member, load func(into *ebpf.Program, function string) (*ebpf.Program, error)) (_ *dispatcher, err error) {
	if len(members) > slots {
		return nil, fmt.Errorf("%w: the dispatcher has %d programs already, the most that it can have", kernelerr.ErrForeign, slots)
	}
	data, spec := specOf(version, members)
	m, err := ebpf.NewMap(data)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	if err := m.Freeze(); err != nil {
		return nil, err
	}
	if err := spec.Instructions.AssociateMap(data.Name, m); err != nil {
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
	d.dir = dirOf(index, uint32(id))
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
func (d *dispatcher) join(n int, m Member, load func(*ebpf.Program, string) (*ebpf.Program, error)) (err error) {
	name := fmt.Sprintf("prog%d", n)
	if m.prog == nil {
		if m.prog, err = load(d.prog, name); err != nil {
			return fmt.Errorf("%w: this kernel refuses `attach: dispatcher`, namely %s as a program that replaces a function (freplace) "+
				"and jumps to others, which takes Linux 6.2 or 6.1.4: %w", kernelerr.ErrUnsupported, m.Name, err)
		}
	} else if m.prog, err = m.prog.Clone(); err != nil {
		return err
	}
	d.members = append(d.members, m)
	l, err := link.AttachFreplace(d.prog, name, m.prog)
	if err != nil {
		return fmt.Errorf("make %s one of a dispatcher's programs: %w", m.Name, err)
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
	if err := os.Mkdir(root, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make libxdp's directory of pins: %w", err)
	}
	f, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	if err := bpffs.Lock(f, unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", root, err)
	}
	return func() { f.Close() }, nil
}

// errMode says that a dispatcher is attached in another mode.
func errMode(mode uint32) error {
	if mode == nl.XDP_ATTACHED_SKB {
		return fmt.Errorf("%w: the dispatcher there is attached in generic mode: use `xdp: generic` (--xdp generic)", kernelerr.ErrForeign)
	}
	return fmt.Errorf("%w: the dispatcher there is attached in native mode: use that, too", kernelerr.ErrForeign)
}

// Change is a change of the programs of an interface's dispatcher, in the present network namespace.
type Change struct {
	Netns   uint64 // inode of the namespace
	Index   int    // of the interface
	Generic bool   // the dispatcher is attached in generic mode, otherwise in native mode

	// Wanted returns the programs that are to run, from those that do. If there are none,
	// there is to be no dispatcher.
	Wanted func(present []Member) []Member

	// Load loads the program that Wanted has added, to replace a function.
	Load func(into *ebpf.Program, function string) (*ebpf.Program, error)

	// Explain says why a dispatcher cannot be attached; nil: nothing does.
	Explain func(*netif.Iface, *ebpf.Program, error) error
}

// Make makes the change. It leaves everything as it is if it fails.
func (c Change) Make() error {
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

// try is Make; again says that another process has changed the dispatcher meanwhile.
func (c Change) try() (again bool, err error) {
	i, err := netif.ByIndex(c.Netns, c.Index)
	if err != nil {
		return false, err
	}
	old, err := openDispatcher(i)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist), err // its pins go when it is replaced
	}
	var present []Member
	fd, expected := -1, 0
	flags, version, mode := uint32(unix.XDP_FLAGS_UPDATE_IF_NOEXIST), uint8(defaultVersion), uint32(unix.XDP_FLAGS_DRV_MODE)
	if c.Generic {
		mode = unix.XDP_FLAGS_SKB_MODE
	}
	if old != nil {
		defer old.Close()
		if (old.mode == nl.XDP_ATTACHED_SKB) != c.Generic {
			return false, errMode(old.mode)
		}
		present = slices.DeleteFunc(slices.Clone(old.members), Member.dead)
		flags, expected, version = unix.XDP_FLAGS_REPLACE, old.prog.FD(), old.version
	}
	wanted := c.Wanted(present)
	if len(wanted) == 0 && old == nil {
		return false, nil
	}
	sortMembers(wanted)
	var next *dispatcher
	if len(wanted) > 0 {
		if next, err = newDispatcher(c.Index, version, wanted, c.Load); err != nil {
			return false, err
		}
		defer next.Close()
		fd = next.prog.FD()
	}
	err = netif.SetXDP(c.Index, fd, flags|mode, expected)
	if err == nil {
		if old != nil {
			_ = old.unpin() // if it fails, it is left in memory
		}
		return false, nil
	}
	again = errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY)
	if next != nil {
		_ = next.unpin()
		if c.Explain != nil {
			err = c.Explain(i, next.prog, err)
		}
	}
	return again, err
}

// dead reports whether a program is a stub of weir's whose attachment is gone.
func (m Member) dead() bool {
	if m.Name != StubName || len(m.maps) != 1 {
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
	dirs, _ := filepath.Glob(root + "/dispatch-*")
	for _, dir := range dirs {
		// Where it fails, there may be another's program, which runs.
		all, err := membersIn(dir)
		alive := func(m Member) bool { return !m.dead() }
		if err == nil && len(all) > 0 && !slices.ContainsFunc(all, alive) {
			os.RemoveAll(dir) // if it fails, it is left in memory
		}
	}
}
