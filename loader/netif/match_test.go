package netif

import (
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// VLAN devices above an interface that matches are found, where they are asked for, those above
// others are not; that holds for the one that asks, too. The program on one of an edge of a loop
// domain would otherwise take the edge's own filters for those of packets that come again.
func TestMatching(t *testing.T) {
	link := func(index, parent int, name string) netlink.LinkAttrs {
		return netlink.LinkAttrs{Index: index, ParentIndex: parent, Name: name}
	}
	links := []netlink.Link{
		&netlink.Vlan{LinkAttrs: link(5, 4, "inner")}, // a tag in a tag, listed first
		&netlink.Dummy{LinkAttrs: link(1, 0, "eth0")},
		&netlink.Dummy{LinkAttrs: link(2, 0, "core0")},
		&netlink.Vlan{LinkAttrs: link(3, 2, "core0.7")},
		&netlink.Vlan{LinkAttrs: link(4, 1, "eth0.7")},
		&netlink.Veth{LinkAttrs: link(6, 1, "veth0")}, // its peer is another's eth0
	}
	for name, want := range map[string]bool{"eth0": true, "inner": true, "core0": false, "core0.7": false, "eth9": true} {
		own, got, err := matching(links, []string{"nothing", "eth[0-9]"}, true, name)
		slices.Sort(got)
		if err != nil || own != want || !slices.Equal(got, []uint32{1, 4, 5}) {
			t.Errorf("%s: %t, found %v, %v", name, own, got, err)
		}
		own, got, err = matching(links, []string{"nothing", "eth[0-9]"}, false, name)
		if err != nil || own != (want && name != "inner") || !slices.Equal(got, []uint32{1}) {
			t.Errorf("%s, without VLANs: %t, found %v, %v", name, own, got, err)
		}
	}
	if _, _, err := matching(links, []string{"eth["}, true, "eth0"); err == nil {
		t.Error("a malformed pattern is accepted")
	}
}
