package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"weir/control/api"
)

// header returns the line with host, interfaces and mode.
func (v *view) header(t *api.Top, to int) line {
	right := line{}
	switch {
	case v.live && v.paused:
		right = say(inverse, "PAUSED ")
	case v.live:
		right = say(inverse, "every "+v.every.String()+" ")
	}
	parts := []string{" weir " + t.Version}
	if v.host != "" {
		parts[0] = " weir on " + v.host
	}
	if len(t.Interfaces) > 0 {
		parts = append(parts, strings.Join(t.Interfaces, ", "))
	}
	parts = append(parts,
		t.Filter.Mode,
		humanize.Comma(int64(t.Filter.Entries))+" entries",
		"up "+lasting(seconds(t.Uptime)))
	room, text := to-right.width(), parts[0]
	for _, p := range parts[1:] {
		if p = text + "  " + p; width(p)+gap > room {
			break
		}
		text = p
	}
	return append(say(inverse, text+strings.Repeat(" ", max(room-width(text), 0))).fill(room), right...)
}

// totals returns the received and the dropped packets, each with its trend, on
// one scale.
func (v *view) totals(t *api.Top, to int) []line {
	const label, figure, least = 9, 11, 10
	colour := plain
	if t.Dropped > 0 {
		colour = drops
	}
	top := slices.Max(append([]float64{0}, v.packets...))
	total := func(name, first, second string, s, drawnIn style, values []float64) line {
		l := say(faint, " "+name).fill(label)
		l = l.add(plain, strings.Repeat(" ", max(figure-width(first), 1))).add(s, first)
		l = l.add(plain, strings.Repeat(" ", max(figure-width(second), 1))).add(plain, second)
		if room := to - l.width() - gap - 1; v.live && room >= least {
			drawn := trend(values, top, room)
			l = l.add(plain, strings.Repeat(" ", gap+room-width(drawn))).add(drawnIn, drawn)
		}
		return l
	}
	lines := []line{
		total("packets", pps(t.Packets), bps(t.Bytes), strong, accent, v.packets),
		total("dropped", pps(t.Dropped), percent(share(t.Dropped, t.Packets)), colour, drops, v.dropped),
	}
	if t.Out != nil {
		lines = append(lines, sent(t.Out))
	}
	return lines
}

// sent returns the line of outgoing packets.
func sent(out *api.Sent) line {
	l := say(faint, " sent").fill(9).add(plain, fmt.Sprintf("%11s%11s", pps(out.Packets), bps(out.Bytes)))
	colour := plain
	if out.Dropped > 0 {
		colour = drops
	}
	return l.add(faint, "  dropped ").add(colour, pps(out.Dropped)).add(plain, " "+percent(share(out.Dropped, out.Packets)))
}

// title returns the title of a part of the view.
func title(name string) line { return say(strong, " "+name) }

// part returns the title of a table that may be truncated.
func part(name string, shown, all int) line {
	if shown == all {
		return title(name)
	}
	return title(name).add(faint, fmt.Sprintf("  %d of %d", shown, all))
}

// share returns a part's share of a whole, 0 if that is zero.
func share(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return part / whole
}

// byReason reports whether reasons are shown instead of flows.
func (v *view) byReason(t *api.Top) bool { return tabs(t)[v.chosen(t)] == ByReason }

// main returns the selected table, below the tabs.
func (v *view) main(t *api.Top, to, high int) []line {
	chosen := v.chosen(t)
	tabLine := line{}
	for i, name := range tabs(t) {
		if i == chosen {
			tabLine = tabLine.add(strong, " ["+name+"]")
			continue
		}
		tabLine = tabLine.add(faint, "  "+name+" ")
	}
	if chosen >= len(t.Trackers) {
		lines := []line{tabLine}
		if v.byReason(t) {
			lines = append(lines, reasonTable(t, counted(t.Reasons)).lines(to)...)
		} else {
			lines = append(lines, v.sourceTable(t, max(high-4, 0)).lines(to)...)
		}
		if len(t.Trackers) == 0 {
			lines = append(lines, nil, say(faint, "   no flows are tracked: set samples: true, or trackers: [{key: src}]"))
		}
		return lines[:min(len(lines), max(high, 0))]
	}
	tracker := &t.Trackers[chosen]
	lines := []line{tabLine.ends(say(faint, tracker.About()+" "), to)}
	if tracker.Denied > 0 {
		lines = append(lines, say(warns, "   the flow memory is full: "+count(float64(tracker.Denied))+" packets of flows without a place in it"))
	}
	if text := tracker.Scattered(); text != "" {
		lines = append(lines, say(warns, "   "+text))
	}
	return append(lines, v.flowTable(t, tracker, max(high-len(lines)-1, 0)).lines(to)...)
}

// footer returns the keys, or an error.
func (v *view) footer(t *api.Top, to int) line {
	switch {
	case v.asks != "":
		return say(warns, " "+v.asks).add(strong, "  y/n")
	case v.typing:
		return say(strong, " /"+v.filter).add(inverse, " ").add(faint, "  Enter keeps the filter, Esc ends it")
	case v.read != nil:
		return say(faint, " any key returns")
	case v.trouble != "":
		return say(drops, " "+v.trouble)
	case v.note != "":
		return say(accent, " "+v.note)
	}
	l := line{}
	if v.filter != "" {
		l = l.add(warns, "/"+v.filter)
	}
	if name := orderNames[v.order]; name != "" {
		l = l.add(warns, " "+name)
	}
	for _, k := range keys {
		leads := k.by == "" || slices.ContainsFunc(tabs(t), func(tab string) bool { return answers(tab, k.by) })
		next := say(plain, "  ").add(strong, k.key).add(faint, " "+k.short)
		if l.width() == 0 {
			next = next[1:]
		}
		if leads && k.short != "" && l.width()+next.width() < to {
			l = append(l, next...)
		}
	}
	return append(say(plain, " "), l...)
}

// health returns what an operator has to know first, in a line.
func (v *view) health(t *api.Top) line {
	l := line{}
	if v.trouble != "" {
		l = l.add(drops, fmt.Sprintf(" NO NEWS for %s: what is shown is old", lasting(time.Since(t.Time))))
	}
	if t.Monitor {
		until := ""
		if o := t.MonitorOverride; o != nil && o.Until != nil {
			until = " for " + remaining(o.Until.Sub(t.Time))
		}
		l = l.add(warns, " MONITOR MODE"+until+": nothing is dropped")
	}
	if f := t.Flood; f != nil {
		l = l.add(warns, " "+f.Head()+": weir flood")
	}
	if n := len(t.Problems); n > 0 {
		l = l.add(drops, " "+t.Problems[0])
		if n > 1 {
			l = l.add(drops, fmt.Sprintf(" (and %d more: weir status, weir lists)", n-1))
		}
	}
	return l
}

// healthLines returns the same for a page, which has room for all of it.
func (v *view) healthLines(t *api.Top) (all []line) {
	if t.Monitor {
		all = append(all, v.health(&api.Top{Time: t.Time, Monitor: true, MonitorOverride: t.MonitorOverride}))
	}
	if t.Flood != nil {
		all = append(all, v.health(&api.Top{Time: t.Time, Flood: t.Flood}))
	}
	for _, p := range t.Problems {
		all = append(all, say(drops, " "+p))
	}
	return all
}
