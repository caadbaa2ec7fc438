package flood

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Field is a field of a packet, which a condition tests.
type Field uint8

const (
	Protocol Field = iota
	FragmentPart
	Flags
	Length
	SourcePort // or the type of ICMP
	DestinationPort
	TTL
	ID
	HeaderLength
	Window
	Payload
	Strangers // 1 where a packet belongs to no conversation
	numValues

	SourcePrefix = iota - 1
	DestinationPrefix
)

// protocols are those that have names in patterns and in entries of lists.
var protocols = map[uint32]string{
	protoICMP: "icmp", protoTCP: "tcp", protoUDP: "udp", protoGRE: "gre", protoESP: "esp", protoICMPv6: "icmp6", protoSCTP: "sctp",
}

var fieldNames = [...]string{"protocol", "fragment", "flags", "length", "sport", "dport", "ttl", "id", "doff", "window", "payload", "stranger", "src", "dst"}

// String returns the field's name in patterns.
func (f Field) String() string { return fieldNames[f] }

// Condition is met by packets whose field is from Lo to Hi, or whose address is in Prefix.
type Condition struct {
	Field  Field
	Lo, Hi uint32
	Mask   uint8        // of Flags, which of them are compared; 0: all
	Prefix netip.Prefix // of SourcePrefix and DestinationPrefix
}

// Rule matches packets that meet all conditions, which are of different fields and in
// their order.
type Rule struct {
	Conditions []Condition
	// Sources, if there are any, are the only addresses from which packets match. In order.
	Sources []netip.Addr
	Per     Per // of a pattern with a rate
}

// absent is the value of a field that a packet does not have.
const absent = 1<<32 - 1

// Value returns a field of a record as a number, 2^32 - 1 where the packet does not have it.
func (r *Record) Value(f Field) uint32 {
	tcp := r.Protocol == protoTCP && r.HeaderLength > 0
	switch f {
	case Protocol:
		return uint32(r.Protocol)
	case FragmentPart:
		return uint32(r.Fragment)
	case Length:
		return uint32(r.Length)
	case TTL:
		return uint32(r.TTL)
	case Strangers:
		if r.Conversing == Stranger {
			return 1
		}
		return 0
	case ID:
		if r.IPv4 {
			return uint32(r.ID)
		}
	case SourcePort, DestinationPort:
		switch {
		case !r.hasPorts():
		case f == SourcePort:
			return uint32(r.SrcPort)
		default:
			return uint32(r.DstPort)
		}
	case Flags:
		if tcp {
			return uint32(r.Flags)
		}
	case HeaderLength:
		if tcp {
			return uint32(r.HeaderLength)
		}
	case Window:
		if tcp {
			return uint32(r.Window)
		}
	case Payload:
		return binary.BigEndian.Uint32(r.Payload[:])
	}
	return absent
}

// says reports whether a condition may be of a value: it is not, of one that says nothing, or that a
// packet does not have. A payload of zeros stands for none, too.
func (f Field) says(v uint32) bool {
	switch f {
	case Payload, FragmentPart, Strangers:
		return v != 0
	}
	return v != absent
}

// hasPorts reports whether the packet has ports, or the type and code of ICMP.
func (r *Record) hasPorts() bool {
	switch r.Protocol {
	case protoTCP, protoUDP, protoSCTP, protoICMP, protoICMPv6:
		return r.Fragment != LaterFragment
	}
	return false
}

// Matches reports whether a packet meets the condition.
func (c *Condition) Matches(r *Record) bool {
	switch c.Field {
	case SourcePrefix:
		return c.Prefix.Contains(r.Source())
	case DestinationPrefix:
		return c.Prefix.Contains(r.Destination())
	}
	v := r.Value(c.Field) & c.compared()
	return c.Lo <= v && v <= c.Hi
}

// compared returns the bits of a value that are compared: those above flags, too, which are set in
// absent.
func (c *Condition) compared() uint32 {
	if c.Mask == 0 {
		return 1<<32 - 1
	}
	return ^uint32(0xff) | uint32(c.Mask)
}

// Matches reports whether a packet meets all conditions of the rule.
func (u *Rule) Matches(r *Record) bool {
	for i := range u.Conditions {
		if !u.Conditions[i].Matches(r) {
			return false
		}
	}
	if len(u.Sources) == 0 {
		return true
	}
	_, ok := slices.BinarySearchFunc(u.Sources, r.Source(), netip.Addr.Compare)
	return ok
}

func (u *Rule) has(f Field) *Condition {
	for i := range u.Conditions {
		if u.Conditions[i].Field == f {
			return &u.Conditions[i]
		}
	}
	return nil
}

// with returns the rule with a condition more.
func (u Rule) with(c Condition) Rule {
	u.Conditions = append(slices.Clone(u.Conditions), c)
	slices.SortFunc(u.Conditions, func(a, b Condition) int { return cmp.Compare(a.Field, b.Field) })
	return u
}

// String returns the rule as a pattern, as in "udp length 468 sport 123 dst 203.0.113.2/32".
func (u *Rule) String() string {
	var words []string
	for _, c := range u.Conditions {
		words = append(words, c.String())
	}
	if len(u.Sources) > 0 {
		words = append(words, fmt.Sprintf("of %d sources", len(u.Sources)))
	}
	if u.Per != (Per{}) {
		words = append(words, "per "+u.Per.String())
	}
	return strings.Join(words, " ")
}

// String returns the condition as in a pattern.
func (c Condition) String() string {
	switch c.Field {
	case SourcePrefix, DestinationPrefix:
		return c.Field.String() + " " + c.Prefix.String()
	case Strangers:
		return "stranger"
	case Payload:
		return fmt.Sprintf("payload %08x", c.Lo)
	case Flags:
		if c.Mask != 0 {
			return "flags " + flagNames(c.Lo) + "/" + flagNames(uint32(c.Mask))
		}
		return "flags " + flagNames(c.Lo)
	case FragmentPart:
		return "fragment " + [...]string{"none", "first", "later"}[min(c.Lo, 2)]
	case Protocol:
		if name, ok := protocols[c.Lo]; ok && c.Lo == c.Hi {
			return name
		}
	}
	if c.Lo == c.Hi {
		return fmt.Sprintf("%s %d", c.Field, c.Lo)
	}
	return fmt.Sprintf("%s %d-%d", c.Field, c.Lo, c.Hi)
}

func flagNames(flags uint32) string {
	var b strings.Builder
	for i, name := range flagLetters {
		if flags>>i&1 != 0 {
			b.WriteRune(name)
		}
	}
	return cmp.Or(b.String(), "none")
}

// services are known for their answers to questions that others forge.
var services = map[uint32]string{
	17: "QOTD", 19: "chargen", 53: "DNS", 69: "TFTP", 111: "portmap", 123: "NTP", 137: "NetBIOS", 161: "SNMP", 389: "CLDAP",
	427: "SLP", 520: "RIP", 1900: "SSDP", 3283: "ARD", 3702: "WS-Discovery", 5353: "mDNS", 5683: "CoAP", 10001: "Ubiquiti", 11211: "memcached",
}

// Name says in words what packets a rule matches, where they have a name, and otherwise nothing.
func (u *Rule) Name() string {
	value := func(f Field) (uint32, bool) {
		if c := u.has(f); c != nil && c.Lo == c.Hi {
			return c.Lo, true
		}
		return 0, false
	}
	protocol, _ := value(Protocol)
	fragment, _ := value(FragmentPart)
	port, hasPort := value(SourcePort)
	flags, hasFlags := value(Flags)
	switch {
	case Fragment(fragment) == LaterFragment:
		return "later fragments"
	case protocol == protoUDP && hasPort && services[port] != "":
		return services[port] + " answers"
	case protocol == protoTCP && hasFlags && flags == 2:
		return "SYNs"
	case protocol == protoTCP && hasFlags && flags == 0x12:
		return "answers to SYNs"
	case protocol == protoTCP && hasFlags && flags&4 != 0:
		return "resets"
	case protocol == protoTCP && hasFlags && flags == 0x10:
		return "ACKs"
	case protocol == protoICMP && port == 8, protocol == protoICMPv6 && port == 128:
		return "pings"
	}
	return ""
}
