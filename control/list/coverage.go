package list

import (
	"fmt"
	"math"
	"net/netip"

	"weir/filter/key"
)

// TooWide returns an error if a block list must not have these entries, because all that
// they cover together is more than a share of IPv4, or of the IPv6 addresses that are
// allocated.
func (s *Set) TooWide(most float64) error {
	if s.Len() == 0 {
		return nil
	}
	v4, v6 := s.covered()
	for i, family := range []struct {
		name  string
		share float64
	}{{"IPv4", v4}, {"IPv6 (2000::/3)", v6}} {
		if family.share > most {
			return &CoverageError{i, fmt.Sprintf("it would cover %.3g %% of %s, where max_coverage is %.3g %%: "+
				"an entry is wrong, or max_coverage too low", 100*family.share, family.name, 100*most)}
		}
	}
	return nil
}

// CoverageError means that entries cover too much of a family.
type CoverageError struct {
	Family int // 0: IPv4, 1: IPv6
	why    string
}

func (e *CoverageError) Error() string { return e.why }

// covered returns the shares of IPv4, and of the IPv6 addresses that are allocated,
// that entries cover for TCP, or for UDP, whichever is more.
func (s *Set) covered() (v4, v6 float64) {
	tcp, udp := flowCoverage(s.Flows)
	return min(coverage(&s.V4)+max(tcp[0], udp[0]), 1), min(coverage(&s.V6)+max(tcp[1], udp[1]), 1)
}

// coverage returns the share of a family that prefixes cover, of sources or of
// destinations, whichever is more.
func coverage[P Prefix[P]](all *Prefixes[P]) float64 {
	return min(sideCoverage(all.Plain)+max(sideCoverage(all.Src), sideCoverage(all.Dst)), 1)
}

// sideCoverage returns the share of a family that prefixes cover. What several of
// them cover counts once.
func sideCoverage[P Prefix[P]](prefixes Sorted[P]) (sum float64) {
	var last P
	covered := false
	for p := range prefixes.All() {
		// Prefixes come behind those that cover them, and no two are equal.
		if !covered || p.Bits() <= last.Bits() || p.Cut(last.Bits()) != last {
			sum, last, covered = sum+Share(p.Prefix()), p, true
		}
	}
	return sum
}

// flowCoverage returns the share of pairs of a source and a destination that flows
// cover, by family: of TCP, and of UDP.
func flowCoverage(flows Sorted[key.Key]) (tcp, udp [2]float64) {
	for k := range flows.All() {
		share := Share(netip.PrefixFrom(k.Src, int(k.SrcBits))) * Share(netip.PrefixFrom(k.Dst, int(k.DstBits)))
		for _, port := range []key.Fields{key.FieldSrcPort, key.FieldDstPort} {
			if k.Fields&port != 0 {
				share /= 1 << 16
			}
		}
		family := 0
		if k.V6() {
			family = 1
		}
		if k.Fields&key.FieldProto == 0 || k.Proto == 6 {
			tcp[family] += share
		}
		if k.Fields&key.FieldProto == 0 || k.Proto == 17 {
			udp[family] += share
		}
	}
	return tcp, udp
}

// allocated is the IPv6 space that addresses come from.
var allocated = netip.MustParsePrefix("2000::/3")

// Share returns the share of its family that a prefix covers: of IPv6, of its
// allocated part.
func Share(p netip.Prefix) float64 {
	switch {
	case p.Addr().Is4():
		return part(p.Bits())
	case !p.Overlaps(allocated):
		return 0
	}
	return part(max(0, p.Bits()-allocated.Bits()))
}

// part returns 2^-bits, of up to 1,022 bits. Lists of millions are asked with each update: [math.Ldexp] takes longer
// than the rest.
func part(bits int) float64 { return math.Float64frombits(uint64(1023-bits) << 52) }
