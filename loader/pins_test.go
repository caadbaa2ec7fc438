package loader

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir/loader/bpffs"
	"weir/loader/hooks"
	"weir/loader/kernelerr"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/wait"
)

func TestListNothing(t *testing.T) {
	pins := testPins(t)
	for _, d := range []Pins{pins, pins + "/not-there"} {
		if list, err := d.List(); len(list) != 0 || err != nil {
			t.Errorf("%s: %v, %v", d, list, err)
		}
	}
}

// Readers wait for writers, and not for other readers.
func TestLocks(t *testing.T) {
	pins := testPins(t)
	for _, test := range []struct {
		held, wanted int
		waits        bool
	}{
		{unix.LOCK_SH, unix.LOCK_SH, false},
		{unix.LOCK_SH, unix.LOCK_EX, true},
		{unix.LOCK_EX, unix.LOCK_SH, true},
		{unix.LOCK_EX, unix.LOCK_EX, true},
	} {
		unlock, err := pins.lock(test.held)
		if err != nil {
			t.Fatal(err)
		}
		locked := make(chan error)
		go func() {
			unlock, err := pins.lock(test.wanted)
			if err == nil {
				unlock()
			}
			locked <- err
		}()
		end := wait.Patience
		if test.waits {
			end = 100 * time.Millisecond
		}
		select {
		case err = <-locked:
			if test.waits || err != nil {
				t.Errorf("%+v: did not wait, %v", test, err)
			}
			unlock()
		case <-time.After(end):
			if !test.waits {
				t.Errorf("%+v: waits", test)
			}
			unlock()
			if err := <-locked; err != nil {
				t.Error(err)
			}
		}
	}
}

// Who waits for a process that does not run learns which one it is.
func TestLockedForLong(t *testing.T) {
	pins := testPins(t)
	unlock, err := pins.lock(unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	setPatience(t, 10*time.Millisecond)
	before := openFiles(t)
	for range 20 {
		if _, err = pins.List(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("kill -CONT %d`", os.Getpid())) {
			t.Errorf("locked for long: %v", err)
		}
	}
	if after := openFiles(t); after != before {
		t.Errorf("%+v open while it is locked, %+v before", after, before)
	}
	unlock()
	setPatience(t, wait.Patience)
	if _, err = pins.List(); err != nil {
		t.Error(err)
	}
}

// setPatience sets for how long a test waits for locks.
func setPatience(t *testing.T, patience time.Duration) {
	former := bpffs.Patience
	bpffs.Patience = patience
	t.Cleanup(func() { bpffs.Patience = former })
}

// Without its metadata, what filters is found, and replaced without a gap.
func TestListDamaged(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	g := blockAll(t, 1)
	a := attach(t, pins, target(l.B), hooks.Native, g)
	defer a.Close()
	b := attach(t, pins, netif.Target{Netns: l.B.Netns, Iface: "lo"}, hooks.Generic, g)
	defer detach(t, b)
	if err := os.Remove(filepath.Join(a.path, pinMetadata)); err != nil {
		t.Fatal(err)
	}
	list, err := pins.List()
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	for _, n := range list {
		if w, hook := map[bool]*Attachment{true: a, false: b}[n.ProgramID() == a.ProgramID()], n.Hook(); n.Target() != w.Target() || hook != w.Hook() {
			t.Errorf("listed %v, %v; want %v, %v", n.Target(), hook, w.Target(), w.Hook())
		}
		n.Close()
	}
	next := attach(t, pins, target(l.B), hooks.Native, g)
	if !a.Replaced() || reaches(t, l, udp(l, addrA, addrB, 1)) {
		t.Error("not replaced")
	}
	if text, err := readMetadata(next.metadataMap); err != nil || text.Target != target(l.B) {
		t.Error(text, err)
	}
	detach(t, next)

	// Without its link, nothing holds the program: that is severed.
	if a, err = attachLoaded(pins, target(l.B), hooks.Native, nil, g.Load); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.Close(), os.Remove(filepath.Join(a.path, "link"))); err != nil {
		t.Fatal(err)
	}
	if list, err = pins.List(); err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	severed := 0
	for _, b := range list {
		if b.Severed() {
			severed++
			detach(t, b)
		} else {
			b.Close()
		}
	}
	if severed != 1 {
		t.Errorf("%d are severed", severed)
	}
}

// What a process left that was killed in Attach does not stay, and is no
// attachment.
func TestSweep(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	left := filepath.Join(string(pins), hooks.Unfinished+"1")
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := errors.Join(os.Mkdir(left, 0o700), m.Pin(filepath.Join(left, pinMetadata))); err != nil {
		t.Fatal(err)
	}
	if list, err := pins.List(); err != nil || len(list) != 0 {
		t.Error(list, err)
	}
	detach(t, attach(t, pins, target(l.B), hooks.Native, newTestGeneration(t, Config{})))
	if bpffs.Exists(left) {
		t.Error("it is still there")
	}
}

func TestNoBPFFS(t *testing.T) {
	g := newTestGeneration(t, Config{})
	dir := Pins(t.TempDir())
	for _, d := range []Pins{dir, dir + "/below"} {
		_, err := attachLoaded(d, netif.Target{Iface: "lo"}, hooks.Generic, nil, g.Load)
		wantError(t, err, bpffs.ErrNoBPFFS, "mount -t bpf bpf /sys/fs/bpf")
	}
	// Where none is to be seen, one may be hidden, with pins in it.
	for _, d := range []Pins{dir, dir + "/below"} {
		_, err := d.List()
		wantError(t, err, bpffs.ErrNoBPFFS, "ip netns exec")
		_, err = d.Open(netif.Target{Iface: "lo"})
		wantError(t, err, bpffs.ErrNoBPFFS)
	}
	if bpffs.Exists(string(dir + "/below")) {
		t.Error("a directory was made on another file system")
	}
	_, err := attachLoaded(Pins(bpffs.Mount+"/weir.test"), netif.Target{Iface: "lo"}, hooks.Generic, nil, g.Load)
	if err == nil || !strings.Contains(err.Error(), "dots") {
		t.Error(err)
	}
}

// asChild is the environment variable that names what the test program is to
// do instead of testing, in a process of its own.
const asChild = "WEIR_LOADER_TEST_CHILD"

func TestMain(m *testing.M) {
	do, ok := children[os.Getenv(asChild)]
	if !ok {
		os.Exit(m.Run())
	}
	if err := do(os.Getenv("WEIR_LOADER_TEST_PINS")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var children = map[string]func(pins string) error{
	"mount":     childMount,
	"lifecycle": childLifecycle,
	"load":      childLoad,
}

// child prepares to run the test program as a child, from a directory that
// every user may enter.
func child(t *testing.T, do string, pins Pins) *exec.Cmd {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, "child")
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	to, err := os.OpenFile(program, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(to, self)
	if err := errors.Join(err, to.Close(), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), asChild+"="+do, "WEIR_LOADER_TEST_PINS="+string(pins))
	return cmd
}

// The file system is mounted if it is not, unless the mount would vanish with the
// process, as under `ip netns exec`.
func TestMount(t *testing.T) {
	lab.Root(t)
	for _, test := range []struct {
		name string
		more uintptr
		says string
	}{
		{"own mounts", 0, "no BPF file system"},
		{"own mounts and processes", unix.CLONE_NEWPID, ""}, // where it is the first process
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := child(t, "mount", DefaultPins)
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | test.more}
			out, err := cmd.CombinedOutput()
			if !strings.Contains(string(out), test.says) || (err == nil) != (test.says == "") {
				t.Errorf("%v, %s", err, out)
			}
		})
	}
}

func childMount(pins string) error {
	if err := errors.Join(
		unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""),
		unix.Mount("proc", "/proc", "proc", 0, ""),
		unix.Unmount(bpffs.Mount, unix.MNT_DETACH),
	); err != nil {
		return err
	}
	g, err := NewGeneration(Config{})
	if err != nil {
		return err
	}
	defer g.Close()
	a, err := attachLoaded(Pins(pins), netif.Target{Iface: "lo"}, hooks.Generic, nil, g.Load)
	if err != nil {
		return err
	}
	return errors.Join(a.Detach(), a.Close())
}

const (
	capBPF      = unix.CAP_BPF
	capNetAdmin = unix.CAP_NET_ADMIN
	capPerfmon  = unix.CAP_PERFMON
)

// Three capabilities suffice, and the one that is missing is named.
func TestCapabilities(t *testing.T) {
	const uid = 65534 // without privileges
	for _, test := range []struct {
		do   string
		caps []uintptr
		says string
	}{
		{"lifecycle", []uintptr{capBPF, capNetAdmin, capPerfmon}, ""},
		{"load", []uintptr{capBPF, capPerfmon}, "missing privilege, namely CAP_NET_ADMIN:"},
		{"load", []uintptr{capBPF, capNetAdmin}, "missing privilege, namely CAP_PERFMON:"},
		{"load", []uintptr{capNetAdmin, capPerfmon}, "missing privilege, namely CAP_BPF:"},
		{"load", nil, "missing privilege, namely CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON:"},
	} {
		t.Run(fmt.Sprint(test.do, test.caps), func(t *testing.T) {
			l, pins := lab.New(t), ownPins(t, uid)
			cmd := child(t, test.do, pins)
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Credential:  &syscall.Credential{Uid: uid, Gid: uid},
				AmbientCaps: test.caps,
			}
			cmd.Env = append(cmd.Env, "WEIR_LOADER_TEST_NETNS="+l.A.Netns)
			var out []byte
			var err error
			l.B.In(t, func() { out, err = cmd.CombinedOutput() })
			if !strings.Contains(string(out), test.says) || (err == nil) != (test.says == "") {
				t.Errorf("%v, %s", err, out)
			}
			t.Logf("%s", out)
		})
	}
}

// ownPins returns a directory of pins of a user, in a BPF file system of its own: only
// root has access to the one that systemd mounts.
func ownPins(t *testing.T, uid int) Pins {
	t.Helper()
	dir := t.TempDir()
	// Its parent, too, is closed to others.
	err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755),
		unix.Mount("bpf", dir, "bpf", 0, "mode=0700"), os.Chown(dir, uid, uid))
	t.Cleanup(func() { unix.Unmount(dir, 0) })
	if err != nil {
		t.Fatal(err)
	}
	return Pins(dir)
}

func childLoad(pins string) error {
	g, err := NewGeneration(Config{})
	if err != nil {
		return err
	}
	defer g.Close()
	a, err := attachLoaded(Pins(pins), netif.Target{Iface: "veth-b"}, hooks.Native, nil, g.Load)
	if err != nil {
		return err
	}
	return errors.Join(a.Detach(), a.Close())
}

// childLifecycle does all that can be done.
func childLifecycle(dir string) error {
	pins, to := Pins(dir), netif.Target{Iface: "veth-b"}
	g, err := NewGeneration(Config{Block: coarse()})
	if err != nil {
		return err
	}
	defer g.Close()
	for range 2 { // the second time, it adopts
		a, err := attachLoaded(pins, to, hooks.Native, []byte("1"), g.Load)
		if err != nil {
			return err
		}
		p, err := g.Load(a.Stats())
		if err != nil {
			return err
		}
		if _, err := p.Test(make([]byte, 60)); err != nil {
			return err
		}
		if err := errors.Join(a.Replace(p), a.SetMetadata([]byte("2")), a.Close()); err != nil {
			return err
		}
	}
	list, err := pins.List()
	if err != nil || len(list) != 1 || list[0].Severed() {
		return fmt.Errorf("listed %v, %w", list, err)
	}
	if _, err := attachLoaded(Pins(dir+"/other"), to, hooks.Native, nil, g.Load); !errors.Is(err, kernelerr.ErrForeign) {
		return fmt.Errorf("attached twice: %w", err)
	}
	if err := os.Remove(dir + "/other"); err != nil {
		return err
	}
	if _, err := net.InterfaceByName(to.Iface); err != nil {
		return err
	}
	if _, err := attachLoaded(pins, netif.Target{Netns: os.Getenv("WEIR_LOADER_TEST_NETNS"), Iface: "lo"}, hooks.Generic, nil, g.Load); !errors.Is(err, kernelerr.ErrPermission) {
		return fmt.Errorf("entered a namespace: %w", err)
	}
	return errors.Join(list[0].Detach(), list[0].Close())
}

// A search of pins reads the metadata only of those that may be meant: with hundreds of
// interfaces, each of which searches, reading all takes half of the start.
func TestSearchReadsLittle(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	at := target(l.B)
	a := attach(t, pins, at, hooks.Native, newTestGeneration(t, Config{}))
	defer detach(t, a)
	inode, err := at.Namespace()
	if err != nil {
		t.Fatal(err)
	}
	index, err := a.Index()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		on   func(int) bool
		read int
	}{
		"severed":           {isSevered, 0},
		"another interface": {func(i int) bool { return i == index+1 }, 0},
		"this one":          {func(i int) bool { return i == index }, 1},
		"any":               {anyIndex, 1},
	} {
		read := 0
		_, err := pins.search(inode, false, c.on, func(b *Attachment) bool {
			if read++; b.metadata.Target != at {
				t.Errorf("%s: %+v", name, b.metadata.Target)
			}
			return false
		})
		wantError(t, err, ErrNotAttached)
		if read != c.read {
			t.Errorf("%s: metadata are read %d times, want %d", name, read, c.read)
		}
	}
}
