package engine

import (
	"weir/filter/key"
	"weir/filter/verdict"
)

// Additions are entries that drop more than before, unless an allow list has the address, or it was
// dropped before.
type Additions struct {
	Out    bool // they are for outgoing packets
	Narrow bool // they are for certain packets
	Trial  bool // they drop nothing

	find, allowed, before Finder
}

// AdditionsOf returns the additions that a list has, beside lists that allow, and that drop already.
func AdditionsOf(more List, allowed, before Finder) Additions {
	a := Additions{allowed: allowed, before: before, Out: more.Direction == Out}
	if more.Rule != nil {
		a.Narrow, a.Trial = more.Rule.Narrow(), more.Rule.Trial
		anywhere := *more.Rule // no connection says where its packets are
		anywhere.VLANs = nil
		more.Rule = &anywhere
	}
	a.find = NewFinder([]List{more}, a.Out)
	return a
}

// Drop reports whether a packet would be dropped.
func (a *Additions) Drop(t key.Tuple) bool {
	by := func(f Finder) bool { return len(f.Deciding(t, verdict.Where{})) > 0 }
	return by(a.find) && !by(a.allowed) && !by(a.before)
}
