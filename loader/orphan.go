package loader

import (
	"weir/loader/hooks"
	"weir/loader/netif"
)

// findOrphan opens the program on an interface in a direction whose pins are lost, see
// [hooks.Orphan]. Its counters start anew. It fails with ErrNotAttached where there is none.
func (d Pins) findOrphan(i *netif.Iface, t netif.Target, wanted hooks.Hook) (*Attachment, error) {
	l, hook, err := hooks.Orphan(string(d), t, i, wanted)
	if err != nil {
		return nil, err
	}
	if l == nil {
		return nil, ErrNotAttached
	}
	a := &Attachment{pins: d, path: d.path(i, t.Out), metadata: metadata{Target: t, Hook: hook}, link: l, orphan: true}
	a.program = a.ProgramID()
	return a, nil
}

// IsOrphaned reports whether a program of weir filters on the target's interface that was
// attached by a process that has ended, and whose pins are lost.
func (d Pins) IsOrphaned(t netif.Target, hook hooks.Hook) bool {
	i, err := t.Find()
	if err != nil {
		return false
	}
	a, err := d.findOrphan(i, t, hook)
	if err != nil {
		return false
	}
	a.Close()
	return true
}

// TookOverOrphan reports whether the program that this process replaced filtered without pins.
func (a *Attachment) TookOverOrphan() bool { return a.orphan }
