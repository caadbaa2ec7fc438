package netif

import (
	"maps"
	"testing"

	"github.com/vishvananda/netlink"
)

// What receives the packets of an interface is above it: its bridge, a VLAN on that. The other
// end of a veth names it as its parent, but receives none.
func TestAbove(t *testing.T) {
	links := []netlink.Link{
		&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Index: 7, Name: "br0.5", ParentIndex: 5}},
		&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: 2, Name: "eth0", ParentIndex: 3, MasterIndex: 5}},
		&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: 3, Name: "peer", ParentIndex: 2}},
		&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: 4, Name: "eth1"}},
		&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Index: 5, Name: "br0"}},
		&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Index: 6, Name: "eth1.5", ParentIndex: 4}},
	}
	want := map[int]string{2: "eth0", 5: "br0", 7: "br0.5"}
	if on := above(links, func(name string) bool { return name == "eth0" }); !maps.Equal(on, want) {
		t.Errorf("%v, want %v", on, want)
	}
}

// A command that is advised works in the namespace, whichever way that was named.
func TestTool(t *testing.T) {
	for netns, want := range map[string]string{"": "ip", "blue": "ip -n blue", "/proc/1/ns/net": "nsenter --net=/proc/1/ns/net ip"} {
		if got := (Target{Netns: netns}).Tool("ip"); got != want {
			t.Errorf("%q: %s, want %s", netns, got, want)
		}
	}
}
