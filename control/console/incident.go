package console

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"weir/control/api"
	"weir/filter/ordered"
	"weir/filter/verdict"
)

// What counts as a flood: a multiple of the usual rate, from a rate on that is worth the
// word; or a share of all packets that limits and penalties drop. The usual rate is the median
// of the last day, so that an hour's flood does not become usual, and of steps without floods.
const (
	floodTimes  = 3
	floodLeast  = 1000 // packets a second
	floodShare  = 0.2
	usualLeast  = time.Hour // that was counted, for anything to be usual
	usualWithin = time.Minute
	recently    = 10 * time.Minute
)

// held reports whether a reason of drops holds off floods: limits of interfaces, penalties, and patterns.
func held(reason string) bool {
	return slices.Contains([]string{verdict.Policed.String(), verdict.RateLimited.String(), verdict.Heavy.String(), verdict.Pattern.String()}, reason)
}

// usual is the rate of packets that is usual.
type usual struct {
	at    time.Time
	rate  float64
	known bool
}

// usually returns the usual rate, which is computed once a minute for all pages.
func (c *Console) usually() usual {
	c.knowing.Lock()
	defer c.knowing.Unlock()
	now := time.Now()
	if now.Sub(c.known.at) < usualWithin {
		return c.known
	}
	c.known = usual{at: now}
	q := api.HistoryQuestion{Since: api.DefaultHistory}
	if q.Check() != nil {
		return c.known
	}
	past, err := c.daemon.History(context.Background(), q)
	if err != nil {
		return c.known
	}
	var rates []float64
	counted := 0.0
	for _, p := range past.Points {
		var stopped uint64
		for _, r := range p.Reasons {
			if r.Drops && held(r.Reason) {
				stopped += r.Packets
			}
		}
		if p.Seconds > 0 && float64(stopped) <= floodShare*float64(p.Passed+p.Dropped) {
			rates = append(rates, float64(p.Passed+p.Dropped)/p.Seconds)
			counted += p.Seconds
		}
	}
	if counted >= usualLeast.Seconds() {
		slices.Sort(rates)
		c.known.rate, c.known.known = rates[len(rates)/2], true
	}
	return c.known
}

// headline says whether there is a flood, who sends it, and what drops it.
func (v *view) headline(m *markup) {
	t := v.Top
	heavy, first, scattered := 0, "", ""
	for i, tracker := range t.Trackers {
		if text := t.Trackers[i].Scattered(); text != "" {
			scattered = cmp.Or(scattered, text)
			continue
		}
		heavy += tracker.Heavy
		for _, f := range tracker.Flows {
			if f.Heavy && first == "" {
				first = f.Key
			}
		}
	}
	stopped := 0.0
	for _, r := range t.Reasons {
		if r.Drops && held(r.Reason) {
			stopped += r.Packets
		}
	}
	above := v.usual.known && t.Packets >= floodLeast && t.Packets >= floodTimes*v.usual.rate
	class, what := v.word(above, stopped > floodShare*t.Packets, heavy > 0)
	text := pps(t.Packets) + " arrive"
	switch {
	case above:
		text += fmt.Sprintf(", %.0f times the usual %s", t.Packets/max(v.usual.rate, 1), pps(v.usual.rate))
	case v.usual.known:
		text += ", the usual is " + pps(v.usual.rate)
	case class == "calm":
		text += ", the usual is not known yet"
	}
	text += ". "
	if f := t.Flood; f != nil {
		text += "It is " + strings.Join(f.Is(), "; ") + ". Do: " + f.Do() + ". "
	}
	switch {
	case heavy == 1:
		text += first + " is above its limit. "
	case heavy > 1:
		text += fmt.Sprintf("%s flows are above their limits, %s first. ", count(heavy), first)
	case scattered != "" && (above || stopped > floodShare*t.Packets):
		text += strings.ToUpper(scattered[:1]) + scattered[1:] + ". "
	}
	would, dropped := "is", "Nothing"
	if t.Monitor {
		would = "would be"
	}
	if t.Dropped >= 0.5 {
		dropped = share(t.Dropped / max(1, t.Packets))
	}
	m.add(`<p class="headline %s"><strong>%s:</strong> %s</p>`, class, what, text+dropped+" "+would+" dropped"+v.causes()+".")
}

// word says in a word whether there is a flood, and the class that shows it.
func (v *view) word(above, stopped, heavy bool) (class, what string) {
	switch f := v.Top.Flood; {
	case f != nil && f.Kind == api.FloodUsers:
		return "flood", "More than usual"
	case f != nil && f.Dropped < 0.5:
		return "flood", "Flood"
	case f != nil, stopped:
		return "flood", "Flood held off"
	case above:
		return "flood", "Flood"
	case heavy:
		return "flood", "Heavy sources"
	case !v.usual.known:
		return "calm", "Traffic"
	}
	return "calm", "No flood"
}

// causes says what drops packets now, the most first: lists together, and the other reasons.
func (v *view) causes() string {
	t := v.Top
	if t.Dropped < 0.5 {
		return ""
	}
	var all []catch
	for _, r := range t.Reasons {
		if r.Drops && r.Packets > 0 && r.Reason != reasonBlocked {
			all = append(all, catch{r.Reason, r.Packets})
		}
	}
	if rest := t.Dropped - total(all); rest >= 0.5 {
		name := "by lists"
		if by := v.catching(); len(by) > 0 && len(all) == 0 {
			return ", most by list " + by[0].name
		} else if len(by) > 0 {
			name = "by lists, most by " + by[0].name
		}
		all = append(all, catch{name, rest})
	}
	ordered.By(all, func(a, b catch) int { return cmp.Or(cmp.Compare(b.rate, a.rate), strings.Compare(a.name, b.name)) })
	parts := make([]string, len(all))
	for i, c := range all {
		parts[i] = share(c.rate/max(1, t.Packets)) + " " + c.name
	}
	return ": " + strings.Join(parts, ", ")
}

func total(all []catch) (rate float64) {
	for _, c := range all {
		rate += c.rate
	}
	return rate
}

// catch is a list that matches packets now, or another reason of drops.
type catch struct {
	name string
	rate float64
}

// catching returns the lists that match packets now, the most first.
func (v *view) catching() (all []catch) {
	for name, rate := range v.listRates() {
		if rate > 0 {
			all = append(all, catch{name, rate})
		}
	}
	ordered.By(all, func(a, b catch) int { return cmp.Or(cmp.Compare(b.rate, a.rate), strings.Compare(a.name, b.name)) })
	return all
}

// caught writes the lists that match packets now, and the other reasons of drops.
func (v *view) caught(m *markup) {
	if v.early(m) {
		return
	}
	all := v.catching()
	m.table("Lists that match packets now", func() {
		for _, c := range all[:min(len(all), maxCaught)] {
			m.add(`<tr><th scope="row">`)
			v.listLink(m, "c-", c.name)
			m.add(`</th><td class="n">%s</td><td class="n">%s</td></tr>`, pps(c.rate), share(c.rate/max(1, v.Top.Packets)))
		}
		rest := 0.0
		for _, c := range all[min(len(all), maxCaught):] {
			rest += c.rate
		}
		if more := len(all) - maxCaught; more > 0 {
			m.add(`<tr><th scope="row">%s more lists</th><td class="n">%s</td><td class="n">%s</td></tr>`, count(more), pps(rest), share(rest/max(1, v.Top.Packets)))
		}
		for _, r := range v.sortedReasons() {
			if r.Drops && r.Packets > 0 && r.Reason != reasonBlocked {
				m.add(`<tr><th scope="row" class="quiet">no list: %s</th><td class="n">%s</td><td class="n">%s</td></tr>`, r.Reason, pps(r.Packets), share(r.Packets/max(1, v.Top.Packets)))
			}
		}
		if len(all) == 0 {
			m.add(`<tr><td colspan="3">No list matches packets now.</td></tr>`)
		}
	}, "List", "#Rate", "#Of all")
}

// reasonBlocked is the reason of packets that a list drops.
const reasonBlocked = "blocked"

// The audit's names of some changes.
const (
	auditMonitorOn = "monitor on"
	auditAccept    = "accept"

	auditEnforce    = "enforce"
	auditEnforceOff = "enforce off"
)

// changing returns the last change of lists or modes, nil for none: sessions of the
// console and starts of the daemon change nothing.
func changing(all []api.AuditRecord) *api.AuditRecord {
	for i, r := range all {
		if changed(&r) && r.Change != "start" && r.Change != "stop" {
			return &all[i]
		}
	}
	return nil
}

// changed reports whether a record may be why traffic is different from then on.
func changed(r *api.AuditRecord) bool {
	return r.Error == "" && r.Change != "console" && r.Change != "console end"
}

// marksOf returns the changes for a chart, as JSON: when, and what, by whom.
func (v *view) marksOf() string {
	all := make([][2]any, 0, len(v.marks))
	for _, r := range v.marks {
		text := strings.Join(strings.Fields(r.Change+" "+r.List+r.Interface+" "+r.What()), " ")
		all = append(all, [2]any{r.Time.Unix(), text + ", by " + r.Who()})
	}
	text, _ := json.Marshal(all) // numbers and texts
	return string(text)
}

// reversal returns what undoes a change of anybody, "" if the audit does not know enough
// for that, and what a button says that does it.
func reversal(r *api.AuditRecord) (do, says string) {
	switch {
	case (r.Change == api.Block || r.Change == api.Allow) && r.Changed == r.Entries && len(r.First) == r.Entries:
		return "remove", "Undo: remove " + r.What() + " again"
	case r.Change == auditMonitorOn:
		return monitorOff, "Undo: end monitor mode"
	case r.Change == auditEnforce && r.Changed > 0 && r.TTL == 0:
		return try + " " + r.List, "Undo: put list " + r.List + " on trial"
	case r.Change == auditEnforceOff && r.Changed > 0:
		return enforce + " " + r.List, "Undo: enforce list " + r.List
	case r.Change == auditAccept && r.Changed > 0:
		return rollback + " " + r.List, "Undo: return list " + r.List + " to what it had before"
	}
	return "", ""
}

// last writes the last change, also of a command, with a way to undo it.
func (v *view) last(m *markup) {
	r := changing(v.Audit)
	if r == nil {
		m.add("<p>No change was made.</p>")
		return
	}
	m.add(`<p><strong>%s %s</strong>`, r.Change, r.List+r.Interface)
	if what := r.What(); what != "" {
		m.add(` %s`, what)
	}
	if r.TTL > 0 {
		m.add(` for %s`, brief(time.Duration(r.TTL*float64(time.Second))))
	}
	m.add(`, by %s, %s`, r.Who(), ago(&r.Time, v.Now))
	if r.Reason != "" {
		m.add(` (%s)`, r.Reason)
	}
	m.add(`. `)
	if _, says := reversal(r); says != "" && v.change() {
		quick(m, "revert", "revert", r.Time.Format(time.RFC3339Nano), "Undo", says)
	}
	m.add(`</p>`)
}

// pointsOf returns the points of a chart, as JSON: times, and packets a second that passed
// and that were dropped. A step in which the daemon did not run is a gap.
func pointsOf(h *api.History) string {
	step := time.Duration(h.Step * float64(time.Second))
	var times, passed, dropped []string
	var last time.Time
	for _, p := range h.Points {
		if !last.IsZero() && p.Time.Sub(last) > step+step/2 {
			times, passed, dropped = append(times, fmt.Sprint(last.Add(step).Unix())), append(passed, "null"), append(dropped, "null")
		}
		last = p.Time
		seconds := max(1, p.Seconds)
		times = append(times, fmt.Sprint(p.Time.Unix()))
		passed = append(passed, fmt.Sprintf("%.1f", float64(p.Passed)/seconds))
		dropped = append(dropped, fmt.Sprintf("%.1f", float64(p.Dropped)/seconds))
	}
	return fmt.Sprintf("[[%s],[%s],[%s]]", strings.Join(times, ","), strings.Join(passed, ","), strings.Join(dropped, ","))
}
