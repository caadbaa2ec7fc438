package top

import (
	"slices"
	"time"

	"weir/control/api"
)

// keys lists the keys: the short text is shown below the view, if any, and the
// long one in the help. Keys that select a tab are shown below only if there is
// such a tab.
var keys = []struct{ key, by, short, long string }{
	{"q", "", "quit", "quit, as Ctrl-C does"},
	{"?", "", "help", "this page, and back"},
	{"s", "src", "src", "flows by source; again for the next tracker by source"},
	{"d", "dst", "dst", "flows by destination"},
	{"f", "flow", "flow", "flows by addresses, ports and protocol"},
	{"x", ByDropped, "dropped", "the sources of dropped packets"},
	{"r", ByReason, "reason", "all reasons for which packets leave, those that pass too"},
	{"tab", "", "next", "the next choice"},
	{"p", "", "pause", "stop the view, and let it go on"},
	{"+ -", "", "interval", "look less often, or more often"},
	{"/", "", "filter", "show only rows with a text; Esc shows all"},
	{"o", "", "sort", "sort by rate, by what is dropped, or by name"},
	{"↑ ↓", "", "", "choose a row; also k and j"},
	{"Enter", "", "explain", "explain what becomes of the chosen row, and why"},
	{"b", "", "block", "block the chosen row for an hour"},
	{"u", "", "lift", "lift the block of the chosen row"},
	{"^L", "", "", "draw all anew, where something else wrote over it"},
}

// help explains the keys and the marks, and the figures where there is room for all of it.
func help(room int) []line {
	lines := []line{title("keys")}
	for _, k := range keys {
		lines = append(lines, say(plain, "   ").add(strong, k.key).fill(9).add(plain, k.long))
	}
	lines = append(lines, nil, title("marks"), say(plain, "   ").
		add(accent, markHeavy).add(plain, " over the threshold   ").
		add(warns, markLimited).add(plain, " rate-limited   ").
		add(drops, markBlocked).add(plain, " blocked for a time"))
	figures := []line{nil, title("figures")}
	for _, l := range []string{
		"Rates cover the last interval at which weir looks, on all",
		"interfaces together. Bits are of whole frames. False drops are shares",
		"of the packets that nothing lists.",
	} {
		figures = append(figures, say(plain, "   "+l))
	}
	if len(lines)+len(figures) > room {
		return lines
	}
	return append(lines, figures...)
}

// intervals lists the choices of + and -.
var intervals = []time.Duration{
	250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute,
}

// longer returns the next longer interval, shorter the next shorter one.
func longer(now time.Duration) time.Duration {
	if i := slices.IndexFunc(intervals, func(d time.Duration) bool { return d > now }); i >= 0 {
		return intervals[i]
	}
	return now
}

func shorter(now time.Duration) time.Duration {
	for _, d := range slices.Backward(intervals) {
		if d < now {
			return d
		}
	}
	return now
}

// typed handles a key while the filter is being typed.
func (v *view) typed(key string) {
	const longest = 60
	switch r := []rune(v.filter); {
	case key == "enter":
		v.typing = false
	case key == "esc":
		v.typing, v.filter = false, ""
	case key == "backspace":
		v.filter = string(r[:max(len(r)-1, 0)])
	case key == "space":
		v.filter += " "
	case len([]rune(key)) == 1 && len(r) < longest:
		v.filter += key
	}
	v.cursor = -1
}

// press handles a key, named as in bubbletea.
func (v *view) press(key string, t *api.Top) {
	switch key {
	case "s":
		v.turn(t, "src")
	case "d":
		v.turn(t, "dst")
	case "f":
		v.turn(t, "flow")
	case "r":
		v.by = ByReason
	case "x":
		v.turn(t, ByDropped)
	case "/":
		v.typing = true
	case "o":
		v.order = (v.order + 1) % orders
	case "down", "j":
		v.cursor++
	case "up", "k":
		v.cursor = max(v.cursor-1, -1)
	case "tab":
		v.turn(t, "")
	case "p", "space":
		v.paused = !v.paused
	case "+", "=": // without Shift, too
		v.every = longer(v.every)
	case "-", "_":
		v.every = shorter(v.every)
	case "?", "h":
		v.help = !v.help
		return
	case "esc":
		v.filter, v.cursor = "", -1
	default:
		return
	}
	v.help = false
}
