package ruleset

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/verdict"
)

// ParseMode is the inverse of membership.Mode.String.
func ParseMode(s string) (membership.Mode, error) {
	for _, m := range []membership.Mode{membership.Exact, membership.Approximate} {
		if s == m.String() {
			return m, nil
		}
	}
	return 0, fmt.Errorf("mode %q: want exact or approx", s)
}

// Share is a share of a file's lines, 0…1. As in list.Options, none at all is
// negative.
type Share float64

// ParseShare reads a share: "5%" or "0.05".
func ParseShare(s string) (Share, error) {
	text, percent := strings.CutSuffix(strings.TrimSpace(s), "%")
	f, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if percent {
		f /= 100
	}
	if err != nil || !(f >= 0 && f <= 1) {
		return 0, fmt.Errorf("share %q: want 0%% … 100%%", s)
	}
	if f == 0 {
		return -1, nil
	}
	return Share(f), nil
}

func (s Share) String() string {
	return strconv.FormatFloat(max(0, 100*float64(s)), 'g', 4, 64) + "%"
}

// ParseFailsafePort reads a destination port that always passes: "tcp/22".
func ParseFailsafePort(s string) (verdict.FailsafePort, error) {
	name, port, ok := strings.Cut(s, "/")
	proto, known := key.ProtoNumber(name)
	n, err := strconv.ParseUint(port, 10, 16)
	if !ok || !known || err != nil || (proto != 6 && proto != 17 && proto != 132) {
		return verdict.FailsafePort{}, fmt.Errorf("failsafe port %q: want tcp/, udp/ or sctp/ and a number", s)
	}
	return verdict.FailsafePort{Proto: proto, Port: uint16(n)}, nil
}

// FormatFailsafePort is the inverse of ParseFailsafePort.
func FormatFailsafePort(f verdict.FailsafePort) string {
	return fmt.Sprintf("%s/%d", key.ProtoName(f.Proto), f.Port)
}

// ParseFailsafePrefix reads a prefix, or an address, of sources that always pass.
func ParseFailsafePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("failsafe prefix %q: want an address or a prefix", s)
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	// ::ffff:192.0.2.1 is how some write an IPv4 address; no packet has it.
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	if p.Bits() == 0 {
		return netip.Prefix{}, fmt.Errorf("failsafe prefix %q: every source would pass, whatever is listed", s)
	}
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("failsafe prefix %q: host bits set, did you mean %v?", s, p.Masked())
	}
	return p, nil
}

// ParseMalformed reads what is to become of malformed packets: "pass", or
// "drop", for which it reports true.
func ParseMalformed(s string) (drop bool, err error) {
	for _, a := range []verdict.Action{verdict.Pass, verdict.Drop} {
		if s == a.String() {
			return a == verdict.Drop, nil
		}
	}
	return false, fmt.Errorf("malformed %q: want pass or drop", s)
}
