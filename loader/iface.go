package loader

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Interfaces are the names of all interfaces in the target's network namespace.
func (t Target) Interfaces() (names []string, err error) {
	err = t.in(func(uint64) error {
		links, err := netlink.LinkList()
		if err != nil {
			return fmt.Errorf("list interfaces: %w", err)
		}
		for _, l := range links {
			names = append(names, l.Attrs().Name)
		}
		return nil
	})
	return names, err
}

// Changes is told when interfaces come, go or change in the target's network
// namespace, until done is closed. Several changes may be told as one. The
// channel is closed where the kernel has stopped telling.
func (t Target) Changes(done <-chan struct{}) (<-chan struct{}, error) {
	updates, told := make(chan netlink.LinkUpdate, 64), make(chan struct{}, 1)
	err := t.in(func(uint64) error {
		return netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{})
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to changes of interfaces: %w", err)
	}
	go func() {
		defer close(told)
		for range updates {
			select {
			case told <- struct{}{}:
			default: // it has yet to look
			}
		}
	}()
	return told, nil
}

// findIface finds an interface in the present network namespace.
func findIface(name string) (*netlink.LinkAttrs, error) {
	l, err := netlink.LinkByName(name)
	var notFound netlink.LinkNotFoundError
	if errors.As(err, &notFound) {
		return nil, ErrNoInterface
	}
	if err != nil {
		return nil, fmt.Errorf("find interface: %w", err)
	}
	return l.Attrs(), nil
}

// driver is the name of an interface's driver, or "unknown".
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

// driverMessage is what the kernel or the driver has to say on why an
// interface takes no program, or "". The system call that makes a link answers
// with a bare number; the older way over netlink goes through the same checks
// and answers with a text. Should it, against expectation, attach the program,
// that is undone at once.
func driverMessage(iface *netlink.LinkAttrs, p *ebpf.Program, mode Mode) string {
	err := setXDP(iface.Index, p.FD(), unix.XDP_FLAGS_UPDATE_IF_NOEXIST|uint32(mode.flag()), 0)
	if err == nil {
		setXDP(iface.Index, -1, unix.XDP_FLAGS_REPLACE|uint32(mode.flag()), p.FD())
		return ""
	}
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return ""
	}
	_, text, _ := strings.Cut(err.Error(), errno.Error()+": ")
	return text
}

// setXDP sets the program of an interface, -1 for none, over netlink. With
// XDP_FLAGS_REPLACE, only if expected is its program.
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

// explainAttach says why the target's interface takes no program, and what to
// do about it. It is called in the target's network namespace.
func (d Pins) explainAttach(err error, t Target, iface *netlink.LinkAttrs, p *ebpf.Program, mode Mode) error {
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
	message := driverMessage(iface, p, mode)
	if message != "" {
		err = fmt.Errorf("%w: %s", err, message)
	}
	says := func(word string) bool { return strings.Contains(strings.ToLower(message), word) }
	name := driver(iface.Name)
	switch {
	case errno == unix.EBUSY, errno == unix.EEXIST:
		return d.explainForeign(err, t, iface, p)
	case mode == Offload:
		return fmt.Errorf("%w by driver %s: offload: %w", ErrUnsupported, name, err)
	case says("mtu"), message == "" && errno == unix.ERANGE:
		return fmt.Errorf("%w: driver %s, %s: lower it: %w", ErrMTU, name, mtus(iface), err)
	case says("lro"), says("gro"):
		return fmt.Errorf("%w by driver %s together with hardware aggregation: "+
			"switch it off with `ethtool -K %s lro off rx-gro-hw off`: %w",
			ErrUnsupported, name, iface.Name, err)
	case errno == unix.EOPNOTSUPP:
		return fmt.Errorf("%w: %s: generic mode would do, at a price: %w", ErrNoDriver, name, err)
	}
	return fmt.Errorf("driver %s, %s: %w", name, mtus(iface), err)
}

// mtus are an interface's MTU and, if it is a veth, its peer's, which counts too.
func mtus(iface *netlink.LinkAttrs) string {
	text := fmt.Sprintf("mtu %d", iface.MTU)
	if peer, err := findPeer(iface); err == nil {
		text += fmt.Sprintf(" (the peer's: %d)", peer.MTU)
	}
	return text
}

// findPeer finds what is at the other end of a veth, in any namespace.
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
	// Anew, since it may have come after the first look.
	now, e := findIface(iface.Name)
	if e != nil || now.Xdp == nil || !now.Xdp.Attached {
		return fmt.Errorf("%w: %w", ErrForeign, err)
	}
	id := now.Xdp.ProgId
	if own := d.owner(id); own != "" {
		return fmt.Errorf("%w: weir's own, attached under another name: detach it first (its pins are %s): %w",
			ErrForeign, own, err)
	}
	mode, off := Native, "xdp"
	switch now.Xdp.AttachMode {
	case nl.XDP_ATTACHED_SKB:
		mode, off = Generic, "xdpgeneric"
	case nl.XDP_ATTACHED_HW:
		mode, off = Offload, "xdpoffload"
	}
	advice := fmt.Sprintf("`%s link set dev %s %s off` removes it", t.ip(), iface.Name, off)
	if strings.Contains(driverMessage(iface, p, mode), "link") {
		advice = "a link holds it, which `bpftool link` shows" // and ip cannot remove
	}
	return fmt.Errorf("%w: id %d%s: stop its owner; %s: %w", ErrForeign, id, programName(id), advice, err)
}

// owner is the directory of the pins that hold a program, or "": an interface
// that is renamed or moved to another namespace takes its program along.
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

// programName is the name of a program in the kernel, or "", since only
// CAP_SYS_ADMIN may look.
func programName(id uint32) string {
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return ""
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return ""
	}
	return ", " + info.Name
}
