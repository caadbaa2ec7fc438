package lab

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// BehindTC makes an interface that has all packets of this end, once they have passed TC: a
// receiver at the end itself is in front of that.
func (e End) BehindTC(t testing.TB) End {
	t.Helper()
	behind := e
	behind.Iface = "behind0"
	e.In(t, func() {
		lower, err := netlink.LinkByName(e.Iface)
		if err != nil {
			t.Fatal(err)
		}
		upper := &netlink.Macvlan{
			LinkAttrs: netlink.LinkAttrs{Name: behind.Iface, ParentIndex: lower.Attrs().Index}, Mode: netlink.MACVLAN_MODE_PASSTHRU,
		}
		if err := netlink.LinkAdd(upper); err != nil {
			t.Fatalf("add a macvlan device: %v", err)
		}
		if err := netlink.LinkSetUp(upper); err != nil {
			t.Fatal(err)
		}
	})
	return behind
}
