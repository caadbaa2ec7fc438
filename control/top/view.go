package top

import (
	"slices"
	"strings"
	"time"

	"weir/control/api"
)

// What else than a tracker's flows can be selected.
const (
	ByReason  = "reason"
	ByDropped = "dropped" // the sources of dropped packets
)

// view is the state of the view: the user's choices, and the history of rates.
type view struct {
	host   string
	by     string // a tab; "" is the first one
	every  time.Duration
	live   bool // interactive
	paused bool
	help   bool

	filter string // of the rows: a part of their texts
	typing bool   // the filter is being typed
	order  int    // of the rows
	cursor int    // the chosen row, −1 for none
	read   []line // what explain said, over everything else; nil: nothing
	note   string // the result of the last request
	asks   string // a question to be answered by y or n

	// trouble is the reason why there is no newer data; "" if nothing is wrong.
	trouble string

	at               time.Time // time of the latest data
	packets, dropped []float64 // per second, history
}

// maxHistory is the maximum number of rates drawn: more than the width of a
// screen.
const maxHistory = 256

// see records rates, unless they were recorded already.
func (v *view) see(t *api.Top) {
	if t.Time.Equal(v.at) {
		return
	}
	v.at = t.Time
	v.packets, v.dropped = remember(v.packets, t.Packets), remember(v.dropped, t.Dropped)
}

func remember(values []float64, now float64) []float64 {
	if len(values) == maxHistory {
		values = values[:copy(values, values[1:])]
	}
	return append(values, now)
}

// tabs returns the tabs in order: the trackers, then the reasons.
func tabs(t *api.Top) []string {
	var names []string
	for i := range t.Trackers {
		names = append(names, tabOf(t, i))
	}
	if t.Sources != nil {
		names = append(names, ByDropped)
	}
	return append(names, ByReason)
}

// tabOf returns a tracker's name, with its unit if that distinguishes it from
// another.
func tabOf(t *api.Top, i int) string {
	for j := range t.Trackers {
		if j != i && t.Trackers[j].Key == t.Trackers[i].Key {
			return t.Trackers[i].Key + " " + t.Trackers[i].Unit
		}
	}
	return t.Trackers[i].Key
}

// answers reports whether a tab matches a request: "src" also matches "src/24"
// and "src bytes".
func answers(tab, by string) bool {
	rest, found := strings.CutPrefix(tab, by)
	return found && (rest == "" || rest[0] == '/' || rest[0] == ' ')
}

// chosen returns the index of the selected tab.
func (v *view) chosen(t *api.Top) int {
	all := tabs(t)
	for i, tab := range all {
		if tab == v.by {
			return i
		}
	}
	for i, tab := range all {
		if v.by != "" && answers(tab, v.by) {
			return i
		}
	}
	return 0 // also if a tracker was removed
}

// turn selects the next matching tab; "" matches any.
func (v *view) turn(t *api.Top, by string) {
	all := tabs(t)
	for i, now := 1, v.chosen(t); i <= len(all); i++ {
		if tab := all[(now+i)%len(all)]; by == "" || answers(tab, by) {
			v.by = tab
			return
		}
	}
}

// Wider screens show the flows beside the rest, not below.
const (
	wide      = 132
	leftShare = 0.6
)

// Minimum rows, before something else is dropped, and maximum rows.
const (
	minFlows  = 5
	maxDrops  = 4  // if there is little room
	plainRows = 22 // of flows with their heading, on a page of any length
)

// screen returns the whole view, exactly as wide and high as given.
func (v *view) screen(t *api.Top, to, high int) []line {
	all := []line{v.header(t, to)}
	body := func() int { return max(high-len(all)-1, 0) } // the rest above the footer
	switch left := int(leftShare * float64(to)); {
	case v.help:
		all = append(all, nil)
		all = append(all, help(body())...)
	case v.read != nil:
		all = append(append(all, nil), v.read...)
	case to >= wide:
		all = slices.Concat(all, v.totals(t, to), []line{v.health(t)})
		all = append(all, beside(v.main(t, left, body()), v.rest(t, to-left-gap, body()), left)...)
	default:
		all = slices.Concat(all, v.totals(t, to), []line{v.health(t)})
		all = append(all, v.stacked(t, to, body())...)
	}
	screen := make([]line, high)
	copy(screen[:max(high-1, 0)], all)
	if high > 0 {
		screen[high-1] = v.footer(t, to)
	}
	for i, l := range screen {
		screen[i] = l.fill(to)
	}
	return screen
}

// page returns the view as a page of any length.
func (v *view) page(t *api.Top, to int) []line {
	all := slices.Concat([]line{v.header(t, to)}, v.totals(t, to), v.healthLines(t), []line{nil})
	if !v.byReason(t) {
		all = slices.Concat(all, dropTable(t, to, len(t.Reasons)), []line{nil})
	}
	all = slices.Concat(all, v.main(t, to, plainRows), []line{nil})
	if caught := listTable(t, to, len(t.Filter.Lists)); caught != nil {
		all = slices.Concat(all, caught, []line{nil})
	}
	all = append(all, filterLines(t, to, plainRows)...)
	for i, l := range all {
		all[i] = l.fill(to)
	}
	return all
}

// stacked returns the body of a screen that is not wide.
func (v *view) stacked(t *api.Top, to, high int) []line {
	const heads = 2 // above the flows: tabs, and the table's heading
	state := slices.Concat([]line{nil}, filterLines(t, to, 1), listLine(t, to))
	var drops []line
	if !v.byReason(t) {
		drops = append(dropTable(t, to, maxDrops), nil)
	}
	room := high - heads - minFlows
	if len(state) > room {
		state = nil
	}
	if len(drops)+len(state) > room {
		drops = nil
	}
	main := make([]line, max(high-len(drops)-len(state), 0))
	copy(main, v.main(t, to, len(main)))
	return slices.Concat(drops, main, state)
}

// rest returns everything beside the flows.
func (v *view) rest(t *api.Top, to, high int) []line {
	state := filterLines(t, to, high)
	var drops []line
	if !v.byReason(t) {
		drops = append(dropTable(t, to, max(high/2, 1)), nil)
	}
	const heads = 2 // a title, and a blank below
	room := high - len(drops) - len(state) - heads
	if caught := listTable(t, to, room); room > 0 && caught != nil {
		drops = slices.Concat(drops, caught, []line{nil})
	}
	return append(drops, state...)
}

// beside joins columns of lines.
func beside(left, right []line, leftWidth int) []line {
	var all []line
	for i := range max(len(left), len(right)) {
		var l line
		if i < len(left) {
			l = left[i]
		}
		l = l.fill(leftWidth + gap)
		if i < len(right) {
			l = append(l, right[i]...)
		}
		all = append(all, l)
	}
	return all
}
