package node

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"weir/control/fleet/wire"
	"weir/filter/key"
	"weir/filter/ordered"
	"weir/filter/sketch"
)

// Heavy answers a question for flows from the banks that have counted an interval.
func Heavy(q wire.HeavyQuestion, interval time.Duration, banks []*sketch.Bank) (wire.HeavyFlows, error) {
	a := wire.HeavyFlows{Interval: interval.Seconds(), Flows: []wire.HeavyFlow{}}
	if q.Most < 0 || q.Most > wire.MaxHeavy || len(q.Keys) > wire.MaxEstimates {
		return a, fmt.Errorf("asked for %d flows and %d others, want at most %d and %d", q.Most, len(q.Keys), wire.MaxHeavy, wire.MaxEstimates)
	}
	if len(banks) == 0 {
		return a, errors.New("nothing is counted")
	}
	for _, b := range banks {
		a.Units += b.Total()
		a.Denied += b.Denied()
		a.Rest += b.Limit()
	}
	unit := banks[0].Unit
	if q.Keys != nil {
		flows := make([]sketch.Flow, len(q.Keys))
		for i, text := range q.Keys {
			k, err := key.Parse(text)
			if err == nil && k.Shape != banks[0].V4 && k.Shape != banks[0].V6 {
				err = fmt.Errorf("%v is no key of the tracker", k)
			}
			if err != nil {
				return a, err
			}
			flows[i] = sketch.Flow{Key: k, Hash: banks[0].Hash(k)}
		}
		sketch.Sum(flows, banks...)
		for _, f := range flows {
			a.Flows = append(a.Flows, wire.HeavyFlow{Least: f.Exact(unit), Most: f.Estimate(unit)})
		}
		return a, nil
	}
	flows := sketch.Merge(banks...)
	flows = slices.DeleteFunc(flows, func(f sketch.Flow) bool { return f.Estimate(unit) == 0 }) // kept, and not seen since
	ordered.By(flows, func(f, g sketch.Flow) int { return cmp.Compare(g.Estimate(unit), f.Estimate(unit)) })
	if len(flows) > q.Most {
		a.Rest = max(a.Rest, flows[q.Most].Estimate(unit))
		flows = flows[:q.Most]
	}
	if a.Rest = min(a.Rest, a.Units); a.Denied > 0 {
		a.Rest = a.Units
	}
	for _, f := range flows {
		a.Flows = append(a.Flows, wire.HeavyFlow{Key: f.Key.Append(nil), Least: f.Exact(unit), Most: f.Estimate(unit)})
	}
	return a, nil
}
