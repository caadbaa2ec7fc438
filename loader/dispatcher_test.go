package loader

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"weir/loader/bpffs"
	"weir/loader/dispatcher"
	"weir/loader/hooks"
	"weir/loader/kernelerr"
	"weir/loader/netif"
	"weir/tests/lab"
)

// others is another tool that changes the programs of an interface's dispatcher.
type others struct {
	t      *testing.T
	end    lab.End
	hook   hooks.Hook
	counts *ebpf.Map // of the packets that its program passes
}

func newOthers(t *testing.T, e lab.End, hook hooks.Hook) *others {
	t.Helper()
	lab.Root(t)
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { counts.Close() })
	return &others{t, e, hook, counts}
}

// load loads a program that counts packets and passes them.
func (o *others) load(into *ebpf.Program, name string) (*ebpf.Program, error) {
	spec := &ebpf.ProgramSpec{
		Name: "theirs", Type: ebpf.Extension, AttachTarget: into, AttachTo: name, License: "Dual BSD/GPL",
		Instructions: dispatcher.Function("theirs",
			asm.LoadMapValue(asm.R1, 0, 0).WithReference("counts"),
			asm.Mov.Imm(asm.R2, 1),
			asm.StoreXAdd(asm.R1, asm.R2, asm.DWord),
			asm.Mov.Imm(asm.R0, ActionPass),
			asm.Return(),
		),
	}
	if err := spec.Instructions.AssociateMap("counts", o.counts); err != nil {
		return nil, err
	}
	return ebpf.NewProgram(spec)
}

func (o *others) change(wanted func([]dispatcher.Member) []dispatcher.Member) (err error) {
	index := ifindex(o.t, o.end)
	o.end.In(o.t, func() {
		err = dispatcher.Change{Index: index, Generic: o.hook == hooks.DispatcherGeneric, Wanted: wanted, Load: o.load}.Make()
	})
	return err
}

// join makes their program one of the dispatcher's, of a priority.
func (o *others) join(priority uint32) error {
	return o.change(func(all []dispatcher.Member) []dispatcher.Member {
		return append(slices.Clone(all), dispatcher.Member{Name: "theirs", Priority: priority, Next: 1 << ActionPass})
	})
}

// leave removes it.
func (o *others) leave() error {
	return o.change(func(all []dispatcher.Member) []dispatcher.Member {
		return slices.DeleteFunc(slices.Clone(all), func(m dispatcher.Member) bool { return m.Name == "theirs" })
	})
}

// passed returns how many packets their program has passed.
func (o *others) passed() (n uint64) {
	o.t.Helper()
	if err := o.counts.Lookup(uint32(0), &n); err != nil {
		o.t.Fatal(err)
	}
	return n
}

// mustJoin is join; it skips where the kernel has no dispatchers, which it must have from
// Linux 6.2 on if it is a guest's.
func (o *others) mustJoin(priority uint32) {
	o.t.Helper()
	err := o.join(priority)
	if errors.Is(err, unix.EPERM) && os.Getenv("WEIR_VIRTIO") == "" {
		o.t.Skipf("needs a kernel that lets programs replace functions of others: %v", err)
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

// wantOrder fails unless packets meet these programs in this order.
func wantOrder(t *testing.T, a *Attachment, names ...string) {
	t.Helper()
	all, err := a.Order()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range all {
		if got = append(got, n.Name); n.Weir != (n.Name == "weir") {
			t.Errorf("program %+v", n)
		}
	}
	if !slices.Equal(got, names) {
		t.Errorf("packets meet %v, want %v", got, names)
	}
}

// Beside another program in a dispatcher: no listed packet passes while generations are
// exchanged and the other leaves and comes back; when weir leaves, the other stays.
func TestJoinDispatcher(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	o := newOthers(t, l.B, hooks.Dispatcher)
	o.mustJoin(10)
	if !lab.KernelAtLeast(t, 6, 1) {
		i, err := target(l.B).Find()
		if err != nil {
			t.Fatal(err)
		}
		c, err := hooks.Attach(string(pins), target(l.B), hooks.Dispatcher, i, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		wantError(t, c.Start(passAll(t), ""), kernelerr.ErrUnsupported, "freplace", "Linux 6.2")
		if err := o.leave(); err != nil {
			t.Error(err)
		}
		return
	}
	a := attach(t, pins, target(l.B), hooks.Dispatcher, blockAll(t, 1))
	wantOrder(t, a, "theirs", "weir")
	frame := udp(l, addrA, addrB, 1)
	through := func() bool {
		t.Helper()
		return reaches(t, l, frame)
	}
	if through() || o.passed() == 0 {
		t.Errorf("a listed packet came through, or the other program has not seen it (%d)", o.passed())
	}

	rx, ended := l.B.Receiver(t), make(chan struct{})
	var flood sync.WaitGroup
	flood.Go(func() {
		tx := l.A.Sender(t)
		for n := uint32(0); ; n++ {
			select {
			case <-ended:
				return
			default:
				_ = tx.TrySend(udp(l, addrA, addrB, n))
				time.Sleep(100 * time.Microsecond) // leave emulated processors to others
			}
		}
	})
	p, err := blockAll(t, 1).Load(a.Stats())
	if err != nil {
		t.Fatal(err)
	}
	was, err := a.prog.Clone()
	if err != nil {
		t.Fatal(err)
	}
	defer was.Close()
	if err := a.Replace(p); err != nil {
		t.Fatal(err)
	}
	for range 10 { // to load as many takes minutes in a guest
		if err := errors.Join(a.link.Update(was), a.link.Update(a.prog)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(o.leave(), o.join(60)); err != nil {
		t.Fatal(err)
	}
	wantOrder(t, a, "weir", "theirs")
	close(ended)
	flood.Wait()
	if n := listed(t, rx); n > 0 {
		t.Errorf("%d listed packets came through", n)
	}
	if a.Severed() || a.Replaced() {
		t.Errorf("severed %t, replaced %t", a.Severed(), a.Replaced())
	}

	// As the next process finds it, and takes over.
	found, err := pins.Open(target(l.B))
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	if found.Severed() || found.Hook() != hooks.Dispatcher || found.ProgramID() != a.ProgramID() || a.ProgramID() == 0 {
		t.Errorf("found severed %t, hook %v, program %d, want %d", found.Severed(), found.Hook(), found.ProgramID(), a.ProgramID())
	}
	next := attach(t, pins, target(l.B), hooks.Dispatcher, blockAll(t, 1))
	if !a.Replaced() || next.Replaced() || through() {
		t.Error("no takeover")
	}
	_, err = attachLoaded(pins, target(l.B), hooks.Native, nil, newTestGeneration(t, Config{}).Load)
	wantError(t, err, ErrHook)
	a.Close()

	before := o.passed()
	detach(t, next)
	if !through() || o.passed() <= before {
		t.Error("the other program is gone")
	}

	// Without others; then these remove all.
	if err := o.leave(); err != nil {
		t.Fatal(err)
	}
	if n := dispatchers(t, l.B); n != 0 {
		t.Errorf("%d dispatchers are left", n)
	}
	a = attach(t, pins, target(l.B), hooks.Dispatcher, blockAll(t, 1))
	wantOrder(t, a, "weir")
	if through() {
		t.Error("a listed packet came through")
	}
	if err := o.change(func([]dispatcher.Member) []dispatcher.Member { return nil }); err != nil {
		t.Fatal(err)
	}
	if !a.Severed() || !through() {
		t.Error("it is not noticed that others have removed the program")
	}
	if err := a.Reattach(nil); err != nil {
		t.Fatal(err)
	}
	if a.Severed() || through() {
		t.Error("not attached again")
	}
	detach(t, a)
	if n := dispatchers(t, l.B); n != 0 || !through() {
		t.Errorf("%d dispatchers are left", n)
	}
}

// passAll returns an XDP program that passes all packets.
func passAll(t *testing.T) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "MIT", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R0, ActionPass), asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// dispatchers returns how many dispatchers have pins for an interface.
func dispatchers(t *testing.T, e lab.End) int {
	t.Helper()
	all, _ := filepath.Glob(fmt.Sprintf("%s/xdp/dispatch-%d-*", bpffs.Mount, ifindex(t, e)))
	return len(all)
}

// listed returns how many packets of the flood have come through.
func listed(t *testing.T, rx *lab.Receiver) (n int) {
	t.Helper()
	for {
		frame, err := rx.Receive(200 * time.Millisecond)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(frame) >= 30 && bytes.Equal(frame[26:30], addrA.AsSlice()) {
			n++
		}
	}
}

// What is no dispatcher, or one in another mode, is left alone.
func TestJoinForeign(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	o := newOthers(t, l.B, hooks.Dispatcher)
	set := func(fd int) {
		index := ifindex(t, l.B)
		l.B.In(t, func() {
			if err := netif.SetXDP(index, fd, modeFlag(hooks.Native), 0); err != nil {
				t.Fatal(err)
			}
		})
	}
	set(passAll(t).FD())
	wantError(t, o.join(10), kernelerr.ErrForeign, "which is not libxdp's dispatcher")
	set(-1)
	// Nor is a program with its name alone.
	named, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: dispatcher.Name, Type: ebpf.XDP, License: "MIT",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close()
	set(named.FD())
	wantError(t, o.join(10), kernelerr.ErrForeign, "which is not libxdp's dispatcher")
	set(-1)

	o.hook = hooks.DispatcherGeneric
	o.mustJoin(10)
	o.hook = hooks.Dispatcher
	wantError(t, o.join(20), kernelerr.ErrForeign, "xdp: generic")
	o.hook = hooks.DispatcherGeneric
	if lab.KernelAtLeast(t, 6, 1) {
		a := attach(t, pins, target(l.B), hooks.DispatcherGeneric, blockAll(t, 1))
		wantOrder(t, a, "theirs", "weir")
		if reaches(t, l, udp(l, addrA, addrB, 1)) {
			t.Error("a listed packet came through")
		}
		detach(t, a)
	}
	if err := o.leave(); err != nil {
		t.Error(err)
	}
}
