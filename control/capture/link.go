package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// headroom is the room in bytes that is kept in front of a captured packet for
// an Ethernet header.
const headroom = ethernetHeader

// Sizes in bytes of link headers.
const (
	ethernetHeader = 14
	cookedHeader   = 16
	cooked2Header  = 20
)

// EtherTypes. Smaller values of the field are no types but lengths (802.3).
const (
	etherTypeIPv4  = 0x0800
	etherTypeIPv6  = 0x86dd
	etherTypeFirst = 0x0600
	length8023Max  = 1500
)

// linkType is the type of the link headers in a capture: a LINKTYPE_ number of the
// registry at https://www.tcpdump.org/linktypes.html.
type linkType uint32

const linkEthernet linkType = 1

// framing is how the packets of a link type become Ethernet frames: an Ethernet
// header replaces the first header bytes. A nil etherType means that they are
// frames already.
type framing struct {
	header    int
	etherType func(packet []byte) uint16 // packet has at least header bytes
}

// framings are the link types that can be read. BSD systems write 12 and 14 for
// raw IP.
var framings = map[linkType]framing{
	linkEthernet: {},
	12:           {0, rawType},
	14:           {0, rawType},
	101:          {0, rawType},
	228:          {0, func([]byte) uint16 { return etherTypeIPv4 }},
	229:          {0, func([]byte) uint16 { return etherTypeIPv6 }},
	113:          {cookedHeader, func(p []byte) uint16 { return binary.BigEndian.Uint16(p[14:]) }},
	276:          {cooked2Header, func(p []byte) uint16 { return binary.BigEndian.Uint16(p) }},
}

// rawType returns the EtherType of the IP version. A packet that is not IP becomes
// IPv4, so that it counts as malformed and not as another protocol.
func rawType(packet []byte) uint16 {
	if len(packet) > 0 && packet[0]>>4 == 6 {
		return etherTypeIPv6
	}
	return etherTypeIPv4
}

// frame makes an Ethernet frame, in place, of the packet that follows headroom
// bytes in buf and had length bytes on the wire. It returns the frame and its
// length on the wire. MAC addresses are zero where the link type has none. A
// packet cut off inside its own link header becomes an empty frame, since
// nothing is known of it.
func (l linkType) frame(buf []byte, length int) ([]byte, int, error) {
	how, ok := framings[l]
	if !ok {
		return nil, 0, linkError{l}
	}
	packet := buf[headroom:]
	if how.etherType == nil {
		return packet, length, nil
	}
	length = max(0, length-how.header)
	if len(packet) < how.header {
		return packet[:0], length, nil
	}
	etherType := how.etherType(packet)
	if etherType < etherTypeFirst {
		// Cooked captures mark 802.3 frames by small numbers.
		etherType = uint16(min(length, length8023Max))
	}
	frame := buf[headroom+how.header-ethernetHeader:]
	clear(frame[:ethernetHeader-2])
	binary.BigEndian.PutUint16(frame[ethernetHeader-2:], etherType)
	return frame, length + ethernetHeader, nil
}

// linkError says that a link type cannot be read as Ethernet.
type linkError struct{ link linkType }

func (e linkError) Error() string { return fmt.Sprintf("link type %v is not supported", e.link) }

func (e linkError) Is(target error) bool { return target == errors.ErrUnsupported }

// String returns name and number, or the number alone where the link type is
// not a well-known one.
func (l linkType) String() string {
	if name, ok := linkNames[l]; ok {
		return fmt.Sprintf("%s (%d)", name, uint32(l))
	}
	return fmt.Sprint(uint32(l))
}

// linkNames are the registry's names, without the prefix, of those refused link
// types that captures are likeliest to have.
var linkNames = map[linkType]string{
	0:   "NULL",
	6:   "IEEE802_5",
	8:   "SLIP",
	9:   "PPP",
	10:  "FDDI",
	50:  "PPP_HDLC",
	51:  "PPP_ETHER",
	104: "C_HDLC",
	105: "IEEE802_11",
	107: "FRELAY",
	108: "LOOP",
	109: "ENC",
	117: "PFLOG",
	119: "IEEE802_11_PRISM",
	123: "SUNATM",
	127: "IEEE802_11_RADIOTAP",
	129: "ARCNET_LINUX",
	163: "IEEE802_11_AVS",
	178: "JUNIPER_ETHER",
	182: "MFR",
	189: "USB_LINUX",
	192: "PPI",
	195: "IEEE802_15_4_WITHFCS",
	197: "ERF",
	201: "BLUETOOTH_HCI_H4_WITH_PHDR",
	220: "USB_LINUX_MMAPPED",
	226: "IPNET",
	227: "CAN_SOCKETCAN",
	230: "IEEE802_15_4_NOFCS",
	239: "NFLOG",
	242: "IPOIB",
	247: "INFINIBAND",
	249: "USBPCAP",
	253: "NETLINK",
	258: "PKTAP",
	271: "VSOCK",
	272: "NORDIC_BLE",
	278: "OPENVIZSLA",
	281: "DSA_TAG_BRCM",
	282: "DSA_TAG_BRCM_PREPEND",
	283: "IEEE802_15_4_TAP",
	284: "DSA_TAG_DSA",
	285: "DSA_TAG_EDSA",
}
