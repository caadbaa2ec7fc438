package daemon

import (
	"fmt"
	"net/netip"
	"slices"

	"weir/filter/key"
	"weir/filter/verdict"
)

// tellCutOff logs which servers of feeds are on a block list. Such a feed does not
// heal by itself: what would take its server off the list is not fetched any more.
func (d *Daemon) tellCutOff() {
	var all []string
	for _, l := range d.state.lists {
		if l.feed == nil {
			continue
		}
		for _, source := range l.feed.Status().Sources {
			for _, server := range source.Servers {
				by := d.blocker(server)
				if by == "" {
					continue
				}
				text := fmt.Sprintf("list %s holds %v, from where list %s gets %s: where weir filters what comes from there, "+
					"that cannot be read: weir allow %v, or add it to failsafe.prefixes", by, server, l.Name, source.Source, server)
				if all = append(all, text); !slices.Contains(d.cutOff, text) {
					d.Log.Warn(text)
				}
			}
		}
	}
	d.cutOff = all
}

// blocker is the list by which all packets of a source are blocked, "" if they are
// not, or come from this host itself.
func (d *Daemon) blocker(source netip.Addr) (name string) {
	if source.IsLoopback() || slices.ContainsFunc(d.state.config.Failsafe.Prefixes, func(p verdict.FailsafePrefix) bool { return p.Contains(source) }) {
		return ""
	}
	other := netip.IPv4Unspecified()
	if source.Is6() {
		other = netip.IPv6Unspecified()
	}
	for _, f := range d.Find(key.Tuple{Src: source, Dst: other}) {
		if p, err := source.Prefix(int(f.Key.SrcBits)); err != nil || f.Key != key.Source(p) {
			continue // it does not hold all that comes from there
		}
		l := d.state.loaded.Sources[f.List-1].List
		if l.Allow {
			return ""
		}
		if name == "" {
			name = l.Name
		}
	}
	return name
}
