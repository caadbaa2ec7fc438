// Package list has the contents of lists: immutable sets of addresses, prefixes and flows,
// and what changes them, covers others, or follows from them.
package list

import (
	"net/netip"

	"weir/filter/key"
)

// Entries contains the entries of a list, each kind in the order of the file,
// with duplicates. A range becomes the prefixes that cover it; of equal ranges that
// become many, one is kept, not always the first. [Entries.Set] returns the entries as
// a list's contents.
type Entries struct {
	V4    []V4Prefix
	V6    []netip.Prefix // masked
	Flows []key.Key      // canonical; also destinations alone
}

// Len is the number of entries of all kinds.
func (e Entries) Len() int { return len(e.V4) + len(e.V6) + len(e.Flows) }

// Weight is the number of entries as MaxEntries of [weir/control/list/listfile.Options] counts
// them: a flow, which takes the memory of several prefixes, is four.
func (e Entries) Weight() int { return len(e.V4) + len(e.V6) + 4*len(e.Flows) }

// Append appends other entries. Where e has none, it takes ownership of their slices.
func (e *Entries) Append(others Entries) {
	if e.Len() == 0 {
		*e = others
		return
	}
	e.V4 = append(e.V4, others.V4...)
	e.V6 = append(e.V6, others.V6...)
	e.Flows = append(e.Flows, others.Flows...)
}

// Add appends the entry of a key, as [ParseEntry] returns it for the key's text: an address or
// a prefix that is a source is one whose side is left to the list's direction. A key in
// ::ffff:0:0/96 stays one of IPv6.
func (e *Entries) Add(k key.Key) {
	p, source := PrefixOf(k)
	switch {
	case k.Tuple() || !source:
		e.Flows = append(e.Flows, k)
	case p.Addr().Is4():
		e.V4 = append(e.V4, V4Of(p))
	default:
		e.V6 = append(e.V6, p)
	}
}
