// Package playground creates two network namespaces with a veth pair between
// them, for the demo, the benchmark and the tests that need a wire.
package playground

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Playground is two network namespaces, A and B, connected by a veth pair. By
// convention A sends and B filters.
type Playground struct {
	A, B End
}

// End is one end of the veth pair: an interface in a network namespace.
type End struct {
	Netns string // name, as in `ip netns`
	Iface string
	MAC   net.HardwareAddr
	IPv4  netip.Addr // on the same /24 as the other's
	IPv6  netip.Addr // on the same /64
}

// New returns a playground whose namespaces have unique names with the prefix.
// The wire is nearly silent: no duplicate address detection, no router
// solicitation, no further addresses.
func New(prefix string) (_ *Playground, err error) {
	name := fmt.Sprintf("%s-%08x", prefix, rand.Uint32())
	p := &Playground{A: end(name+"-a", "veth-a", 1), B: end(name+"-b", "veth-b", 2)}
	defer func() {
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("%w: this needs root", err)
		}
		if err != nil {
			err = errors.Join(fmt.Errorf("make a playground: %w", err), p.Close())
		}
	}()
	for _, e := range []End{p.A, p.B} {
		if err := e.makeNetns(); err != nil {
			return nil, fmt.Errorf("network namespace %s: %w", e.Netns, err)
		}
	}
	return p, p.Wire()
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

func (e End) makeNetns() error { return MakeNetns(e.Netns) }

// MakeNetns makes a further namespace, for ends of wires that [Playground.Wire] makes.
// Closing a playground does not delete it.
func MakeNetns(name string) error {
	return roundTrip(func() error {
		ns, err := NewNetns(name)
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
	})
}

// names is the directory of named namespaces.
const names = "/run/netns"

// NewNetns makes a namespace with a name, and has the calling thread enter it. As
// `ip netns add` does, it first makes the directory of names a mount: names from before such a
// mount are busy forever.
func NewNetns(name string) (netns.NsHandle, error) {
	if err := mountNames(); err != nil {
		return -1, fmt.Errorf("%s: %w", names, err)
	}
	return netns.NewNamed(name)
}

func mountNames() error {
	if err := os.MkdirAll(names, 0o755); err != nil {
		return err
	}
	dir, err := os.Open(names)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil { // as ip does
		return err
	}
	share := func() error { return unix.Mount("", names, "none", unix.MS_SHARED|unix.MS_REC, "") }
	if err := share(); !errors.Is(err, unix.EINVAL) {
		return err
	}
	if err := unix.Mount(names, names, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return share()
}

// roundTrip calls fn, which may enter another network namespace, on a locked
// thread, and returns to the own namespace.
func roundTrip(fn func() error) (err error) {
	runtime.LockOSThread()
	own, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer own.Close()
	defer func() {
		if here, bad := netns.Get(); bad == nil {
			defer here.Close()
			if here.Equal(own) { // returning would require a privilege
				runtime.UnlockOSThread()
				return
			}
		}
		if back := netns.Set(own); back != nil {
			// Still locked: the thread ends with its goroutine.
			err = errors.Join(err, fmt.Errorf("lost in a network namespace: %w", back))
			return
		}
		runtime.UnlockOSThread()
	}()
	return fn()
}

// Wire creates the veth pair as New does, for callers that have deleted it.
func (p *Playground) Wire() error {
	b, err := netns.GetFromName(p.B.Netns)
	if err != nil {
		return err
	}
	defer b.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = p.A.Iface, p.A.MAC
	if err := p.A.In(func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: attrs, PeerName: p.B.Iface, PeerHardwareAddr: p.B.MAC, PeerNamespace: netlink.NsFd(b),
		})
	}); err != nil {
		return fmt.Errorf("add veth pair: %w", err)
	}
	for _, e := range []End{p.A, p.B} {
		if err := e.In(e.up); err != nil {
			return fmt.Errorf("set up %s: %w", e.Iface, err)
		}
	}
	return nil
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

// In calls fn in the end's network namespace. Goroutines started by fn are not
// in it.
func (e End) In(fn func() error) error {
	return roundTrip(func() error {
		ns, err := netns.GetFromName(e.Netns)
		if err != nil {
			return err
		}
		defer ns.Close()
		if err := netns.Set(ns); err != nil {
			return err
		}
		return fn()
	})
}

// Index returns the index of the end's interface.
func (e End) Index() (index int, err error) {
	err = e.In(func() error {
		l, err := netlink.LinkByName(e.Iface)
		if err == nil {
			index = l.Attrs().Index
		}
		return err
	})
	return index, err
}

// Socket opens a packet socket on the end's interface. It receives frames of a
// protocol, or none if that is 0. setup sets options before any frame arrives.
func (e End) Socket(protocol uint16, setup func(fd int) error) (fd int, err error) {
	index, err := e.Index()
	if err != nil {
		return -1, err
	}
	if err := e.In(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // 0: none before it is bound
		return err
	}); err != nil {
		return -1, fmt.Errorf("packet socket: %w", err)
	}
	if err = setup(fd); err == nil {
		network := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, protocol))
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: network, Ifindex: index})
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("packet socket: %w", err)
	}
	return fd, nil
}

// Close deletes the namespaces.
func (p *Playground) Close() error {
	var errs []error
	for _, e := range []End{p.A, p.B} {
		if err := netns.DeleteNamed(e.Netns); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("delete network namespace %s: %w", e.Netns, err))
		}
	}
	return errors.Join(errs...)
}
