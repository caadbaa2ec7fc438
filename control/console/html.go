package console

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/observe/events"
	"weir/control/quantity"
	"weir/filter/ordered"
)

const htmlHead literal = `<!doctype html>
<html lang="en">
<head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="robots" content="noindex">
<link rel="stylesheet" href="%s">
`

// openPage leads to a session's page.
func openPage(m *markup, path string) {
	m.add(htmlHead+`<meta http-equiv="refresh" content="0;url=%s">
<title>weir</title></head>
<body><main class="lone"><h1>weir</h1><p><a href="%s">Open the console</a></p></main></body></html>
`, staticURL("console.css"), path, path)
}

// welcomePage has a user whom a reverse proxy names begin a session.
func welcomePage(m *markup, host, user string) {
	m.add(htmlHead+`<title>%s – weir</title></head>
<body><main class="lone"><h1>weir <span class="host">%s</span></h1><p>You are %s. What you change is recorded under this name.</p>
<form method="post" action="/"><div class="row"><button>Open the console</button><button name="read-only" value="1">Only look</button></div></form></main></body></html>
`, staticURL("console.css"), host, host, user)
}

// message writes a page that says something, or a part of one.
func message(m *markup, title, text string, part bool) {
	if part {
		m.add(`<div class="result failed"><p><strong>%s.</strong> %s</p></div>`, title, text)
		return
	}
	m.add(htmlHead+`<title>%s – weir</title></head>
<body><main class="lone"><h1>%s</h1><p>%s</p></main></body></html>
`, staticURL("console.css"), title, title, text)
}

// htmxConfig keeps htmx from evaluating anything, and from adding styles, which the
// policy forbids; errors are shown where the answer would be.
const htmxConfig = `{"allowEval":false,"allowScriptTags":false,"includeIndicatorStyles":false,"historyEnabled":false,"defaultSettleDelay":0,"selfRequestsOnly":true,"timeout":30000,"responseHandling":[{"code":"204","swap":false},{"code":"...","swap":true}]}`

// begin begins a page, up to the result of the last change.
func (v *frame) begin(m *markup) {
	m.add(htmlHead, staticURL("console.css"))
	m.add(`<title>%s – weir</title>
<meta name="htmx-config" content="%s">
<link rel="stylesheet" href="%s">
`, v.Host, htmxConfig, staticURL("uPlot.min.css"))
	for _, script := range []string{"htmx.min.js", "sse.min.js", "uPlot.iife.min.js", "console.js"} {
		m.add(`<script defer src="%s"></script>`+"\n", staticURL(script))
	}
	if m.add("</head>\n"); v.beside {
		m.add(`<body>`)
	} else {
		m.add(`<body hx-ext="sse" sse-connect="%slive" sse-close="ended">`, v.path())
	}
	m.add(`
<a class="skip" href="#main">Skip to the contents</a>
<p id="gone" role="alert"></p>
`)
	v.header(m)
	if v.change() {
		m.add(`<form id="quick" method="post" action="%schange" hx-post="%schange" hx-target="#result"><input type="hidden" name="form" value="%s"></form>`,
			v.path(), v.path(), v.session.form)
	}
	v.resultSection(m)
	m.add(`<main id="main">` + "\n")
}

func end(m *markup) { m.add("</main>\n</body></html>\n") }

// resultSection has the result of the last change, which stays in sight.
func (v *frame) resultSection(m *markup) {
	m.add(`<div id="result" role="status">`)
	v.resultPart(m)
	m.add("</div>\n")
}

// top writes what both kinds of pages begin with: alerts, and rates with their chart, in
// which there are points already.
func (v *frame) top(m *markup, points string, alerts, now func(*markup)) {
	m.add(`<div id="p-alerts" class="wide" sse-swap="alerts">`)
	alerts(m)
	m.add(`</div>
<section class="full" aria-labelledby="h-traffic"><h2 id="h-traffic" class="hidden">Traffic</h2>
<div id="p-now" sse-swap="now">`)
	now(m)
	m.add(`</div>
<div id="chart" class="chart" data-points="%s" role="img" aria-label="Packets that passed and that were dropped in the last ten minutes. The figures above are the latest."></div>
</section>
`, points)
}

// page writes the whole page. The first screen says what happens, who does it, which list
// catches it, and what was changed last.
func (v *view) page(m *markup) {
	v.begin(m)
	v.frame.top(m, v.recent, v.alerts, v.now)
	m.add(`<section class="full" aria-labelledby="h-talkers"><h2 id="h-talkers" class="hidden">Who</h2><div id="p-talkers" sse-swap="talkers">`)
	v.talkers(m)
	m.add("</div></section>\n")
	section(m, "half", "caught", "Caught by", v.caught)
	m.add(`<div class="half stack">`)
	section(m, "", "last", "Last change", v.last)
	v.explainForm(m, "", v.answer)
	m.add("</div>\n")
	v.changeForm(m, "full")
	v.historySection(m)
	v.listsSection(m)
	if v.Top != nil && len(v.Top.Trackers) > 1 {
		section(m, "full", "trackers", "Other trackers", v.otherTrackers)
	}
	for _, s := range sections {
		section(m, s.width, s.name, s.title, func(m *markup) { s.write(v, m) })
	}
	v.eventsSection(m)
	end(m)
}

// section writes a panel, in a section of its own.
func section(m *markup, width, name, title string, write func(*markup)) {
	m.add(`<section class="%s" aria-labelledby="h-%s"><h2 id="h-%s">%s</h2><div id="p-%s" sse-swap="%s">`, width, name, name, title, name, name)
	write(m)
	m.add("</div></section>\n")
}

// sections are the panels below the forms.
var sections = []struct {
	name, title string
	width       string // its class
	write       func(*view, *markup)
}{
	{"reasons", "Reasons", "half", (*view).reasons},
	{"interfaces", "Interfaces", "", (*view).interfaces},
	{"memory", "Filter", "", (*view).memory},
	{"entries", "Manual entries", "wide", (*view).entriesPart},
	{"audit", "Changes", "wide", (*view).auditPart},
}

func (v *frame) header(m *markup) {
	m.add(`<header><h1>weir <span class="host">%s</span></h1><p class="quiet">%s`, v.Host, v.Version)
	if user, ok := api.ProxyUser(v.session.Client); ok {
		m.add(` · %s`, user)
	}
	if !v.change() {
		m.add(` · read-only`)
	}
	again := "Reload"
	if v.beside {
		again = "Back to what happens"
	}
	m.add(` · the session expires %s</p>
<p id="live" class="live" role="status">Loaded %s</p>
<div class="tools">`, within(&v.session.expires, v.Now), stamp(v.Now))
	if v.ofDaemon {
		if !v.beside && v.change() {
			quick(m, "monitor", "do", monitorOn, "Monitor…", "Monitor mode: drop nothing for an hour")
		}
		m.add(`<a class="button" href="%sworth">Lists</a>
<a class="button" href="%splan">Plan</a>`, v.path(), v.path())
	}
	m.add(`<button type="button" id="pause" class="scripted" aria-pressed="false">Pause</button>
<a class="button" href="%s">%s</a>
<form method="post" action="%send"><input type="hidden" name="form" value="%s"><button id="end">End session</button></form></div>
</header>
`, v.path(), again, v.path(), v.session.form)
}

// explainForm writes the section in which an operator asks.
func (v *frame) explainForm(m *markup, width string, answer func(*markup)) {
	m.add(`<section id="explain" class="%s" aria-labelledby="h-explain"><h2 id="h-explain">Explain</h2>
<form id="explain-form" method="get" action="%s#explain" hx-get="%sexplain" hx-target="#answer" hx-sync="this:replace"><label for="q">Address, prefix or flow</label>
<div class="row"><input id="q" name="q" value="%s" placeholder="192.0.2.1" autocomplete="off" spellcheck="false" maxlength="256" required><button>Explain</button></div></form>
<div id="answer" aria-live="polite">`, width, v.path(), v.path(), v.Question)
	answer(m)
	m.add("</div></section>\n")
}

// changeForm writes the section in which an operator changes lists.
func (v *frame) changeForm(m *markup, width string) {
	if !v.change() {
		return
	}
	m.add(`<section class="%s" aria-labelledby="h-change"><h2 id="h-change">Block or allow</h2>
<form id="change" method="post" action="%schange" hx-post="%schange" hx-target="#result"><input type="hidden" name="form" value="%s">
<div class="row"><span class="grow"><label for="entry">Address, prefix or flow</label><input id="entry" name="entry" placeholder="198.51.100.0/24" autocomplete="off" spellcheck="false" maxlength="256" required></span>
<span><label for="ttl">For</label>
<select id="ttl" name="ttl"><option value="10m">10 minutes</option><option value="1h" selected>1 hour</option><option value="8h">8 hours</option><option value="1d">1 day</option><option value="7d">7 days</option><option value="never">ever</option></select></span>
<span class="grow"><label for="reason">Reason</label><input id="reason" name="reason" placeholder="flood" maxlength="200" autocomplete="off"></span>
<span class="bottom"><button name="action" value="block" class="drop">Block</button> <button name="action" value="allow" class="pass">Allow</button></span></div>
</form></section>
`, width, v.path(), v.path(), v.session.form)
}

func alert(m *markup, class, strong, text string) {
	m.add(`<p class="alert %s"><strong>%s</strong> %s</p>`, class, strong, text)
}

func (v *view) alerts(m *markup) {
	bad := func(strong, text string) { alert(m, "bad", strong, text) }
	warn := func(strong, text, do, says string) {
		m.add(`<p class="alert monitor"><strong>%s</strong> %s`, strong, text)
		if do != "" && v.change() {
			quick(m, "do-"+do, "do", do, says, says)
		}
		m.add(`</p>`)
	}
	s := &v.Status
	if s.Monitor {
		text := "What is shown as dropped would be."
		if o := s.MonitorOverride; o != nil {
			text += fmt.Sprintf(" Switched on by %s %s", o.Who(), ago(&o.Since, v.Now))
			if o.Until != nil {
				text += ", ends " + within(o.Until, v.Now)
			}
			text += "."
		}
		warn("Monitor mode: nothing is dropped.", text, monitorOff, "Drop again…")
	}
	for _, o := range s.Policed[:min(len(s.Policed), maxAlerts)] {
		text := fmt.Sprintf("By %s %s", o.By, ago(&o.Since, v.Now))
		if o.Until != nil {
			text += ", ends " + within(o.Until, v.Now)
		}
		warn("Limited: "+o.Place()+" to "+o.Rate+".", text+". "+o.Undo()+" ends it.", "", "")
	}
	if more := len(s.Policed) - maxAlerts; more > 0 {
		warn("Limited: "+count(more)+" more.", "weir status has them.", "", "")
	}
	if n := v.unfiltered(); n > 0 {
		bad(fmt.Sprintf("Not filtered: %d of %d interfaces.", n, len(s.Interfaces)), "See Interfaces.")
	}
	for _, n := range s.NotReady[:min(len(s.NotReady), maxAlerts)] {
		bad("Not ready: list "+n.List+".", n.Source+": "+n.Problem)
	}
	if more := len(s.NotReady) - maxAlerts; more > 0 {
		bad("Not ready: "+count(more)+" more lists.", "")
	}
	for _, x := range s.Spared {
		warn("Spared: "+x.Flow+".", x.String()+".", "", "")
	}
	if s.SparedMore > 0 {
		warn("Spared: "+count(s.SparedMore)+" more.", "", "", "")
	}
	if s.ConfirmUntil != nil {
		warn("The configuration is rolled back "+within(s.ConfirmUntil, v.Now), "unless it is confirmed.", confirm, "Confirm…")
	}
	if s.RolledBack {
		warn("The last configuration was not confirmed.", "The one before is active: weir reload tries it again.", "", "")
	}
	if s.Fleet != nil && s.Fleet.Stale {
		bad("The hub of the fleet is silent.", s.Fleet.Problem+" Filtering goes on by the last lists.")
	}
	if v.Trouble != "" {
		bad("Some of this page is missing:", v.Trouble)
	}
	if v.Top != nil {
		for _, p := range v.Top.Problems[:min(len(v.Top.Problems), maxAlerts)] {
			bad("", p)
		}
		if more := len(v.Top.Problems) - maxAlerts; more > 0 {
			bad(count(more)+" more problems.", "See Lists and Interfaces.")
		}
	}
}

// early shows panels before there are rates.
func (v *view) early(m *markup) bool {
	if v.Top == nil {
		m.add("<p>No rates yet: the daemon has just started.</p>")
	}
	return v.Top == nil
}

func (v *view) now(m *markup) {
	if v.early(m) {
		return
	}
	t := v.Top
	mode := "filtering"
	if t.Monitor {
		mode = "monitor only"
	}
	v.headline(m)
	figures(m, t.Time, v.passed(), t.Dropped, []figure{
		{"", "Mode", mode},
		{"is-passed", "Passed", pps(v.passed())},
		{"is-dropped", "Dropped", pps(t.Dropped)},
		{"", "Of all", share(t.Dropped / max(1, t.Packets))},
		{"", "Received", bits(t.Bytes)},
		{"", "Entries", count(t.Filter.Entries)},
		{"", "Running for", brief(time.Duration(t.Uptime * float64(time.Second)))},
	})
}

type figure struct{ class, name, value string }

// figures writes figures, with rates for the chart.
func figures(m *markup, at time.Time, passed, dropped float64, all []figure) {
	m.add(`<dl class="figures" id="figures" data-time="%s" data-passed="%s" data-dropped="%s">`+"\n",
		at.Unix(), fmt.Sprintf("%.1f", passed), fmt.Sprintf("%.1f", dropped))
	writeFigures(m, all)
	m.add("</dl>\n")
}

func writeFigures(m *markup, all []figure) {
	for _, f := range all {
		m.add(`<div class="%s"><dt>%s</dt><dd>%s</dd></div>`, f.class, f.name, f.value)
	}
}

func (v *view) historySection(m *markup) {
	m.add(`<section class="full" id="back" aria-labelledby="h-history"><h2 id="h-history">History</h2>
<form id="history-form" method="get" action="%shistory#back" hx-get="%shistory" hx-target="#p-history" hx-trigger="change, submit, every 60s" hx-sync="this:replace"><div class="row">
<span><label for="for">Of the last</label><select id="for" name="for">`, v.path(), v.path())
	for _, s := range spans {
		selected := literal("")
		if s.name == v.span {
			selected = " selected"
		}
		m.add(`<option value="%s"`+selected+`>%s</option>`, s.name, s.says)
	}
	m.add(`</select></span><noscript><span class="bottom"><button>Show</button></span></noscript>
<span class="bottom grow quiet scripted" id="mark">Drag to zoom, double-click for all. Vertical lines are changes.</span></div></form>
`)
	hidden := literal("")
	if len(v.History.Points) < leastPoints {
		hidden = " hidden"
	}
	m.add(`<div id="past" class="chart"` + hidden + ` role="img" aria-label="Packets that passed and that were dropped. The sums are below, and the last changes under Changes."></div>
<div id="p-history">`)
	v.history(m)
	m.add("</div></section>\n")
}

// history writes sums, with the points for a chart.
func (v *view) history(m *markup) {
	h := &v.History
	if len(h.Points) == 0 {
		m.add("<p>Nothing is recorded yet.</p>")
		return
	}
	m.add(`<dl class="figures" id="history" data-points="%s" data-marks="%s"><div class="is-passed"><dt>Passed</dt><dd>%s</dd></div><div class="is-dropped"><dt>Dropped</dt><dd>%s</dd></div>`,
		pointsOf(h), v.marksOf(), count(h.Total.Passed), count(h.Total.Dropped))
	for _, l := range h.Total.Lists[:min(len(h.Total.Lists), 5)] {
		if l.List != "" && l.Packets > 0 {
			m.add(`<div><dt>Matched by %s</dt><dd>%s</dd></div>`, l.List, count(l.Packets))
		}
	}
	m.add("</dl>\n")
}

func (v *view) interfaces(m *markup) {
	m.table("Interfaces", func() {
		all := ordered.Of(slices.Values(v.Status.Interfaces), func(a, b api.InterfaceStatus) int {
			return cmp.Compare(trouble(a.State != api.Filtered), trouble(b.State != api.Filtered))
		})
		for _, i := range all[:min(len(all), maxEntries)] {
			m.add(`<tr><th scope="row">%s`, i.Interface)
			if i.Direction == "out" {
				m.add(" (out)")
			}
			if i.Netns != "" {
				m.add(` <span class="quiet">in %s</span>`, i.Netns)
			}
			class, state := "", i.State
			if i.State != api.Filtered {
				class = "bad"
			}
			if i.Problem != "" {
				state += ": " + i.Problem
			}
			m.add(`</th><td class="%s">%s</td><td>%s</td><td class="n">%s</td><td class="n">%s</td></tr>`, class, state, i.XDP, count(i.Packets), count(i.Dropped))
		}
		if len(v.Status.Interfaces) == 0 {
			m.add(`<tr><td colspan="5">No interface is filtered.</td></tr>`)
		}
		if more := len(all) - maxEntries; more > 0 {
			m.add(`<tr><td colspan="5">and %s more: <code>weir status</code> shows all.</td></tr>`, count(more))
		}
	}, "Interface", "State", "XDP", "#Packets", "#Dropped")
}

// action returns the class and the word for what becomes of packets.
func action(drops bool) (class, word string) {
	if drops {
		return "is-dropped", "drop"
	}
	return "is-passed", "pass"
}

func (v *view) reasons(m *markup) {
	if v.early(m) {
		return
	}
	m.table("Reasons", func() {
		for _, r := range v.sortedReasons() {
			class, word := action(r.Drops)
			m.add(`<tr><th scope="row">%s</th><td class="%s">%s</td><td class="n">%s</td><td class="n">%s</td></tr>`, r.Reason, class, word, pps(r.Packets), count(r.Total))
		}
		if len(v.Top.Reasons) == 0 {
			m.add(`<tr><td colspan="4">No packets yet.</td></tr>`)
		}
	}, "Reason", "Action", "#Rate", "#Packets")
}

func (v *view) memory(m *markup) {
	if v.early(m) {
		return
	}
	f := &v.Top.Filter
	exact := f.WeightedPredicted == nil && f.Predicted == 0 || f.Mode == "exact"
	counted, predicted := odds(f.Rate), odds(&f.Predicted)
	switch {
	case exact:
		counted, predicted = "none: the mode is exact", "none"
	case f.WeightedPredicted != nil:
		predicted = fmt.Sprintf("%s (%s without weights)", odds(f.WeightedPredicted), odds(&f.Predicted))
	}
	if f.Rate != nil {
		counted += fmt.Sprintf(" (95 %%: %s to %s)", odds(f.Low), odds(f.High))
	}
	m.add(`<dl class="pairs">`)
	for _, p := range [][2]string{
		{"Generation", count(f.Generation)},
		{"Memory in the kernel", size(f.KernelBytes)},
		{"Mode", f.Mode},
		{"Entries", count(f.Entries)},
		{"False drops, counted", counted},
		{"False drops, predicted", predicted},
	} {
		m.add(`<dt>%s</dt><dd>%s</dd>`, p[0], p[1])
	}
	m.add("</dl>\n")
}

// flow writes a flow as a link to what explains it. Links and buttons have names, by
// which the focus stays with them while the panels change.
func (v *frame) flow(m *markup, id, key string) {
	query := url.Values{"q": {key}}.Encode()
	m.add(`<a id="%s" href="%s?%s#explain" hx-get="%sexplain?%s" hx-target="#answer" hx-swap="innerHTML show:#explain:top" hx-sync="#explain-form:replace">%s</a>`,
		id, v.path(), query, v.path(), query, key)
}

// quick writes a button that sends a change at once. Its form is elsewhere: htmx looks for
// such buttons by their type.
func quick(m *markup, id, name, value, text, label string) {
	m.add(`<button type="submit" form="quick" name="%s" value="%s" id="%s" aria-label="%s">%s</button>`, name, value, id, label, text)
}

// talkers writes the flows of the first tracker, and the sources of dropped packets.
func (v *view) talkers(m *markup) {
	if v.early(m) {
		return
	}
	if len(v.Top.Trackers) == 0 {
		m.add(`<p>No flows are tracked, and none sampled: set <code>samples: true</code> in weir.yaml, or <code>trackers</code>.</p>`)
	}
	// Two have their places before the second is there, on a page that arrives slowly.
	two := literal("")
	if len(v.Top.Trackers) > 0 && v.Top.Sources != nil {
		two = " two"
	}
	m.add(`<div class="groups` + two + `">`)
	for _, t := range v.Top.Trackers[:min(len(v.Top.Trackers), 1)] {
		v.tracker(m, 0, &t, maxFirst)
	}
	if v.Top.Sources != nil {
		v.droppedSources(m, *v.Top.Sources)
	}
	m.add("</div>\n")
}

// otherTrackers writes the flows of all trackers but the first.
func (v *view) otherTrackers(m *markup) {
	if v.Top == nil || len(v.Top.Trackers) < 2 {
		m.add("<p>There are none.</p>")
		return
	}
	m.add(`<div class="groups">`)
	for i, t := range v.Top.Trackers[1:] {
		v.tracker(m, i+1, &t, maxRows)
	}
	m.add("</div>\n")
}

// tracker writes the largest flows of a tracker. Blocking what leads to a host would cut
// it off, and is not offered.
func (v *view) tracker(m *markup, number int, t *api.Tracker, most int) {
	counts := t.Unit
	if counts != "packets" && counts != "bytes" {
		counts = "distinct " + counts
	}
	m.add(`<div><h3>By %s, in %s <span class="quiet">%s</span>`, t.Key, counts, t.About())
	block := v.change() && !strings.HasPrefix(t.Key, "dst")
	if all := heavyOf(t); block && len(all) > 1 {
		m.add(` `)
		quick(m, "heavy-"+t.Key+"-"+t.Unit, "do", heavyFlows+" "+t.Label(), "Block "+count(len(all))+" above the limit…", "Block all flows above the limit of tracker "+t.Label()+" for an hour")
	}
	m.add("</h3>\n")
	columns := []string{"Flow", "-Action", "#Packets", "#Share", "#Dropped", "Why", "State", "#Bits"}
	if !block {
		columns = slices.Delete(columns, 1, 2)
	}
	m.table("Top talkers by "+t.Key, func() {
		for _, f := range t.Flows[:min(len(t.Flows), most)] {
			v.talker(m, number, &f, block)
		}
		if len(t.Flows) == 0 {
			m.add(`<tr><td colspan="8">No traffic in the last interval.</td></tr>`)
		}
	}, columns...)
	m.add(`</div>`)
}

func (v *view) droppedSources(m *markup, sources []api.DropRate) {
	m.add(`<div><h3>Dropped sources</h3>`)
	m.table("Dropped sources", func() {
		for i, s := range sources[:min(len(sources), maxFirst)] {
			m.add(`<tr><th scope="row">`)
			name := s.Source
			if s.Direction == "out" {
				name = "> " + name
			}
			v.flow(m, fmt.Sprintf("d-%d-%s", i, s.Source), name)
			m.add(`</th><td class="n">%s</td><td class="n">%s</td><td>%s</td><td>%s</td></tr>`, pps(s.Packets), bits(s.Bytes), s.Reason, s.List)
		}
		if len(sources) == 0 {
			m.add(`<tr><td colspan="5">Nothing was dropped in the last interval.</td></tr>`)
		}
	}, "Source", "#Dropped", "#Bits", "Reason", "List")
	m.add(`</div>`)
}

func (v *view) talker(m *markup, tracker int, f *api.Flow, block bool) {
	row, state, why, dropped, about := literal("<tr>"), f.State, strings.Join(f.Reasons, ", "), "–", ""
	if f.Heavy {
		row, state = `<tr class="heavy">`, strings.TrimSpace("heavy "+f.State)
	}
	if f.Until != nil {
		state += ", ends " + within(f.Until, v.Now)
	}
	if len(f.Lists) > 0 {
		why += " (" + strings.Join(f.Lists, ", ") + ")"
	}
	if f.Dropped != nil {
		dropped = pps(*f.Dropped)
	}
	if f.Estimate {
		about = "≤ "
	}
	packets := about + pps(f.Packets)
	if off := f.Within(); off >= 0.0005 {
		packets += fmt.Sprintf(" ± %.0f %%", math.Ceil(100*off))
	}
	m.add(row + `<th scope="row">`)
	v.flow(m, fmt.Sprintf("x-%d-%s", tracker, f.Key), f.Key)
	m.add(`</th>`)
	if block {
		m.add(`<td>`)
		quick(m, fmt.Sprintf("b-%d-%s", tracker, f.Key), "block", f.Key, "Block 1 h", "Block "+f.Key+" for an hour")
		m.add(`</td>`)
	}
	m.add(`<td class="n">%s</td><td class="n">%s</td><td class="n">%s</td><td class="words">%s</td><td class="words">%s</td><td class="n">%s</td>`,
		packets, share(f.Share), dropped, why, state, bits(f.Bytes))
	m.add("</tr>\n")
}

// listFeeds are the sources of a list.
type listFeeds struct {
	list  string
	feeds []api.FeedSource
}

func (v *frame) feedsOf(m *markup, lists []listFeeds) {
	sources, failing := 0, 0
	for _, l := range lists {
		for _, f := range l.feeds {
			sources++
			if f.Outcome == api.Failed {
				failing++
			}
		}
	}
	switch {
	case sources == 0:
		m.add(`<p>No list has sources.</p>`)
		return
	case failing > 0:
		m.add(`<p><strong class="bad">Failing: %s of %s sources.</strong> Their last good contents stay active.</p>`, failing, sources)
	default:
		m.add(`<p>No source fails, of %s.</p>`, sources)
	}
	m.table("Feeds", func() {
		for _, l := range lists {
			for _, f := range l.feeds {
				v.feed(m, l.list, &f)
			}
		}
	}, "List", "Source", "Last attempt", "#Entries", "Last good", "Next", "Trouble")
}

func (v *frame) feed(m *markup, list string, f *api.FeedSource) {
	class, next := "", "–"
	if f.Outcome == api.Failed {
		class = "bad"
	}
	if f.Next != nil {
		next = within(f.Next, v.Now)
	}
	var trouble []string
	if f.Error != "" {
		trouble = append(trouble, fmt.Sprintf("%s: %s (%d times)", f.Failure, f.Error, f.Failures))
	}
	if f.BadLines > 0 {
		trouble = append(trouble, count(f.BadLines)+" bad lines left out: "+strings.Join(f.FirstBad[:min(1, len(f.FirstBad))], ""))
	}
	if f.Unsaved {
		trouble = append(trouble, "not saved: a restart would not find these entries")
	}
	m.add(`<tr><td>%s</td><th scope="row" class="long">%s</th><td class="%s">%s</td><td class="n">%s</td><td>%s</td><td>%s</td><td class="long">%s</td></tr>`+"\n",
		list, f.Source, class, f.Outcome, count(f.Entries), ago(f.Read, v.Now), next, strings.Join(trouble, "; "))
}

func (v *view) entriesPart(m *markup) {
	if len(v.Entries) == 0 {
		m.add("<p>There are none.</p>")
		return
	}
	columns := []string{"Entry", "-Remove", "Action", "List", "Added", "Expires", "Reason", "By"}
	if !v.change() {
		columns = slices.Delete(columns, 1, 2)
	}
	m.table("Manual entries", func() {
		for _, e := range v.Entries {
			m.add(`<tr><th scope="row">%s</th>`, e.Entry)
			if v.change() {
				m.add(`<td>`)
				quick(m, "r-"+e.List+"-"+e.Entry, "remove", e.Action+" "+e.List+" "+e.Entry, "Remove", "Remove "+e.Entry+" from "+e.List)
				m.add(`</td>`)
			}
			m.add(`<td>%s</td><td>%s</td><td>%s</td><td>%s</td><td class="long">%s</td><td>%s</td></tr>`+"\n",
				e.Action, e.List, ago(&e.Added, v.Now), within(e.Expires, v.Now), e.Reason, e.User)
		}
	}, columns...)
	if v.More {
		m.add(`<p>There are more: <code>weir entries</code> lists all.</p>`)
	}
}

func (v *view) auditPart(m *markup) { changes(m, v.Audit) }

// changes writes a table of changes that were made.
func changes(m *markup, all []api.AuditRecord) {
	if len(all) == 0 {
		m.add("<p>No change was made.</p>")
		return
	}
	m.table("Changes", func() {
		for _, r := range all {
			what := r.What()
			if r.TTL > 0 {
				what += " " + r.Lasting() + " " + brief(time.Duration(r.TTL*float64(time.Second)))
			}
			m.add(`<tr><td>%s</td><td>%s</td><th scope="row">%s</th><td>%s</td><td class="long">%s</td><td class="long">%s</td></tr>`+"\n",
				stamp(r.Time), r.Who(), r.Change, r.List+r.Interface, what, r.Why())
		}
	}, "When", "Who", "Change", "List", "What", "Reason")
}

// resultPart writes what became of the last change.
func (v *frame) resultPart(m *markup) {
	r := v.session.shown()
	if r == nil {
		return
	}
	if r.failed {
		m.add(`<div class="result failed"><p><strong>Nothing was changed.</strong> %s</p></div>`, r.text)
		return
	}
	m.add(`<div class="result"><p>%s</p>`, r.text)
	if q := r.ask; q != nil && v.change() {
		m.add(`<button type="submit" form="quick" name="sure" value="%s" id="sure" class="drop">%s</button>`, q.do, q.button)
		quick(m, "leave", "leave", "1", "Leave it", "Leave it as it is")
	}
	if v.change() && r.undo >= 0 {
		quick(m, "undo", "undo", fmt.Sprint(r.undo), "Undo", "Undo: "+r.what)
	}
	m.add(`</div>`)
}

// changed writes the answer to a change: its result, and the panels that it is in.
func (v *view) changed(m *markup) {
	v.resultPart(m)
	m.add(`<div id="p-entries" hx-swap-oob="innerHTML">`)
	v.entriesPart(m)
	m.add(`</div><div id="p-audit" hx-swap-oob="innerHTML">`)
	v.auditPart(m)
	m.add(`</div><div id="p-last" hx-swap-oob="innerHTML">`)
	v.last(m)
	m.add(`</div>`)
}

// answer writes the answer to the question.
func (v *view) answer(m *markup) {
	if v.Wrong != "" {
		m.add(`<div class="result failed"><p>%s</p></div>`, v.Wrong)
	}
	if v.Answer == nil {
		return
	}
	v.changeAsked(m, slices.ContainsFunc(v.Answer.Answers, func(a api.Answer) bool { return a.Verdict == api.VerdictDrop }))
	for _, a := range v.Answer.Answers {
		v.explanation(m, &a)
	}
}

// changeAsked writes a button that blocks what was asked for, or allows what is dropped.
func (v *frame) changeAsked(m *markup, dropped bool) {
	switch {
	case !v.change():
	case dropped:
		m.add(`<div class="row">`)
		quick(m, "allow-asked", "allow", v.Question, "Allow 1 h", "Allow "+v.Question+" for an hour")
		m.add(`</div>`)
	default:
		m.add(`<div class="row">`)
		quick(m, "block-asked", "block", v.Question, "Block 1 h", "Block "+v.Question+" for an hour")
		m.add(`</div>`)
	}
}

func (v *frame) explanation(m *markup, a *api.Answer) {
	class, list := "passes", ""
	if a.Verdict != api.VerdictPass {
		class = "drops"
	}
	if a.List != "" {
		list = ", list " + a.List
	}
	if a.OnTrial() {
		list = ", since list " + a.List + " is on trial"
	}
	if a.Limit != nil {
		m.add(`<div class="verdict %s"><h3>%s: <strong>%s</strong></h3>`, class, a.Packet, quantity.Limited(a.Limit.Rate, a.Limit.Offered, a.Limit.Unit, a.Limit.Tracker))
	} else {
		m.add(`<div class="verdict %s"><h3>%s: <strong>%s</strong> <span class="quiet">(%s%s)</span></h3>`, class, a.Packet, a.Verdict, a.Reason, list)
	}
	switch {
	case a.FalsePositive:
		m.add(`<p>No entry matches: a false positive of the approximate filter.</p>`)
	case len(a.Matches) == 0:
		m.add(`<p>No entry matches all of these packets.</p>`)
	default:
		v.matches(m, a.Matches)
	}
	var stages []string
	for _, s := range a.Stages {
		text := s.Stage + " no"
		if s.Met {
			text = s.Stage + " yes"
			if s.By != "" {
				text += " (" + s.By + expiry(s.Until, v.Now) + ")"
			}
		}
		stages = append(stages, text)
	}
	if l := a.LastDrop; l != nil {
		list := ""
		if l.List != "" {
			list = ", list " + l.List
		}
		what, more := "Last dropped at", ""
		if l.Monitor {
			what = "Would last have been dropped, if not for monitor mode, at"
		}
		if passed := l.MonitorPackets; 0 < passed && (passed < l.Packets || !l.Monitor) {
			more = ", of which " + count(int(passed)) + " passed in monitor mode"
		}
		m.add(`<p>%s about %s (%s%s), %s packets in the last hour%s.</p>`, what, l.Time.Format(time.TimeOnly), l.Reason, list, count(int(l.Packets)), more)
	}
	for _, text := range a.Spared {
		m.add(`<p>Spared: %s.</p>`, text)
	}
	m.add(`<p class="quiet">Stages: %s</p>`, strings.Join(stages, ", "))
	if len(a.Depends) > 0 {
		m.add(`<p>It depends on the rest of the packet:</p><ul>`)
		for _, d := range a.Depends {
			m.add(`<li>%s at %s: %s%s`, d.Verdict, d.Stage, d.Packets, expiry(d.Until, v.Now))
			if d.Match != nil {
				m.add(`, list %s`, d.Match.List)
			}
			m.add(`</li>`)
		}
		m.add(`</ul>`)
		if a.DependsMore > 0 {
			m.add(`<p>and %s more entries</p>`, count(a.DependsMore))
		}
		if a.PenaltiesMore > 0 {
			m.add(`<p>and %s more penalties</p>`, count(a.PenaltiesMore))
		}
	}
	if in := a.Inside; in != nil {
		m.add(`<p>Entries inside: %s</p>`, count(in.Entries))
		v.matches(m, in.First)
	}
	m.add("</div>\n")
}

func expiry(until *time.Time, now time.Time) string {
	if until == nil {
		return ""
	}
	return ", expires " + within(until, now)
}

// matches writes entries: the list, and the file and line, or who added them.
func (v *frame) matches(m *markup, all []api.Match) {
	m.add(`<ul>`)
	for _, e := range all {
		class, _ := action(e.Action == api.Block)
		m.add(`<li><span class="%s">%s</span> <code>%s</code> of list <strong>%s</strong>, `, class, e.Action, e.Entry, e.List)
		place := e.Source
		switch {
		case e.Derived != nil:
			place = e.Derived.String()
		case place == "":
			place = "manual"
		case e.Line > 0:
			place += fmt.Sprintf(":%d", e.Line)
		}
		if e.Reason != "" {
			place += ", reason: " + e.Reason
		}
		if e.Origin != "" {
			place += " (" + e.Origin + ")"
		}
		if e.Listed != nil {
			place += ", listed " + ago(e.Listed, v.Now)
		}
		if e.Listed != nil && e.Earlier {
			place += " or earlier"
		}
		place += expiry(e.Expires, v.Now)
		if e.Packets != nil {
			place += ", the list has caught " + count(*e.Packets) + " packets"
		}
		if e.NotDerived != "" {
			place += "; " + e.NotDerived
		}
		m.add(`%s</li>`, place)
	}
	m.add(`</ul>`)
}

func (v *view) eventsSection(m *markup) {
	m.add(`<section class="full" id="events" aria-labelledby="h-events"><h2 id="h-events">Events</h2>
<form method="get" action="%sevents#events" hx-sync="this:replace"><div class="row">
<span><label for="why">Reason</label><select id="why" name="reason"><option value="">all</option>`, v.path())
	for _, r := range events.Reasons() {
		selected := literal("")
		if r.String() == v.events.reason {
			selected = " selected"
		}
		m.add(`<option`+selected+`>%s</option>`, r)
	}
	m.add(`</select></span>
<span class="grow"><label for="match">Line contains</label><input id="match" name="match" value="%s" placeholder="198.51.100.7" maxlength="100" autocomplete="off" spellcheck="false"></span>
<span class="bottom"><button id="show" hx-get="%sevents" hx-include="closest form" hx-target="#p-events">Show</button>
<button id="stop" name="stop" value="1" class="scripted" hx-get="%sevents" hx-target="#p-events">Stop</button></span>
<span><label for="seconds">Download</label><select id="seconds" name="seconds">`, v.events.match, v.path(), v.path())
	for _, d := range captureTimes {
		m.add(`<option value="%s">%s s</option>`, d, d)
	}
	m.add(`</select></span>
<span class="bottom"><button id="capture" formaction="%sevents/capture">Download pcapng</button></span></div></form>
<div id="p-events">`, v.path())
	v.eventsPart(m)
	m.add("</div></section>\n")
}

func (v *view) eventsPart(m *markup) {
	e := &v.events
	switch {
	case e.wrong != "":
		m.add(`<div class="result failed"><p>%s</p></div>`, e.wrong)
		return
	case !e.live && !e.looked:
		m.add(`<p>Packets that are dropped, or would be, sampled where there are many. While they are shown, the filter reports them; otherwise they cost nothing.</p>`)
		return
	}
	m.add(`<div class="scroll events" role="region" aria-label="Events" tabindex="0"`)
	swap := literal("")
	if e.live {
		m.add(` sse-connect="%sevents/live?%s" sse-close="ended"`, v.path(), e.query())
		swap = ` sse-swap="events" hx-swap="afterbegin"`
	}
	m.add(`><table><thead><tr>`)
	m.columns([]string{"Time", "Interface", "Verdict", "Reason", "List", "Protocol", "Source", "Destination", "#Bytes", "#One in"})
	m.add(`</tr></thead><tbody id="event-rows"` + swap + `>`)
	for _, row := range e.rows {
		writeEvent(m, &row)
	}
	m.add(`</tbody></table></div>`)
	if e.looked {
		m.add(`<p>Events of one second: %s</p>`, len(e.rows))
	}
}

func writeEvent(m *markup, e *api.Event) {
	class, _ := action(e.Drops())
	m.add(`<tr><td>%s</td><td>%s</td><td class="%s">%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td class="n">%s</td><td class="n">%s</td></tr>`,
		e.Time.Format("15:04:05.000"), e.Interface, class, e.Verdict, e.Reason, e.List, e.Proto, endpoint(e.Src, e.SrcPort), endpoint(e.Dst, e.DstPort), e.Length, e.OneIn)
}

// write writes the rows of the events of an interval.
func (b *batch) write(m *markup) {
	if b.lost > 0 {
		m.add(`<tr class="gap"><td colspan="10">%s events are missing here: there were too many</td></tr>`, count(b.lost))
	}
	if b.more > 0 {
		m.add(`<tr class="gap"><td colspan="10">and %s more in this half second</td></tr>`, count(b.more))
	}
	for _, e := range b.rows {
		writeEvent(m, &e)
	}
}
