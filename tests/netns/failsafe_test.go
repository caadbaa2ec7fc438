package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/config"
	"weir/control/engine"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/must"
)

// pathMTU sends datagrams of size bytes that may not be fragmented, until the host knows of a
// smaller MTU than the first link has, and returns the MTU that it knows then.
func pathMTU(t *testing.T, e lab.End, to netip.Addr, size int) (mtu int) {
	t.Helper()
	e.In(t, func() {
		level, discover, ask, mode := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_MTU, unix.IP_PMTUDISC_DO
		if to.Is6() {
			level, discover, ask, mode = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_MTU, unix.IPV6_PMTUDISC_DO
		}
		c, err := net.Dial("udp", netip.AddrPortFrom(to, 9).String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		raw, err := c.(*net.UDPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		option := func(do func(fd int) error) {
			var failed error
			if err := raw.Control(func(fd uintptr) { failed = do(int(fd)) }); err != nil || failed != nil {
				t.Fatal(err, failed)
			}
		}
		option(func(fd int) error { return unix.SetsockoptInt(fd, level, discover, mode) })
		for range 20 {
			_, _ = c.Write(make([]byte, size)) // it fails once the host knows
			time.Sleep(20 * time.Millisecond)
			option(func(fd int) (err error) {
				mtu, err = unix.GetsockoptInt(fd, level, ask)
				return err
			})
			if mtu < size {
				return
			}
		}
	})
	return mtu
}

// answers reports whether a host answers echo requests of another one.
func answers(t *testing.T, e lab.End, to netip.Addr) (answered bool) {
	t.Helper()
	network, request, reply := "ip4:icmp", byte(8), byte(0)
	if to.Is6() {
		network, request, reply = "ip6:ipv6-icmp", 128, 129
	}
	e.In(t, func() {
		c, err := net.Dial(network, to.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for i := range 3 {
			m := []byte{request, 0, 0, 0, 0, 9, 0, byte(i), 'w', 'e', 'i', 'r'}
			if to.Is4() { // that of IPv6 is the kernel's
				m[2], m[3] = checksum(m)
			}
			if _, err := c.Write(m); err != nil && !errors.Is(err, unix.ENOBUFS) { // dropped on the way out
				t.Fatal(err)
			}
			if err := c.SetReadDeadline(time.Now().Add(250 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			for b := make([]byte, 1500); ; {
				n, err := c.Read(b)
				if err != nil {
					break
				}
				m := b[:n]
				if to.Is4() && n >= 20 { // with its IP header
					m = m[20:]
				}
				if len(m) >= 8 && m[0] == reply && m[5] == 9 {
					answered = true
					return
				}
			}
		}
	})
	return answered
}

// Where the address of a router is listed, in both directions, and its kind of ICMP is failsafe,
// its errors reach the host, and pings between the two are answered; otherwise they are not.
func TestFailsafeICMP(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	errs, request, reply := packet.ICMPError, packet.EchoRequest, packet.EchoReply
	for _, hook := range []string{"xdp", "tc"} {
		for _, kinds := range [][]packet.ICMP{nil, {errs}, {request}, {reply}, {errs, request, reply}} {
			t.Run(fmt.Sprint(hook, ", ", kinds), func(t *testing.T) {
				t.Parallel() // it waits for answers that do not come
				host, router, far := lab.NewHost(t, "host"), lab.NewHost(t, "router"), lab.NewHost(t, "far")
				at, first := lab.Join(t, 1, 1500, host, "veth0", router, "veth0")
				lab.Join(t, 2, 1300, router, "veth1", far, "veth0")
				passes := make(map[packet.ICMP]bool)
				c := configuration(t, target(at))
				on := &c.Interfaces[0]
				if on.Egress = true; hook == "tc" {
					on.Hook = config.HookTC
				}
				for _, kind := range kinds {
					c.Failsafe.ICMP = append(c.Failsafe.ICMP, verdict.FailsafeICMP{ICMP: kind})
					passes[kind] = true
				}
				for _, direction := range []engine.Direction{engine.Source, engine.Out} {
					path := filepath.Join(t.TempDir(), "router.txt")
					must.Write(t, path, fmt.Appendf(nil, "%v\n%v\n", first.IPv4, first.IPv6))
					l, err := c.AddFile(path, config.Block)
					if err != nil {
						t.Fatal(err)
					}
					l.Direction, l.AntiLockout = direction, false
				}
				serve(t, c)
				for _, v6 := range []bool{false, true} {
					gateway, own, beyond, family := first.IPv4, at.IPv4, "10.0.2.0/24", "IPv4"
					to := netip.MustParseAddr("10.0.2.2")
					if v6 {
						gateway, own, beyond, family = first.IPv6, at.IPv6, "fd00:2::/64", "IPv6"
						to = netip.MustParseAddr("fd00:2::2")
					}
					at.Route(t, beyond, gateway)
					if mtu := pathMTU(t, at, to, 1400); (mtu == 1300) != passes[errs] {
						t.Errorf("%s: the host takes the MTU of the path for %d", family, mtu)
					}
					if got := answers(t, first, own); got != passes[request] {
						t.Errorf("%s: the host answers the router's pings: %t", family, got)
					}
					if got := answers(t, at, gateway); got != passes[reply] {
						t.Errorf("%s: the host has answers to its pings: %t", family, got)
					}
				}
			})
		}
	}
}
