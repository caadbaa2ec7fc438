package loader

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir/bpf"
	"weir/loader/hooks"
	"weir/loader/kernelerr"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/wait"
)

// TestClsact does what TestAttach does, with the filters that kernels before tcx have, in
// both directions: found again, replaced, detached, with the qdisc.
func TestClsact(t *testing.T) {
	lab.Root(t)
	t.Setenv("WEIR_TEST_CLSACT", "1")
	l, pins := lab.New(t), testPins(t)
	g := newTestGeneration(t, Config{TC: true})
	out := newTestGeneration(t, Config{Out: true})
	to := target(l.B)
	a := attach(t, pins, to, hooks.TC, g)
	to.Out = true
	b := attach(t, pins, to, hooks.TC, out)
	if n := filterIDs(t, l.B); len(n) != 2 || n[0] != a.ProgramID() || n[1] != b.ProgramID() || a.ProgramID() == 0 {
		t.Fatalf("filters of programs %v, want %d and %d", n, a.ProgramID(), b.ProgramID())
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}

	// As the next process finds it.
	found, err := pins.Open(target(l.B))
	if err != nil || found.Severed() || found.Hook() != hooks.TC {
		t.Fatalf("severed %t, %v", found.Severed(), err)
	}
	defer found.Close()
	was := found.ProgramID()
	next := attach(t, pins, target(l.B), hooks.TC, g)
	if n := filterIDs(t, l.B); len(n) != 2 || n[0] == was || n[0] != next.ProgramID() {
		t.Errorf("replaced %d by %v", was, n)
	}
	if !found.Replaced() || next.Replaced() {
		t.Error("a process does not see that another has replaced the program")
	}
	p, err := g.Load(next.Stats())
	if err == nil {
		err = next.Replace(p)
	}
	if n := filterIDs(t, l.B); err != nil || len(n) != 2 || n[0] != next.ProgramID() {
		t.Errorf("replaced by %v, %v", n, err)
	}
	detach(t, next) // and the qdisc stays for the other direction
	if n := filterIDs(t, l.B); len(n) != 1 || n[0] != b.ProgramID() {
		t.Errorf("left: %v, want %d", n, b.ProgramID())
	}
	detach(t, b)
	if q := qdiscs(t, l.B); len(q) != 0 {
		t.Errorf("left: %v", q)
	}
}

// The qdisc and the filters of others stay, and theirs are not taken for weir's.
func TestClsactOfOthers(t *testing.T) {
	lab.Root(t)
	t.Setenv("WEIR_TEST_CLSACT", "1")
	l, pins := lab.New(t), testPins(t)
	pass := passTC(t)
	theirs := func(priority uint16) *netlink.BpfFilter {
		return neighbourFilter(t, l.B, pass, netlink.HANDLE_MIN_INGRESS, priority)
	}
	a := attach(t, pins, target(l.B), hooks.TC, newTestGeneration(t, Config{TC: true}))
	l.B.In(t, func() {
		if err := netlink.FilterAdd(theirs(1)); err != nil {
			t.Fatal(err)
		}
	})
	if all, err := a.Order(); err != nil || len(all) != 2 || all[0].Weir == all[1].Weir {
		t.Errorf("programs %v, %v", all, err)
	}
	detach(t, a)
	if n, q := filterIDs(t, l.B), qdiscs(t, l.B); len(n) != 1 || len(q) != 1 {
		t.Errorf("left of others: filters %v, qdiscs %v", n, q)
	}

	// Their qdisc is used, and stays without a filter.
	a = attach(t, pins, target(l.B), hooks.TC, newTestGeneration(t, Config{TC: true}))
	l.B.In(t, func() {
		if err := netlink.FilterDel(theirs(1)); err != nil {
			t.Fatal(err)
		}
	})
	other := testPins(t)
	_, err := attachLoaded(other, target(l.B), hooks.TC, nil, newTestGeneration(t, Config{TC: true}).Load)
	wantError(t, err, kernelerr.ErrForeign, "another daemon", "stop that first")
	if list, err := other.List(); err != nil || len(list) != 0 {
		t.Errorf("%d attachments are left of a failure, %v", len(list), err)
	}
	detach(t, a)
	if n, q := filterIDs(t, l.B), qdiscs(t, l.B); len(n) != 0 || len(q) != 1 {
		t.Errorf("left of others: filters %v, qdiscs %v", n, q)
	}
}

// A filter that somebody has deleted, or that went with its interface, is severed, and the
// program is put back on the next interface of that name.
func TestClsactSevered(t *testing.T) {
	lab.Root(t)
	t.Setenv("WEIR_TEST_CLSACT", "1")
	l, pins := lab.New(t), testPins(t)
	a := attach(t, pins, target(l.B), hooks.TC, blockAllTC(t))
	l.B.In(t, func() {
		if err := netlink.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: ifindex(t, l.B)}}); err != nil {
			t.Fatal(err)
		}
	})
	if !a.Severed() || a.ProgramID() != 0 {
		t.Errorf("severed %t, program %d", a.Severed(), a.ProgramID())
	}
	if a.Replaced() {
		t.Error("an interface that is gone is taken for one of another process")
	}
	if err := a.link.Update(a.prog); err != nil {
		t.Errorf("update where the interface is gone: %v", err)
	}
	l.Wire(t)
	if err := a.Reattach(nil); err != nil {
		t.Fatal(err)
	}
	if n := filterIDs(t, l.B); len(n) != 1 || a.Severed() || n[0] != a.ProgramID() {
		t.Errorf("filters %v, severed %t", n, a.Severed())
	}
	frame := udp(l, addrA, addrB, 1)
	if err := l.A.Sender(t).Send(frame); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the packet is blocked", func() bool {
		return a.Stats().Reasons(nil)[bpf.WeirReasonREASON_BLOCKED].Packets > 0
	})
	l.B.In(t, func() {
		f := ownFilter(t, l.B)
		if err := netlink.FilterDel(f); err != nil {
			t.Fatal(err)
		}
	})
	if !a.Severed() {
		t.Error("the filter was deleted, and is not missed")
	}
	if a.Replaced() {
		t.Error("who deletes the filter is taken for another process of weir")
	}
	if err := errors.Join(a.DetachAny(), a.Close()); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(string(pins)); err != nil || len(entries) != 0 {
		t.Errorf("pins are left: %v, %v", entries, err)
	}
	if q := qdiscs(t, l.B); len(q) != 0 {
		t.Errorf("weir's qdisc is left: %v", q)
	}
}

// A filter that is gone is not put back by who replaces the program: the qdisc may be gone,
// too, or be one of another kind, which would filter the other direction.
func TestClsactReplaceAfterQdisc(t *testing.T) {
	lab.Root(t)
	t.Setenv("WEIR_TEST_CLSACT", "1")
	l, pins := lab.New(t), testPins(t)
	to := target(l.B)
	to.Out = true
	a := attach(t, pins, to, hooks.TC, newTestGeneration(t, Config{Out: true}))
	for _, change := range []func(netlink.QdiscAttrs) error{
		func(q netlink.QdiscAttrs) error { return netlink.QdiscDel(&netlink.Clsact{QdiscAttrs: q}) },
		func(q netlink.QdiscAttrs) error {
			q.Parent = netlink.HANDLE_INGRESS
			return netlink.QdiscAdd(&netlink.Ingress{QdiscAttrs: q})
		},
	} {
		l.B.In(t, func() {
			q := netlink.QdiscAttrs{LinkIndex: ifindex(t, l.B), Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
			if err := change(q); err != nil {
				t.Fatal(err)
			}
		})
		if err := a.link.Update(a.prog); err != nil {
			t.Error(err)
		}
		if n := filterIDs(t, l.B); len(n) != 0 || !a.Severed() {
			t.Errorf("filters %v, severed %t", n, a.Severed())
		}
	}
	if err := a.Reattach(nil); !errors.Is(err, kernelerr.ErrForeign) {
		t.Errorf("beside a qdisc without filters of outgoing packets: %v", err)
	}
	if err := errors.Join(a.DetachAny(), a.Close()); err != nil {
		t.Error(err)
	}
}

// A qdisc that weir has added remains its own when the filter was deleted and is put back,
// and stays as long as others have filters there, in either direction.
func TestClsactQdisc(t *testing.T) {
	lab.Root(t)
	t.Setenv("WEIR_TEST_CLSACT", "1")
	l, pins := lab.New(t), testPins(t)
	g := blockAllTC(t)
	lose := func() {
		t.Helper()
		l.B.In(t, func() {
			f := ownFilter(t, l.B)
			if err := netlink.FilterDel(f); err != nil {
				t.Fatal(err)
			}
		})
	}
	for name, again := range map[string]func(*Attachment) *Attachment{
		"by the same process": func(a *Attachment) *Attachment {
			if err := a.Reattach(nil); err != nil {
				t.Fatal(err)
			}
			return a
		},
		"by the next process": func(a *Attachment) *Attachment {
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			return attach(t, pins, target(l.B), hooks.TC, g)
		},
	} {
		a := attach(t, pins, target(l.B), hooks.TC, g)
		lose()
		detach(t, again(a))
		if n, q := filterIDs(t, l.B), qdiscs(t, l.B); len(n) != 0 || len(q) != 0 {
			t.Errorf("%s: left: filters %v, qdiscs %v", name, n, q)
		}
	}

	pass := passTC(t)
	for _, at := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		a := attach(t, pins, target(l.B), hooks.TC, g)
		theirs := neighbourFilter(t, l.B, pass, at, 9)
		l.B.In(t, func() {
			if err := netlink.FilterAdd(theirs); err != nil {
				t.Fatal(err)
			}
		})
		detach(t, a)
		l.B.In(t, func() {
			if left, err := netlink.FilterList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: theirs.LinkIndex}}, at); err != nil || len(left) == 0 {
				t.Errorf("a neighbour's filter at %x is gone with weir: %v", at, err)
			}
			if err := netlink.QdiscDel(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
				LinkIndex: theirs.LinkIndex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
			}}); err != nil {
				t.Error(err)
			}
		})
	}
}

// What is known of an interface's qdisc says nothing of that of the next interface of its name, though a
// process was killed when it had moved the pins there.
func TestClsactQdiscOfNextInterface(t *testing.T) {
	lab.Root(t)
	t.Setenv("WEIR_TEST_CLSACT", "1")
	l, pins := lab.New(t), testPins(t)
	g := blockAllTC(t)
	index := func() (i *netif.Iface) {
		t.Helper()
		i, err := target(l.B).Find()
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	former := index()
	if err := attach(t, pins, target(l.B), hooks.TC, g).Close(); err != nil {
		t.Fatal(err)
	}
	l.B.In(t, func() {
		if err := netlink.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: former.Index}}); err != nil {
			t.Fatal(err)
		}
	})
	l.Wire(t)
	next := index()
	if next.Index == former.Index {
		t.Fatalf("the next interface has index %d, too", next.Index)
	}
	l.B.In(t, func() {
		if err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: next.Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
		}}); err != nil {
			t.Fatal(err)
		}
	})
	if err := os.Rename(pins.path(former, false), pins.path(next, false)); err != nil {
		t.Fatal(err)
	}
	detach(t, attach(t, pins, target(l.B), hooks.TC, g))
	if n, q := filterIDs(t, l.B), qdiscs(t, l.B); len(n) != 0 || len(q) != 1 {
		t.Errorf("left of others: filters %v, qdiscs %v", n, q)
	}
}

// An interface in the namespace of the process that attached is another process's in a
// namespace of whatever name, or of none.
func TestClsactElsewhere(t *testing.T) {
	lab.Root(t)
	t.Setenv("WEIR_TEST_CLSACT", "1")
	l, pins := lab.New(t), testPins(t)
	g := newTestGeneration(t, Config{TC: true})
	l.B.In(t, func() {
		if err := attach(t, pins, netif.Target{Iface: l.B.Iface}, hooks.TC, g).Close(); err != nil {
			t.Fatal(err)
		}
	})
	if n := filterIDs(t, l.B); len(n) != 1 {
		t.Fatalf("filters %v", n)
	}
	detachOnly(t, pins)
	if n, q := filterIDs(t, l.B), qdiscs(t, l.B); len(n) != 0 || len(q) != 0 {
		t.Errorf("left: filters %v, qdiscs %v", n, q)
	}

	sleeper := exec.Command("sleep", "1000")
	sleeper.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		sleeper.Process.Kill()
		sleeper.Wait()
	}()
	path := fmt.Sprintf("/proc/%d/ns/net", sleeper.Process.Pid)
	unnamed, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer unnamed.Close()
	attachThere := func() {
		t.Helper()
		copied, err := unix.Dup(int(unnamed.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		a := attach(t, pins, netif.Target{Netns: fmt.Sprintf("/proc/self/fd/%d", copied), Iface: "hidden0"}, hooks.TC, g)
		if err := errors.Join(a.Close(), unix.Close(copied)); err != nil {
			t.Fatal(err)
		}
	}
	if err := (netif.Target{Netns: path}).In(func(uint64) error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "hidden0"}, PeerName: "hidden1"})
	}); err != nil {
		t.Fatal(err)
	}
	attachThere()
	detachOnly(t, pins)

	// By a file alone, no process shows it.
	attachThere() // nothing is left of the first
	if err := sleeper.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	sleeper.Wait()
	list, err := pins.List()
	if err != nil || len(list) != 1 {
		t.Fatalf("%d attachments, %v", len(list), err)
	}
	defer list[0].Close()
	if err := list[0].DetachAny(); err == nil || !strings.Contains(err.Error(), "hidden0") || !strings.Contains(err.Error(), "not in sight") {
		t.Errorf("detached where the filter cannot be removed: %v", err)
	}
	if err := unnamed.Close(); err != nil {
		t.Fatal(err)
	}
	// The kernel removes it, and then the filter, when it has time.
	wait.For(t, "its end", func() bool { return list[0].DetachAny() == nil })
	if entries, err := os.ReadDir(string(pins)); err != nil || len(entries) != 0 {
		t.Errorf("pins are left: %v, %v", entries, err)
	}
}

// detachOnly detaches from the only interface, as another process does.
func detachOnly(t *testing.T, pins Pins) {
	t.Helper()
	list, err := pins.List()
	if err != nil || len(list) != 1 {
		t.Fatalf("%d attachments, %v", len(list), err)
	}
	detach(t, list[0])
	if entries, err := os.ReadDir(string(pins)); err != nil || len(entries) != 0 {
		t.Errorf("pins are left: %v, %v", entries, err)
	}
}

// passTC returns a program that lets every packet pass to the next.
func passTC(t *testing.T) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R0, -1), asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// neighbourFilter returns a filter of others.
func neighbourFilter(t *testing.T, at lab.End, p *ebpf.Program, parent uint32, priority uint16) *netlink.BpfFilter {
	t.Helper()
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: ifindex(t, at), Parent: parent, Handle: 1, Priority: priority, Protocol: unix.ETH_P_ALL},
		Fd:          p.FD(), Name: "theirs", DirectAction: true,
	}
}

// ownFilter returns the filter of weir, for incoming packets.
func ownFilter(t *testing.T, at lab.End) *netlink.BpfFilter {
	f := neighbourFilter(t, at, passTC(t), netlink.HANDLE_MIN_INGRESS, 1)
	f.Handle = 0x77656972
	return f
}

func blockAllTC(t *testing.T) *Generation {
	g := newTestGeneration(t, Config{Block: coarse(), Lists: 1, TC: true})
	fill(g.Block().Lines)
	return g
}

func ifindex(t *testing.T, e lab.End) (index int) {
	t.Helper()
	i, err := target(e).Find()
	if err != nil {
		t.Fatal(err)
	}
	return i.Index
}

// filterIDs returns the IDs of the programs of an interface's filters, incoming ones first.
func filterIDs(t *testing.T, e lab.End) (ids []uint32) {
	t.Helper()
	e.In(t, func() {
		for _, out := range []bool{false, true} {
			all, err := netlink.FilterList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: ifindex(t, e)}}, map[bool]uint32{false: netlink.HANDLE_MIN_INGRESS, true: netlink.HANDLE_MIN_EGRESS}[out])
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range all {
				if b, ok := f.(*netlink.BpfFilter); ok && b.Id != 0 {
					ids = append(ids, uint32(b.Id))
				}
			}
		}
	})
	return ids
}

// qdiscs returns the kinds of qdiscs for filters of an interface.
func qdiscs(t *testing.T, e lab.End) (kinds []string) {
	t.Helper()
	e.In(t, func() {
		all, err := netlink.QdiscList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: ifindex(t, e)}})
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range all {
			if strings.Contains(q.Type(), "clsact") {
				kinds = append(kinds, q.Type())
			}
		}
	})
	return kinds
}
