package loader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir/bpf"
	"weir/loader/bpffs"
	"weir/loader/hooks"
	"weir/loader/kernelerr"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// mountPins mounts a BPF file system of the test's own over a directory.
func mountPins(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount("bpf", dir, "bpf", 0, "mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
}

// pinsOf returns the names of all pins in the directory of an attachment.
func pinsOf(t *testing.T, a *Attachment) (names []string) {
	t.Helper()
	err := filepath.WalkDir(a.path, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			name, _ := filepath.Rel(a.path, path)
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// keeping is a generation that blocks all, and whose filter is pinned.
func keeping(t *testing.T, tc bool) *Generation {
	t.Helper()
	g := newTestGeneration(t, Config{Block: coarse(), Lists: 1, Kept: true, TC: tc})
	fill(g.Block().Lines)
	if err := g.Keep([]byte("a description")); err != nil {
		t.Fatal(err)
	}
	return g
}

// repinned checks that Repin makes a number of pins, and that all is as it was.
func repinned(t *testing.T, a *Attachment, want int, names []string) {
	t.Helper()
	made, err := a.Repin()
	if err != nil || made != want || a.Unpinned() != "" {
		t.Errorf("%d pins made, want %d: %v, %q", made, want, err, a.Unpinned())
	}
	if now := pinsOf(t, a); !slices.Equal(now, names) {
		t.Errorf("pins %v, want %v", now, names)
	}
	if made, err := a.Repin(); made != 0 || err != nil {
		t.Errorf("then %d more, %v", made, err)
	}
}

// Each pin that is removed, or replaced by something else, is made again; then the
// process that attached the program may end.
func TestRepin(t *testing.T) {
	for _, test := range []struct {
		name   string
		hook   hooks.Hook
		out    bool
		clsact string
	}{{"native", hooks.Native, false, ""}, {"generic", hooks.Generic, false, ""}, {"tc", hooks.TC, false, ""}, {"out", hooks.TC, true, ""}, {"clsact", hooks.TC, true, "1"}} {
		t.Run(test.name, func(t *testing.T) {
			lab.Root(t)
			t.Setenv("WEIR_TEST_CLSACT", test.clsact)
			l, pins := lab.New(t), testPins(t)
			to := target(l.B)
			to.Out = test.out
			g := keeping(t, test.hook == hooks.TC)
			if test.out {
				g = newTestGeneration(t, Config{Out: true, TC: true})
			}
			a := attach(t, pins, to, test.hook, g)
			names := pinsOf(t, a)
			if len(names) < len(pinnedMapNames())+2 {
				t.Fatal(names)
			}
			repinned(t, a, 0, names)
			other, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			for _, name := range names {
				path := filepath.Join(a.path, name)
				for _, put := range []func() error{
					func() error { return nil },
					func() error { return (bpffs.Map{Map: other}).PinAt(path) },
					func() error { return os.Mkdir(path, 0o700) },
				} {
					if err := errors.Join(os.Remove(path), put()); err != nil {
						t.Fatal(err)
					}
					repinned(t, a, 1, names)
				}
			}
			if err := os.RemoveAll(a.path); err != nil {
				t.Fatal(err)
			}
			repinned(t, a, len(names), names)
			id := a.ProgramID()
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			b, err := pins.Open(to)
			if err != nil || b.Severed() || b.ProgramID() != id || b.Stats() == nil {
				t.Fatal(b, err)
			}
			if err := errors.Join(b.DetachAny(), b.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// Without any one of its pins but the link, a start replaces the program without a gap.
func TestStartWithoutPin(t *testing.T) {
	long.Seconds(t)
	l, pins := lab.New(t), testPins(t)
	g, frame := keeping(t, false), udp(l, addrA, addrB, 1)
	a := attach(t, pins, target(l.B), hooks.Native, g)
	names := append(slices.DeleteFunc(pinsOf(t, a), func(name string) bool { return name == "link" }), pinFilter)
	for _, name := range names {
		id, path := a.ProgramID(), a.path
		if err := errors.Join(a.Close(), os.RemoveAll(filepath.Join(path, name))); err != nil {
			t.Fatal(err)
		}
		if reaches(t, l, frame) {
			t.Fatalf("without %s, nothing filters", name)
		}
		if a = attach(t, pins, target(l.B), hooks.Native, g); a.ProgramID() == id || a.Hook() != hooks.Native || a.path != path {
			t.Errorf("without %s: %v, %s", name, a.Hook(), a.path)
		}
		if reaches(t, l, frame) {
			t.Fatalf("%s is made again, and nothing filters", name)
		}
		repinned(t, a, 0, pinsOf(t, a))
	}
	detach(t, a)
}

// What a process leaves that was killed while it made the pins again filters on, and a start
// goes on with it.
func TestRepinKilled(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	g, frame := keeping(t, false), udp(l, addrA, addrB, 1)
	a := attach(t, pins, target(l.B), hooks.Native, g)
	left := filepath.Join(string(pins), hooks.Unfinished+filepath.Base(a.path)+"-1")
	// All pins are made, and the directory is yet to be renamed; or, at last, has been.
	for _, already := range []bool{false, true} {
		id, names := a.ProgramID(), pinsOf(t, a)
		if err := os.Rename(a.path, left); err != nil {
			t.Fatal(err)
		}
		if already {
			repinned(t, a, len(names), names)
		}
		a.Close()
		if reaches(t, l, frame) {
			t.Fatal("nothing filters")
		}
		if a = attach(t, pins, target(l.B), hooks.Native, g); a.ProgramID() == id || reaches(t, l, frame) {
			t.Error("the program was not replaced")
		}
		if bpffs.Exists(left) {
			t.Error("it is still there")
		}
		repinned(t, a, 0, pinsOf(t, a))
	}
	// Before the link, they keep nothing attached.
	if err := errors.Join(os.Rename(a.path, left), os.Remove(filepath.Join(left, "link"))); err != nil {
		t.Fatal(err)
	}
	a.Close()
	a = attach(t, pins, target(l.B), hooks.Native, g)
	if bpffs.Exists(left) || reaches(t, l, frame) {
		t.Error("not attached anew")
	}
	detach(t, a)
}

// While the file system of the pins is unmounted, another one is mounted over it, or is read
// only, the program is replaced as ever, and put back on its interface. Then it is pinned again.
func TestRepinUnmounted(t *testing.T) {
	l := lab.New(t)
	dir := t.TempDir()
	mountPins(t, dir)
	pins, frame := Pins(filepath.Join(dir, "weir")), udp(l, addrA, addrB, 1)
	g := keeping(t, false)
	a := attach(t, pins, target(l.B), hooks.Native, g)
	names := pinsOf(t, a)
	replace := func() {
		t.Helper()
		p, err := blockAll(t, 1000).Load(a.Stats()) // with larger counters, once
		if err == nil {
			err = a.Replace(p)
		}
		if p, bad := g.Load(a.Stats()); err == nil && bad == nil {
			err = a.Replace(p)
		} else {
			err = errors.Join(err, bad)
		}
		if err != nil || reaches(t, l, frame) {
			t.Fatal("not replaced: ", err)
		}
	}
	unmount := func() {
		t.Helper()
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	}
	flap := func() {
		t.Helper()
		cut(t, l)
		l.Wire(t)
		if err := a.Reattach(nil); err != nil || a.Severed() || reaches(t, l, frame) {
			t.Fatal("not put back: ", err)
		}
	}

	unmount()
	_, err := a.Repin()
	wantError(t, err, bpffs.ErrNoBPFFS)
	if !strings.Contains(a.Unpinned(), "no BPF file system") {
		t.Errorf("unpinned: %q", a.Unpinned())
	}
	replace()
	if err := a.SetMetadata([]byte("2")); err != nil {
		t.Error(err)
	}
	flap()
	flap()
	if err := a.Rename(l.B.Iface); err != nil {
		t.Error(err)
	}
	mountPins(t, dir)
	repinned(t, a, len(names), names)
	if text, err := readMetadata(a.metadataMap); err != nil || string(text.Caller) != "2" {
		t.Error(text, err)
	}

	mountPins(t, dir) // above the other
	replace()
	repinned(t, a, 0, names) // since then
	unmount()
	if _, err := a.Repin(); err != nil {
		t.Error(err)
	}
	repinned(t, a, 0, names)

	// It was not detached while the interface was gone.
	cut(t, l)
	unmount()
	mountPins(t, dir)
	l.Wire(t)
	if err := a.Reattach(find(t, l.B)); err != nil || reaches(t, l, frame) {
		t.Error("not put back: ", err)
	}
	repinned(t, a, 0, names)

	// Read only.
	readOnly := func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(a.path, "link")); err != nil {
		t.Fatal(err)
	}
	readOnly(unix.MS_RDONLY)
	_, err = a.Repin()
	wantError(t, err, unix.EROFS)
	replace()
	readOnly(0)
	if _, err := a.Repin(); err != nil || a.Unpinned() != "" {
		t.Error(err)
	}
	repinned(t, a, 0, names)

	// It is detached where its pins are, or were.
	unmount()
	detach(t, a)
	if !reaches(t, l, frame) {
		t.Error("not detached")
	}
}

// Pins that somebody removes to detach are not made again, nor those of another daemon.
func TestRepinDetached(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	a := attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1))
	b, err := pins.Open(target(l.B))
	if err == nil {
		err = errors.Join(b.DetachAny(), b.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if made, err := a.Repin(); made != 0 || err != nil || bpffs.Exists(a.path) {
		t.Errorf("%d pins made for a program that was detached, %v", made, err)
	}
	next := attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1))
	names := pinsOf(t, next)
	if made, err := a.Repin(); made != 0 || err != nil {
		t.Errorf("%d pins made of another's, %v", made, err)
	}
	repinned(t, next, 0, names)
	a.Close()
	// A daemon that has taken over pins its own.
	last := attach(t, pins, target(l.B), hooks.Native, blockAll(t, 1))
	if err := os.RemoveAll(last.path); err != nil {
		t.Fatal(err)
	}
	if made, err := next.Repin(); made != 0 || err != nil || bpffs.Exists(last.path) {
		t.Errorf("%d pins made for a program that was taken over, %v", made, err)
	}
	repinned(t, last, len(names), names)
	next.Close()
	detach(t, last)
}

// Maps that all programs share are pinned again as well.
func TestRepinShared(t *testing.T) {
	pins := testPins(t)
	room := func(entries int) map[string]int {
		return map[string]int{bpf.WeirMapConnections: entries, bpf.WeirMapUnconnected: 16}
	}
	s, err := pins.OpenShared(room(64))
	if err != nil {
		t.Fatal(err)
	}
	g := newTestGeneration(t, Config{Shared: s, Out: true, TC: true})
	for entries, same := range map[int]bool{32: false, 64: true, 128: false} {
		known := g.Shared(room(entries))
		if (known != nil) != same {
			t.Errorf("maps of 64 entries are taken over where %d are wanted: %t", entries, known != nil)
		}
		if known != nil {
			known.Close()
		}
	}
	if err := errors.Join(pins.KeepShared(g), s.Close()); err != nil {
		t.Fatal(err)
	}
	path := pins.shared(bpf.WeirMapConnections)
	if made, err := pins.RepinShared(g); made != 0 || err != nil {
		t.Error(made, err)
	}
	before, err := bpffs.InodeOf(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if made, err := pins.RepinShared(g); made != 1 || err != nil {
		t.Error(made, err)
	}
	if now, err := bpffs.InodeOf(path); err != nil || now == before {
		t.Error(now, err)
	}
	if err := pins.ForgetShared(); err != nil {
		t.Error(err)
	}
}

// A limit of this process is not called damage, and no error advises to remove what filters.
func TestExhausted(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	g := blockAll(t, 1)
	a := attach(t, pins, target(l.B), hooks.Native, g)
	defer detach(t, a)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(unix.RLIMIT_NOFILE, &syscall.Rlimit{Cur: was.Cur, Max: was.Max})
	failures := 0
	for more := uint64(1); more < 40; more++ {
		now := uint64(openFiles(t).files)
		var list []*Attachment
		limit := func(n uint64) {
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: was.Max}); err != nil {
				t.Fatal(err)
			}
		}
		limit(now + more)
		list, err := pins.List()
		limit(was.Cur)
		for _, a := range list {
			a.Close()
		}
		if err == nil {
			break
		}
		failures++
		if text := err.Error(); !errors.Is(err, unix.EMFILE) || strings.Contains(text, "damaged") || strings.Contains(text, "remove") {
			t.Errorf("%d more files: %v", more, err)
		}
		if errors.Is(err, kernelerr.ErrExhausted) {
			t.Log(err)
		}
	}
	if failures < 5 {
		t.Errorf("%d failures", failures)
	}
	if reaches(t, l, udp(l, addrA, addrB, 1)) {
		t.Error("nothing filters")
	}
}

// A program of weir's whose pins are out of sight, and that no process has open, is taken over
// without a gap; with pins that are in sight, or a process, it is said whose it is.
func TestOrphan(t *testing.T) {
	long.Seconds(t)
	for _, test := range []struct {
		name   string
		hook   hooks.Hook
		out    bool
		clsact string
	}{{"native", hooks.Native, false, ""}, {"generic", hooks.Generic, false, ""}, {"tc", hooks.TC, false, ""}, {"clsact", hooks.TC, false, "1"}} {
		t.Run(test.name, func(t *testing.T) {
			lab.Root(t)
			t.Setenv("WEIR_TEST_CLSACT", test.clsact)
			l, dir := lab.New(t), t.TempDir()
			mountPins(t, dir)
			frame := udp(l, addrA, addrB, 1)
			g := keeping(t, test.hook == hooks.TC)
			old := attach(t, Pins(dir+"/old"), target(l.B), test.hook, g)
			exclusive := test.hook != hooks.TC || test.clsact != ""
			if exclusive {
				_, err := attachLoaded(Pins(dir+"/new"), target(l.B), test.hook, nil, g.Load)
				wantError(t, err, kernelerr.ErrForeign, comm(t))
			}
			id := old.ProgramID()
			old.Close()
			if exclusive {
				_, err := attachLoaded(Pins(dir+"/new"), target(l.B), test.hook, nil, g.Load)
				wantError(t, err, kernelerr.ErrForeign, "pins: "+dir+"/old")
			}

			mountPins(t, dir) // over the old ones
			pins := Pins(dir + "/new")
			if !pins.IsOrphaned(target(l.B), test.hook) {
				t.Error("not found to be an orphan")
			}
			a := attach(t, pins, target(l.B), test.hook, g)
			tapped := test.hook == hooks.TC // the receiver sees packets before TC does
			if !a.TookOverOrphan() || a.ProgramID() == id || !tapped && reaches(t, l, frame) {
				t.Errorf("not taken over: %t", a.TookOverOrphan())
			}
			if pins.IsOrphaned(target(l.B), test.hook) {
				t.Error("still an orphan")
			}
			wait.For(t, "the kernel unloads the old program", func() bool {
				p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
				if err == nil {
					p.Close()
				}
				return err != nil
			})
			repinned(t, a, 0, pinsOf(t, a))
			next := attach(t, pins, target(l.B), test.hook, g) // and adopted as ever
			a.Close()
			detach(t, next)
			if !reaches(t, l, frame) {
				t.Error("not detached")
			}
		})
	}
}

// A program of others, of whatever name, is no orphan of weir's.
func TestNoOrphan(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	foreign := passTC(t)
	l.B.In(t, func() {
		if err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ifindex(t, l.B), Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}); err != nil {
			t.Fatal(err)
		}
		if err := netlink.FilterAdd(neighbourFilter(t, l.B, foreign, netlink.HANDLE_MIN_INGRESS, 1)); err != nil {
			t.Fatal(err)
		}
	})
	if pins.IsOrphaned(target(l.B), hooks.TC) {
		t.Error("taken for one of weir's")
	}
}

// A service has a copy of the host's mount, which does not outlive it when the host has
// unmounted the original.
func TestRepinMirrored(t *testing.T) {
	lab.Root(t)
	done := make(chan struct{})
	go func() { // in a thread of its own, which ends with the goroutine
		defer close(done)
		runtime.LockOSThread()
		testRepinMirrored(t)
	}()
	<-done
}

func testRepinMirrored(t *testing.T) {
	l := lab.New(t)
	host, own := t.TempDir(), t.TempDir()
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		t.Error(err)
		return
	}
	if err := errors.Join(
		unix.Mount("bpf", host, "bpf", 0, "mode=0700"), unix.Mount("", host, "", unix.MS_SHARED, ""),
		unix.Mount(host, own, "", unix.MS_BIND, ""), unix.Mount("", own, "", unix.MS_SLAVE, ""),
	); err != nil {
		t.Error(err)
		return
	}
	time.Sleep(1100 * time.Millisecond) // the mounts are read once a second
	a, err := attachLoaded(Pins(own), target(l.B), hooks.Native, nil, blockAll(t, 1).Load)
	if err != nil {
		t.Error(err)
		return
	}
	if made, err := a.Repin(); made != 0 || err != nil || a.mirror == 0 {
		t.Error(made, a.mirror, err)
	}
	if err := unix.Unmount(host, unix.MNT_DETACH); err != nil {
		t.Error(err)
	}
	time.Sleep(1100 * time.Millisecond)
	if _, err := a.Repin(); !errors.Is(err, errMirror) || !strings.Contains(a.Unpinned(), "the host has unmounted") {
		t.Error(a.Unpinned(), err)
	}
	if err := errors.Join(a.Detach(), a.Close()); err != nil {
		t.Error(err)
	}
}

// killedWhileReplacing attaches the program of one generation, and then leaves what a process
// leaves that is killed when it has given some of the maps of the next one their names.
func killedWhileReplacing(t *testing.T, pins Pins, to netif.Target, from, next *Generation, named func(name string) bool) {
	t.Helper()
	a := attach(t, pins, to, hooks.Native, from)
	p, err := next.Load(a.Stats())
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range p.fresh {
		if !named(name) {
			continue
		}
		if err := a.pinOver(bpffs.Map{Map: m.m}, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(p.Close(), a.Close()); err != nil {
		t.Fatal(err)
	}
}

// A process that is killed while it names the maps of the next generation leaves some of it and
// some of the former one. The next process uses none whose sizes are not its own.
func TestReplaceKilled(t *testing.T) {
	long.Seconds(t)
	tracker := Tracker{Lines: 2, Buckets: 1}
	small := Config{
		Trackers: []Tracker{tracker}, Parts: []Part{recording{Lines: 1, Bits: 1}, firstSeen{Lines: 1}},
	}
	large := Config{
		Trackers: []Tracker{tracker, tracker}, Parts: []Part{recording{Lines: 64, Bits: 1}, firstSeen{Lines: 64, Sinks: 1}},
	}
	others := func(name string) bool { return !isHead(name) }
	for name, test := range map[string]struct {
		named func(name string) bool
		last  Config
	}{
		"heads first, as large":  {isHead, large},
		"heads first, as small":  {isHead, small},
		"heads last, as large":   {others, large},
		"heads last, as small":   {others, small},
		"trackers' head":         {func(name string) bool { return name == bpf.WeirMapTrackerNow }, large},
		"a part's head":          {func(name string) bool { return name == bpf.WeirMapDigestNow }, large},
		"another part's head":    {func(name string) bool { return name == bpf.WeirMapFirstNow }, large},
		"all of them, as large":  {func(string) bool { return true }, large},
		"none of them, as small": {func(string) bool { return false }, small},
	} {
		t.Run(name, func(t *testing.T) {
			l, pins := lab.New(t), testPins(t)
			killedWhileReplacing(t, pins, target(l.B), newTestGeneration(t, small), newTestGeneration(t, large), test.named)
			g := newTestGeneration(t, test.last)
			a := attach(t, pins, target(l.B), hooks.Native, g)
			repinned(t, a, 0, pinsOf(t, a))
			useMemory(t, g, a.Stats())
			a.Close()
			// From now on it is unchanged, and the memory goes on.
			a, err := attachLoaded(pins, target(l.B), hooks.Native, nil, func(s *Stats) (*Program, error) {
				p, err := g.Load(s)
				if err == nil && len(p.fresh) > 0 {
					t.Errorf("new maps: %v", slices.Sorted(maps.Keys(p.fresh)))
				}
				return p, err
			})
			if err != nil {
				t.Fatal(err)
			}
			detach(t, a)
		})
	}
}

// useMemory touches the last words of the memory of a generation's trackers, and counts the
// entries of its parts.
func useMemory(t *testing.T, g *Generation, s *Stats) {
	t.Helper()
	tr, err := g.OpenTrackers(s)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	tr.Bank(len(g.config.Trackers)-1, CPUs()-1, 1)
	s.Read(func(k Kept) {
		for _, p := range g.config.Parts {
			for name, n := range p.(Keeper).Keeps(netif.Target{}) {
				if got := k[name].entries(); got != n {
					t.Errorf("%s has %d entries, want %d", name, got, n)
				}
			}
		}
	})
}

// renames returns the names that files in a directory get while fn runs, in order.
func renames(t *testing.T, dir string, fn func() error) (names []string) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MOVED_TO); err != nil {
		t.Fatal(err)
	}
	if err := fn(); err != nil {
		t.Fatal(err)
	}
	events := make([]byte, 1<<16)
	n, err := unix.Read(fd, events)
	if err != nil {
		t.Fatal(err)
	}
	for events = events[:n]; len(events) > 0; {
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		names = append(names, string(bytes.TrimRight(events[unix.SizeofInotifyEvent:end], "\x00")))
		events = events[end:]
	}
	return names
}

// Replacing and repinning make the pins of heads after those of the maps that they identify.
func TestHeadsLast(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	a := attach(t, pins, target(l.B), hooks.Native, newTestGeneration(t, Config{}))
	defer detach(t, a)
	g := newTestGeneration(t, Config{
		Trackers: []Tracker{{Lines: 2, Buckets: 1}}, Parts: []Part{recording{Lines: 1, Bits: 1}, firstSeen{Lines: 1}},
	})
	for name, test := range map[string]struct {
		do   func() error
		pins int
	}{
		"replace": {func() error {
			p, err := g.Load(a.Stats())
			if err != nil {
				return err
			}
			return a.Replace(p)
		}, 7 + 4 + 3},
		"repin": {func() error {
			for _, name := range pinnedMapNames() {
				if err := os.Remove(filepath.Join(a.path, name)); err != nil {
					return err
				}
			}
			_, err := a.Repin()
			return err
		}, len(pinnedMapNames())},
	} {
		names := renames(t, a.path, test.do)
		if len(names) != test.pins {
			t.Errorf("%s: %d pins, want %d: %v", name, len(names), test.pins, names)
		}
		if !slices.IsSortedFunc(names, comparePins) || len(names) == 0 || !isHead(names[len(names)-1]) {
			t.Errorf("%s: in this order: %v", name, names)
		}
	}
}
