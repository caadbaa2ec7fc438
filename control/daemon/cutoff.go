package daemon

import (
	"fmt"
	"net/netip"
	"slices"

	"weir/control/engine"
	"weir/filter/key"
	"weir/filter/verdict"
)

// logCutOff logs which servers of feeds are on a block list. Such a feed does not
// recover by itself: what would take its server off the list is not fetched.
func (g *antiLockout) logCutOff() {
	var all []string
	for _, l := range g.active.prepared.Lists {
		if l.From == nil {
			continue
		}
		for _, source := range l.From.Status().Sources {
			for _, server := range source.Servers {
				by := g.active.blocker(server)
				if by == "" {
					continue
				}
				text := fmt.Sprintf("list %s blocks %v, from where list %s reads %s: where weir filters that traffic, "+
					"the list cannot be read: weir allow %v, or add it to failsafe.prefixes", by, server, l.Name, source.Source, server)
				if all = append(all, text); !slices.Contains(g.cutOff, text) {
					g.log.Warn(text)
				}
			}
		}
	}
	g.cutOff = all
}

// blocker returns the list that blocks all packets of a source, or all packets to it, "" if
// they are not blocked, or come from this host itself.
func (a *active) blocker(source netip.Addr) (name string) {
	if source.IsLoopback() || slices.ContainsFunc(a.prepared.Config.Failsafe.Prefixes, func(p verdict.FailsafePrefix) bool { return p.Contains(source) }) {
		return ""
	}
	other := netip.IPv4Unspecified()
	if source.Is6() {
		other = netip.IPv6Unspecified()
	}
	in := a.blocking(a.engine.Find(key.Tuple{Src: source, Dst: other}), func(k key.Key) bool {
		p, err := source.Prefix(int(k.SrcBits))
		return err == nil && k == key.Source(p)
	})
	if out := a.engine.Out(); in == "" && out != nil {
		return a.blocking(out.Find(key.Tuple{Src: other, Dst: source}), func(k key.Key) bool {
			p, err := source.Prefix(int(k.DstBits))
			return err == nil && k == key.Destination(p)
		})
	}
	return in
}

// blocking returns the list of the first of the found entries that cover all packets of a
// server, "" if one of them allows these.
func (a *active) blocking(found []engine.Found, covers func(key.Key) bool) (name string) {
	for _, f := range found {
		if !covers(f.Key) {
			continue
		}
		l := a.prepared.Rules[f.List-1]
		if l.Rule.On() && (l.Rule.Trial || l.Rule.Narrow()) {
			continue
		}
		if l.Allow {
			return ""
		}
		if name == "" {
			name = l.Name
		}
	}
	return name
}
