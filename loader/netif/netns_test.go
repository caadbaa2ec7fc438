package netif_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir/loader/netif"
	"weir/tests/lab"
)

// inNamespace looks for a network namespace by its inode number, from another one.
func inNamespace(inode uint64) (here bool, err error) {
	err = netif.Target{}.InNamespace(inode, func() error {
		now, err := (netif.Target{Netns: "/proc/thread-self/ns/net"}).Namespace()
		here = now == inode
		return err
	})
	return here, err
}

// A network namespace is found by a mount, or by a process while one is in it.
func TestInNamespace(t *testing.T) {
	mounted := lab.NewHost(t, "mounted")
	inode, err := netif.Target{Netns: mounted.Netns}.Namespace()
	if err != nil {
		t.Fatal(err)
	}
	if here, err := inNamespace(inode); !here || err != nil {
		t.Errorf("by a mount: %t, %v", here, err)
	}
	for range 2 {
		if _, err := inNamespace(1); !errors.Is(err, netif.ErrNoNetns) {
			t.Errorf("there is none: %v", err)
		}
		time.Sleep(200 * time.Millisecond) // what was read of processes is believed for half of that
		p := exec.Command(lab.Installed(t, "unshare"), "--net", "sh", "-c", "echo && exec cat")
		in, err := p.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := p.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		inode, err := netif.Target{Netns: fmt.Sprintf("/proc/%d/ns/net", p.Process.Pid)}.Namespace()
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if here, err := inNamespace(inode); !here || err != nil {
				t.Errorf("by a process: %t, %v", here, err)
			}
		}
		in.Close()
		if err := p.Wait(); err != nil {
			t.Error(err)
		}
		if here, err := inNamespace(inode); here || err == nil {
			t.Errorf("after its only process: %t, %v", here, err)
		}
	}
}

// A pass over 200 pins of other namespaces, which have a mount, or are gone.
func BenchmarkInNamespace(b *testing.B) {
	inode, err := netif.Target{Netns: lab.NewHost(b, "mounted").Netns}.Namespace()
	if err != nil {
		b.Fatal(err)
	}
	for name, inode := range map[string]uint64{"mounted": inode, "gone": 1} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				for range 200 {
					_, _ = inNamespace(inode)
				}
			}
		})
	}
}

// A link-local gateway is no peer to protect: every network may have the same.
func TestGateways(t *testing.T) {
	host := lab.NewHost(t, "gateways")
	var network netif.Network
	err := netif.Target{Netns: host.Netns}.In(func(uint64) error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up0"}, PeerName: "peer0"}); err != nil {
			return err
		}
		link, err := netlink.LinkByName("up0")
		if err != nil {
			return err
		}
		for _, address := range []string{"192.0.2.2/24", "2001:db8::2/64"} {
			a, err := netlink.ParseAddr(address)
			if err != nil {
				return err
			}
			a.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrAdd(link, a); err != nil {
				return err
			}
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		for to, gateway := range map[string]string{"0.0.0.0/0": "192.0.2.1", "::/0": "fe80::1"} {
			_, all, _ := net.ParseCIDR(to)
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: all, Gw: net.ParseIP(gateway)}); err != nil {
				return fmt.Errorf("route by %s: %w", gateway, err)
			}
		}
		return nil
	})
	if err == nil {
		network, err = netif.NetworkOf(host.Netns, func(name string) bool { return name == "up0" })
	}
	if want := []netip.Addr{netip.MustParseAddr("192.0.2.1")}; err != nil || !slices.Equal(network.Gateways, want) {
		t.Errorf("%+v, %v; want the gateways %v", network, err, want)
	}
}
