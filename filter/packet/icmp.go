package packet

// ICMP is the kind of an ICMP message. The numbers are those in
// bpf/icmp.h.
type ICMP uint8

const (
	OtherICMP   ICMP = iota // and what is not ICMP
	ICMPError               // destination unreachable, packet too big, time exceeded, parameter problem
	EchoRequest             // the question of a ping
	EchoReply               // its answer
	NumICMP
)

// Answers returns the kind of messages that ask for one of this kind, or answer it. Errors
// are of the same kind in both directions.
func (i ICMP) Answers() ICMP {
	switch i {
	case EchoRequest:
		return EchoReply
	case EchoReply:
		return EchoRequest
	}
	return i
}

// icmpKind returns the kind of a message of ICMP in IPv4, or of ICMPv6 in IPv6.
func icmpKind(v6 bool, proto, kind uint8) ICMP {
	switch {
	case !v6 && proto == protoICMP:
		switch kind {
		case 0:
			return EchoReply
		case 3, 11, 12:
			return ICMPError
		case 8:
			return EchoRequest
		}
	case v6 && proto == protoICMPv6:
		switch kind {
		case 1, 2, 3, 4:
			return ICMPError
		case 128:
			return EchoRequest
		case 129:
			return EchoReply
		}
	}
	return OtherICMP
}
