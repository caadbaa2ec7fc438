package netif

import (
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// SetXDP sets the program of an interface over netlink, -1 for none. With
// XDP_FLAGS_REPLACE, it does so only if the present program is expected.
func SetXDP(index, fd int, flags uint32, expected int) error {
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
