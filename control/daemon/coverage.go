package daemon

import (
	"fmt"
	"math"
	"net/netip"
	"time"

	"weir/control/config"
	"weir/control/engine"
	"weir/control/list"
	"weir/filter/key"
)

// refuse returns why a list's entries must not become active: they would cover too
// much, or what must always pass.
func refuse(c *config.Config, l config.List, e *list.Set) error {
	if err := tooWide(c, l, e); err != nil {
		return err
	}
	return coversFailsafe(c, l, e)
}

// tooWide returns why a list must not have these entries, because of all that they
// cover together.
func tooWide(c *config.Config, l config.List, e *list.Set) error {
	if l.Action == config.Allow || e.Len() == 0 || c.MaxCoverage <= 0 {
		return nil
	}
	v4, v6 := covered(e)
	most := float64(c.MaxCoverage)
	for _, family := range []struct {
		name  string
		share float64
	}{{"IPv4", v4}, {"IPv6 (2000::/3)", v6}} {
		if family.share > most {
			return fmt.Errorf("list %s: it would cover %.3g %% of %s, where max_coverage is %.3g %%: "+
				"an entry is wrong, or max_coverage too low", l.Name, 100*family.share, family.name, 100*most)
		}
	}
	return nil
}

// coversFailsafe returns which entry covers what must always pass.
func coversFailsafe(c *config.Config, l config.List, e *list.Set) error {
	if l.Action == config.Allow || e.Len() == 0 {
		return nil
	}
	matchesSources := l.Direction != engine.Destination
	for _, safe := range c.Failsafe.Prefixes {
		var p netip.Prefix
		var covered bool
		if safe.Addr().Is4() {
			p, covered = covers(e.V4.Side(true, matchesSources), list.V4Of(safe.Masked()))
		} else {
			p, covered = covers(e.V6.Side(true, matchesSources), list.V6Of(safe.Masked()))
		}
		if covered {
			return fmt.Errorf("list %s: its entry %v covers the failsafe prefix %v", l.Name, p, safe)
		}
	}
	return nil
}

// refuseRead is refuse for what a feed has read, which an operator may have
// accepted whatever it covers.
func refuseRead(c *config.Config, l config.List, e *list.Set, accepted bool) error {
	if accepted {
		unlimited := *c
		unlimited.MaxCoverage = 0
		c = &unlimited
	}
	return refuse(c, l, e)
}

// covered returns the shares of IPv4, and of the IPv6 addresses that are allocated,
// that entries cover for TCP, or for UDP, whichever is more.
func covered(s *list.Set) (v4, v6 float64) {
	tcp, udp := flowCoverage(s.Flows)
	return min(coverage(&s.V4)+max(tcp[0], udp[0]), 1), min(coverage(&s.V6)+max(tcp[1], udp[1]), 1)
}

// coverage returns the share of a family that prefixes cover, of sources or of
// destinations, whichever is more.
func coverage[P list.Prefix[P]](all *list.Prefixes[P]) float64 {
	return min(sideCoverage(all.Plain)+max(sideCoverage(all.Src), sideCoverage(all.Dst)), 1)
}

// sideCoverage returns the share of a family that prefixes cover. What several of
// them cover counts once.
func sideCoverage[P list.Prefix[P]](prefixes list.Sorted[P]) (sum float64) {
	var last P
	covered := false
	for p := range prefixes.All() {
		// Prefixes come behind those that cover them.
		if !covered || p.Bits() < last.Bits() || p.Cut(last.Bits()) != last {
			sum, last, covered = sum+shareOf(p.Prefix()), p, true
		}
	}
	return sum
}

// flowCoverage returns the share of pairs of a source and a destination that flows
// cover, by family: of TCP, and of UDP.
func flowCoverage(flows list.Sorted[key.Key]) (tcp, udp [2]float64) {
	for k := range flows.All() {
		share := shareOf(netip.PrefixFrom(k.Src, int(k.SrcBits))) * shareOf(netip.PrefixFrom(k.Dst, int(k.DstBits)))
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

// shareOf returns the share of its family that a prefix covers: of IPv6, of what is
// allocated.
func shareOf(p netip.Prefix) float64 {
	switch {
	case p.Addr().Is4():
		return math.Ldexp(1, -p.Bits())
	case !p.Overlaps(allocated):
		return 0
	}
	return math.Ldexp(1, -max(0, p.Bits()-allocated.Bits()))
}

// covers returns an entry that covers a prefix.
func covers[P list.Prefix[P]](entries []list.Sorted[P], safe P) (netip.Prefix, bool) {
	for bits := range safe.Bits() + 1 {
		for _, e := range entries {
			if p := safe.Cut(bits); e.Has(p) {
				return p.Prefix(), true
			}
		}
	}
	return netip.Prefix{}, false
}

// keys returns the keys that entries have in a list.
func keys(l engine.List, e list.Entries) []key.Key {
	var all []key.Key
	for _, p := range e.V4 {
		all = append(all, l.Keys(p.Prefix())...)
	}
	for _, p := range e.V6 {
		all = append(all, l.Keys(p)...)
	}
	return append(all, e.Flows...)
}

// expires returns when an entry that is added now expires.
func expires(now time.Time, ttl time.Duration) time.Time {
	if ttl == 0 {
		return time.Time{}
	}
	return now.Add(ttl)
}
