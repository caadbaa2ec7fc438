// Package lab gives a test two network namespaces with a veth pair between
// them, and raw sockets to send and receive frames with.
package lab

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Lab is two namespaces, A and B, whose interfaces are the ends of one wire.
// By convention a test sends at A and filters at B.
type Lab struct {
	A, B End
}

// End is one end of the wire: an interface in a network namespace.
type End struct {
	Netns string // name, as `ip netns` has it
	Iface string
	MAC   net.HardwareAddr
	IPv4  netip.Addr // on the same /24 as the other's
	IPv6  netip.Addr // on the same /64
}

// Root ends the test where it is not root: skipped, but failed under CI=true,
// so that the skip cannot become the rule unnoticed.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("needs root, and under CI=true may not be skipped")
	}
	t.Skip("needs root")
}

// New makes a lab, which is gone when the test ends. Without being root, the
// test ends like with [Root].
//
// The wire is nearly silent: no duplicate address detection, no router
// solicitation, no address but the two. Yet count what you have sent, not
// what came.
func New(t testing.TB) *Lab {
	t.Helper()
	Root(t)
	id := make([]byte, 4)
	rand.Read(id)
	l := &Lab{
		A: end("weir-"+hex.EncodeToString(id)+"-a", "veth-a", 1),
		B: end("weir-"+hex.EncodeToString(id)+"-b", "veth-b", 2),
	}
	for _, e := range []End{l.A, l.B} {
		if err := e.makeNetns(); err != nil {
			t.Fatalf("make network namespace: %v", err)
		}
		t.Cleanup(func() {
			if err := netns.DeleteNamed(e.Netns); err != nil {
				t.Errorf("delete network namespace: %v", err)
			}
		})
	}
	l.Wire(t)
	return l
}

func end(ns, iface string, n byte) End {
	return End{
		Netns: ns,
		Iface: iface,
		MAC:   net.HardwareAddr{2, 0, 0, 0, 0, n},
		IPv4:  netip.AddrFrom4([4]byte{198, 18, 0, n}),
		IPv6:  netip.AddrFrom16([16]byte{0: 0xfd, 15: n}),
	}
}

func (e End) makeNetns() (err error) {
	runtime.LockOSThread()
	own, err := netns.Get()
	if err != nil {
		return err
	}
	defer own.Close()
	defer func() {
		// A thread that cannot come back ends with its goroutine.
		back := netns.Set(own)
		if back == nil {
			runtime.UnlockOSThread()
		}
		err = errors.Join(err, back)
	}()
	ns, err := netns.NewNamed(e.Netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	for knob, value := range map[string]string{
		"addr_gen_mode":        "1", // none
		"accept_dad":           "0",
		"router_solicitations": "0",
	} {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/"+knob, []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}

// Wire lays the wire between the namespaces, as New does. A test that has
// deleted an interface has it back this way.
func (l *Lab) Wire(t testing.TB) {
	t.Helper()
	b, err := netns.GetFromName(l.B.Netns)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = l.A.Iface, l.A.MAC
	l.A.In(t, func() {
		err = netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: attrs, PeerName: l.B.Iface, PeerHardwareAddr: l.B.MAC, PeerNamespace: netlink.NsFd(b),
		})
	})
	if err != nil {
		t.Fatalf("add veth pair: %v", err)
	}
	for _, e := range []End{l.A, l.B} {
		e.In(t, func() { err = e.up() })
		if err != nil {
			t.Fatalf("set up %s: %v", e.Iface, err)
		}
	}
}

func (e End) up() error {
	iface, err := netlink.LinkByName(e.Iface)
	if err != nil {
		return err
	}
	for _, prefix := range []netip.Prefix{netip.PrefixFrom(e.IPv4, 24), netip.PrefixFrom(e.IPv6, 64)} {
		addr, err := netlink.ParseAddr(prefix.String())
		if err != nil {
			return err
		}
		if e.IPv6 == prefix.Addr() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(iface, addr); err != nil {
			return fmt.Errorf("add address %s: %w", prefix, err)
		}
	}
	return netlink.LinkSetUp(iface)
}

// In calls fn in the end's network namespace. fn must not start goroutines,
// which would be elsewhere.
func (e End) In(t testing.TB, fn func()) {
	t.Helper()
	runtime.LockOSThread()
	own, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	ns, err := netns.GetFromName(e.Netns)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := netns.Set(ns); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := netns.Set(own); err != nil {
			panic("lost in a network namespace: " + err.Error())
		}
		runtime.UnlockOSThread()
	}()
	fn()
}
