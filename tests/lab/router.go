package lab

import (
	"fmt"
	"net"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Router is a lab whose end B is in a router's namespace, which has further
// interfaces, each with a wire to its own namespace.
type Router struct {
	*Lab
	Ports []Port
}

// Port is an interface of the router, and the host at the other end of its wire.
type Port struct{ Port, Host End }

// NewRouter returns a router with the given number of ports, named out1 and so
// on, which is removed when the test ends. Packets can be redirected to them.
func NewRouter(t testing.TB, ports int) *Router {
	t.Helper()
	r := &Router{Lab: New(t)}
	var err error
	if r.A.In(t, func() { err = r.A.receiveRedirected(t) }); err != nil {
		t.Fatalf("prepare %s: %v", r.A.Iface, err)
	}
	for i := range ports {
		wire := New(t)
		p := Port{Port: wire.B, Host: wire.A}
		p.Port.Netns, p.Port.Iface = r.B.Netns, fmt.Sprintf("out%d", i+1)
		p.Port.MAC = net.HardwareAddr{2, 0, 0, 0, 1, byte(i + 1)}
		renamed := wire.B.Rename(t, p.Port.Iface)
		renamed.In(t, func() { err = renamed.move(r.B.Netns) })
		if err == nil {
			p.Port.In(t, func() { err = p.up() })
		}
		if err == nil {
			p.Host.In(t, func() { err = p.Host.receiveRedirected(t) })
		}
		if err != nil {
			t.Fatalf("make %s: %v", p.Port.Iface, err)
		}
		r.Ports = append(r.Ports, p)
	}
	return r
}

// move takes the end's interface, of the present namespace, to another one.
func (e End) move(name string) error {
	to, err := netns.GetFromName(name)
	if err != nil {
		return err
	}
	defer to.Close()
	l, err := netlink.LinkByName(e.Iface)
	if err == nil {
		err = netlink.LinkSetNsFd(l, int(to))
	}
	return err
}

// rename renames the end's interface in the present namespace.
func (e End) rename(name string) error {
	l, err := netlink.LinkByName(e.Iface)
	if err == nil {
		err = netlink.LinkSetDown(l) // which old kernels insist on
	}
	if err == nil {
		err = netlink.LinkSetName(l, name)
	}
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	return err
}

// Rename renames the end's interface.
func (e End) Rename(t testing.TB, name string) End {
	t.Helper()
	var err error
	e.In(t, func() { err = e.rename(name) })
	if err != nil {
		t.Fatalf("rename %s: %v", e.Iface, err)
	}
	e.Iface = name
	return e
}

func (p Port) up() error {
	l, err := netlink.LinkByName(p.Port.Iface)
	if err == nil {
		err = netlink.LinkSetHardwareAddr(l, p.Port.MAC)
	}
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	return err
}

// LeaveAndReturn takes the interface to the host's namespace and back: it is the
// same, with the same number, and yet has left the router.
func (p Port) LeaveAndReturn(t testing.TB) {
	t.Helper()
	away := End{Netns: p.Host.Netns, Iface: p.Port.Iface}
	for _, way := range [][2]End{{p.Port, away}, {away, p.Port}} {
		var err error
		way[0].In(t, func() { err = way[0].move(way[1].Netns) })
		if err != nil {
			t.Fatalf("move %s: %v", p.Port.Iface, err)
		}
	}
	var err error
	p.Port.In(t, func() { err = p.up() })
	if err != nil {
		t.Fatalf("set up %s: %v", p.Port.Iface, err)
	}
}

// receiveRedirected lets a veth receive frames redirected to its peer, for
// which it must have a program itself.
func (e End) receiveRedirected(t testing.TB) error {
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "pass", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, // XDP_PASS
	})
	if err != nil {
		return err
	}
	defer pass.Close()
	l, err := netlink.LinkByName(e.Iface)
	if err != nil {
		return err
	}
	attached, err := link.AttachXDP(link.XDPOptions{Program: pass, Interface: l.Attrs().Index, Flags: link.XDPDriverMode})
	if err != nil {
		return err
	}
	t.Cleanup(func() { attached.Close() })
	return nil
}

// ReceiveRedirected lets the end receive what is redirected to its peer.
func (e End) ReceiveRedirected(t testing.TB) {
	t.Helper()
	var err error
	if e.In(t, func() { err = e.receiveRedirected(t) }); err != nil {
		t.Fatalf("prepare %s: %v", e.Iface, err)
	}
}
