package lab

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"weir/control/demo/playground"
)

// Host is a network namespace that is a host, or a router.
type Host struct{ Netns string }

// NewHost makes a host that forwards packets, without interfaces, which is gone
// when the test ends. Without being root, the test ends like with [Root].
func NewHost(t testing.TB, name string) Host {
	t.Helper()
	Root(t)
	h := Host{fmt.Sprintf("weir-%08x-%s", rand.Uint32(), name)}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never back: the thread ends in the namespace
		done <- h.make()
	}()
	if err := <-done; err != nil {
		t.Fatalf("network namespace %s: %v", h.Netns, err)
	}
	t.Cleanup(func() {
		if err := netns.DeleteNamed(h.Netns); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h Host) make() error {
	ns, err := playground.NewNetns(h.Netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	for knob, value := range map[string]string{
		"ipv4/ip_forward":                        "1",
		"ipv4/conf/all/send_redirects":           "0",
		"ipv4/conf/default/send_redirects":       "0",
		"ipv6/conf/all/forwarding":               "1",
		"ipv6/conf/default/addr_gen_mode":        "1", // none
		"ipv6/conf/default/accept_dad":           "0",
		"ipv6/conf/default/router_solicitations": "0",
		"ipv4/icmp_ratelimit":                    "0",
		// Repeat multicast reports within weeks (ms) only: a test would count
		// them as its own.
		"ipv6/conf/default/mldv1_unsolicited_report_interval": "2000000000",
		"ipv6/conf/default/mldv2_unsolicited_report_interval": "2000000000",
	} {
		if err := os.WriteFile("/proc/sys/net/"+knob, []byte(value), 0); err != nil {
			return err
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// In calls fn in the host's network namespace. fn must not start goroutines,
// which would be elsewhere.
func (h Host) In(t testing.TB, fn func()) {
	t.Helper()
	End{Netns: h.Netns}.In(t, fn)
}

// Join connects interfaces of two hosts by a wire with an MTU. The first has
// the addresses 10.0.n.1 and fd00:n::1, the second 10.0.n.2 and fd00:n::2.
// Neighbour entries are static, so that only the test sends.
func Join(t testing.TB, n byte, mtu int, a Host, aIface string, b Host, bIface string) (aEnd, bEnd End) {
	t.Helper()
	end := func(h Host, iface string, i byte) End {
		return End{
			Netns: h.Netns, Iface: iface, MAC: []byte{2, 0, 0, 0, n, i},
			IPv4: netip.AddrFrom4([4]byte{10, 0, n, i}), IPv6: netip.AddrFrom16([16]byte{0: 0xfd, 3: n, 15: i}),
		}
	}
	aEnd, bEnd = end(a, aIface, 1), end(b, bIface, 2)
	peer, err := netns.GetFromName(b.Netns)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = aIface, aEnd.MAC, mtu
	aEnd.In(t, func() {
		err = netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: attrs, PeerName: bIface, PeerHardwareAddr: bEnd.MAC, PeerNamespace: netlink.NsFd(peer), PeerMTU: uint32(mtu),
		})
	})
	if err != nil {
		t.Fatalf("add veth pair: %v", err)
	}
	for _, e := range [][2]End{{aEnd, bEnd}, {bEnd, aEnd}} {
		e[0].In(t, func() { err = e[0].address(e[1]) })
		if err != nil {
			t.Fatalf("set up %s: %v", e[0].Iface, err)
		}
	}
	return aEnd, bEnd
}

func (e End) address(peer End) error {
	link, err := netlink.LinkByName(e.Iface)
	if err != nil {
		return err
	}
	for _, p := range []netip.Prefix{netip.PrefixFrom(e.IPv4, 24), netip.PrefixFrom(e.IPv6, 64)} {
		if err := addAddress(link, p.String()); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	for _, a := range []netip.Addr{peer.IPv4, peer.IPv6} {
		if err := netlink.NeighSet(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, State: unix.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: peer.MAC,
		}); err != nil {
			return fmt.Errorf("add neighbour %s: %w", a, err)
		}
	}
	return nil
}

// Route adds a route at this end, for the prefix via the address at the wire's
// other end.
func (e End) Route(t testing.TB, prefix string, via netip.Addr) {
	t.Helper()
	e.In(t, func() {
		link, err := netlink.LinkByName(e.Iface)
		if err != nil {
			t.Fatal(err)
		}
		dst, err := netlink.ParseIPNet(prefix)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Gw: via.AsSlice()}); err != nil {
			t.Fatalf("route %s via %s: %v", prefix, via, err)
		}
	})
}

// Sent is the number of packets that have gone out at this end.
func (e End) Sent(t testing.TB) (n uint64) {
	t.Helper()
	e.In(t, func() {
		link, err := netlink.LinkByName(e.Iface)
		if err != nil {
			t.Fatal(err)
		}
		n = link.Attrs().Statistics.TxPackets
	})
	return n
}

// AddAddress adds an address, as in 10.0.0.1/8, to an interface in the present network namespace.
func AddAddress(t testing.TB, iface, address string) {
	t.Helper()
	link, err := netlink.LinkByName(iface)
	if err != nil {
		t.Fatal(err)
	}
	if err := addAddress(link, address); err != nil {
		t.Fatal(err)
	}
}

func addAddress(link netlink.Link, address string) error {
	a, err := netlink.ParseAddr(address)
	if err == nil {
		a.Flags = unix.IFA_F_NODAD
		err = netlink.AddrAdd(link, a)
	}
	if err != nil {
		return fmt.Errorf("add address %s: %w", address, err)
	}
	return nil
}
