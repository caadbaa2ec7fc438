package loader

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"weir/bpf"
	"weir/loader/bpffs"
	"weir/loader/hooks"
	"weir/loader/kernelerr"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/timed"
	"weir/tests/wait"
)

func TestAttach(t *testing.T) {
	for _, mode := range []hooks.Hook{hooks.Native, hooks.Generic} {
		t.Run(mode.String(), func(t *testing.T) {
			l, pins := lab.New(t), testPins(t)
			frame := udp(l, addrA, addrB, 1)
			if !reaches(t, l, frame) {
				t.Fatal("the wire is dead")
			}

			a, err := attachLoaded(pins, target(l.B), mode, []byte(`{"lists":["a"]}`), blockAll(t, 1).Load)
			if err != nil {
				t.Fatal(err)
			}
			if reaches(t, l, frame) {
				t.Error("a blocked packet came through")
			}
			if n := a.Stats().Reasons(nil)[bpf.WeirReasonREASON_BLOCKED]; n != (Counter{1, uint64(len(frame))}) {
				t.Errorf("%v blocked", n)
			}
			if n := a.Stats().Lists(nil)[0]; n != (Counter{1, uint64(len(frame))}) {
				t.Errorf("%v blocked by list 0", n)
			}
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			runtime.GC() // nothing may hang on a finalizer
			if reaches(t, l, frame) {
				t.Error("filtering ended with the process's files")
			}

			list, err := pins.List()
			if err != nil || len(list) != 1 {
				t.Fatalf("%d attachments, %v", len(list), err)
			}
			a = list[0]
			if a.Target() != target(l.B) || a.Hook() != mode || string(a.Metadata()) != `{"lists":["a"]}` || a.Severed() {
				t.Errorf("listed %v, %v, %s, severed %t", a.Target(), a.Hook(), a.Metadata(), a.Severed())
			}
			if n := a.Stats().Reasons(nil)[bpf.WeirReasonREASON_BLOCKED].Packets; n != 2 {
				t.Errorf("%d blocked", n)
			}
			l.B.In(t, func() {
				iface, err := byName(l.B.Iface)
				if err != nil || iface.Xdp.ProgId != a.ProgramID() || iface.Xdp.AttachMode != uint32(mode)+1 {
					t.Errorf("interface has %+v, %v, want program %d", iface.Xdp, err, a.ProgramID())
				}
			})
			detach(t, a)
			if !reaches(t, l, frame) {
				t.Error("still filtered after detaching")
			}
			if list, err := pins.List(); err != nil || len(list) != 0 {
				t.Errorf("%d attachments, %v", len(list), err)
			}
		})
	}
}

func TestOpen(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	for _, d := range []Pins{pins, pins + "/not-there"} {
		_, err := d.Open(target(l.B))
		wantError(t, err, ErrNotAttached, l.B.Iface)
	}
	_, err := pins.Open(netif.Target{Netns: "no-such", Iface: "lo"})
	wantError(t, err, netif.ErrNoNetns)

	a := attach(t, pins, target(l.B), hooks.Native, newTestGeneration(t, Config{}))
	defer detach(t, a)
	b, err := pins.Open(target(l.B))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if b.ProgramID() != a.ProgramID() || b.Severed() {
		t.Errorf("opened program %d, severed %t, want %d", b.ProgramID(), b.Severed(), a.ProgramID())
	}
}

func TestPinsArePrivate(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	a := attach(t, pins, target(l.B), hooks.Native, newTestGeneration(t, Config{}))
	defer detach(t, a)
	err := filepath.WalkDir(a.path, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if d.IsDir() {
			want = fs.ModeDir | 0o700
		}
		if info, err := d.Info(); err != nil || info.Mode() != want {
			t.Errorf("%s: mode %v, want %v (%v)", path, info.Mode(), want, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// The next process replaces the program that it finds, and counts on.
func TestAdopt(t *testing.T) {
	for _, test := range []struct {
		name   string
		lists  int
		stride int
		whole  uint64 // the largest array that is one value, at first
	}{
		{"same room", 1, 64, maxWhole},
		{"more lists", 500, 512, maxWhole},
		{"arrays of an earlier version", 1, 64, 0},
		{"more lists than in one", 500, 512, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, pins := lab.New(t), testPins(t)
			frame := udp(l, addrA, addrB, 1)
			defer func(most uint64) { maxWhole = most }(maxWhole)
			most := maxWhole
			maxWhole = test.whole
			a := attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1))
			maxWhole = most
			reaches(t, l, frame)
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}

			a, err := attachLoaded(pins, target(l.B), hooks.Native, []byte("2"), blockAll(t, test.lists).Load)
			if err != nil {
				t.Fatal(err)
			}
			defer detach(t, a)
			if rows := a.Stats().maps[bpf.WeirMapReasonStats]; rows.entries() > 1 && rows.isWhole() != (test.whole > 0) {
				t.Errorf("rows that are one value: %v", rows.isWhole())
			}
			check := func(s *Stats, n uint64) {
				t.Helper()
				lists := s.Lists(nil)
				if len(lists) != test.stride || lists[0].Packets != n || lists[0].Bytes != n*uint64(len(frame)) {
					t.Errorf("%d counters of lists, %v", len(lists), lists[0])
				}
				if got := s.Reasons(nil)[bpf.WeirReasonREASON_BLOCKED].Packets; got != n {
					t.Errorf("%d blocked", got)
				}
			}
			check(a.Stats(), 1)
			reaches(t, l, frame)
			check(a.Stats(), 2)

			list, err := pins.List()
			if err != nil || len(list) != 1 {
				t.Fatal(list, err)
			}
			defer list[0].Close()
			check(list[0].Stats(), 2)
			if string(list[0].Metadata()) != "2" {
				t.Errorf("about %s", list[0].Metadata())
			}
		})
	}
}

// While the process that is replaced still reads its events, they are not those of
// the next: a buffer has one reader.
func TestAdoptEvents(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	old := attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1))
	defer old.Close()
	events := func(s *Stats) (n int) {
		t.Helper()
		now := Sampling{Until: Monotonic() + time.Minute}
		now.OneIn[bpf.WeirReasonREASON_BLOCKED] = 1
		s.Sample(now)
		reaches(t, l, udp(l, addrA, addrB, 1))
		if err := old.Stats().Events(func(*Event) { n += 100 }); err != nil {
			t.Error(err)
		}
		if s != old.Stats() {
			if err := s.Events(func(*Event) { n++ }); err != nil {
				t.Error(err)
			}
		}
		return n
	}
	if n := events(old.Stats()); n != 100 {
		t.Fatalf("%d events, by hundreds", n)
	}
	for range 2 {
		a := attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1))
		defer func() {
			if err := errors.Join(a.DetachAny(), a.Close()); err != nil {
				t.Error(err)
			}
		}()
		if n := events(a.Stats()); n != 1 {
			t.Errorf("%d events read by the former, %d by the next", n/100, n%100)
		}
		list, err := pins.List()
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		if n := events(list[0].Stats()); n != 1 {
			t.Errorf("the buffer that is pinned is another: %d", n)
		}
		list[0].Close()
	}
}

// A process that has been replaced undoes nothing of its successor's.
func TestReplaced(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	frame := udp(l, addrA, addrB, 1)
	old := attach(t, pins, target(l.B), hooks.Native, newTestGeneration(t, Config{}))
	defer old.Close()
	a, err := attachLoaded(pins, target(l.B), hooks.Native, []byte("2"), blockAll(t, 1).Load)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if !old.Replaced() || a.Replaced() {
		t.Errorf("replaced: the old one %t, the new one %t", old.Replaced(), a.Replaced())
	}
	wantError(t, old.Detach(), ErrReplaced, l.B.Iface)
	p, err := newTestGeneration(t, Config{}).Load(old.Stats())
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, old.Replace(p), ErrReplaced, l.B.Iface)
	wantError(t, old.SetMetadata([]byte("1")), ErrReplaced, l.B.Iface)
	if reaches(t, l, frame) {
		t.Error("the new program is gone")
	}
	if p, err = blockAll(t, 1).Load(a.Stats()); err != nil {
		t.Fatal(err)
	}
	if err := a.Replace(p); err != nil || a.Replaced() {
		t.Errorf("its own exchange: replaced %t, %v", a.Replaced(), err)
	}
	// DetachAny detaches, whatever is attached by then.
	if err := old.DetachAny(); err != nil {
		t.Fatal(err)
	}
	if !reaches(t, l, frame) || bpffs.Exists(a.path) {
		t.Error("still attached")
	}
}

// Whatever another process does between Prepare and Attach is left alone, and the
// counters of its program are not lost.
func TestPreparedTooLate(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	frame := udp(l, addrA, addrB, 1)
	prepare := func() (*Preparation, *Program) {
		t.Helper()
		p, err := pins.Prepare(target(l.B), hooks.Native)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		program, err := newTestGeneration(t, Config{}).Load(p.Stats())
		if err != nil {
			t.Fatal(err)
		}
		return p, program
	}
	p, program := prepare()
	a := attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1))
	defer a.Close()
	_, err := p.Attach(program, nil)
	wantError(t, err, kernelerr.ErrForeign, "weir's own")

	p, program = prepare()
	next, err := blockAll(t, 1000).Load(a.Stats()) // whose counters move
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Replace(next); err != nil {
		t.Fatal(err)
	}
	_, err = p.Attach(program, nil)
	wantError(t, err, ErrReplaced, l.B.Iface)
	if reaches(t, l, frame) || a.Stats().Lists(nil)[0].Packets != 1 {
		t.Errorf("not filtered, or not counted: %v", a.Stats().Lists(nil)[0])
	}

	p, program = prepare()
	if err := a.Detach(); err != nil {
		t.Fatal(err)
	}
	_, err = p.Attach(program, nil)
	wantError(t, err, ErrNotAttached, l.B.Iface)
	if !reaches(t, l, frame) || bpffs.Exists(a.path) {
		t.Error("attached, though somebody has detached")
	}

	strange, err := blockAll(t, 1).Load(newTestProgram(t, newTestGeneration(t, Config{})).stats)
	if err != nil {
		t.Fatal(err)
	}
	p, program = prepare()
	program.Close()
	if _, err := p.Attach(strange, nil); err == nil || !reaches(t, l, frame) {
		t.Errorf("attached a program with other counters: %v", err)
	}
}

// Counters whose numbers mean something else are not taken over.
func TestForgetStats(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	a := attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1))
	reaches(t, l, udp(l, addrA, addrB, 1))
	for range 2 { // the second time there is nothing to forget
		if err := a.ForgetStats(); err != nil {
			t.Fatal(err)
		}
	}
	a.Close()
	a = attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1))
	defer detach(t, a)
	if n := a.Stats().Reasons(nil)[bpf.WeirReasonREASON_BLOCKED].Packets; n != 0 {
		t.Errorf("%d blocked", n)
	}
}

// Counters that another version has laid out differently are made anew.
func TestAdoptOtherLayout(t *testing.T) {
	long.Seconds(t)
	t.Parallel() // it waits for the kernel
	l, pins := lab.New(t), testPins(t)
	frame := udp(l, addrA, addrB, 1)
	a := attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1))
	reaches(t, l, frame)
	for _, name := range pinnedMapNames() {
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		other, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(a.path, name)
		if err := errors.Join(os.Remove(path), other.Pin(path), other.Close()); err != nil {
			t.Fatal(err)
		}

		list, err := pins.List()
		if err != nil || len(list) != 1 || len(list[0].Stats().Reasons(nil)) != 0 {
			t.Fatal(name, list, err)
		}
		list[0].Close()
		a = attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1000))
		reaches(t, l, frame)
		if list, err = pins.List(); err != nil || len(list) != 1 {
			t.Fatal(name, list, err)
		}
		for _, s := range []*Stats{a.Stats(), list[0].Stats()} {
			if n := s.Reasons(nil)[bpf.WeirReasonREASON_BLOCKED].Packets; n != 1 {
				t.Errorf("%s: %d blocked", name, n)
			}
			if lists := s.Lists(nil); len(lists) != 1024 || lists[0].Packets != 1 {
				t.Errorf("%s: %d counters of lists, %v", name, len(lists), lists[0])
			}
		}
		list[0].Close()
	}
	detach(t, a)
}

// Counters go on where the version that made them lacked a stage, and the maps of that
// stage are pinned with the next program.
func TestAdoptWithoutStage(t *testing.T) {
	t.Parallel() // it waits for the kernel
	l, pins := lab.New(t), testPins(t)
	frame := udp(l, addrA, addrB, 1)
	a := attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1))
	reaches(t, l, frame)
	blocked := uint64(1)
	stages := make(map[string][]string)
	for _, name := range pinnedMapNames() {
		stages[stageOf(name)] = append(stages[stageOf(name)], name)
	}
	for stage, names := range stages {
		if stage == stageOf(bpf.WeirMapReasonStats) || stage == stageOf(bpf.WeirMapListStats) {
			continue // no version lacks them
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if err := os.Remove(filepath.Join(a.path, name)); err != nil {
				t.Fatal(err)
			}
		}
		a = attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1))
		reaches(t, l, frame)
		blocked++
		if n := a.Stats().Reasons(nil)[bpf.WeirReasonREASON_BLOCKED].Packets; n != blocked {
			t.Errorf("without %s: %d blocked, want %d", stage, n, blocked)
		}
		for _, name := range pinnedMapNames() {
			if !bpffs.Exists(filepath.Join(a.path, name)) {
				t.Errorf("without %s: %s is not pinned", stage, name)
			}
		}
		if lost := a.Unpinned(); lost != "" {
			t.Errorf("without %s: unpinned: %s", stage, lost)
		}
	}
	detach(t, a)
}

// Under a flood of listed packets, none gets past an exchange of generations,
// and every one is counted.
func TestReplaceUnderway(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	a := attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1))
	defer detach(t, a)
	tx, rx := l.A.Sender(t), l.B.Receiver(t)

	stop, sent := make(chan struct{}), make(chan uint32)
	go func() {
		n := uint32(0)
		defer func() { sent <- n }()
		for {
			select {
			case <-stop:
				return
			default:
				if tx.TrySend(udp(l, addrA, addrB, n)) == nil {
					n++
				}
			}
		}
	}()
	wait.For(t, "the flood", func() bool { return a.Stats().Lists(nil)[0].Packets > 0 })
	before := uint64(0)
	const replacements = 10
	for i := range replacements {
		p, err := blockAll(t, 1<<min(2*i, 15)).Load(a.Stats()) // ever more room
		if err != nil {
			t.Error(err)
			break
		}
		if err := a.Replace(p); err != nil {
			t.Error(err)
			break
		}
		now := a.Stats().Lists(nil)[0].Packets
		if now < before {
			t.Errorf("the counter went back from %d to %d", before, now)
		}
		before = now
	}
	close(stop)
	n := <-sent
	for {
		frame, err := rx.Receive(200 * time.Millisecond)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(frame[26:30], addrA.AsSlice()) {
			t.Fatalf("listed packet %d came through", binary.BigEndian.Uint32(frame[len(frame)-4:]))
		}
	}
	reasons, lists := a.Stats().Reasons(nil), a.Stats().Lists(nil)
	t.Logf("%d sent, %d blocked, %d counted by list", n, reasons[bpf.WeirReasonREASON_BLOCKED].Packets, lists[0].Packets)
	if reasons[bpf.WeirReasonREASON_BLOCKED].Packets == 0 {
		t.Error("nothing was sent")
	}
	// A packet that is on its way through the old program while its counters
	// move may be missing: at most one a CPU and exchange, and there are few.
	if missing := reasons[bpf.WeirReasonREASON_BLOCKED].Packets - lists[0].Packets; missing > 2*replacements {
		t.Errorf("%d packets are missing from the counters of lists", missing)
	}
}

func TestReplaceRefuses(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	g := blockAll(t, 1)
	a := attach(t, pins, target(l.B), hooks.Native, g)
	defer detach(t, a)
	id := a.ProgramID()

	strange, err := NewStats(0)
	if err != nil {
		t.Fatal(err)
	}
	defer strange.Close()
	p, err := g.Load(strange)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Replace(p); err == nil || a.ProgramID() != id {
		t.Errorf("replaced by a program with other counters: %v", err)
	}

	// Loaded before the counters moved to a larger map.
	if p, err = g.Load(a.Stats()); err != nil {
		t.Fatal(err)
	}
	grown, err := blockAll(t, 1000).Load(a.Stats())
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Replace(grown); err != nil {
		t.Fatal(err)
	}
	id = a.ProgramID()
	if err := a.Replace(p); err == nil || a.ProgramID() != id {
		t.Errorf("replaced by a program with counters of old: %v", err)
	}
}

// A foreign program stays as it is, however it is attached.
func TestForeign(t *testing.T) {
	timed.Alone(t)
	l, pins := lab.New(t), testPins(t)
	g := newTestGeneration(t, Config{})
	foreign, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "foreign", Type: ebpf.XDP, License: "MIT",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, ActionPass), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()

	for _, test := range []struct {
		name   string
		theirs hooks.Hook
		ours   hooks.Hook
		link   bool
		says   string
	}{
		{"link, native", hooks.Native, hooks.Native, true, "bpftool link"},
		{"link, native against generic", hooks.Generic, hooks.Native, true, "bpftool link"},
		{"netlink, native", hooks.Native, hooks.Native, false, "dev veth-b xdp off"},
		{"netlink, generic", hooks.Generic, hooks.Generic, false, "dev veth-b xdpgeneric off"},
		{"netlink, generic against native", hooks.Native, hooks.Generic, false, "dev veth-b xdp off"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var iface *netlink.LinkAttrs
			l.B.In(t, func() {
				if iface, err = byName(l.B.Iface); err != nil {
					t.Fatal(err)
				}
				if test.link {
					held, err := link.AttachXDP(link.XDPOptions{Program: foreign, Interface: iface.Index, Flags: link.XDPAttachFlags(modeFlag(test.theirs))})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { held.Close() })
				} else {
					if err := netif.SetXDP(iface.Index, foreign.FD(), modeFlag(test.theirs), 0); err != nil {
						t.Fatal(err)
					}
				}
				iface, err = byName(l.B.Iface)
			})
			_, err := attachLoaded(pins, target(l.B), test.ours, nil, g.Load)
			by := "attached over netlink, held by "
			if test.link {
				by = "attached by a link (id "
			}
			holder := fmt.Sprintf("%q (PID %d)", comm(t), os.Getpid())
			wantError(t, err, kernelerr.ErrForeign, ", foreign, tag ", by, holder, test.says)
			l.B.In(t, func() {
				now, err := byName(l.B.Iface)
				if err != nil || *now.Xdp != *iface.Xdp {
					t.Errorf("it had %+v, now has %+v", iface.Xdp, now.Xdp)
				}
				if !test.link {
					netif.SetXDP(iface.Index, -1, modeFlag(test.theirs), 0)
				}
			})
		})
	}
}

// comm is the name of this process in the kernel.
func comm(t *testing.T) string {
	t.Helper()
	name, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(name))
}

// The dispatcher of libxdp is known by its name, and its programs by their pins.
func TestDispatcher(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	program := func(name string) *ebpf.Program {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: name, Type: ebpf.XDP, License: "MIT",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, ActionPass), asm.Return()},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p
	}
	dispatcher, part := program("xdp_dispatcher"), program("xdpfilt_alw_all")
	info, err := dispatcher.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	l.B.In(t, func() {
		iface, err := byName(l.B.Iface)
		if err != nil {
			t.Fatal(err)
		}
		if err := netif.SetXDP(iface.Index, dispatcher.FD(), modeFlag(hooks.Native), 0); err != nil {
			t.Fatal(err)
		}
		dir := fmt.Sprintf("%s/xdp/dispatch-%d-%d", bpffs.Mount, iface.Index, id)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			os.RemoveAll(dir)
			os.Remove(filepath.Dir(dir)) // unless others use it
		})
		if err := part.Pin(dir + "/prog0-prog"); err != nil {
			t.Fatal(err)
		}
	})
	_, err = attachLoaded(pins, target(l.B), hooks.Native, nil, newTestGeneration(t, Config{}).Load)
	wantError(t, err, kernelerr.ErrForeign, "the dispatcher of libxdp with xdpfilt_alw_all", "attach: dispatcher", "xdp-loader unload "+l.B.Iface+" --all")
}

// rename renames an interface at B.
func rename(t *testing.T, l *lab.Lab, from, to string) {
	t.Helper()
	l.B.In(t, func() {
		iface, err := netlink.LinkByName(from)
		if err != nil {
			t.Fatal(err)
		}
		// Some kernels rename only what is down.
		if err := errors.Join(netlink.LinkSetDown(iface), netlink.LinkSetName(iface, to), netlink.LinkSetUp(iface)); err != nil {
			t.Fatal(err)
		}
	})
}

// An interface keeps its attachment under another name: attaching to that replaces
// the program, and its counters go on. Another interface that takes the
// former name has an attachment of its own.
func TestRenamed(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	frame := udp(l, addrA, addrB, 1)
	old := attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1))
	defer old.Close()
	reaches(t, l, frame)
	rename(t, l, l.B.Iface, "other")
	other := netif.Target{Netns: l.B.Netns, Iface: "other"}
	if name, err := old.Name(); err != nil || name != "other" {
		t.Errorf("its name is %q, %v", name, err)
	}
	for _, name := range []netif.Target{target(l.B), other} { // as it was when the program was attached, and now
		b, err := pins.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if b.ProgramID() != old.ProgramID() {
			t.Errorf("%v: program %d, want %d", name, b.ProgramID(), old.ProgramID())
		}
		b.Close()
	}
	if err := old.Rename("other"); err != nil || old.Target() != other {
		t.Errorf("renamed to %v, %v", old.Target(), err)
	}
	_, err := pins.Open(target(l.B))
	wantError(t, err, ErrNotAttached)

	a := attach(t, pins, other, hooks.Native, blockAll(t, 1))
	defer detach(t, a)
	wantError(t, old.Rename("more"), ErrReplaced)
	if a.path != old.path || a.Stats().Lists(nil)[0].Packets != 1 {
		t.Errorf("the counters do not go on: %v", a.Stats().Lists(nil)[0])
	}

	l.B.In(t, func() {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: l.B.Iface}, PeerName: "peer"}
		if err := netlink.LinkAdd(veth); err != nil {
			t.Fatal(err)
		}
	})
	g := newTestGeneration(t, Config{})
	b := attach(t, pins, target(l.B), hooks.Native, g)
	ready := newTestProgram(t, g)
	_, err = pins.Attach(target(l.B), find(t, l.B), hooks.Native, nil, ready)
	wantError(t, err, kernelerr.ErrForeign, "weir's own", b.path)
	detach(t, b)
	if b, err = pins.Attach(target(l.B), find(t, l.B), hooks.Native, nil, ready); err != nil {
		t.Fatal(err)
	}
	detach(t, b)
	l.B.In(t, func() {
		iface, err := netlink.LinkByName(l.B.Iface)
		if err == nil {
			err = netlink.LinkDel(iface)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	rename(t, l, "other", l.B.Iface)
	if a.Severed() || a.Replaced() || reaches(t, l, frame) {
		t.Error("detached by what has taken its name")
	}
}

// An interface that goes under a name that it was given since comes back under
// that name.
func TestReattachRenamed(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	a := attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1))
	defer detach(t, a)
	rename(t, l, l.B.Iface, "other")
	if err := a.Rename("other"); err != nil {
		t.Fatal(err)
	}
	cut(t, l)
	l.Wire(t)
	wantError(t, a.Reattach(nil), netif.ErrNoInterface)
	if _, err := a.Name(); !errors.Is(err, netif.ErrNoInterface) {
		t.Errorf("the name of an interface that is gone: %v", err)
	}
	rename(t, l, l.B.Iface, "other")
	if err := a.Reattach(nil); err != nil {
		t.Fatal(err)
	}
	if name, err := a.Name(); err != nil || name != "other" {
		t.Errorf("its name is %q, %v", name, err)
	}
	b, err := pins.Open(netif.Target{Netns: l.B.Netns, Iface: "other"})
	if err != nil || b.Severed() || b.ProgramID() != a.ProgramID() {
		t.Fatal(b, err)
	}
	b.Close()
}

// Pins that an earlier version named after the interface are found, and get the
// name of today when their program is replaced.
func TestPinsOfEarlierVersions(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	frame := udp(l, addrA, addrB, 1)
	a := attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1))
	defer a.Close()
	reaches(t, l, frame)
	today := a.path
	earlier := filepath.Join(string(pins), fmt.Sprintf("%d-%s", hooks.NamespaceOf(today), l.B.Iface))
	if err := os.Rename(today, earlier); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		list, err := pins.List()
		if err != nil || len(list) != 1 || list[0].ProgramID() != a.ProgramID() {
			t.Fatal(list, err)
		}
		list[0].Close()
		b, err := pins.Open(target(l.B))
		if err != nil || b.Severed() || b.path != earlier {
			t.Fatal(b, err)
		}
		b.Close()
		rename(t, l, l.B.Iface, "other")
		rename(t, l, "other", l.B.Iface)
	}
	b := attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1))
	if b.path != today || bpffs.Exists(earlier) || b.Stats().Lists(nil)[0].Packets != 1 || reaches(t, l, frame) {
		t.Errorf("pinned in %s; counted %v", b.path, b.Stats().Lists(nil)[0])
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	// Of an interface that is gone, they are removed when the next comes.
	if err := os.Rename(today, earlier); err != nil {
		t.Fatal(err)
	}
	cut(t, l)
	l.Wire(t)
	c := attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1))
	defer detach(t, c)
	if bpffs.Exists(earlier) || c.Stats().Lists(nil)[0].Packets != 0 {
		t.Error("pins of one that is gone are left, or their counters")
	}
}

// An interface that is moved to another network namespace takes its program along,
// and an index there may be that of another interface here.
func TestMovedAway(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	a := attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1))
	defer a.Close()
	index, err := a.Index()
	if err != nil {
		t.Fatal(err)
	}
	away, err := netns.GetFromName(l.A.Netns)
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	l.B.In(t, func() {
		iface, err := netlink.LinkByIndex(index)
		if err == nil {
			err = netlink.LinkSetNsFd(iface, int(away))
		}
		if err != nil {
			t.Fatal(err)
		}
		next := netlink.LinkAttrs{Name: l.B.Iface, Index: index}
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: next, PeerName: "peer"}); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := a.Name(); !errors.Is(err, netif.ErrNoInterface) {
		t.Errorf("the name of an interface that has left: %v", err)
	}
	g := newTestGeneration(t, Config{})
	_, err = attachLoaded(pins, target(l.B), hooks.Native, nil, g.Load)
	wantError(t, err, kernelerr.ErrForeign, "left the namespace", a.path)
	_, err = pins.Attach(target(l.B), find(t, l.B), hooks.Native, nil, newTestProgram(t, g))
	wantError(t, err, kernelerr.ErrForeign, "left the namespace", a.path)
	_, err = pins.Open(target(l.B))
	wantError(t, err, kernelerr.ErrForeign, "left the namespace", a.path)
	if a.Severed() || a.Replaced() {
		t.Error("another interface has its program")
	}
	if err := a.Detach(); err != nil {
		t.Fatal(err)
	}
	detach(t, attach(t, pins, target(l.B), hooks.Native, g))
}

func TestOtherMode(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	g := newTestGeneration(t, Config{})
	a := attach(t, pins, target(l.B), hooks.Generic, g)
	defer detach(t, a)
	id := a.ProgramID()
	_, err := attachLoaded(pins, target(l.B), hooks.Native, nil, g.Load)
	wantError(t, err, ErrHook, "generic, not native")
	if a.ProgramID() != id {
		t.Error("the program was replaced")
	}
}

func TestSevered(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	frame := udp(l, addrA, addrB, 1)
	g := blockAll(t, 1)
	a := attach(t, pins, target(l.B), hooks.Native, g)
	defer a.Close()
	cut := func() { cut(t, l) }
	cut()
	if !a.Severed() {
		t.Error("not severed")
	}
	_, err := attachLoaded(pins, target(l.B), hooks.Native, nil, g.Load)
	wantError(t, err, netif.ErrNoInterface)
	list, err := pins.List()
	if err != nil || len(list) != 1 || !list[0].Severed() || list[0].Target() != target(l.B) {
		t.Fatal(list, err)
	}
	defer list[0].Close()

	l.Wire(t)
	if !reaches(t, l, frame) {
		t.Fatal("the wire is dead")
	}
	b := attach(t, pins, target(l.B), hooks.Native, g)
	defer b.Close()
	if b.Severed() || reaches(t, l, frame) {
		t.Error("not attached anew")
	}
	// The old attachments must not take away what belongs to the new one, nor put
	// anything into its place.
	wantError(t, a.Reattach(nil), ErrReplaced)
	p, err := blockAll(t, 1000).Load(a.Stats())
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, a.Replace(p), ErrSevered, "replaced")
	if err := errors.Join(a.Detach(), list[0].Detach()); err != nil {
		t.Error(err)
	}
	if reaches(t, l, frame) {
		t.Error("a stale attachment detached a new one")
	}
	cut()
	if err := b.Detach(); err != nil {
		t.Errorf("detach when severed: %v", err)
	}
}

// cut deletes the wire.
func cut(t *testing.T, l *lab.Lab) {
	t.Helper()
	l.A.In(t, func() {
		iface, err := netlink.LinkByName(l.A.Iface)
		if err == nil {
			err = netlink.LinkDel(iface)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
}

// A program that Reattach cannot pin, while a stopped process has the lock, does not stay attached:
// no reload would replace it.
func TestReattachLocked(t *testing.T) {
	for _, h := range []hooks.Hook{hooks.Native, hooks.Generic} {
		l, pins := lab.New(t), testPins(t)
		a := attach(t, pins, target(l.B), h, blockAll(t, 1))
		cut(t, l)
		l.Wire(t)
		unlock, err := pins.lock(unix.LOCK_SH)
		if err != nil {
			t.Fatal(err)
		}
		setPatience(t, 20*time.Millisecond)
		if err := a.Reattach(nil); err == nil || !strings.Contains(err.Error(), "no lock") {
			t.Errorf("%v: %v", h, err)
		}
		frame := udp(l, addrA, addrB, 1)
		if !reaches(t, l, frame) {
			t.Errorf("%v: what could not be pinned filters", h)
		}
		unlock()
		setPatience(t, wait.Patience)
		if err := a.Reattach(nil); err != nil {
			t.Errorf("%v, no longer locked: %v", h, err)
		}
		if reaches(t, l, frame) {
			t.Errorf("%v: a listed packet passes", h)
		}
		detach(t, a)
	}
}

// The next interface of the name gets the program that the last one had, or that
// was meant for it since, and its counters go on.
func TestReattach(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	frame := udp(l, addrA, addrB, 1)
	a := attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1))
	defer a.Close()
	if err := a.Reattach(nil); err != nil { // where it is, nothing happens
		t.Error(err)
	}
	id := a.ProgramID()
	reaches(t, l, frame)
	for round := range 3 {
		cut(t, l)
		wantError(t, a.Reattach(nil), netif.ErrNoInterface)
		if round == 1 { // also with counters that have moved
			p, err := blockAll(t, 1000).Load(a.Stats())
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Replace(p); err != nil {
				t.Fatal(err)
			}
		}
		l.Wire(t)
		if !reaches(t, l, frame) {
			t.Fatal("the wire is dead")
		}
		if err := a.Reattach(nil); err != nil {
			t.Fatal(err)
		}
		if a.Severed() || a.Replaced() || reaches(t, l, frame) {
			t.Errorf("round %d: not put back", round)
		}
		if (a.ProgramID() == id) != (round == 0) {
			t.Errorf("round %d: program %d, at first it was %d", round, a.ProgramID(), id)
		}
		list, err := pins.List()
		if err != nil || len(list) != 1 || list[0].Severed() || list[0].ProgramID() != a.ProgramID() {
			t.Fatal(list, err)
		}
		for _, s := range []*Stats{a.Stats(), list[0].Stats()} {
			if n := s.Lists(nil)[0].Packets; n != uint64(round+2) {
				t.Errorf("round %d: %d blocked", round, n)
			}
		}
		list[0].Close()
	}
	cut(t, l)
	l.Wire(t)
	list, err := pins.List()
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	defer list[0].Close()
	wantError(t, list[0].Reattach(nil), ErrSevered) // whose program it is, another process knows
	if err := list[0].DetachAny(); err != nil {
		t.Fatal(err)
	}
	wantError(t, a.SetMetadata([]byte("2")), ErrNotAttached) // it makes no pins
	wantError(t, a.Reattach(nil), ErrNotAttached)
	if !reaches(t, l, frame) {
		t.Error("filtered, though somebody has detached it")
	}
}

// A program that is loaded before its interface is there is attached as it is, and
// has its own counters. Where there is one already, that stays.
func TestAttachLoaded(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	frame := udp(l, addrA, addrB, 1)
	ready := func() *Program {
		t.Helper()
		stats, err := NewStats(0)
		if err != nil {
			t.Fatal(err)
		}
		p, err := blockAll(t, 1000).Load(stats)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	a, err := pins.Attach(target(l.B), find(t, l.B), hooks.Native, []byte("1"), ready())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if reaches(t, l, frame) || a.Stats().Lists(nil)[0].Packets != 1 {
		t.Errorf("not filtered, or not counted: %v", a.Stats().Lists(nil)[0])
	}
	list, err := pins.List()
	if err != nil || len(list) != 1 || string(list[0].Metadata()) != "1" || list[0].Stats().Lists(nil)[0].Packets != 1 {
		t.Fatal(list, err)
	}
	list[0].Close()

	p := ready()
	_, err = pins.Attach(target(l.B), find(t, l.B), hooks.Native, nil, p)
	wantError(t, err, kernelerr.ErrForeign, "weir's own")
	_, err = pins.Attach(target(l.A), find(t, l.B), hooks.Native, nil, p)
	wantError(t, err, netif.ErrNoInterface, "another namespace")
	cut(t, l)
	l.Wire(t)
	b, err := pins.Attach(target(l.B), find(t, l.B), hooks.Native, nil, p)
	if err != nil {
		t.Fatal(err)
	}
	defer detach(t, b)
	if reaches(t, l, frame) || b.Stats().Lists(nil)[0].Packets != 1 {
		t.Error("not filtered after a first attempt elsewhere")
	}
}

func find(t *testing.T, e lab.End) *netif.Iface {
	t.Helper()
	var i netif.Iface
	e.In(t, func() {
		var err error
		if i.LinkAttrs, err = byName(e.Iface); err != nil {
			t.Fatal(err)
		}
		if i.Inode, err = (netif.Target{}).Namespace(); err != nil {
			t.Fatal(err)
		}
	})
	return &i
}

// Follow reports an interface before it is up.
func TestFollow(t *testing.T) {
	l := lab.New(t)
	done, reported := make(chan struct{}), make(chan *netif.Iface, 100)
	if err := target(l.B).Follow(done, func(i *netif.Iface) { reported <- i }); err != nil {
		t.Fatal(err)
	}
	defer close(done)
	await := func(want func(*netif.Iface) bool) {
		t.Helper()
		timeout := time.After(wait.Patience)
		for {
			select {
			case i := <-reported:
				if want(i) {
					return
				}
			case <-timeout:
				t.Fatal("not reported")
			}
		}
	}
	cut(t, l)
	await(func(i *netif.Iface) bool { return i == nil })
	l.B.In(t, func() {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "new"}, PeerName: "peer"}); err != nil {
			t.Fatal(err)
		}
	})
	await(func(i *netif.Iface) bool { return i != nil && i.Name == "new" && i.RawFlags&unix.IFF_UP == 0 })
	if err := (netif.Target{Netns: "no-such"}).Follow(done, nil); !errors.Is(err, netif.ErrNoNetns) {
		t.Errorf("followed what is not there: %v", err)
	}
}

func TestWrongNames(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	g := newTestGeneration(t, Config{})
	for _, test := range []struct {
		to   netif.Target
		want error
	}{
		{netif.Target{Netns: "", Iface: "no-such"}, netif.ErrNoInterface},
		{netif.Target{Netns: "", Iface: ""}, netif.ErrNoInterface},
		{netif.Target{Netns: "", Iface: "../lo"}, netif.ErrNoInterface},
		{netif.Target{Netns: "", Iface: "a name that is longer than any can be"}, netif.ErrNoInterface},
		{netif.Target{Netns: l.B.Netns, Iface: l.A.Iface}, netif.ErrNoInterface},
		{netif.Target{Netns: "no-such", Iface: "lo"}, netif.ErrNoNetns},
		{netif.Target{Netns: "/no/such", Iface: "lo"}, netif.ErrNoNetns},
		{netif.Target{Netns: "/proc/self/ns/mnt", Iface: "lo"}, netif.ErrNoNetns},
		{netif.Target{Netns: "/dev/null", Iface: "lo"}, netif.ErrNoNetns},
	} {
		_, err := attachLoaded(pins, test.to, hooks.Native, nil, g.Load)
		wantError(t, err, test.want, test.to.Iface)
	}
}

func TestNetnsByPath(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	g := newTestGeneration(t, Config{})
	a := attach(t, pins, netif.Target{Netns: "/run/netns/" + l.B.Netns, Iface: l.B.Iface}, hooks.Native, g)
	defer a.Close()
	b := attach(t, pins, target(l.B), hooks.Native, g)
	if a.path != b.path {
		t.Errorf("pinned as %s, then as %s", a.path, b.path)
	}
	detach(t, b)
}

// No thread is left in another namespace.
func TestThreadsComeBack(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	g := newTestGeneration(t, Config{})
	for range 10 {
		detach(t, attach(t, pins, target(l.B), hooks.Native, g))
		attachLoaded(pins, netif.Target{Netns: l.B.Netns, Iface: "no-such"}, hooks.Native, nil, g.Load)

		// One is entered from another where the owner of a foreign program is looked for.
		if err := (netif.Target{Netns: l.A.Netns}).In(func(uint64) error {
			return netif.Target{Netns: l.B.Netns}.In(func(uint64) error { return nil })
		}); err != nil {
			t.Error(err)
		}
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		if ns, err := os.Readlink(thread); err == nil && ns != own {
			t.Errorf("%s is in %s, not in %s", thread, ns, own)
		}
	}
}

// Names with dots, those of VLANs, cannot stand on the BPF file system.
func TestDottedName(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	to := netif.Target{Netns: l.B.Netns, Iface: "eth0.7"}
	l.B.In(t, func() {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = to.Iface
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}); err != nil {
			t.Fatal(err)
		}
	})
	a := attach(t, pins, to, hooks.Native, newTestGeneration(t, Config{}))
	defer detach(t, a)
	list, err := pins.List()
	if err != nil || len(list) != 1 || list[0].Target() != to {
		t.Fatal(list, err)
	}
	list[0].Close()
}

func TestNoDriver(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	g := newTestGeneration(t, Config{})
	to := netif.Target{Netns: l.B.Netns, Iface: "lo"}
	_, err := attachLoaded(pins, to, hooks.Native, nil, g.Load)
	wantError(t, err, hooks.ErrNoDriver, "driver does not support XDP in native mode", "xdp generic")
	detach(t, attach(t, pins, to, hooks.Generic, g))
}

// What an interface without Ethernet headers delivers would pass unparsed at XDP. At TC, no packet
// is read as if it had them, not even one that looks like a frame: its source and destination read
// as an EtherType and the begin of an IP header, and what follows as other addresses.
func TestNoEthernet(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun0"}, Mode: netlink.TUNTAP_MODE_TUN, Queues: 1}
	var err error
	l.B.In(t, func() {
		if err = netlink.LinkAdd(tun); err == nil {
			err = netlink.LinkSetUp(tun)
		}
	})
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("needs tun interfaces: the kernel has no /dev/net/tun")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer tun.Fds[0].Close()
	to := netif.Target{Netns: l.B.Netns, Iface: "tun0"}
	_, err = attachLoaded(pins, to, hooks.Generic, nil, blockAll(t, 0).Load)
	wantError(t, err, kernelerr.ErrUnsupported, "tun0", "no Ethernet headers")

	src := netip.MustParseAddr("8.0.69.1")
	set := coarse()
	set.GatesV4, set.V4[0].Gate = gateSrc, gateSrc
	g := newTestGeneration(t, Config{Block: set, TC: true})
	if general := g.General(); len(general) > 0 {
		t.Fatalf("packets take the general path: %v", general)
	}
	fill(g.Block().Lines)
	a := src.As4()
	net := int(a[0])<<16 | int(a[1])<<8 | int(a[2])
	g.Block().Marks4[net/64] |= 1 << (net % 64)
	at := attach(t, pins, to, hooks.TC, g)
	defer detach(t, at)
	bare := udp(unplugged, src, netip.MustParseAddr("198.51.100.1"), 0)[14:]
	binary.BigEndian.PutUint16(bare[20:], 1<<14) // the source port reads as flags without a fragment
	if _, err := tun.Fds[0].Write(bare); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the packet is dropped for its source", func() bool {
		return at.Stats().Reasons(nil)[bpf.WeirReasonREASON_BLOCKED].Packets == 1
	})
}

func TestMTU(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	l.A.In(t, func() {
		iface, err := netlink.LinkByName(l.A.Iface)
		if err == nil {
			err = netlink.LinkSetMTU(iface, 9000)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	g := newTestGeneration(t, Config{})
	frags, err := hooks.HasFrags()
	if err != nil {
		t.Fatal(err)
	}
	if frags {
		detach(t, attach(t, pins, target(l.B), hooks.Native, g))
	}

	g.spec.Programs[bpf.WeirProgWeir].Flags &^= unix.BPF_F_XDP_HAS_FRAGS
	if err := g.spec.Variables[bpf.WeirVarFrags].Set(uint8(0)); err != nil {
		t.Fatal(err)
	}
	_, err = attachLoaded(pins, target(l.B), hooks.Native, nil, g.Load)
	wantError(t, err, hooks.ErrMTU, "driver veth", "mtu 1500", "peer's: 9000", "Peer MTU is too large")
}

func TestMetadata(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	g := newTestGeneration(t, Config{})
	tooLong := []byte(`"` + strings.Repeat("x", maxTextPieces*textPiece) + `"`)
	for _, bad := range [][]byte{[]byte("{"), tooLong} {
		if _, err := attachLoaded(pins, target(l.B), hooks.Native, bad, g.Load); err == nil {
			t.Fatalf("attached with %.5q", bad)
		}
	}
	a := attach(t, pins, target(l.B), hooks.Native, g)
	defer detach(t, a)
	if a.Metadata() != nil {
		t.Errorf("%s was said", a.Metadata())
	}
	path := a.path
	long, _ := json.Marshal(strings.Repeat("x", 50_000))
	longer, _ := json.Marshal(strings.Repeat("x", 1<<20))
	for _, about := range [][]byte{long, []byte("1"), longer, nil} {
		// A process that was killed has left the next metadata.
		if left, err := newTextMap(pinMetadata, []byte("{")); err != nil {
			t.Fatal(err)
		} else if err := errors.Join(bpffs.Pin(bpffs.Map{Map: left}, filepath.Join(path, pinMetadata+"_next")), left.Close()); err != nil {
			t.Fatal(err)
		}
		if err := a.SetMetadata(about); err != nil {
			t.Fatal(err)
		}
		list, err := pins.List()
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		if got := list[0].Metadata(); !bytes.Equal(got, about) {
			t.Errorf("%.10q was said, not %.10q", got, about)
		}
		list[0].Close()
	}
	if err := a.SetMetadata([]byte("{")); err == nil {
		t.Error("took what is no JSON")
	}
}

// Earlier versions have metadata of one piece: they read what is no longer than that, and what
// they have written is read. What is longer they take for damaged, and change nothing.
func TestMetadataOfEarlierVersions(t *testing.T) {
	text := []byte(`{"target":{"interface":"eth0"},"mode":"native","about":[1]}`)
	for _, size := range []int{len(text), textPiece - 1, textPiece, textPiece + 1, 3 * textPiece} {
		text := append(slices.Clip(text), bytes.Repeat([]byte(" "), size-len(text))...)
		m, err := newTextMap(pinMetadata, text)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if got, err := readText(m); err != nil || !bytes.Equal(got, text) {
			t.Errorf("of %d bytes %d are read, %v", size, len(got), err)
		}
		first, err := m.LookupBytes(uint32(0)) // as they read it
		if want := min(size, textPiece); err != nil || len(first) != 64<<10 || !bytes.Equal(bytes.TrimRight(first, "\x00"), text[:want]) {
			t.Errorf("of %d bytes an earlier version reads %d, %v", size, len(first), err)
		}
		if err := m.Put(uint32(0), make([]byte, 64<<10)); err != nil { // as they write it
			t.Error(err)
		}
	}
}

func TestHookText(t *testing.T) {
	for _, m := range []hooks.Hook{hooks.Native, hooks.Generic, hooks.TC, hooks.Dispatcher, hooks.DispatcherGeneric} {
		text, err := m.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var got hooks.Hook
		if err := got.UnmarshalText(text); err != nil || got != m {
			t.Errorf("%v became %v, %v", m, got, err)
		}
	}
	m := hooks.Generic
	if err := m.UnmarshalText([]byte("auto")); err == nil || m != hooks.Generic {
		t.Errorf("auto became %v", m)
	}
}

// A failed attempt leaves nothing behind, neither on the interface nor in the
// process.
func TestFailureLeavesNothing(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	g := newTestGeneration(t, Config{})
	fail := func() {
		refused := errors.New("refused")
		_, err := attachLoaded(pins, target(l.B), hooks.Native, nil, func(*Stats) (*Program, error) { return nil, refused })
		wantError(t, err, refused)
		a := attach(t, pins, target(l.B), hooks.Native, g)
		_, err = attachLoaded(pins, target(l.B), hooks.Native, nil, func(*Stats) (*Program, error) { return nil, refused })
		wantError(t, err, refused)
		_, err = attachLoaded(pins, target(l.B), hooks.Generic, nil, g.Load)
		wantError(t, err, ErrHook)
		_, err = attachLoaded(Pins(string(pins)+"/other"), target(l.B), hooks.Native, nil, g.Load)
		wantError(t, err, kernelerr.ErrForeign)
		os.Remove(string(pins) + "/other")
		detach(t, a)
	}
	fail()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would close what was forgotten
	before := openFiles(t)
	fail()
	if after := openFiles(t); after != before {
		t.Errorf("open before: %s; after: %s", before, after)
	}
	if !reaches(t, l, udp(l, addrA, addrB, 1)) {
		t.Error("the wire is dead")
	}
}

// Close leaves nothing to the garbage collector, which may not come for long.
func TestCloseLeavesNothing(t *testing.T) {
	long.Seconds(t)
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for _, hook := range []hooks.Hook{hooks.Native, hooks.TC} {
		t.Run(hook.String(), func(t *testing.T) {
			l, pins := lab.New(t), testPins(t)
			to := target(l.B)
			cfg := Config{Block: coarse(), Lists: 1, TC: hook == hooks.TC}
			g := newTestGeneration(t, cfg)
			a := attach(t, pins, to, hook, g)
			defer detach(t, a)
			for _, c := range []struct {
				name   string
				rounds int
				do     func() error
			}{
				{"open", 100, func() error {
					a, err := pins.Open(to)
					if err != nil {
						return err
					}
					return a.Close()
				}},
				{"list", 100, func() error {
					all, err := pins.List()
					if err != nil || len(all) != 1 {
						return fmt.Errorf("%d attachments, %w", len(all), err)
					}
					return all[0].Close()
				}},
				{"prepare", 20, func() error {
					p, err := pins.Prepare(to, hook)
					if err != nil {
						return err
					}
					return p.Close()
				}},
				{"replace", 3, func() error {
					p, err := g.Load(a.Stats())
					if err != nil {
						return err
					}
					return a.Replace(p)
				}},
				{"a generation", 3, func() error {
					g, err := NewGeneration(cfg)
					if err != nil {
						return err
					}
					s, err := NewStats(1)
					if err != nil {
						return errors.Join(err, g.Close())
					}
					return errors.Join(s.Close(), g.Close())
				}},
			} {
				run := func() {
					t.Helper()
					if err := c.do(); err != nil {
						t.Fatalf("%s: %v", c.name, err)
					}
				}
				run() // the first may open what stays
				before := openFiles(t)
				for range c.rounds {
					run()
				}
				// What was garbage before may go meanwhile.
				if after := openFiles(t); after.files > before.files || after.maps > before.maps {
					t.Errorf("%s, %d times: open before: %s; after: %s", c.name, c.rounds, before, after)
				}
			}
		})
	}
}
