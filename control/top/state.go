package top

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/dustin/go-humanize"

	"weir/control/api"
	"weir/filter/ordered"
)

// filterLines returns the filter's own state, each part on at most `most`
// lines.
func filterLines(t *api.Top, to, most int) []line {
	f := &t.Filter
	figure := func(value, name string) line { return say(plain, value).add(faint, " "+name) }
	state := []line{
		figure(humanize.Comma(int64(f.Entries)), "entries"),
		say(plain, humanize.IBytes(uint64(f.KernelBytes))),
	}
	if f.Hot > 0 {
		state = append(state, figure(humanize.Comma(int64(f.Hot)), "hot elements"))
	}
	if f.Mode != "approx" {
		return wrapped(label("filter"), state, to, most)
	}
	var rates []line
	if f.Rate != nil {
		rates = append(rates, figure(rate(*f.Rate), "counted"), figure(rate(*f.Low), "to "+rate(*f.High)))
	}
	rates = append(rates, figure(rate(f.Predicted), "predicted"))
	if f.WeightedPredicted != nil {
		rates = append(rates, figure(rate(*f.WeightedPredicted), "weighted"))
	}
	return append(wrapped(label("filter"), state, to, most), wrapped(label("false drops"), rates, to, most)...)
}

// label returns the start of a line of the filter's state.
func label(name string) line { return title(name).fill(len(" false drops  ")) }

// rate formats a false-positive rate.
func rate(r float64) string {
	if r == 0 {
		return "0"
	}
	return fmt.Sprintf("%.1e", r)
}

// lists returns the block lists, the one with the most packets first, without
// empty manual lists.
func lists(t *api.Top) []api.ListRate {
	all := slices.DeleteFunc(slices.Clone(t.Filter.Lists), func(l api.ListRate) bool {
		return l.Total == 0 && api.ListOf(l.Name) != l.Name
	})
	ordered.By(all, func(a, b api.ListRate) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(b.Total, a.Total))
	})
	return all
}

// listLine returns the packets of block lists, as many as fit on a line.
func listLine(t *api.Top, to int) []line {
	var parts []line
	for _, l := range lists(t) {
		s := plain
		if l.Packets > 0 {
			s = drops
		}
		parts = append(parts, say(plain, l.Name+" ").add(s, pps(l.Packets)))
	}
	if len(parts) == 0 {
		return nil
	}
	return wrapped(label("lists"), parts, to, 1)
}

// listTable returns the packets of each block list.
func listTable(t *api.Top, to, most int) []line {
	all := lists(t)
	if len(all) == 0 {
		return nil
	}
	caught := table{
		names:   "list",
		columns: []column{{name: "packets", width: 9}, {name: "total", width: 6}},
		yields:  []int{1, theBar},
	}
	for _, l := range all[:min(len(all), max(most, 0))] {
		caught.rows = append(caught.rows, row{
			name: l.Name, style: drops, bar: share(l.Packets, all[0].Packets),
			figures: []string{pps(l.Packets), count(float64(l.Total))},
		})
	}
	return append([]line{part("lists", len(caught.rows), len(all))}, caught.lines(to)[1:]...)
}
