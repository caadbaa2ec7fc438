package daemon

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/fleet/wire"
)

// fleetPatterns are the patterns that the hub of a fleet has published, and why the host does not follow
// one, by its ID. They are replaced by the loop, never changed.
type fleetPatterns struct {
	wanted  []wire.Pattern
	refused map[string]string // which is tried again
	ended   []endedPattern
}

// ofFleet returns the patterns of the fleet.
func (p *policing) ofFleet() *fleetPatterns {
	if f := p.fleet.Load(); f != nil {
		return f
	}
	return new(fleetPatterns)
}

// endedPattern is a pattern of the fleet that has ended here before its time, and does not come back: nor by
// a hub that goes on from an older copy of its state.
type endedPattern struct {
	ID    string    `json:"id"`
	Why   string    `json:"why"`
	Until time.Time `json:"until"`
}

// TakePatterns implements [node.Daemon]. One that the hub does not name any more ends at its time: the hub
// says what is to end before.
func (p *policing) TakePatterns(ctx context.Context, all []wire.Pattern, hub time.Time) error {
	return p.loop.doAlone(ctx, func() error {
		refused := make(map[string]string)
		for _, w := range all {
			left := w.Until.Sub(hub)
			r := endOf(api.PoliceOverride{Pattern: w.Pattern})
			if r.Source = "fleet"; !w.Off {
				r.Change, r.First, r.Entries, r.TTL, r.Reason = audit.Limit, append(r.First, w.Rate), 1, left.Seconds(), w.Reason
			}
			done, err := p.takePattern(w, left)
			if err != nil {
				refused[w.ID] = err.Error()
				if p.ofFleet().refused[w.ID] != err.Error() {
					p.audit.Refused(r, err)
					p.log.Error("a pattern of the fleet is refused: "+err.Error(), "pattern", w.Pattern)
				}
			} else if done.Changed {
				r.Changed = 1
				p.audit.Record(r)
			}
			if o := done.Override; o != nil && o.Trial != nil {
				time.AfterFunc(time.Until(*o.Trial), p.endTrial)
			}
		}
		p.fleet.Store(&fleetPatterns{all, refused, p.ofFleet().ended})
		return nil
	})
}

// byFleet names the hub of a fleet as the one who has set a limit.
const byFleet = "the fleet's hub"

// takePattern follows what the hub says of a pattern, for the time that is left of it.
func (p *policing) takePattern(w wire.Pattern, left time.Duration) (done api.Policed, err error) {
	at := slices.IndexFunc(p.set, func(o api.PoliceOverride) bool { return o.Pattern == w.Pattern })
	switch {
	case w.Off && (at < 0 || p.set[at].Fleet == ""):
		return done, nil
	case w.Off:
		return p.change(api.PoliceOverride{Pattern: w.Pattern, By: byFleet}, api.PoliceChange{Off: true})
	case left < time.Second, at >= 0 && (p.set[at].Fleet == "" || p.set[at].Fleet == w.ID), p.ofFleet().endedAs(w.ID) != "":
		return done, nil
	}
	c := api.PoliceChange{Pattern: w.Pattern, Rate: w.Rate, For: left.Seconds(), Trial: min(w.Trial, left.Seconds()), Reason: w.Reason}
	if w.Rehearse {
		c.Trial = c.For
	}
	if err := c.Check(); err != nil {
		return done, err
	}
	return p.change(api.PoliceOverride{Pattern: w.Pattern, Reason: w.Reason, By: byFleet, Fleet: w.ID}, c)
}

// endedAs returns why a pattern of the fleet has ended here, "" if it has not.
func (f *fleetPatterns) endedAs(id string) string {
	for _, e := range f.ended {
		if e.ID == id {
			return e.Why
		}
	}
	return ""
}

// endHere keeps the hub from setting a pattern anew that ends before its time.
func (p *policing) endHere(o api.PoliceOverride, why string) {
	if o.Fleet == "" || o.Until == nil {
		return
	}
	next := *p.ofFleet()
	next.ended = slices.DeleteFunc(slices.Clone(next.ended), func(e endedPattern) bool { return over(&e.Until, time.Now()) })
	next.ended = append(next.ended, endedPattern{o.Fleet, why, *o.Until})
	p.fleet.Store(&next)
}

// Patterns returns what has become of the patterns of the fleet, nil for none.
func (a *API) Patterns() (all []api.NodePattern) {
	is := a.ofFleet()
	var about wire.Status
	a.DescribeNode(&about)
	s := a.Status()
	for _, w := range is.wanted {
		n := api.NodePattern{ID: w.ID, Pattern: w.Pattern, State: api.PatternEnded, Why: is.refused[w.ID]}
		at := slices.IndexFunc(s.Policed, func(o api.PoliceOverride) bool { return o.Pattern == w.Pattern })
		switch {
		case n.Why != "":
			n.State = api.PatternRefused
		case at < 0 || w.Off && s.Policed[at].Fleet == "":
			n.Why = is.endedAs(w.ID)
		default:
			o := &s.Policed[at]
			n.State, n.Hits, n.Held = api.PatternEnforced, o.Hits, o.Held
			if o.Trial != nil {
				n.State = api.PatternOnTrial
			} else if why := about.NotEnforcing(); why != "" {
				n.State, n.Why = api.PatternRefused, why
			} else if o.Fleet == "" {
				n.Why = fmt.Sprintf("by a limit of the node itself, by %s", cmp.Or(o.By, "a command"))
			}
		}
		all = append(all, n)
	}
	return all
}
