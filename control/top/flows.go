package top

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	"weir/control/api"
	"weir/filter/ordered"
)

// Marks before a flow.
const (
	markHeavy   = "•"
	markLimited = "▲"
	markBlocked = "■"
)

// The orders of flows; o goes from one to the next.
const (
	byUnit = iota // of the tracker
	byDropped
	byName
	orders
)

var orderNames = [orders]string{byUnit: "", byDropped: "dropped first", byName: "by name"}

// flows returns a tracker's flows that the filter lets through, in order.
func (v *view) flows(tracker *api.Tracker) []api.Flow {
	value := func(f api.Flow) float64 {
		if tracker.Unit == "bytes" {
			return f.Bytes
		}
		return f.Packets
	}
	flows := slices.DeleteFunc(slices.Clone(tracker.Flows), func(f api.Flow) bool {
		return !v.wanted(append(append([]string{f.Key, f.State}, f.Reasons...), f.Lists...)...)
	})
	ordered.By(flows, func(a, b api.Flow) int {
		first := 0
		switch v.order {
		case byDropped:
			first = cmp.Compare(droppedOf(b), droppedOf(a))
		case byName:
			first = compareNames(a.Key, b.Key)
		}
		return cmp.Or(first, cmp.Compare(value(b), value(a)), cmp.Compare(a.Key, b.Key))
	})
	return flows
}

// compareNames orders addresses by their numbers, not by their text.
func compareNames(a, b string) int {
	x, errX := netip.ParseAddr(strings.TrimPrefix(a, "> "))
	y, errY := netip.ParseAddr(strings.TrimPrefix(b, "> "))
	if errX != nil || errY != nil {
		return cmp.Compare(a, b)
	}
	return x.Compare(y)
}

func droppedOf(f api.Flow) float64 {
	if f.Dropped == nil {
		return 0
	}
	return *f.Dropped
}

// wanted reports whether the filter lets a row with these texts through.
func (v *view) wanted(texts ...string) bool {
	return v.filter == "" || slices.ContainsFunc(texts, func(t string) bool {
		return strings.Contains(strings.ToLower(t), strings.ToLower(v.filter))
	})
}

// why returns the reasons and lists by which a flow's packets are dropped. A reason that the column
// of states shows is left out.
func why(f api.Flow) string {
	reasons := slices.DeleteFunc(slices.Clone(f.Reasons), func(r string) bool { return r == f.State })
	return strings.Join(append(reasons, f.Lists...), ", ")
}

// within is how far off the packets of a sampled flow may be: nothing, where all were sampled.
func within(f api.Flow) string {
	if off := f.Within(); off >= 0.0005 {
		return fmt.Sprintf("%.0f %%", math.Ceil(100*off))
	}
	return "-"
}

// stateWord is a state in a narrow column.
func stateWord(state string) string {
	if state == api.RateLimited {
		return "limited"
	}
	return state
}

// atMost marks an estimate, which is never too small.
func atMost(estimate bool, text string) string {
	if estimate {
		return "≤" + text
	}
	return text
}

// passedAndDropped returns the names of the columns of packets that passed, and that were dropped.
func passedAndDropped(apart, monitor bool) (passed, dropped string) {
	switch {
	case monitor:
		return "packets", "would drop"
	case !apart:
		return "packets", "dropped"
	}
	return "passed", "dropped"
}

// flowTable returns the table of a tracker's flows.
func (v *view) flowTable(t *api.Top, tracker *api.Tracker, most int) *table {
	bytes := tracker.Unit == "bytes"
	value := func(f api.Flow) float64 {
		if bytes {
			return f.Bytes
		}
		return f.Packets
	}
	flows := v.flows(tracker)
	some := func(has func(api.Flow) bool) bool { return slices.ContainsFunc(flows, has) }
	rates := table{names: flowNames(tracker.Key)}
	var cells []func(api.Flow) string
	// Columns yield to narrow screens in the order of their ranks; those of rank 0 stay.
	ranks := map[int]int{theBar: 3} // it shows the share, too
	add := func(c column, rank int, cell func(api.Flow) string) {
		if rank > 0 {
			ranks[len(rates.columns)] = rank
		}
		rates.columns, cells = append(rates.columns, c), append(cells, cell)
	}
	packetsRank, bitsRank := 0, 1
	if bytes { // packets matter less then
		packetsRank, bitsRank = 1, 0
	}
	estimates := some(func(f api.Flow) bool { return f.Estimate })
	apart := some(func(f api.Flow) bool { return f.Dropped != nil })
	passed, dropped := passedAndDropped(apart, t.Monitor)
	add(columnOf(passed, estimates), packetsRank, func(f api.Flow) string {
		n := f.Packets
		if apart && !t.Monitor {
			n = max(0, n-droppedOf(f))
		}
		return atMost(f.Estimate, pps(n))
	})
	if tracker.Sample != nil {
		add(column{name: "±", width: 6}, 4, within)
	}
	if apart {
		add(columnOf(dropped, false), 0, func(f api.Flow) string {
			switch {
			case f.Dropped == nil:
				return "?"
			case *f.Dropped == 0:
				return "-"
			}
			return pps(*f.Dropped)
		})
	}
	add(columnOf("bits", estimates && bytes), bitsRank, func(f api.Flow) string { return atMost(f.Estimate && bytes, bps(f.Bytes)) })
	add(column{name: "share", width: 6}, 2, func(f api.Flow) string { return percent(f.Share) })
	if some(func(f api.Flow) bool { return f.State != "" }) {
		add(column{name: "state", width: 11, styled: true}, 5, func(f api.Flow) string {
			if f.State != "" && f.Until != nil {
				return stateWord(f.State) + " " + remaining(f.Until.Sub(t.Time))
			}
			return stateWord(f.State)
		})
	}
	if some(func(f api.Flow) bool { return len(f.Reasons) > 0 }) {
		add(column{name: "why", width: 16, styled: true}, 4, why)
	}
	rates.yields = ordered.Of(maps.Keys(ranks), func(a, b int) int { return cmp.Compare(ranks[a], ranks[b]) })
	for _, f := range flows {
		rates.longest = max(rates.longest, width(printable(f.Key)))
	}
	all := len(flows)
	flows = flows[:min(all, most)]
	if len(flows) < all {
		rates.names += fmt.Sprintf(", %d of %d", len(flows), all)
	}
	switch {
	case all == 0 && len(tracker.Flows) > 0:
		rates.names = fmt.Sprintf("none of %d flows matches %q", len(tracker.Flows), v.filter)
	case all == 0:
		rates.names = "no flows yet"
	}
	top := 0.0
	for _, f := range flows {
		top = max(top, value(f))
	}
	for _, f := range flows {
		r := rowOf(f)
		r.bar = share(value(f), top)
		for _, cell := range cells {
			r.figures = append(r.figures, cell(f))
		}
		rates.rows = append(rates.rows, r)
	}
	v.mark(&rates)
	return &rates
}

// rowOf returns the row of a flow, without its bar and figures.
func rowOf(f api.Flow) row {
	r := row{name: strings.TrimPrefix(f.Key, "> "), style: accent}
	switch {
	case f.State == api.Blocked:
		r.mark, r.style = markBlocked, drops
	case f.State == api.RateLimited:
		r.mark, r.style = markLimited, warns
	case f.Heavy:
		r.mark = markHeavy
	}
	return r
}

// columnOf returns a column of rates, with room for the mark of estimates.
func columnOf(name string, estimates bool) column {
	c := column{name: name, width: max(9, len(name))}
	if estimates {
		c.width = 10
	}
	return c
}

// sources returns the sources of dropped packets that the filter lets through.
func (v *view) sources(t *api.Top) []api.DropRate {
	if t.Sources == nil {
		return nil
	}
	all := slices.DeleteFunc(slices.Clone(*t.Sources), func(s api.DropRate) bool { return !v.wanted(s.Source, s.Reason, s.List) })
	if v.order == byName {
		ordered.By(all, func(a, b api.DropRate) int { return compareNames(a.Source, b.Source) })
	}
	return all
}

// sourceTable returns the table of the sources of dropped packets.
func (v *view) sourceTable(t *api.Top, most int) *table {
	all := v.sources(t)
	rates := table{
		names: "source",
		columns: []column{
			columnOf("dropped", true), columnOf("bits", false), {name: "why", width: 24, styled: true},
		},
		yields: []int{1, theBar, 2},
	}
	if t.Monitor {
		rates.columns[0].name = "would drop"
	}
	shown := all[:min(len(all), most)]
	if len(shown) < len(all) {
		rates.names += fmt.Sprintf(", %d of %d", len(shown), len(all))
	}
	if len(all) == 0 {
		rates.names = "nothing is dropped"
	}
	top := 0.0
	for _, s := range shown {
		top = max(top, s.Packets)
	}
	for _, s := range shown {
		rates.rows = append(rates.rows, row{
			name: nameOf(s), style: drops, bar: share(s.Packets, top),
			figures: []string{atMost(s.Least < s.Packets, pps(s.Packets)), bps(s.Bytes), strings.TrimSuffix(s.Reason+", "+s.List, ", ")},
		})
	}
	v.mark(&rates)
	return &rates
}

// nameOf is the source of dropped packets, of outgoing ones the destination.
func nameOf(s api.DropRate) string {
	if s.Direction == "out" {
		return "> " + s.Source
	}
	return s.Source
}

// mark marks the row of the cursor.
func (v *view) mark(rows *table) {
	if v.cursor >= 0 && len(rows.rows) > 0 {
		v.cursor = min(v.cursor, len(rows.rows)-1)
		rows.rows[v.cursor].chosen = true
	}
}

// target returns the entry that stands for the row of the cursor, or for the first
// one: what explain, block and unblock take. It is "" where there is none.
func (v *view) target(t *api.Top) string {
	at := max(v.cursor, 0)
	switch tab := tabs(t)[v.chosen(t)]; tab {
	case ByReason:
	case ByDropped:
		if all := v.sources(t); at < len(all) {
			return nameOf(all[at])
		}
	default:
		tracker := &t.Trackers[v.chosen(t)]
		if all := v.flows(tracker); at < len(all) {
			key := all[at].Key
			if strings.HasPrefix(tracker.Key, "dst") && !strings.HasPrefix(key, "> ") {
				key = "> " + key
			}
			return key
		}
	}
	return ""
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
