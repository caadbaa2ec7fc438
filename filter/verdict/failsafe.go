package verdict

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"weir/filter/key"
	"weir/filter/packet"
)

// MaxFailsafe bounds the failsafe ports, and the failsafe prefixes of each family,
// as in bpf/failsafe.h.
const MaxFailsafe = 8

// FailsafePort is a destination port that passes before any list is asked.
type FailsafePort struct {
	Proto uint8
	Port  uint16
}

func (p FailsafePort) String() string { return fmt.Sprintf("%s/%d", key.ProtoName(p.Proto), p.Port) }

// MarshalText returns the port as in tcp/22.
func (p FailsafePort) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads a port of TCP, UDP or SCTP, as in tcp/22 or 22/tcp.
func (p *FailsafePort) UnmarshalText(text []byte) error {
	name, number, _ := strings.Cut(string(text), "/")
	if len(name) > 0 && name[0] >= '0' && name[0] <= '9' {
		name, number = number, name
	}
	n, err := strconv.ParseUint(number, 10, 16)
	proto, known := key.ProtoNumber(name)
	if err != nil || !known || proto != 6 && proto != 17 && proto != 132 {
		if n, err := strconv.ParseUint(string(text), 10, 16); err == nil {
			return fmt.Errorf("port %q without its protocol: did you mean tcp/%d?", text, n)
		}
		return fmt.Errorf("invalid port %q: want tcp, udp or sctp and a number, as in tcp/22 or 22/tcp", text)
	}
	*p = FailsafePort{Proto: proto, Port: uint16(n)}
	return nil
}

// FailsafePrefix is a prefix of sources that pass before any list is asked.
type FailsafePrefix struct{ netip.Prefix }

// MarshalText returns the prefix, with its length.
func (p FailsafePrefix) MarshalText() ([]byte, error) { return p.Prefix.MarshalText() }

// UnmarshalText reads an address or a prefix. It refuses prefixes with host bits,
// and those of a whole family.
func (p *FailsafePrefix) UnmarshalText(text []byte) error {
	prefix, err := netip.ParsePrefix(string(text))
	if err != nil {
		a, err := netip.ParseAddr(string(text))
		if err != nil || a.Zone() != "" {
			return fmt.Errorf("invalid prefix %q: want an address or a prefix, as in 192.0.2.0/24", text)
		}
		prefix = netip.PrefixFrom(a, a.BitLen())
	}
	// ::ffff:192.0.2.1 is another way to write an IPv4 address; no packet has it.
	if a := prefix.Addr(); a.Is4In6() && prefix.Bits() >= 96 {
		prefix = netip.PrefixFrom(a.Unmap(), prefix.Bits()-96)
	}
	if prefix.Bits() == 0 {
		return fmt.Errorf("prefix %q: every source would pass, listed or not", text)
	}
	if prefix != prefix.Masked() {
		return fmt.Errorf("prefix %q has host bits set: did you mean %v?", text, prefix.Masked())
	}
	*p = FailsafePrefix{prefix}
	return nil
}

// FailsafeICMP is a kind of ICMP messages that pass before any list is asked.
type FailsafeICMP struct{ packet.ICMP }

var icmpNames = [packet.NumICMP]string{
	packet.ICMPError: "errors", packet.EchoRequest: "echo-request", packet.EchoReply: "echo-reply",
}

func (f FailsafeICMP) String() string { return icmpNames[f.ICMP%packet.NumICMP] }

// MarshalText returns the kind as in echo-request.
func (f FailsafeICMP) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText reads a kind by its name.
func (f *FailsafeICMP) UnmarshalText(text []byte) error {
	i := slices.Index(icmpNames[1:], string(text))
	if i < 0 {
		return fmt.Errorf("unknown kind of ICMP %q: want errors, echo-request or echo-reply", text)
	}
	f.ICMP = packet.ICMP(i + 1)
	return nil
}
