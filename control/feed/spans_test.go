package feed_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"weir/control/list"
)

// span is a range of addresses of one family, both ends included.
type span struct{ first, last netip.Addr }

// spans are addresses as sorted spans that neither overlap nor touch. Two files with the same
// spans match the same packets, however their entries are written.
type spans []span

func (s span) String() string {
	if s.first == s.last {
		return s.first.String()
	}
	return s.first.String() + "-" + s.last.String()
}

// of returns the span of a prefix. An IPv4-mapped address is the IPv4 one, as on the wire;
// ::ffff:0:0/96 as a whole and what is around it stay IPv6.
func of(p netip.Prefix) span {
	if p.Addr().Is4In6() && p.Bits() > 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	p = p.Masked()
	last := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(last); i++ {
		last[i/8] |= 1 << (7 - i%8)
	}
	end, _ := netip.AddrFromSlice(last)
	return span{p.Addr(), end}
}

// parse returns the span of an address, prefix or range as weir, ipset and nft print them.
func parse(text string) (span, error) {
	if first, last, ok := strings.Cut(text, "-"); ok {
		a, err := netip.ParseAddr(first)
		b, berr := netip.ParseAddr(last)
		if err != nil || berr != nil || a.BitLen() != b.BitLen() || b.Less(a) {
			return span{}, fmt.Errorf("no range: %q", text)
		}
		return span{a.Unmap(), b.Unmap()}, nil
	}
	if !strings.Contains(text, "/") {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return span{}, err
		}
		return of(netip.PrefixFrom(a, a.BitLen())), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return span{}, err
	}
	return of(p), nil
}

// parsed returns the spans of texts, which are right.
func parsed(texts ...string) spans {
	var all []span
	for _, text := range texts {
		s, err := parse(text)
		if err != nil {
			panic(err)
		}
		all = append(all, s)
	}
	return joined(all)
}

// joined sorts spans and joins those that overlap or touch.
func joined(all []span) spans {
	slices.SortFunc(all, func(a, b span) int {
		if c := a.first.Compare(b.first); c != 0 {
			return c
		}
		return a.last.Compare(b.last)
	})
	var s spans
	for _, x := range all {
		if n := len(s); n > 0 {
			before := &s[n-1]
			if next := before.last.Next(); before.last.BitLen() == x.first.BitLen() && (!next.IsValid() || x.first.Compare(next) <= 0) {
				if before.last.Less(x.last) {
					before.last = x.last
				}
				continue
			}
		}
		s = append(s, x)
	}
	return s
}

// without returns the addresses of s that t does not have.
func (s spans) without(t spans) spans {
	var left []span
	for _, x := range s {
		rest := true
		for _, y := range t {
			if x.first.BitLen() != y.first.BitLen() || y.last.Less(x.first) || x.last.Less(y.first) {
				continue
			}
			if x.first.Less(y.first) {
				left = append(left, span{x.first, y.first.Prev()})
			}
			if !y.last.Less(x.last) {
				rest = false
				break
			}
			x.first = y.last.Next()
		}
		if rest {
			left = append(left, x)
		}
	}
	return joined(left)
}

// and returns the addresses of both.
func (s spans) and(t spans) spans { return joined(slices.Concat([]span(s), []span(t))) }

func (s spans) String() string {
	var texts []string
	for i, x := range s {
		if i == 8 {
			texts = append(texts, fmt.Sprintf("… (%d)", len(s)))
			break
		}
		texts = append(texts, x.String())
	}
	return "[" + strings.Join(texts, " ") + "]"
}

// covered returns the addresses of entries without a side, and the texts of all others.
func covered(e list.Entries) (s spans, flows []string) {
	var all []span
	for _, p := range e.V4 {
		all = append(all, of(p.Prefix()))
	}
	for _, p := range e.V6 {
		all = append(all, of(p))
	}
	for _, k := range e.Flows {
		flows = append(flows, k.String())
	}
	slices.Sort(flows)
	return joined(all), slices.Compact(flows)
}
