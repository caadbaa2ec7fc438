package kernels

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"weir/loader"
	"weir/loader/hooks"
	"weir/loader/netif"
	"weir/tests/lab"
)

func generation(t *testing.T) *loader.Generation {
	t.Helper()
	lab.Root(t)
	g, err := loader.NewGeneration(loader.Config{Lists: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

func pins(t *testing.T) loader.Pins {
	t.Helper()
	dir, err := os.MkdirTemp("/sys/fs/bpf", "weir-kernels-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Errorf("pins are left: %v", err)
			os.RemoveAll(dir)
		}
	})
	return loader.Pins(dir)
}

// attachLoaded attaches the program that load returns.
func attachLoaded(d loader.Pins, to netif.Target, hook hooks.Hook, metadata []byte, load func(*loader.Stats) (*loader.Program, error)) (*loader.Attachment, error) {
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

// lifecycle attaches, finds the attachment again, replaces its program and
// detaches.
func lifecycle(pins loader.Pins, to netif.Target, mode hooks.Hook, g *loader.Generation) (err error) {
	a, err := attachLoaded(pins, to, mode, nil, g.Load)
	if err != nil {
		return err
	}
	if err := a.Close(); err != nil {
		return err
	}
	list, err := pins.List()
	if err != nil || len(list) != 1 {
		return fmt.Errorf("%d attachments, %w", len(list), err)
	}
	a = list[0]
	defer a.Close()
	old := a.ProgramID()
	next, err := attachLoaded(pins, to, mode, nil, g.Load)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, next.Detach(), next.Close()) }()
	p, err := g.Load(next.Stats())
	if err != nil {
		return err
	}
	if err := next.Replace(p); err != nil {
		return err
	}
	if now := next.ProgramID(); now == 0 || now == old {
		return fmt.Errorf("program %d after %d", now, old)
	}
	return nil
}

// TC, in both directions: at tcx, or by filters of clsact before Linux 6.6.
func TestAttachTC(t *testing.T) {
	lab.Root(t)
	for _, out := range []bool{false, true} {
		t.Run(map[bool]string{false: "in", true: "out"}[out], func(t *testing.T) {
			g, err := loader.NewGeneration(loader.Config{Lists: 1, TC: true, Out: out})
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			l := lab.New(t)
			err = lifecycle(pins(t), netif.Target{Netns: l.B.Netns, Iface: l.B.Iface, Out: out}, hooks.TC, g)
			attribute(t, err)
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// Over veth.
func TestAttach(t *testing.T) {
	g := generation(t)
	for _, mode := range []hooks.Hook{hooks.Native, hooks.Generic} {
		t.Run(mode.String(), func(t *testing.T) {
			l := lab.New(t)
			err := lifecycle(pins(t), netif.Target{Netns: l.B.Netns, Iface: l.B.Iface}, mode, g)
			attribute(t, err)
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// Multi-buffer XDP is used where the kernel has it, and frames that want it
// are refused, by an error of their own, where it has not.
func TestFrags(t *testing.T) {
	lab.Root(t)
	want := lab.KernelAtLeast(t, 5, 18)
	g := generation(t)
	t.Run("frame of 60000 bytes", func(t *testing.T) {
		s, err := loader.NewStats(1)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		p, err := g.Load(s)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		_, err = p.Test(make([]byte, 60_000))
		attribute(t, err)
		if (err == nil) != want {
			t.Errorf("a frame of 60000 bytes: %v", err)
		}
	})
	t.Run("MTU 9000 on veth", func(t *testing.T) {
		l := lab.New(t)
		l.A.In(t, func() { setMTU(t, l.A.Iface, 9000) })
		err := lifecycle(pins(t), netif.Target{Netns: l.B.Netns, Iface: l.B.Iface}, hooks.Native, g)
		attribute(t, err)
		if !want && !errors.Is(err, hooks.ErrMTU) || want && err != nil {
			t.Errorf("native: %v", err)
		}
		if err := lifecycle(pins(t), netif.Target{Netns: l.B.Netns, Iface: l.B.Iface}, hooks.Generic, g); err != nil {
			t.Errorf("generic: %v", err)
		}
	})
}

// The driver of virtual machines, natively.
func TestVirtio(t *testing.T) {
	lab.Root(t)
	name := os.Getenv("WEIR_VIRTIO") // its name in the guest of `make test-kernels`
	if name == "" {
		t.Skip("WEIR_VIRTIO names no interface to try")
	}
	if _, err := net.InterfaceByName(name); err != nil {
		t.Fatal(err)
	}
	g := generation(t)
	for _, mode := range []hooks.Hook{hooks.Native, hooks.Generic} {
		t.Run(mode.String(), func(t *testing.T) {
			err := lifecycle(pins(t), netif.Target{Iface: name}, mode, g)
			attribute(t, err)
			if err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("MTU 9000", func(t *testing.T) {
		setMTU(t, name, 9000)
		defer setMTU(t, name, 1500)
		err := lifecycle(pins(t), netif.Target{Iface: name}, hooks.Native, g)
		attribute(t, err)
		if err != nil && !errors.Is(err, hooks.ErrMTU) {
			t.Error(err)
		}
	})
}

func setMTU(t *testing.T, name string, mtu int) {
	t.Helper()
	iface, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetMTU(iface, mtu)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// attribute makes the outcome an attribute of the test.
func attribute(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Log(err)
		t.Attr("outcome", "refused")
		return
	}
	t.Attr("outcome", "works")
}
