package announce

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weir/filter/key"
)

// Kind is a kind of routes.
type Kind string

// The kinds.
const (
	Blackhole Kind = "blackhole" // routes whose packets are dropped (RFC 7999)
	FlowSpec  Kind = "flowspec"  // rules that drop packets (RFC 8955)
)

// UnmarshalText reads a kind.
func (k *Kind) UnmarshalText(text []byte) error {
	switch kind := Kind(text); kind {
	case Blackhole, FlowSpec:
		*k = kind
		return nil
	}
	return fmt.Errorf("%.100q: want blackhole or flowspec", text)
}

// MarshalText returns the kind.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k), nil }

// Spec says what is announced.
type Spec struct {
	Kind     Kind
	Trackers []string       // keys of trackers whose heavy hitters are announced, as in "dst" or "src/24"
	Own      []netip.Prefix // prefixes of one's own, to which destinations belong and sources do not
	Protect  []netip.Prefix // what no announcement may touch
	Max      int            // announcements at a time
	Min4     int            // the shortest prefixes
	Min6     int
	Hold     time.Duration // how long an announcement stays after the last interval in which it was heavy
	Next4    string        // next hops of blackholes, as ExaBGP reads them
	Next6    string

	Communities []string // of blackholes
}

// The limits of a Spec.
const (
	mostRoutes = 10_000
	floor4     = 16
	floor6     = 32
)

// Validate returns what is wrong with a Spec, by the names of the command's options.
func (s *Spec) Validate() error {
	switch {
	case len(s.Own) == 0:
		return errors.New("--own is missing: the prefixes of your own network, as in --own 203.0.113.0/24,2001:db8::/32")
	case s.Max < 1 || s.Max > mostRoutes:
		return fmt.Errorf("--max-routes %d: want 1 to %d", s.Max, mostRoutes)
	case s.Min4 < floor4 || s.Min4 > 32:
		return fmt.Errorf("--min-ipv4 %d: want %d to 32", s.Min4, floor4)
	case s.Min6 < floor6 || s.Min6 > 128:
		return fmt.Errorf("--min-ipv6 %d: want %d to 128", s.Min6, floor6)
	case s.Hold < time.Second || s.Hold > 30*24*time.Hour:
		return fmt.Errorf("--hold %v: want 1s to 30d", s.Hold)
	}
	for _, t := range s.Trackers {
		if side, _, _ := strings.Cut(t, "/"); side != "src" && side != "dst" && (t != "flow" || s.Kind != FlowSpec) {
			if t == "flow" {
				return errors.New("--tracker flow goes with --kind flowspec: there are no routes to a flow")
			}
			return fmt.Errorf("--tracker %.100q: want src, dst, flow, or a prefix as in src/24", t)
		}
	}
	return nil
}

// target returns what the packets of a route or rule are matched by.
func target(k key.Key) (src, dst netip.Prefix) {
	if k.SrcBits > 0 {
		src = netip.PrefixFrom(k.Src, int(k.SrcBits))
	}
	if k.DstBits > 0 {
		dst = netip.PrefixFrom(k.Dst, int(k.DstBits))
	}
	return src, dst
}

// refuse returns why a key must not be announced, nil if it may. protected are entries
// of packets that must not be dropped.
func (s *Spec) refuse(k key.Key, protected []Peer) error {
	src, dst := target(k)
	inside := func(p netip.Prefix) bool {
		return slices.ContainsFunc(s.Own, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) })
	}
	overlaps := func(p netip.Prefix) bool { return slices.ContainsFunc(s.Own, p.Overlaps) }
	switch {
	case !src.IsValid() && !dst.IsValid():
		return errors.New("it has no address")
	case dst.IsValid() && !inside(dst):
		return fmt.Errorf("%v is not in a prefix of --own", dst)
	case src.IsValid() && overlaps(src):
		return fmt.Errorf("the source %v is in a prefix of --own", src)
	case src.IsValid() && !public(src.Addr()):
		return fmt.Errorf("the source %v is of a private, local or multicast network", src)
	}
	for _, p := range []netip.Prefix{src, dst} {
		if !p.IsValid() {
			continue
		}
		least := s.Min4
		if p.Addr().Is6() {
			least = s.Min6
		}
		if p.Bits() < least {
			return fmt.Errorf("the prefix of %v is shorter than /%d (--min-ipv4, --min-ipv6)", p, least)
		}
		if i := slices.IndexFunc(s.Protect, p.Overlaps); i >= 0 {
			return fmt.Errorf("%v is protected (--protect %v)", p, s.Protect[i])
		}
		for _, peer := range protected {
			for _, its := range peer.Prefixes {
				if p.Bits() <= its.Bits() && p.Contains(its.Addr()) {
					return fmt.Errorf("it would cut off %s", peer.What)
				}
			}
		}
	}
	return nil
}

// public reports whether an address is one of the Internet's.
func public(a netip.Addr) bool {
	shared := netip.MustParsePrefix("100.64.0.0/10")
	return a.IsGlobalUnicast() && !a.IsPrivate() && !shared.Contains(a)
}

// route returns the route or rule for a key, as ExaBGP reads it behind "announce" and
// "withdraw".
func (s *Spec) route(k key.Key) string {
	src, dst := target(k)
	if s.Kind == Blackhole {
		p, next := dst, s.Next4
		if !p.IsValid() {
			p = src
		}
		if p.Addr().Is6() {
			next = s.Next6
		}
		return fmt.Sprintf("route %v next-hop %s community [%s]", p, next, strings.Join(s.Communities, " "))
	}
	var b strings.Builder
	b.WriteString("flow route { match {")
	prefix := func(name string, p netip.Prefix) {
		switch {
		case !p.IsValid():
		case p.Addr().Is6():
			fmt.Fprintf(&b, " %s %v/0;", name, p) // and the offset
		default:
			fmt.Fprintf(&b, " %s %v;", name, p)
		}
	}
	prefix("source", src)
	prefix("destination", dst)
	if k.Fields&key.FieldProto != 0 {
		name := "protocol"
		if k.V6() {
			name = "next-header"
		}
		fmt.Fprintf(&b, " %s =%d;", name, k.Proto)
	}
	if k.Fields&key.FieldSrcPort != 0 {
		fmt.Fprintf(&b, " source-port =%d;", k.SrcPort)
	}
	if k.Fields&key.FieldDstPort != 0 {
		fmt.Fprintf(&b, " destination-port =%d;", k.DstPort)
	}
	b.WriteString(" } then { discard; } }")
	return b.String()
}
