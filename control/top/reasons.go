package top

import (
	"cmp"
	"slices"

	"weir/control/api"
	"weir/filter/ordered"
)

// dropTable returns the packets that are dropped, or would be without monitor
// mode, by reason.
func dropTable(t *api.Top, to, most int) []line {
	shown := slices.DeleteFunc(counted(t.Reasons), func(r api.ReasonRate) bool { return !r.Drops && !monitored(r) })
	heading := "why dropped"
	if t.Monitor || len(shown) > 0 && !slices.ContainsFunc(shown, func(r api.ReasonRate) bool { return r.Drops }) {
		heading = "would be dropped"
	}
	if len(shown) == 0 {
		none := "   nothing has been dropped"
		if t.Out != nil {
			none = "   no incoming packet has been dropped"
		}
		return []line{title(heading), say(faint, none)}
	}
	all := len(shown)
	shown = shown[:min(all, most)]
	return append([]line{part(heading, len(shown), all)}, reasonTable(t, shown).lines(to)[1:]...)
}

// monitored reports whether a reason would drop packets without monitor mode.
func monitored(r api.ReasonRate) bool { return r.Reason == api.ReasonWouldBlock }

// counted returns the reasons with packets, the most frequent first.
func counted(reasons []api.ReasonRate) []api.ReasonRate {
	all := slices.DeleteFunc(slices.Clone(reasons), func(r api.ReasonRate) bool { return r.Packets == 0 && r.Total == 0 })
	ordered.By(all, func(a, b api.ReasonRate) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(b.Total, a.Total))
	})
	return all
}

func reasonTable(t *api.Top, shown []api.ReasonRate) *table {
	rates := table{
		names: "reason",
		columns: []column{
			{name: "packets", width: 9}, {name: "bits", width: 9}, {name: "share", width: 6}, {name: "total", width: 6},
		},
		yields: []int{1, 3, theBar, 2},
	}
	top := 0.0
	for _, r := range shown {
		top = max(top, r.Packets)
	}
	for _, r := range shown {
		s := passes
		switch {
		case r.Drops:
			s = drops
		case monitored(r):
			s = warns
		}
		rates.rows = append(rates.rows, row{
			name: r.Reason, style: s, bar: share(r.Packets, top),
			figures: []string{pps(r.Packets), bps(r.Bytes), percent(share(r.Packets, t.Packets)), count(float64(r.Total))},
		})
	}
	return &rates
}
