package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"weir/control/api"
)

// Marks before a flow.
const (
	markHeavy   = "•"
	markLimited = "▲"
	markBlocked = "■"
)

// flowTable returns the table of a tracker's flows, by its unit.
func flowTable(t *api.Top, tracker *api.Tracker, most int) *table {
	const state = 3
	bytes := tracker.Unit == "bytes"
	value := func(f api.Flow) float64 {
		if bytes {
			return f.Bytes
		}
		return f.Packets
	}
	flows := slices.Clone(tracker.Flows)
	slices.SortStableFunc(flows, func(a, b api.Flow) int {
		return cmp.Or(cmp.Compare(value(b), value(a)), cmp.Compare(a.Key, b.Key))
	})
	rates := table{
		names: flowNames(tracker.Key),
		columns: []column{
			{name: "packets", width: 9}, {name: "bits", width: 9}, {name: "share", width: 6},
		},
		yields: []int{1, 2, theBar}, // the bar shows the share, too
	}
	if bytes { // packets matter less then
		rates.yields[0] = 0
	}
	for _, f := range flows {
		rates.longest = max(rates.longest, width(printable(f.Key)))
	}
	if slices.ContainsFunc(flows, func(f api.Flow) bool { return f.State != "" }) {
		rates.columns = append(rates.columns, column{name: "state", width: 12, styled: true})
		rates.yields = append(rates.yields, state)
	}
	all := len(flows)
	flows = flows[:min(all, most)]
	if len(flows) < all {
		rates.names += fmt.Sprintf(", %d of %d", len(flows), all)
	}
	if all == 0 {
		rates.names = "no flows yet"
	}
	top := 0.0
	for _, f := range flows {
		top = max(top, value(f))
	}
	for _, f := range flows {
		r := row{name: strings.TrimPrefix(f.Key, "> "), style: accent, bar: share(value(f), top)}
		switch {
		case f.State == api.Blocked:
			r.mark, r.style = markBlocked, drops
		case f.State == api.RateLimited:
			r.mark, r.style = markLimited, warns
		case f.Heavy:
			r.mark = markHeavy
		}
		r.figures = []string{pps(f.Packets), bps(f.Bytes), percent(f.Share), f.State}
		if f.State != "" && f.Until != nil {
			r.figures[state] += " " + remaining(f.Until.Sub(t.Time))
		}
		rates.rows = append(rates.rows, r)
	}
	return &rates
}

// flowNames returns the heading of a tracker's flows.
func flowNames(tracker string) string {
	for _, n := range [][2]string{{"src", "source"}, {"dst", "destination"}} {
		if rest, found := strings.CutPrefix(tracker, n[0]); found {
			return n[1] + rest
		}
	}
	return tracker
}
