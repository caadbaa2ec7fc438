package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir/bpf"
	"weir/loader/bpffs"
	"weir/loader/hooks"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/wait"
)

// testPins is a directory of pins for one test, which must leave nothing in it.
func testPins(t *testing.T) Pins {
	t.Helper()
	lab.Root(t)
	dir, err := os.MkdirTemp(bpffs.Mount, "weir-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Errorf("pins are left: %v", err)
			os.RemoveAll(dir)
		}
	})
	return Pins(dir)
}

func newTestGeneration(t *testing.T, cfg Config) *Generation {
	t.Helper()
	lab.Root(t)
	g, err := NewGeneration(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func newTestProgram(t *testing.T, g *Generation) *Program {
	t.Helper()
	s, err := NewStats(0)
	if err != nil {
		t.Fatal(err)
	}
	p, err := g.Load(s)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// coarse is a set that holds all sources of a family, once the bits of its
// one line are set.
func coarse() KeySet {
	s := KeySet{Lines: 1, First: 1, GatesV4: 1, N_v4: 1}
	s.V4[0] = bpf.WeirShape{Head: 1, Gate: 1, SrcMask: [4]uint32{^uint32(0)}}
	return s
}

// fill sets all bits.
func fill(words []uint64) {
	for i := range words {
		words[i] = ^uint64(0)
	}
}

// blockAll is a generation that blocks all of IPv4.
func blockAll(t *testing.T, lists int) *Generation {
	t.Helper()
	g := newTestGeneration(t, Config{Block: coarse(), Lists: lists})
	fill(g.Block().Lines)
	return g
}

// udp is a frame from a to b with a number in it.
func udp(l *lab.Lab, src, dst netip.Addr, number uint32) []byte {
	f := slices.Concat(l.B.MAC, l.A.MAC)
	f = append(f, 0x08, 0)
	f = append(f, 0x45, 0, 0, 20+8+32, 0, 0, 0, 0, 64, 17, 0, 0)
	f = append(append(f, src.AsSlice()...), dst.AsSlice()...)
	f = append(f, 0x30, 0x39, 0, 9, 0, 8+32, 0, 0)
	f = append(f, make([]byte, 32)...)
	binary.BigEndian.PutUint32(f[len(f)-4:], number)
	return f
}

var unplugged = &lab.Lab{A: lab.End{MAC: make([]byte, 6)}, B: lab.End{MAC: make([]byte, 6)}}

func target(e lab.End) netif.Target { return netif.Target{Netns: e.Netns, Iface: e.Iface} }

// attach attaches for a test that closes and detaches.
func attach(t *testing.T, pins Pins, to netif.Target, hook hooks.Hook, g *Generation) *Attachment {
	t.Helper()
	a, err := attachLoaded(pins, to, hook, nil, g.Load)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// attachBoth attaches a generation's programs to both ends of a link.
func attachBoth(t *testing.T, pins Pins, l *lab.Lab, g *Generation) (a, b *Attachment) {
	t.Helper()
	return attach(t, pins, target(l.A), hooks.Native, g), attach(t, pins, target(l.B), hooks.Native, g)
}

// loadAndTake loads a generation's program, and has the stats take over the maps that it brings.
func loadAndTake(t *testing.T, g *Generation, s *Stats) *Program {
	t.Helper()
	p, err := g.Load(s)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	if err := s.Take(p); err != nil {
		t.Fatal(err)
	}
	return p
}

// attachLoaded attaches the program that load returns.
func attachLoaded(d Pins, to netif.Target, hook hooks.Hook, metadata []byte, load func(*Stats) (*Program, error)) (*Attachment, error) {
	p, err := d.Prepare(to, hook)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	program, err := load(p.Stats())
	if err != nil {
		return nil, err
	}
	return p.Attach(program, metadata)
}

func detach(t *testing.T, a *Attachment) {
	t.Helper()
	if err := errors.Join(a.Detach(), a.Close()); err != nil {
		t.Error(err)
	}
}

// wantError fails unless err is, and says, what is expected.
func wantError(t *testing.T, err, is error, says ...string) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Fatalf("error is %v, want %v", err, is)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q does not say %q", err, s)
		}
	}
	t.Log(err)
}

// reaches reports whether a frame sent at A arrives at B. An ARP frame, which
// always passes, marks the end.
func reaches(t *testing.T, l *lab.Lab, frame []byte) bool {
	t.Helper()
	tx, rx := l.A.Sender(t), l.B.Receiver(t)
	end := slices.Concat(l.B.MAC, l.A.MAC, []byte{8, 6}, make([]byte, 46))
	if err := errors.Join(tx.Send(frame), tx.Send(end)); err != nil {
		t.Fatal(err)
	}
	deadline := wait.Deadline()
	for {
		switch got, err := rx.Receive(time.Until(deadline)); {
		case err != nil:
			t.Fatalf("wait for the frame that marks the end: %v", err)
		case string(got) == string(frame):
			return true
		case string(got) == string(end):
			return false
		}
	}
}

// open counts the files and maps that a process has open.
type open struct{ files, maps int }

func (o open) String() string { return fmt.Sprintf("%d files, %d mapped maps", o.files, o.maps) }

// openFiles counts what the process has open, to find leaks.
func openFiles(t *testing.T) open {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	mappings, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return open{len(entries), strings.Count(string(mappings), "bpf-map")}
}

// modeFlag returns the flag of netlink for a mode of XDP.
func modeFlag(h hooks.Hook) uint32 {
	if h == hooks.Generic {
		return unix.XDP_FLAGS_SKB_MODE
	}
	return unix.XDP_FLAGS_DRV_MODE
}

// byName returns an interface's attributes in the present network namespace.
func byName(name string) (*netlink.LinkAttrs, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	return l.Attrs(), nil
}
