package observe

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"weir/control/fleet/wire"
	"weir/filter/flood"
)

// Measure says what patterns match of the present flood, and of usual packets.
func (f *Floods) Measure(question []byte) (all []wire.MeasuredRule, err error) {
	var patterns []string
	if err = json.Unmarshal(question, &patterns); err == nil && len(patterns) > wire.MaxMeasured {
		err = fmt.Errorf("%d rules, want at most %d", len(patterns), wire.MaxMeasured)
	}
	f.looking.Lock()
	usual, flooding, found := f.detector.Base(), f.sample, slices.Clone(f.rules)
	if f.detector.Quiet() == 0 {
		err = cmp.Or(err, errors.New("what is usual is not known yet, or packets are not sampled"))
	}
	if f.now == nil {
		flooding, found = nil, nil
	}
	f.looking.Unlock()
	if len(found) > 0 {
		flooding = matching(flooding, found...)
	}
	for _, text := range patterns {
		u, bad := flood.ParseRule(text)
		if err = cmp.Or(err, bad); err != nil {
			return nil, err
		}
		hit := matching(flooding, u)
		packets, conversations := flood.Collateral([]flood.Rule{u}, usual)
		r := wire.MeasuredRule{Packets: floodShare(packets), Conversations: floodShare(conversations)}
		r.Flood = floodShare(flood.NewShare(len(hit), len(flooding)))
		for _, its := range found {
			if n := len(matching(flooding, its)); n > 0 && float64(len(matching(hit, its))) >= 0.9*float64(n) {
				r.For = append(r.For, its.String())
			}
		}
		all = append(all, r)
	}
	return all, err
}

// matching returns the records that one of some rules matches.
func matching(records []flood.Record, rules ...flood.Rule) []flood.Record {
	return slices.DeleteFunc(slices.Clone(records), func(r flood.Record) bool {
		return !slices.ContainsFunc(rules, func(u flood.Rule) bool { return u.Matches(&r) })
	})
}
