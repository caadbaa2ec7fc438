package multicast

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
)

var (
	links4 = netip.MustParsePrefix("224.0.0.0/24") // RFC 5771, section 4: never forwarded

	// martians are sources from which no router forwards packets.
	martians = []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), // RFC 1812, section 5.3.7,
		netip.MustParsePrefix("224.0.0.0/3"),                               // with what lies above the groups
		netip.MustParsePrefix("169.254.0.0/16"),                            // RFC 3927, section 7
		netip.MustParsePrefix("::/64"), netip.MustParsePrefix("fe80::/10"), // RFC 4291, section 2.5,
		netip.MustParsePrefix("ff00::/8"), // and 2.7
	}
	errNoGroup  = errors.New("not a multicast group (224.0.0.0/4 or ff00::/8)")
	errLinkOnly = errors.New("a link-local group, which no router forwards (224.0.0.0/24, IPv6 scopes up to 2)")
)

// Check returns an error that says why packets to an address are never
// forwarded as multicast, or nil.
func Check(group netip.Addr) error {
	switch {
	case group.Zone() != "" || !group.IsMulticast() || group.Is4In6():
		return errNoGroup
	case group.Is4() && links4.Contains(group), group.Is6() && group.As16()[1]&0xf <= 2:
		return errLinkOnly
	}
	return nil
}

const (
	etherHeader = 14
	header4     = 20
	header6     = 40
	protoHop    = 0
	protoIGMP   = 2
)

// Group returns the group to which a frame is to be forwarded, if a port wants
// it. It reports false for a frame that must go to the network stack in any
// case.
func Group(frame []byte) (group netip.Addr, ok bool) {
	if len(frame) < etherHeader+header4 || frame[0]&1 == 0 {
		return group, false
	}
	var source netip.Addr
	var forwards bool
	switch ip := frame[etherHeader:]; binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		source, group = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
		forwards = ip[0] == 0x45 && ip[8] > 1 && ip[9] != protoIGMP
	case 0x86dd:
		if len(ip) < header6 {
			return group, false
		}
		source, group = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
		forwards = ip[0]>>4 == 6 && ip[7] > 1 && ip[6] != protoHop
	default:
		return group, false
	}
	martian := slices.ContainsFunc(martians, func(p netip.Prefix) bool { return p.Contains(source) })
	return group, forwards && !martian && Check(group) == nil
}
