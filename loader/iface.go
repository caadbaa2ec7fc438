package loader

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Interfaces returns the names of all interfaces in the target's network
// namespace.
func (t Target) Interfaces() (names []string, err error) {
	err = t.in(func(uint64) error {
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
	inode uint64 // of its network namespace: another may have interfaces of the same index
	kind  string // by the kernel, as in ip -d link; "" for most NICs
}

// Follow calls fn with each interface that appears or changes in the target's
// network namespace, and with nil when one has gone or messages were lost. It
// returns once it is subscribed, and ends when done is closed. fn is called in one
// goroutine, which is in that namespace.
func (t Target) Follow(done <-chan struct{}, fn func(*Iface)) error {
	begun := make(chan error, 1)
	go func() {
		err := t.in(func(inode uint64) error {
			s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
			if err != nil {
				return err
			}
			begun <- nil
			ended := make(chan struct{})
			go func() {
				<-done
				s.Close()
				close(ended)
			}()
			defer func() { <-ended }()
			receive(s, inode, done, fn)
			return nil
		})
		select {
		case begun <- err:
		default: // it has long begun
		}
	}()
	if err := <-begun; err != nil {
		return fmt.Errorf("subscribe to changes of interfaces: %w", err)
	}
	return nil
}

// receive calls fn for the kernel's messages until the socket is closed.
func receive(s *nl.NetlinkSocket, inode uint64, done <-chan struct{}, fn func(*Iface)) {
	for {
		messages, from, err := s.Receive()
		select {
		case <-done:
			return
		default:
		}
		switch {
		case err != nil:
			fn(nil) // mostly because the buffer was full
			if !errors.Is(err, unix.ENOBUFS) {
				select { // do not spin
				case <-done:
					return
				case <-time.After(100 * time.Millisecond):
				}
			}
			continue
		case from.Pid != nl.PidKernel:
			continue
		}
		for _, m := range messages {
			if i, ok := interfaceOf(&m, inode); ok {
				fn(i)
			}
		}
	}
}

// interfaceOf returns the interface that a message is about, nil for one that has
// gone. ok is false for other messages.
func interfaceOf(m *syscall.NetlinkMessage, inode uint64) (i *Iface, ok bool) {
	// Bridges report their ports by the same messages, with another family.
	if len(m.Data) < unix.SizeofIfInfomsg || m.Data[0] != unix.AF_UNSPEC {
		return nil, false
	}
	switch m.Header.Type {
	case unix.RTM_DELLINK:
		return nil, true
	case unix.RTM_NEWLINK:
		header := unix.NlMsghdr(m.Header)
		l, err := netlink.LinkDeserialize(&header, m.Data)
		if err != nil {
			return nil, true // look which it was
		}
		return &Iface{l.Attrs(), inode, l.Type()}, true
	}
	return nil, false
}

// in fails with ErrNoInterface where the interface is in another namespace.
func (i *Iface) in(inode uint64) error {
	if i.inode != inode {
		return fmt.Errorf("%w: it is in another namespace", ErrNoInterface)
	}
	return nil
}

// Find looks the target's interface up by its name. It fails with ErrNoInterface
// or ErrNoNetns where there is none.
func (t Target) Find() (i *Iface, err error) {
	err = t.in(func(inode uint64) error {
		l, err := findLink(t.Iface)
		if err == nil {
			i = &Iface{l.Attrs(), inode, l.Type()}
		}
		return err
	})
	return i, err
}

// findIface returns the attributes of an interface in the present network namespace.
func findIface(name string) (*netlink.LinkAttrs, error) {
	l, err := findLink(name)
	if err != nil {
		return nil, err
	}
	return l.Attrs(), nil
}

// findLink finds an interface in the present network namespace.
func findLink(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if _, ok := errors.AsType[netlink.LinkNotFoundError](err); ok {
		return nil, ErrNoInterface
	}
	if err != nil {
		return nil, fmt.Errorf("find interface: %w", err)
	}
	return l, nil
}

// hasEthernet reports whether frames begin with an Ethernet header: frames of
// tunnels, PPP and the like do not, but generic mode would accept them.
func hasEthernet(iface *netlink.LinkAttrs) bool {
	return iface.EncapType == "ether" || iface.EncapType == "loopback"
}

// startsWithIP reports whether packets have no link header. Some of the devices leave a
// header of the tunnel there, which the program for TC skips. Tests send and receive with these,
// but for GRE without a remote address, which only receives.
func (i *Iface) startsWithIP() bool {
	switch i.kind {
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

// driver returns the name of an interface's driver, or "unknown".
func driver(name string) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "unknown"
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, name)
	if err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(info.Driver[:])
}

// driverMessage returns the reason of the kernel or the driver for refusing a
// program, or "". The system call that makes a link returns only a number; the
// older way over netlink makes the same checks and returns a text. Should it
// unexpectedly attach the program, that is undone at once.
func driverMessage(iface *netlink.LinkAttrs, p *ebpf.Program, hook Hook) string {
	err := setXDP(iface.Index, p.FD(), unix.XDP_FLAGS_UPDATE_IF_NOEXIST|uint32(hook.flag()), 0)
	if err == nil {
		setXDP(iface.Index, -1, unix.XDP_FLAGS_REPLACE|uint32(hook.flag()), p.FD())
		return ""
	}
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return ""
	}
	_, text, _ := strings.Cut(err.Error(), errno.Error()+": ")
	return text
}

// setXDP sets the program of an interface over netlink, -1 for none. With
// XDP_FLAGS_REPLACE, it does so only if the present program is expected.
func setXDP(index, fd int, flags uint32, expected int) error {
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.SetExtAck(true); err != nil {
		return err
	}
	if err := s.SetReceiveTimeout(&nl.SocketTimeoutTv); err != nil {
		return err
	}
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	xdp := nl.NewRtAttr(unix.IFLA_XDP|unix.NLA_F_NESTED, nil)
	xdp.AddRtAttr(unix.IFLA_XDP_FD, nl.Uint32Attr(uint32(fd)))
	xdp.AddRtAttr(unix.IFLA_XDP_FLAGS, nl.Uint32Attr(flags))
	if flags&unix.XDP_FLAGS_REPLACE != 0 {
		xdp.AddRtAttr(unix.IFLA_XDP_EXPECTED_FD, nl.Uint32Attr(uint32(expected)))
	}
	req.AddData(xdp)
	_, err = req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// explainAttach says why the target's interface refuses the program, and what to
// do about it. It is called in the target's network namespace.
func (d Pins) explainAttach(err error, t Target, iface *netlink.LinkAttrs, p *ebpf.Program, hook Hook) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		err = errno // without the names of the calls in between
	}
	if errno == unix.EPERM {
		return explainPermission(err)
	}
	if errno == unix.ENODEV {
		return fmt.Errorf("%w: %w", ErrNoInterface, err)
	}
	message := driverMessage(iface, p, hook)
	if message != "" {
		err = fmt.Errorf("%w: %s", err, message)
	}
	says := func(word string) bool { return strings.Contains(strings.ToLower(message), word) }
	name := driver(iface.Name)
	switch {
	case errno == unix.EBUSY, errno == unix.EEXIST:
		return d.explainForeign(err, t, iface, p)
	case says("mtu"), message == "" && errno == unix.ERANGE:
		advice := "lower it"
		if frags, err := haveFrags(); err == nil && !frags {
			advice += ", or use Linux 5.18 or later, which has multi-buffer XDP"
		}
		return fmt.Errorf("%w: driver %s, %s: %s: %w", ErrMTU, name, mtus(iface), advice, err)
	case says("lro"), says("gro"):
		return fmt.Errorf("%w by driver %s together with hardware aggregation: "+
			"switch it off with `%s`: %w",
			ErrUnsupported, name, t.AggregationOff(), err)
	case errno == unix.EOPNOTSUPP:
		advice := "xdp generic and hook tc work, but are slower"
		if lower := below(iface); len(lower) > 0 {
			advice = "filter on " + strings.Join(lower, ", ") + " below it; " + advice
		}
		return fmt.Errorf("%w: driver %s: %s: %w", ErrNoDriver, name, advice, err)
	}
	return fmt.Errorf("driver %s, %s: %w", name, mtus(iface), err)
}

// mtus describes an interface's MTU and, if it is a veth, its peer's, which
// matters too.
func mtus(iface *netlink.LinkAttrs) string {
	text := fmt.Sprintf("mtu %d", iface.MTU)
	if peer, err := findPeer(iface); err == nil {
		text += fmt.Sprintf(" (the peer's: %d)", peer.MTU)
	}
	return text
}

// below returns the interfaces that packets of a bridge, bond, VLAN device or the like
// come in by, as far as they are in the same namespace.
func below(iface *netlink.LinkAttrs) []string {
	all, err := listLinks()
	if err != nil {
		return nil
	}
	var names []string
	for _, l := range all {
		a := l.Attrs()
		if a.MasterIndex == iface.Index || iface.ParentIndex != 0 && iface.NetNsID < 0 && a.Index == iface.ParentIndex {
			names = append(names, a.Name)
		}
	}
	return names
}

// findPeer returns the other end of a veth, in any namespace.
func findPeer(iface *netlink.LinkAttrs) (*netlink.LinkAttrs, error) {
	if iface.NetNsID < 0 {
		peer, err := netlink.LinkByIndex(iface.ParentIndex)
		if err != nil {
			return nil, err
		}
		return peer.Attrs(), nil
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(iface.ParentIndex)
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(iface.NetNsID))))
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

// explainForeign names the program that occupies an interface.
func (d Pins) explainForeign(err error, t Target, iface *netlink.LinkAttrs, p *ebpf.Program) error {
	// Again, since it may have been attached since.
	now, e := findIface(iface.Name)
	if e != nil || now.Xdp == nil || !now.Xdp.Attached {
		return fmt.Errorf("%w: %w", ErrForeign, err)
	}
	id := now.Xdp.ProgId
	if isWeirs(id) && d.owner(id) == "" {
		own := Native
		if now.Xdp.AttachMode == nl.XDP_ATTACHED_SKB {
			own = Generic
		}
		return fmt.Errorf("%w: %w", d.explainOwn(id, own), err)
	}
	if own := d.owner(id); own != "" {
		return fmt.Errorf("%w: weir's own, attached by another process or in another namespace: detach it first (its pins are %s): %w",
			ErrForeign, own, err)
	}
	hook := Native
	if now.Xdp.AttachMode == nl.XDP_ATTACHED_SKB {
		hook = Generic
	}
	o := t.occupant(now, strings.Contains(driverMessage(iface, p, hook), "link"))
	return fmt.Errorf("%w: %s: %s: %w", ErrForeign, o.Text, o.Advice, err)
}

// owner returns the directory of the pins of a program, or "": an interface that
// is moved to another namespace takes its program along.
func (d Pins) owner(id uint32) string {
	list, _ := d.list()
	owner := ""
	for _, a := range list {
		if a.ProgramID() == id {
			owner = a.path
		}
		a.Close()
	}
	return owner
}
