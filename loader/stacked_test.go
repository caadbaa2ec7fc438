package loader

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir/loader/hooks"
	"weir/loader/kernelerr"
	"weir/loader/netif"
	"weir/tests/lab"
)

// Devices above others have no XDP of their own, except some bonds: the error names
// those below, where the program attaches.
func TestStacked(t *testing.T) {
	attrs := func(parent int) netlink.LinkAttrs {
		a := netlink.NewLinkAttrs()
		a.Name, a.ParentIndex = "above", parent
		return a
	}
	roundRobin, tlb := netlink.NewLinkBond(attrs(0)), netlink.NewLinkBond(attrs(0))
	roundRobin.Mode, tlb.Mode = netlink.BOND_MODE_BALANCE_RR, netlink.BOND_MODE_BALANCE_TLB
	for _, c := range []struct {
		name   string
		device func(parent int) netlink.Link
		port   bool // the other interface is a port of the device
		native bool
	}{
		{"bridge", func(int) netlink.Link { return &netlink.Bridge{LinkAttrs: attrs(0)} }, true, false},
		{"macvlan", func(parent int) netlink.Link {
			return &netlink.Macvlan{LinkAttrs: attrs(parent), Mode: netlink.MACVLAN_MODE_BRIDGE}
		}, false, false},
		{"VLAN device", func(parent int) netlink.Link { return &netlink.Vlan{LinkAttrs: attrs(parent), VlanId: 5} }, false, false},
		{"bond, round robin", func(int) netlink.Link { return roundRobin }, true, true},
		{"bond, TLB", func(int) netlink.Link { return tlb }, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, pins := lab.New(t), testPins(t)
			g := newTestGeneration(t, Config{})
			var err error
			l.B.In(t, func() { err = stack(l.B.Iface, c.device, c.port) })
			if errors.Is(err, unix.EOPNOTSUPP) {
				t.Skipf("needs the kernel's %s", c.name)
			}
			if err != nil {
				t.Fatal(err)
			}
			above, below := netif.Target{Netns: l.B.Netns, Iface: "above"}, netif.Target{Netns: l.B.Netns, Iface: l.B.Iface}
			aware := lab.KernelAtLeast(t, 5, 15) // of programs at bonds, and at devices above others
			if c.native && aware {
				detach(t, attach(t, pins, above, hooks.Native, g))
			} else {
				_, err = attachLoaded(pins, above, hooks.Native, nil, g.Load)
				wantError(t, err, hooks.ErrNoDriver, "filter on "+l.B.Iface+" below it", "xdp generic")
			}
			detach(t, attach(t, pins, below, hooks.Native, g))
			a := attach(t, pins, above, hooks.Generic, g)
			if aware {
				_, err = attachLoaded(pins, below, hooks.Native, nil, g.Load)
				wantError(t, err, kernelerr.ErrForeign, "upper device already has a program")
			} else {
				detach(t, attach(t, pins, below, hooks.Native, g))
			}
			detach(t, a)
		})
	}
}

// stack puts a device above an interface.
func stack(iface string, device func(parent int) netlink.Link, port bool) error {
	lower, err := netlink.LinkByName(iface)
	if err != nil {
		return err
	}
	if port { // a bond takes no port that is up
		if err := netlink.LinkSetDown(lower); err != nil {
			return err
		}
	}
	above := device(lower.Attrs().Index)
	if err := netlink.LinkAdd(above); err != nil {
		return err
	}
	if port {
		if err := netlink.LinkSetMaster(lower, above); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lower); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(above)
}
