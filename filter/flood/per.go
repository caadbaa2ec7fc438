package flood

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Sharing says which packets of a pattern share its rate: enum pattern_sharing of bpf/pattern.h.
type Sharing uint8

const (
	SharedByAll Sharing = iota
	SharedBySource
	SharedByDestination
	SharedByFlow
)

// Per says which packets of a pattern share its rate, all if it is zero.
type Per struct {
	Sharing
	Bits int // of SharedBySource: how long a network of IPv4 is; one of IPv6 is twice as long
}

// String returns it as in a pattern, without the word per: src, src/24, dst or flow.
func (p Per) String() string {
	switch {
	case p.Sharing == SharedBySource && p.Bits == 32:
		return "src"
	case p.Sharing == SharedBySource:
		return "src/" + strconv.Itoa(p.Bits)
	case p.Sharing == SharedByDestination:
		return "dst"
	case p.Sharing == SharedByFlow:
		return "flow"
	}
	return "all"
}

// parsePer reads what String returns, but for "all".
func parsePer(text string) (Per, error) {
	switch text {
	case "src":
		return Per{SharedBySource, 32}, nil
	case "dst":
		return Per{Sharing: SharedByDestination}, nil
	case "flow":
		return Per{Sharing: SharedByFlow}, nil
	}
	if n, ok := strings.CutPrefix(text, "src/"); ok {
		if bits, err := strconv.Atoi(n); err == nil && bits >= leastBits && bits <= 32 && n == strconv.Itoa(bits) {
			return Per{SharedBySource, bits}, nil
		}
	}
	return Per{}, fmt.Errorf("per %s: want src, src/N with N from %d to 32, dst or flow", text, leastBits)
}

// sharers are packets that share a rate. What is not compared is zero.
type sharers struct {
	src, dst netip.Addr
	ports    [2]uint16
	protocol uint8
}

// of returns with which packets one shares the rate.
func (p Per) of(r *Record) (s sharers) {
	switch p.Sharing {
	case SharedBySource:
		src := r.Source()
		bits := p.Bits
		if src.Is6() {
			bits *= 2
		}
		network, _ := src.Prefix(bits) // never fails
		s.src = network.Addr()
	case SharedByDestination:
		s.dst = r.Destination()
	case SharedByFlow:
		s.src, s.dst, s.protocol = r.Source(), r.Destination(), r.Protocol
		if r.Protocol != protoICMP && r.Protocol != protoICMPv6 { // whose types are in their place
			s.ports = [2]uint16{r.SrcPort, r.DstPort}
		}
	}
	return s
}
