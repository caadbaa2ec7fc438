package netif

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Errors that a caller may distinguish.
var (
	ErrNoNetns     = errors.New("no such network namespace")
	ErrNoInterface = errors.New("no such interface")
)

// Interfaces returns the names of all interfaces in the target's network
// namespace.
func (t Target) Interfaces() (names []string, err error) {
	err = t.In(func(uint64) error {
		links, err := listLinks()
		if err != nil {
			return err
		}
		for _, l := range links {
			names = append(names, l.Attrs().Name)
		}
		return nil
	})
	return names, err
}

// listLinks returns the interfaces in the current network namespace.
func listLinks() ([]netlink.Link, error) {
	links, err := netlink.LinkList()
	for tries := 0; errors.Is(err, netlink.ErrDumpInterrupted) && tries < 10; tries++ {
		links, err = netlink.LinkList() // interfaces have appeared or gone meanwhile
	}
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	return links, nil
}

// Iface is an interface with its attributes, as read from the kernel.
type Iface struct {
	*netlink.LinkAttrs
	Inode uint64 // of its network namespace: another may have interfaces of the same index
	Kind  string // by the kernel, as in ip -d link; "" for most NICs
}

// In fails with ErrNoInterface where the interface is in another namespace.
func (i *Iface) In(inode uint64) error {
	if i.Inode != inode {
		return fmt.Errorf("%w: it is in another namespace", ErrNoInterface)
	}
	return nil
}

// Find looks the target's interface up by its name. It fails with ErrNoInterface
// or ErrNoNetns where there is none.
func (t Target) Find() (i *Iface, err error) {
	err = t.In(func(inode uint64) error {
		i, err = ByName(inode, t.Iface)
		return err
	})
	return i, err
}

// FindIndex is Find by an index, whatever the interface's name.
func (t Target) FindIndex(index int) (i *Iface, err error) {
	err = t.In(func(inode uint64) error {
		i, err = ByIndex(inode, index)
		return err
	})
	return i, err
}

// ByName looks an interface up in the present network namespace, whose inode number the
// caller knows. It fails with ErrNoInterface where there is none.
func ByName(inode uint64, name string) (*Iface, error) {
	l, err := netlink.LinkByName(name)
	return found(inode, l, err)
}

// ByIndex is ByName by an index.
func ByIndex(inode uint64, index int) (*Iface, error) {
	l, err := netlink.LinkByIndex(index)
	return found(inode, l, err)
}

func found(inode uint64, l netlink.Link, err error) (*Iface, error) {
	if _, ok := errors.AsType[netlink.LinkNotFoundError](err); ok {
		return nil, ErrNoInterface
	}
	if err != nil {
		return nil, fmt.Errorf("find interface: %w", err)
	}
	return &Iface{l.Attrs(), inode, l.Type()}, nil
}

// HasEthernet reports whether frames begin with an Ethernet header: frames of
// tunnels, PPP and the like do not, but generic mode would accept them.
func (i *Iface) HasEthernet() bool {
	return i.EncapType == "ether" || i.EncapType == "loopback"
}

// StartsWithIP reports whether packets have no link header. Some of the devices leave a
// header of the tunnel there, which the program for TC skips. Tests send and receive with these,
// but for GRE without a remote address, which only receives.
func (i *Iface) StartsWithIP() bool {
	switch i.Kind {
	case "tuntap", "wireguard":
		return i.EncapType == "none"
	case "gre", "ipip":
		return true
	}
	return i.EncapType == "ppp"
}

// Number returns the index of the interface that has the target's name now. It
// fails with ErrNoInterface or ErrNoNetns where there is none.
func (t Target) Number() (int, error) {
	i, err := t.Find()
	if err != nil {
		return 0, err
	}
	return i.Index, nil
}

// Driver returns the name of the interface's driver, or "unknown". Like Below and Peer, it is
// called in the interface's network namespace.
func (i *Iface) Driver() string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "unknown"
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, i.Name)
	if err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(info.Driver[:])
}

// Below returns the interfaces that packets of a bridge, bond, VLAN device or the like
// come in by, as far as they are in the same namespace.
func (i *Iface) Below() []string {
	all, err := listLinks()
	if err != nil {
		return nil
	}
	var names []string
	for _, l := range all {
		a := l.Attrs()
		if a.MasterIndex == i.Index || i.ParentIndex != 0 && i.NetNsID < 0 && a.Index == i.ParentIndex {
			names = append(names, a.Name)
		}
	}
	return names
}

// Peer returns the other end of a veth, in any namespace.
func (i *Iface) Peer() (*netlink.LinkAttrs, error) {
	if i.NetNsID < 0 {
		peer, err := netlink.LinkByIndex(i.ParentIndex)
		if err != nil {
			return nil, err
		}
		return peer.Attrs(), nil
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(i.ParentIndex)
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(i.NetNsID))))
	answer, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return nil, err
	}
	peer, err := netlink.LinkDeserialize(nil, answer[0])
	if err != nil {
		return nil, err
	}
	return peer.Attrs(), nil
}
