package netif

import (
	"path"
	"slices"

	"github.com/vishvananda/netlink"
)

// Matching returns the indexes of the interfaces in the target's network namespace whose names
// match one of the patterns, with *, ? and [ ], and perhaps of the VLAN devices above them; own is
// whether the target is one, or would be by its name. It fails on a malformed pattern.
func (t Target) Matching(patterns []string, vlans bool) (own bool, found []uint32, err error) {
	err = t.In(func(uint64) error {
		links, err := listLinks()
		if err != nil {
			return err
		}
		own, found, err = matching(links, patterns, vlans, t.Iface)
		return err
	})
	return own, found, err
}

// matching returns the indexes of the links whose names match one of the patterns, and whether a name
// does.
func matching(links []netlink.Link, patterns []string, vlans bool, name string) (own bool, found []uint32, err error) {
	if own, err = matchAny(patterns, name); err != nil {
		return false, nil, err
	}
	for _, l := range links {
		match, err := matchAny(patterns, l.Attrs().Name)
		if err != nil {
			return false, nil, err
		}
		if match {
			found = append(found, uint32(l.Attrs().Index))
		}
	}
	for grown := vlans; grown; { // tags in tags
		grown = false
		for _, l := range links {
			index, below := uint32(l.Attrs().Index), uint32(l.Attrs().ParentIndex)
			if l.Type() == "vlan" && slices.Contains(found, below) && !slices.Contains(found, index) {
				found, grown = append(found, index), true
				own = own || l.Attrs().Name == name
			}
		}
	}
	return own, found, nil
}

// matchAny reports whether an interface's name matches one of the patterns. It
// fails on a malformed one.
func matchAny(patterns []string, name string) (bool, error) {
	for _, p := range patterns {
		if ok, err := path.Match(p, name); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}
