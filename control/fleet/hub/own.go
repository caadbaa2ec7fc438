package hub

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"

	"weir/control/config"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
)

// leftOut says which entries nodes leave out, as far as the hub knows: they would cut nodes
// off from it.
func leftOut(entries []string, own []netip.Addr) (all []string) {
	for _, text := range entries {
		e, err := listfile.ParseEntry(text)
		if err != nil {
			continue // it was refused
		}
		for k := range e.Set().All() {
			if text := covers(k, own); text != "" && len(all) < maxDiffering {
				all = append(all, text)
			}
		}
	}
	return all
}

// covers says which of the hub's own addresses an entry would block, "" for none.
func covers(k key.Key, own []netip.Addr) string {
	prefix, source := list.PrefixOf(k)
	at := slices.IndexFunc(own, prefix.Contains)
	if !source || k.Tuple() || at < 0 {
		return ""
	}
	return fmt.Sprintf("%s covers %v, which is an address of this hub: nodes leave it out, or they would lose the hub", k, own[at])
}

// addresses returns the addresses of the hub: of its interfaces, and that nodes connect to.
func addresses(c *config.Hub) (own []netip.Addr) {
	for _, s := range slices.Concat(c.Servers, c.Sites) {
		if u, err := url.Parse(s); err == nil {
			if a, err := netip.ParseAddr(u.Hostname()); err == nil {
				own = append(own, a.Unmap())
			}
		}
	}
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		return own
	}
	for _, i := range interfaces {
		if p, err := netip.ParsePrefix(i.String()); err == nil && p.Addr().IsGlobalUnicast() {
			own = append(own, p.Addr().Unmap())
		}
	}
	return own
}

// countManual returns the number of manual entries, by list, and which of them nodes leave
// out: who has blocked an address of the hub may not have seen the warning.
func countManual(j *journal.Journal, own []netip.Addr) (manual map[string]int, covering []string) {
	manual = make(map[string]int)
	for e := range j.Entries() {
		manual[e.List]++
		if e.Allow || len(covering) == maxDiffering {
			continue
		}
		if text := covers(e.Key, own); text != "" {
			covering = append(covering, "list "+e.List+": "+text)
		}
	}
	return manual, covering
}
