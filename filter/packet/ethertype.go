package packet

import "fmt"

// etherTypes are protocols that frames on real links have, and that are counted as NotIP.
var etherTypes = map[uint16]string{
	0x0000:      "LLC or SNAP",
	0x0842:      "Wake-on-LAN",
	0x4305:      "batman-adv",
	0x6003:      "DECnet",
	0x80f3:      "AppleTalk ARP",
	0x809b:      "AppleTalk",
	0x8137:      "IPX",
	etherMPLS:   "MPLS, not IP behind it",
	etherMPLSMC: "MPLS multicast, not IP behind it",
	etherPPPoE:  "PPPoE, not IP behind it",
	0x887b:      "HomePlug",
	0x8892:      "PROFINET",
	0x8899:      "Realtek's loop detection",
	0x88a2:      "ATA over Ethernet",
	0x88a4:      "EtherCAT",
	0x88b8:      "GOOSE",
	0x88ba:      "sampled values",
	0x88e1:      "HomePlug AV",
	0x88e5:      "MACsec",
	0x88e7:      "provider backbone bridge",
	0x88fb:      "PRP",
	0x8906:      "FCoE",
	0x8912:      "HomePlug",
	0x8914:      "FCoE initialisation",
	0x8915:      "RoCE",
	0x8926:      "VN-Tag",
	0x892f:      "HSR",
	0x893a:      "IEEE 1905",
	0x894f:      "NSH",
	0x9000:      "Ethernet loopback",
	0x9100:      "VLAN tag of another EtherType",
	0x9200:      "VLAN tag of another EtherType",
}

// OtherEtherTypes stands for the types that there was no room to count apart.
const OtherEtherTypes = "other"

// EtherTypeName returns the name of an EtherType, as Packet has it, or "" if it has none here.
func EtherTypeName(t uint16) string { return etherTypes[t] }

// FormatEtherType returns an EtherType as it is written in metrics and JSON.
func FormatEtherType(t uint16) string {
	if t == 0 {
		return "802.3"
	}
	return fmt.Sprintf("0x%04x", t)
}
