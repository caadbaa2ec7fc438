package netif

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Network describes the networks that interfaces of a namespace connect to, without IPv6
// link-local addresses.
type Network struct {
	Own      []netip.Addr   // addresses of all interfaces of the namespace, but for loopback
	Local    []netip.Prefix // addresses of the interfaces, with the lengths of their networks
	Gateways []netip.Addr   // of the default routes through the interfaces
	Trunks   []int          // indexes of interfaces of the namespace, below VLAN devices there
}

// anywhere are addresses that default routes lead to, if any routes do: the addresses of
// a.root-servers.net.
var anywhere = []net.IP{net.ParseIP("198.41.0.4"), net.ParseIP("2001:503:ba3e::2:30")}

// NetworkOf returns what the interfaces of a namespace connect to that match, with
// those that are above them: bridges, bonds, VLANs.
func NetworkOf(netns string, match func(name string) bool) (n Network, err error) {
	err = Target{Netns: netns}.In(func(uint64) error {
		links, err := listLinks()
		if err != nil {
			return err
		}
		on := above(links, match)
		for _, l := range links {
			if l.Type() == "vlan" {
				n.Trunks = append(n.Trunks, l.Attrs().ParentIndex)
			}
		}
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			addresses, err := netlink.AddrList(nil, family)
			if err != nil {
				return fmt.Errorf("list addresses: %w", err)
			}
			for _, a := range addresses {
				p, ok := prefixOf(a.IPNet)
				if !ok || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast() {
					continue
				}
				if !slices.Contains(n.Own, p.Addr()) {
					n.Own = append(n.Own, p.Addr())
				}
				if on[a.LinkIndex] != "" {
					n.Local = append(n.Local, p)
				}
			}
		}
		for _, name := range on {
			for _, to := range anywhere {
				routes, err := netlink.RouteGetWithOptions(to, &netlink.RouteGetOptions{Oif: name})
				if err != nil {
					continue // there is none
				}
				for _, r := range routes {
					if gateway, ok := netip.AddrFromSlice(r.Gw); ok && !gateway.Unmap().IsLinkLocalUnicast() && !slices.Contains(n.Gateways, gateway.Unmap()) {
						n.Gateways = append(n.Gateways, gateway.Unmap())
					}
				}
			}
		}
		return nil
	})
	return n, err
}

// above returns the names, by index, of the links that match and of those that
// receive what these do.
func above(links []netlink.Link, match func(name string) bool) map[int]string {
	on := make(map[int]string)
	for grown := true; grown; {
		grown = false
		for _, l := range links {
			a := l.Attrs()
			if on[a.Index] != "" {
				continue
			}
			below := func(o netlink.Link) bool {
				b := o.Attrs()
				// The peer of a veth is its parent, too, but in another namespace mostly.
				parent := a.ParentIndex == b.Index && l.Type() != "veth"
				return on[b.Index] != "" && (b.MasterIndex == a.Index || parent)
			}
			if match(a.Name) || slices.ContainsFunc(links, below) {
				on[a.Index], grown = a.Name, true
			}
		}
	}
	return on
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits), ok
}
