package daemon

import (
	"fmt"
	"net/netip"
	"time"

	"weir/control/config"
	"weir/control/engine"
	"weir/control/list"
	"weir/filter/key"
)

// refuse returns why a list's entries must not become active: they would cover too
// much, or what must always pass.
func refuse(c *config.Config, l config.List, e *list.Set) error {
	if err := tooWide(c, l, e); err != nil {
		return err
	}
	return coversFailsafe(c, l, e)
}

// tooWide returns why a list must not have these entries, because of all that they
// cover together.
func tooWide(c *config.Config, l config.List, e *list.Set) error {
	if l.Action == config.Allow || c.MaxCoverage <= 0 {
		return nil
	}
	if err := e.TooWide(float64(c.MaxCoverage)); err != nil {
		return fmt.Errorf("list %s: %w", l.Name, err)
	}
	return nil
}

// coversFailsafe returns which entry covers what must always pass.
func coversFailsafe(c *config.Config, l config.List, e *list.Set) error {
	if l.Action == config.Allow || e.Len() == 0 {
		return nil
	}
	// Failsafe prefixes are of the remote side.
	source, matches := l.Direction != engine.Out, l.Direction != engine.Destination
	for _, safe := range c.Failsafe.Prefixes {
		var p netip.Prefix
		var covered bool
		if safe.Addr().Is4() {
			p, covered = covers(e.V4.Side(source, matches), list.V4Of(safe.Masked()))
		} else {
			p, covered = covers(e.V6.Side(source, matches), list.V6Of(safe.Masked()))
		}
		if covered {
			return fmt.Errorf("list %s: its entry %v covers the failsafe prefix %v", l.Name, p, safe)
		}
	}
	return nil
}

// refuseRead is refuse for what a feed has read, which an operator may have
// accepted whatever it covers.
func refuseRead(c *config.Config, l config.List, e *list.Set, accepted bool) error {
	if accepted {
		unlimited := *c
		unlimited.MaxCoverage = 0
		c = &unlimited
	}
	return refuse(c, l, e)
}

// covers returns an entry that covers a prefix.
func covers[P list.Prefix[P]](entries []list.Sorted[P], safe P) (netip.Prefix, bool) {
	for bits := range safe.Bits() + 1 {
		for _, e := range entries {
			if p := safe.Cut(bits); e.Has(p) {
				return p.Prefix(), true
			}
		}
	}
	return netip.Prefix{}, false
}

// keys returns the keys that entries have in a list.
func keys(l engine.List, e list.Entries) []key.Key {
	var all []key.Key
	for _, p := range e.V4 {
		all = append(all, l.Keys(p.Prefix())...)
	}
	for _, p := range e.V6 {
		all = append(all, l.Keys(p)...)
	}
	return append(all, e.Flows...)
}

// expires returns when an entry that is added now expires.
func expires(now time.Time, ttl time.Duration) time.Time {
	if ttl == 0 {
		return time.Time{}
	}
	return now.Add(ttl)
}
