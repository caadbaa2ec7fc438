package daemon

import (
	"fmt"
	"net/netip"
	"slices"

	"weir/filter/key"
	"weir/filter/verdict"
)

// logCutOff logs which servers of feeds are on a block list. Such a feed does not
// recover by itself: what would take its server off the list is not fetched.
func (d *Daemon) logCutOff() {
	var all []string
	for _, l := range d.prepared.lists {
		if l.from == nil {
			continue
		}
		for _, source := range l.from.Status().Sources {
			for _, server := range source.Servers {
				by := d.blocker(server)
				if by == "" {
					continue
				}
				text := fmt.Sprintf("list %s blocks %v, from where list %s reads %s: where weir filters that traffic, "+
					"the list cannot be read: weir allow %v, or add it to failsafe.prefixes", by, server, l.Name, source.Source, server)
				if all = append(all, text); !slices.Contains(d.cutOff, text) {
					d.o.Log.Warn(text)
				}
			}
		}
	}
	d.cutOff = all
}

// blocker returns the list that blocks all packets of a source, "" if they are not
// blocked, or come from this host itself.
func (d *Daemon) blocker(source netip.Addr) (name string) {
	if source.IsLoopback() || slices.ContainsFunc(d.prepared.config.Failsafe.Prefixes, func(p verdict.FailsafePrefix) bool { return p.Contains(source) }) {
		return ""
	}
	other := netip.IPv4Unspecified()
	if source.Is6() {
		other = netip.IPv6Unspecified()
	}
	for _, f := range d.engine.Find(key.Tuple{Src: source, Dst: other}) {
		if p, err := source.Prefix(int(f.Key.SrcBits)); err != nil || f.Key != key.Source(p) {
			continue // it does not cover all packets from there
		}
		l := d.prepared.rules[f.List-1]
		if l.Allow {
			return ""
		}
		if name == "" {
			name = l.Name
		}
	}
	return name
}
