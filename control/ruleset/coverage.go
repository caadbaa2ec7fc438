package ruleset

import (
	"fmt"
	"net/netip"
	"slices"

	"weir/control/config"
	"weir/control/engine"
	"weir/control/list"
	"weir/control/lists"
	"weir/filter/key"
)

// overFailsafe is an entry that covers a failsafe prefix.
type overFailsafe struct {
	entry key.Key
	safe  netip.Prefix
}

func (o overFailsafe) String() string {
	p, _ := list.PrefixOf(o.entry)
	return fmt.Sprintf("%v covers the failsafe prefix %v", p, o.safe)
}

// coverFailsafe returns the entries that cover what must always pass, each once.
func coverFailsafe(c *config.Config, l config.List, e *list.Set) (all []overFailsafe) {
	if l.Action == config.Allow || e.Len() == 0 {
		return nil
	}
	// Failsafe prefixes are of the remote side.
	source, matches := l.Direction != engine.Out, l.Direction != engine.Destination
	for _, safe := range c.Failsafe.Prefixes {
		var found []netip.Prefix
		if safe.Addr().Is4() {
			found = covers(e.V4.Side(source, matches), list.V4Of(safe.Masked()))
		} else {
			found = covers(e.V6.Side(source, matches), list.V6Of(safe.Masked()))
		}
		for _, p := range found {
			k := key.Destination(p)
			if source || p.Bits() == 0 {
				k = key.Source(p)
			}
			if !slices.ContainsFunc(all, func(o overFailsafe) bool { return o.entry == k }) {
				all = append(all, overFailsafe{k, safe.Prefix})
			}
		}
	}
	return all
}

// CoversFailsafe returns an error for an entry that covers what must always pass: a
// command must not add it.
func CoversFailsafe(c *config.Config, l config.List, e *list.Set) error {
	if all := coverFailsafe(c, l, e); len(all) > 0 {
		return fmt.Errorf("list %s: its entry %v", l.Name, all[0])
	}
	return nil
}

// RefuseRead returns why a list must not have what a feed has read, private networks left
// out where that is wanted: it covers too much. An operator may have accepted that.
func RefuseRead(c *config.Config, l config.List, e *list.Set, accepted bool) error {
	if accepted {
		return nil
	}
	return l.TooWide(lists.Public(e, l.LeavesOutPrivate()), c.MaxCoverage)
}

// covers returns the entries that cover a prefix.
func covers[P list.Prefix[P]](entries []list.Sorted[P], safe P) (all []netip.Prefix) {
	for bits := range safe.Bits() + 1 {
		for _, e := range entries {
			if p := safe.Cut(bits); e.Has(p) {
				all = append(all, p.Prefix())
			}
		}
	}
	return all
}

// Keys returns the keys that entries have in a list.
func Keys(l engine.List, e list.Entries) []key.Key {
	var all []key.Key
	for _, p := range e.V4 {
		all = append(all, l.Keys(p.Prefix())...)
	}
	for _, p := range e.V6 {
		all = append(all, l.Keys(p)...)
	}
	return append(all, e.Flows...)
}
