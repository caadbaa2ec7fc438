package hooks

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir/loader/bpffs"
	"weir/loader/kernelerr"
	"weir/loader/netif"
)

// forceClsact names an environment variable that, if it is not empty, makes new programs
// of TC filters even where the kernel has tcx: for tests.
const forceClsact = "WEIR_TEST_CLSACT"

// How the filter of weir is found among others of an interface. It is the first to run.
const (
	clsactHandle   = 0x77656972
	clsactPriority = 1
)

// clsact is a filter with direct action of the qdisc clsact, for kernels whose TC has no
// tcx. The kernel replaces its program in one step, but has no object for
// the attachment that could be pinned, so a map stands for it.
type clsact struct {
	root   string       // of pins, where it is to be attached; "" where it is already
	target netif.Target // as it was named when it was attached
	record *ebpf.Map
	clsactRecord
}

// clsactRecord is the content of the map.
type clsactRecord struct {
	Netns uint64 // inode of the network namespace
	Index uint32 // of the interface
	Made  uint32 // 1: weir has added the qdisc
}

func newClsact(root string, t netif.Target, i *netif.Iface) (*clsact, error) {
	c := &clsact{root: root, target: t, clsactRecord: clsactRecord{Netns: i.Inode, Index: uint32(i.Index)}}
	// Its last filter may have been deleted by somebody who left the qdisc.
	c.Made = madeBy(DirOf(root, i, t.Out), c.Index)
	var err error
	c.record, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: pinClsact, Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1,
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: c.clsactRecord}},
	})
	if err != nil {
		return nil, kernelerr.Permission(err)
	}
	return c, nil
}

// loadClsact opens the pinned filter of an attachment. It fails with fs.ErrNotExist where
// there is none.
func loadClsact(dir string, t netif.Target) (Hold, error) {
	record, err := ebpf.LoadPinnedMap(filepath.Join(dir, pinClsact), nil)
	if err != nil {
		return nil, err
	}
	c := &clsact{target: t, record: record}
	if err := record.Lookup(uint32(0), &c.clsactRecord); err != nil {
		record.Close()
		return nil, err
	}
	return c, nil
}

func (c *clsact) Object() bpffs.Object { return bpffs.Map{Map: c.record} }
func (c *clsact) Close() error         { return c.record.Close() }
func (c *clsact) PinName() string      { return pinClsact }

func (c *clsact) ID() (uint32, error) {
	info, err := c.record.Info()
	if err != nil {
		return 0, err
	}
	id, _ := info.ID()
	return uint32(id), nil
}

func (c *clsact) setTarget(t netif.Target) { c.target = t }

// IsOn is true for equal indexes: State looks in the right namespace.
func (c *clsact) IsOn(*netif.Iface) bool { return true }

// in calls fn in the network namespace of the interface.
func (c *clsact) in(fn func() error) error { return c.target.InNamespace(c.Netns, fn) }

// inAny is in where it is no error that the namespace is gone.
func (c *clsact) inAny(fn func() error) error { return netif.UnlessNoNetns(c.in(fn)) }

func (c *clsact) link() netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: int(c.Index)}}
}

// parent is where the filters of a direction are.
func parent(out bool) uint32 {
	if out {
		return netlink.HANDLE_MIN_EGRESS
	}
	return netlink.HANDLE_MIN_INGRESS
}

func (c *clsact) filter(fd int) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: int(c.Index), Parent: parent(c.target.Out),
			Handle: clsactHandle, Priority: clsactPriority, Protocol: unix.ETH_P_ALL,
		},
		Fd: fd, Name: "weir", DirectAction: true,
	}
}

// filters returns the interface's filters of a direction.
func (c *clsact) filters(out bool) (all []netlink.Filter, err error) {
	all, err = netlink.FilterList(c.link(), parent(out))
	for tries := 0; errors.Is(err, netlink.ErrDumpInterrupted) && tries < 10; tries++ {
		all, err = netlink.FilterList(c.link(), parent(out))
	}
	if err != nil {
		return nil, fmt.Errorf("list tc filters: %w", err)
	}
	return all, nil
}

// qdisc returns the interface's qdisc at which filters of clsact are, or nil.
func (c *clsact) qdisc() (netlink.Qdisc, error) {
	all, err := netlink.QdiscList(c.link())
	if err != nil {
		return nil, fmt.Errorf("list qdiscs: %w", err)
	}
	for _, q := range all {
		if a := q.Attrs(); a.Parent == netlink.HANDLE_CLSACT && a.LinkIndex == int(c.Index) {
			return q, nil
		}
	}
	return nil, nil
}

// own returns the filter of weir, or nil.
func (c *clsact) own() (*netlink.BpfFilter, error) {
	all, err := c.filters(c.target.Out)
	for _, f := range all {
		if b, ok := f.(*netlink.BpfFilter); ok && b.Handle == clsactHandle && b.Priority == clsactPriority {
			return b, err
		}
	}
	return nil, err
}

// state returns the program of the filter.
func (c *clsact) State() (program uint32, index int, err error) {
	err = c.inAny(func() error {
		f, err := c.own()
		if f != nil {
			program, index = uint32(f.Id), int(c.Index)
		}
		return err
	})
	return program, index, err
}

// order returns the programs of the filters in the order in which packets meet them.
func (c *clsact) Order() (programs []Neighbour, err error) {
	err = c.inAny(func() error {
		all, err := c.filters(c.target.Out)
		for _, f := range all {
			switch b, ok := f.(*netlink.BpfFilter); {
			case !ok || b.Id == 0: // the dump also has a line for each preference
			case b.Handle == clsactHandle && b.Priority == clsactPriority:
				programs = append(programs, Neighbour{ID: uint32(b.Id), Weir: true})
			default:
				programs = append(programs, neighbour(uint32(b.Id)))
			}
		}
		return err
	})
	return programs, err
}

func (c *clsact) Start(p *ebpf.Program, dir string) error {
	return c.in(func() error {
		if err := c.addQdisc(siblingOf(dir)); err != nil {
			return err
		}
		err := netlink.FilterAdd(c.filter(p.FD()))
		if err != nil {
			_ = c.removeQdisc() // else the next attempt takes it for another's
		}
		switch {
		case errors.Is(err, unix.EEXIST):
			return c.explainRival()
		case errors.Is(err, unix.ENODEV):
			return fmt.Errorf("%w: %w", netif.ErrNoInterface, err)
		case err != nil:
			return fmt.Errorf("add tc filter%s: %w", c.rival(), kernelerr.Permission(err))
		}
		return nil
	})
}

// explainRival says whose filter has the handle of weir's.
func (c *clsact) explainRival() error {
	if f, err := c.own(); err == nil && f != nil {
		if holders := holdersOf(uint32(f.Id)); len(holders) > 0 {
			return fmt.Errorf("%w: the tc filter of another daemon of weir, of %s: stop that first", kernelerr.ErrForeign, strings.Join(holders, ", "))
		}
		if pins := pinnedFor(uint32(f.Id), c.root); pins != "" {
			return fmt.Errorf("%w: the tc filter of weir whose pins are in %s: filter with `pins: %s` (--pins)", kernelerr.ErrForeign, pins, pins)
		}
	}
	return fmt.Errorf("%w: a tc filter of weir (pref %d, handle %#x) whose pins are lost: start weir once with CAP_SYS_ADMIN, "+
		"as with `sudo weir run`, to take it over without a gap", kernelerr.ErrForeign, clsactPriority, clsactHandle)
}

// rival names what has the filter's place, or "".
func (c *clsact) rival() string {
	all, _ := c.filters(c.target.Out)
	for _, f := range all {
		if a := f.Attrs(); a.Priority == clsactPriority && (f.Type() != "bpf" || a.Protocol != unix.ETH_P_ALL) {
			return fmt.Sprintf(" in front of others: one of kind %s has the first place, pref %d: give it another", f.Type(), clsactPriority)
		}
	}
	return ""
}

// addQdisc adds the qdisc where there is none.
func (c *clsact) addQdisc(sibling string) error {
	q, err := c.qdisc()
	if err != nil {
		return err
	}
	switch {
	case q == nil:
		c.Made = 1
	case q.Type() != "clsact" && c.target.Out:
		return fmt.Errorf("%w: %s has a qdisc of kind %s, without filters of outgoing packets: "+
			"`%s qdisc replace dev %s clsact`", kernelerr.ErrForeign, c.target.Iface, q.Type(), c.target.Tool("tc"), c.target.Iface)
	case c.Made == 0:
		c.Made = madeBy(sibling, c.Index)
	}
	// First, so that it is known whatever happens.
	if err := c.record.Put(uint32(0), c.clsactRecord); err != nil {
		return kernelerr.Permission(err)
	}
	if q != nil {
		return nil
	}
	err = netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: int(c.Index), Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}})
	switch {
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w: %w", netif.ErrNoInterface, err)
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: this kernel has neither tcx (Linux 6.6) nor the module sch_ingress: %w", kernelerr.ErrUnsupported, err)
	case err != nil:
		return fmt.Errorf("add qdisc clsact: %w", kernelerr.Permission(err))
	}
	return nil
}

// madeBy returns 1 where the pins of an interface in a direction say that weir has added
// the qdisc.
func madeBy(path string, index uint32) uint32 {
	m, err := ebpf.LoadPinnedMap(filepath.Join(path, pinClsact), nil)
	if err != nil {
		return 0
	}
	defer m.Close()
	var r clsactRecord
	if m.Lookup(uint32(0), &r) != nil || r.Index != index {
		return 0
	}
	return r.Made
}

// update replaces the program, unless the filter is gone: to add it may take a qdisc, and
// one of another kind has but one direction.
func (c *clsact) Update(p *ebpf.Program) error {
	return c.inAny(func() error {
		f, err := c.own()
		if err != nil || f == nil {
			return err
		}
		err = netlink.FilterReplace(c.filter(p.FD()))
		if err != nil && !errors.Is(err, unix.ENODEV) { // the interface has just gone
			return fmt.Errorf("replace tc filter: %w", err)
		}
		return nil
	})
}

// detach also removes the qdisc, if weir has added it and no other filters are there. It
// fails with netif.ErrNoNetns where the namespace of the interface is gone, or out of sight.
func (c *clsact) Detach() error {
	return c.in(func() error {
		f, err := c.own()
		if err != nil {
			return err
		}
		if f != nil {
			if err := netlink.FilterDel(c.filter(-1)); err != nil && !isGone(err) {
				return fmt.Errorf("remove tc filter: %w", err)
			}
		}
		return c.removeQdisc()
	})
}

// removeQdisc removes the qdisc if weir has added it and it has no filters.
func (c *clsact) removeQdisc() error {
	q, err := c.qdisc()
	if err != nil || q == nil || c.Made == 0 {
		return err
	}
	for _, out := range []bool{false, true} {
		if left, err := c.filters(out); err != nil || len(left) > 0 {
			return err
		}
	}
	if err := netlink.QdiscDel(q); err != nil && !isGone(err) {
		return fmt.Errorf("remove qdisc clsact: %w", err)
	}
	return nil
}

// isGone reports whether an error says that the interface, or the object to remove from it, is
// gone.
func isGone(err error) bool { return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) }

// clsactForced reports whether filters are to be used where there is tcx.
func clsactForced() bool { return os.Getenv(forceClsact) != "" }
