package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"weir/control/api"
	"weir/control/api/server"
	"weir/control/fleet/wire"
	"weir/filter/ordered"
)

// What pages of a hub ask of it, and of its nodes, all pages together.
const (
	statusAge   = 2 * time.Second  // of the pages' contents
	talkersAge  = 10 * time.Second // of the largest flows, for which all nodes are asked
	maxAsking   = 2                // explanations at a time
	maxNodes    = 100              // rows
	maxNames    = 8                // of nodes with the same answer
	maxVersions = 3                // of a list, that are shown beside the last

	statusTimeout = 5 * time.Second
	askTimeout    = 20 * time.Second
)

// fleet is the console of a hub.
type fleet struct {
	c      *Console
	hub    server.Hub
	asking chan struct{}

	mu      sync.Mutex // guards the following
	status  api.HubStatus
	failed  error                  // to get it
	asked   time.Time              // when it was asked for
	got     bool                   // once at least
	traffic map[string]nodeTraffic // replaced, not changed
	top     *api.FleetTop          // nil: not yet
	topErr  error
	topAt   time.Time
	topping bool // the nodes are asked
}

// nodeTraffic has a node's counts between its last two reports.
type nodeTraffic struct {
	seen            time.Time
	passed, dropped uint64
	known           bool    // there were two
	passing         float64 // packets per second
	dropping        float64
}

// NewHub is [New] for a hub.
func NewHub(h server.Hub, address string, secure bool, version string) *Console {
	c := newConsole("weir fleet console", address, secure, version)
	f := &fleet{c: c, hub: h, asking: make(chan struct{}, maxAsking), traffic: make(map[string]nodeTraffic)}
	c.host, c.changer, c.opener = "hub "+c.host, f, h
	c.at("GET {$}", f.page)
	c.at("GET live", f.live)
	c.at("GET explain", f.explain)
	return c
}

// fleetView is the contents of a hub's page.
type fleetView struct {
	frame
	status  api.HubStatus
	got     bool   // it is known, if not the latest
	trouble string // why that is missing
	traffic map[string]nodeTraffic
	top     *api.FleetTop
	topErr  error
	audit   []api.AuditRecord

	answers *api.FleetExplanation
}

// look returns what a page shows.
func (f *fleet) look(ctx context.Context, one *session) *fleetView {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.asked) >= statusAge {
		// The answer is for all pages, also if this one is closed meanwhile.
		soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), statusTimeout)
		status, err := f.hub.Fleet(soon)
		cancel()
		if f.failed = err; err == nil {
			f.status, f.got = status, true
			f.count()
		}
		f.asked = time.Now()
	}
	if !f.topping && time.Since(f.topAt) >= talkersAge {
		f.topping = true
		go f.askTop()
	}
	v := &fleetView{frame: f.c.frame(one), status: f.status, got: f.got, traffic: f.traffic, top: f.top, topErr: f.topErr, audit: f.hub.Audit(maxChanges)}
	if f.failed != nil {
		v.trouble = f.failed.Error()
	}
	return v
}

// askTop asks all nodes for their largest flows.
func (f *fleet) askTop() {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	top, err := f.hub.Top(ctx, nil, api.FleetTopQuestion{Key: "src", Unit: "packets", Share: api.DefaultShare})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.topping, f.topErr, f.topAt = false, err, time.Now()
	if err == nil {
		f.top = &top
	}
}

// count computes the rates of nodes from their reports. The caller has locked mu.
func (f *fleet) count() {
	now := make(map[string]nodeTraffic, len(f.status.Nodes))
	for _, n := range f.status.Nodes {
		if n.Report == nil || n.Seen == nil || n.State == api.NodeSilent || n.State == api.NodeRevoked {
			continue
		}
		before, had := f.traffic[n.Name]
		if had && !n.Seen.After(before.seen) {
			now[n.Name] = before
			continue
		}
		t := nodeTraffic{seen: *n.Seen, passed: n.Report.Passed, dropped: n.Report.Dropped}
		// Less than before: the node counts anew.
		if had && t.passed >= before.passed && t.dropped >= before.dropped {
			seconds := max(1, t.seen.Sub(before.seen).Seconds())
			t.known, t.passing, t.dropping = true, float64(t.passed-before.passed)/seconds, float64(t.dropped-before.dropped)/seconds
		}
		now[n.Name] = t
	}
	f.traffic = now
}

// page answers with the whole page, and the answer to a question.
func (f *fleet) page(w http.ResponseWriter, q *http.Request, one *session) {
	v := f.look(q.Context(), one)
	f.answer(q, v)
	show(w, q, v.page)
}

var fleetPanels = []panel[*fleetView]{
	{"alerts", 1, (*fleetView).alerts},
	{"now", 1, (*fleetView).now},
	{"rollouts", 1, (*fleetView).rollouts},
	{"nodes", 1, (*fleetView).nodes},
	{"talkers", 1, (*fleetView).talkers},
	{"lists", 1, (*fleetView).lists},
	{"feeds", slowTicks, (*fleetView).feeds},
	{"audit", slowTicks, (*fleetView).changes},
}

func (f *fleet) live(w http.ResponseWriter, q *http.Request, one *session) {
	follow(f.c, w, q, one, fleetPanels, func(int) *fleetView { return f.look(q.Context(), one) })
}

// answer adds the answer to the question of a request, if it has one.
func (f *fleet) answer(q *http.Request, v *fleetView) {
	if v.Question = strings.TrimSpace(q.URL.Query().Get("q")); v.Question == "" {
		return
	}
	select {
	case f.asking <- struct{}{}:
	case <-q.Context().Done():
		return
	}
	defer func() { <-f.asking }()
	ctx, cancel := context.WithTimeout(q.Context(), askTimeout)
	defer cancel()
	e, err := f.hub.Explain(ctx, nil, v.Question)
	if err != nil {
		v.Wrong = err.Error()
		return
	}
	v.answers = &e
}

func (f *fleet) explain(w http.ResponseWriter, q *http.Request, one *session) {
	if !partial(q) {
		f.page(w, q, one)
		return
	}
	v := &fleetView{frame: f.c.frame(one)}
	f.answer(q, v)
	show(w, q, v.answer)
}

// notPublished follows what a hub has done.
const notPublished = ". It is not published yet: nodes get it as soon as the hub can publish it"

func (f *fleet) apply(ctx context.Context, change api.Change) (api.Changed, string, error) {
	done, err := f.hub.Change(ctx, change)
	note := " on all nodes"
	if !done.Published {
		note += notPublished
	}
	return done.Changed, strings.Join(append([]string{note}, done.Warnings...), ". "), err
}

// present implements [changer]: a hub does not list its manual entries.
func (f *fleet) present(context.Context, api.Change) *api.Entry { return nil }

func (f *fleet) changed(ctx context.Context, one *session) func(*markup) {
	v := &fleetView{frame: f.c.frame(one), audit: f.hub.Audit(maxChanges)}
	return func(m *markup) {
		v.resultPart(m)
		m.add(`<div id="p-audit" hx-swap-oob="innerHTML">`)
		v.changes(m)
		m.add(`</div>`)
	}
}

func (v *fleetView) changes(m *markup) { changes(m, v.audit) }

// rolled says what became of rollouts.
var rolled = map[string]string{
	api.RollPause: "is paused", api.RollResume: "goes on", api.RollForward: "goes to all nodes", api.RollRollback: "is rolled back",
}

// setTrial ends the trial of a list, or begins one.
func (f *fleet) setTrial(ctx context.Context, what string) result {
	do, list, _ := strings.Cut(what, " ")
	if do != enforce && do != try || list == "" {
		return failed(fmt.Errorf("trial=%.60q: want enforce or try, and a list", what))
	}
	done, err := f.hub.Enforce(ctx, list, api.EnforceChange{Off: do == try})
	if err != nil {
		return failed(err)
	}
	r := result{text: strings.Join(append([]string{"On all nodes " + done.String()}, done.Warnings...), ". "), undo: -1}
	if !done.Published {
		r.text += notPublished
	}
	return r
}

// act changes the course of a rollout, or the trial of a list.
func (f *fleet) act(ctx context.Context, form url.Values) (result, bool) {
	if what := form.Get("trial"); what != "" {
		return f.setTrial(ctx, what), true
	}
	text := form.Get("roll")
	if text == "" {
		return result{}, false
	}
	do, list, _ := strings.Cut(text, " ")
	if rolled[do] == "" || list == "" {
		return failed(fmt.Errorf("roll=%.60q: want pause, resume, forward or rollback, and a list", text)), true
	}
	done, err := f.hub.Roll(ctx, api.FleetRoll{Do: do, List: list})
	if err != nil {
		return failed(err), true
	}
	r := result{text: "The rollout of " + strings.Join(done.Lists, ", ") + " " + rolled[do], undo: -1}
	if !done.Published {
		r.text += notPublished
	}
	return r, true
}

func (v *fleetView) page(m *markup) {
	v.begin(m)
	v.frame.top(m, "", v.alerts, v.now)
	section(m, "full", "rollouts", "Rollouts", v.rollouts)
	v.explainForm(m, "half", v.answer)
	v.changeForm(m, "half")
	section(m, "full", "nodes", "Nodes", v.nodes)
	section(m, "wide", "talkers", "Top talkers of all nodes", v.talkers)
	section(m, "wide", "lists", "Lists", v.lists)
	section(m, "wide", "feeds", "Feeds", v.feeds)
	section(m, "wide", "audit", "Changes", v.changes)
	end(m)
}

func (v *fleetView) alerts(m *markup) {
	if v.trouble != "" {
		alert(m, "bad", "The hub does not answer:", v.trouble)
	}
	if v.got && !v.status.Connected {
		alert(m, "bad", "The broker cannot be reached.", "Nodes go on filtering by what they have.")
	}
	for _, p := range v.status.Problems {
		alert(m, "bad", "", p)
	}
	states := v.states()
	for _, s := range []struct{ state, text string }{
		{api.NodeSilent, "They do not report."}, {api.NodeStale, "They do not hear the hub."}, {api.NodeBehind, "They do not have the versions that they are to have yet."},
	} {
		if n := states[s.state]; n > 0 {
			alert(m, "monitor", fmt.Sprintf("Nodes %s: %d of %d.", s.state, n, len(v.status.Nodes)-states[api.NodeRevoked]), s.text)
		}
	}
}

// states returns the number of nodes by state.
func (v *fleetView) states() map[string]int {
	states := make(map[string]int)
	for _, n := range v.status.Nodes {
		states[n.State]++
	}
	return states
}

func (v *fleetView) now(m *markup) {
	var passing, dropping float64
	counted, latest := 0, time.Time{}
	for _, t := range v.traffic {
		if !t.known {
			continue
		}
		passing, dropping = passing+t.passing, dropping+t.dropping
		if counted++; t.seen.After(latest) {
			latest = t.seen
		}
	}
	states := v.states()
	all := []figure{{"", "Nodes", count(len(v.status.Nodes) - states[api.NodeRevoked])}, {"", "Current", count(states[api.NodeCurrent])}}
	if counted == 0 {
		m.add(`<dl class="figures">`)
		writeFigures(m, all)
		m.add("</dl>\n<p>No rates yet: they need two reports of a node, which come every ten seconds.</p>")
		return
	}
	figures(m, latest, passing, dropping, append(all,
		figure{"is-passed", "Passed", pps(passing)}, figure{"is-dropped", "Dropped", pps(dropping)},
		figure{"", "Of all", share(dropping / max(1, passing+dropping))}, figure{"", "Of nodes", count(counted)}))
}

// order is that in which nodes are shown, by their states.
var order = []string{api.NodeSilent, api.NodeStale, api.NodeBehind, api.NodeUnseen, api.NodeCurrent, api.NodeRevoked}

func (v *fleetView) nodes(m *markup) {
	if len(v.status.Nodes) == 0 {
		m.add(`<p>No node was enrolled: <code>weir hub enroll</code> does that.</p>`)
		return
	}
	all := slices.Clone(v.status.Nodes)
	ordered.By(all, func(a, b api.FleetNode) int {
		return cmp.Compare(slices.Index(order, a.State), slices.Index(order, b.State))
	})
	m.table("Nodes", func() {
		for _, n := range all[:min(len(all), maxNodes)] {
			v.node(m, &n)
		}
	}, "Node", "Labels", "State", "Report", "Version", "#Passed", "#Dropped", "Trouble")
	if more := len(all) - maxNodes; more > 0 {
		m.add(`<p>and %s more: <code>weir fleet status</code> lists all.</p>`, count(more))
	}
}

func (v *fleetView) node(m *markup, n *api.FleetNode) {
	class, version, passing, dropping := "", "–", "–", "–"
	switch n.State {
	case api.NodeSilent, api.NodeStale:
		class = "bad"
	case api.NodeBehind:
		class = "never"
	}
	var trouble []string
	if r := n.Report; r != nil {
		version, trouble = r.Version, slices.Clone(r.Problems)
		for _, l := range r.Lists {
			switch {
			case l.Error != "":
				trouble = append(trouble, "list "+l.Name+": "+l.Error)
			case l.Active != l.Wanted:
				trouble = append(trouble, fmt.Sprintf("list %s has version %v, wants %v", l.Name, l.Active, l.Wanted))
			}
		}
	}
	if t := v.traffic[n.Name]; t.known {
		passing, dropping = pps(t.passing), pps(t.dropping)
	}
	m.add(`<tr><th scope="row">%s</th><td>%s</td><td class="%s">%s</td><td>%s</td><td><bdi>%s</bdi></td><td class="n">%s</td><td class="n">%s</td><td class="long"><bdi>%s</bdi></td></tr>`+"\n",
		n.Name, strings.Join(n.Labels, ", "), class, n.State, ago(n.Seen, v.Now), version, passing, dropping, strings.Join(trouble, "; "))
}

func (v *fleetView) lists(m *markup) {
	columns := []string{"List", "Action", "#Entries", "#Manual", "Version", "Published", "Nodes", "Conversed with, in 24h"}
	if v.change() {
		columns = append(columns, "-Trial")
	}
	m.table("Lists", func() {
		for _, l := range v.status.Lists {
			published := "yes"
			if l.Published != l.Version {
				published = "up to " + l.Published.String()
			}
			conversed := "–"
			if l.Collateral != nil {
				conversed = l.Collateral.String()
			}
			m.add(`<tr><th scope="row">%s</th><td>%s</td><td class="n">%s</td><td class="n">%s</td><td>%s</td><td>%s</td><td class="long">%s</td><td class="long">%s</td>`,
				l.Name, l.Does(), count(l.Entries), count(l.Manual), l.Version, published, v.versions(l.Name, l.Version), conversed)
			if v.change() {
				m.add(`<td>`)
				switch {
				case l.Action == api.Allow:
				case l.Trial:
					quick(m, "trial-"+l.Name, "trial", enforce+" "+l.Name, "Enforce", "have all nodes drop what list "+l.Name+" matches")
				default:
					quick(m, "trial-"+l.Name, "trial", try+" "+l.Name, "Try", "put list "+l.Name+" on trial: nodes count what it matches, and drop nothing of it")
				}
				m.add(`</td>`)
			}
			m.add("</tr>\n")
		}
	}, columns...)
}

// versions says how many nodes have which version of a list.
func (v *fleetView) versions(name string, last wire.Place) string {
	have := make(map[wire.Place]int)
	for _, n := range v.status.Nodes {
		if n.Report == nil || n.State == api.NodeRevoked {
			continue
		}
		for _, l := range n.Report.Lists {
			if l.Name == name {
				have[l.Active]++
			}
		}
	}
	texts := []string{fmt.Sprintf("%d have it", have[last])}
	delete(have, last)
	var others []wire.Place
	for p := range have {
		others = append(others, p)
	}
	ordered.By(others, func(a, b wire.Place) int {
		return cmp.Or(cmp.Compare(have[b], have[a]), cmp.Compare(b.Epoch, a.Epoch), cmp.Compare(b.Version, a.Version))
	})
	for _, p := range others[:min(len(others), maxVersions)] {
		texts = append(texts, fmt.Sprintf("%d have %v", have[p], p))
	}
	if len(others) > maxVersions {
		texts = append(texts, "others have others")
	}
	return strings.Join(texts, ", ")
}

func (v *fleetView) feeds(m *markup) {
	all := make([]listFeeds, 0, len(v.status.Lists))
	for _, l := range v.status.Lists {
		all = append(all, listFeeds{l.Name, l.Feeds})
	}
	v.feedsOf(m, all)
}

func (v *fleetView) rollouts(m *markup) {
	columns := []string{"List", "State", "From", "To", "Wave", "Confirmed", "Would drop", "Because"}
	if v.change() {
		columns = append(columns, "-Action")
	}
	var all []api.FleetList
	for _, l := range v.status.Lists {
		if l.Rollout != nil {
			all = append(all, l)
		}
	}
	if len(all) == 0 {
		m.add(`<p>There are none. Changes reach all nodes at once, unless <code>rollout</code> in hub.yaml has waves.</p>`)
		return
	}
	m.table("Rollouts", func() {
		for _, l := range all {
			v.rollout(m, l.Name, l.Rollout)
		}
	}, columns...)
	for _, l := range all {
		if c := &l.Rollout.Collateral; l.Rollout.Active() && c.Measured+c.Unmeasured > 0 {
			m.add(`<p class="quiet">Nodes that have conversed in 24h with additions to list %s: %s</p>`, l.Name, c.String())
		}
		for _, a := range l.Rollout.Top {
			m.add(`<p class="quiet">List %s would drop %s packets from %s on %s: entry <code>%s</code>, packet <code>%s</code></p>`, l.Name, count(a.Packets), a.Source, a.Node, a.Entry, a.Packet)
		}
	}
}

func (v *fleetView) rollout(m *markup, list string, r *api.FleetRollout) {
	class, would, confirmed, wave, why := "", "–", "–", "–", r.Reason
	var can []string
	switch r.State {
	case api.RolloutRunning:
		can = []string{api.RollPause, api.RollForward, api.RollRollback}
	case api.RolloutPaused:
		class, can = "never", []string{api.RollResume, api.RollForward, api.RollRollback}
	case api.RolloutHalted:
		class, can = "bad", []string{api.RollResume, api.RollForward, api.RollRollback}
	case api.RolloutDone:
		can = []string{api.RollRollback}
	}
	if r.WaitsFor != "" {
		why = strings.TrimSpace(why + " waits for " + r.WaitsFor)
	}
	if r.Passed > 0 {
		would = fmt.Sprintf("%.3g %% of %s, limit %.3g %%", 100*float64(r.WouldDrop)/float64(r.Passed), count(r.Passed), 100*r.Limit)
	}
	if r.Active() {
		wave = fmt.Sprintf("%d of %d", r.Wave, len(r.Waves))
		if i := r.Wave - 1; i >= 0 && i < len(r.Waves) {
			wave += ", " + r.Waves[i].Mode
		}
		confirmed = fmt.Sprintf("%d of %d, %d needed", r.Confirmed, r.Nodes, r.Needed)
	}
	m.add(`<tr><th scope="row">%s</th><td class="%s">%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td class="long">%s</td>`,
		list, class, r.State, r.From, r.To, wave, confirmed, would, why)
	if v.change() {
		m.add(`<td>`)
		for _, do := range can {
			quick(m, "roll-"+do+"-"+list, "roll", do+" "+list, strings.ToUpper(do[:1])+do[1:], do+": the rollout of "+list)
			m.add(" ")
		}
		m.add(`</td>`)
	}
	m.add("</tr>\n")
}

func (v *fleetView) talkers(m *markup) {
	if v.topErr != nil {
		m.add(`<p class="bad">%s</p>`, v.topErr.Error())
	}
	if v.top == nil {
		m.add(`<p>The nodes are being asked.</p>`)
		return
	}
	columns := []string{"Source", "#Rate", "#At least", "#Share", "#Nodes"}
	if v.change() {
		columns = append(columns, "-Action")
	}
	m.table("Top talkers of all nodes", func() {
		for _, t := range v.top.Flows[:min(len(v.top.Flows), maxRows)] {
			m.add(`<tr><th scope="row">`)
			v.flow(m, "x-"+t.Key, t.Key)
			m.add(`</th><td class="n">%s</td><td class="n">%s</td><td class="n">%s</td><td class="n">%s</td>`, pps(t.Rate), pps(t.Least), share(t.Share), t.Nodes)
			if v.change() {
				m.add(`<td>`)
				quick(m, "b-"+t.Key, "block", t.Key, "Block 1 h", "Block "+t.Key+" on all nodes for an hour")
				m.add(`</td>`)
			}
			m.add("</tr>\n")
		}
		if len(v.top.Flows) == 0 {
			m.add(`<tr><td colspan="6">No source is known to have a share of %s.</td></tr>`, share(v.top.Share))
		}
	}, columns...)
	m.add(`<p class="quiet">No other source has more than %s (%s), by what the nodes know.</p>`, pps(v.top.Rest), share(v.top.Rest/max(v.top.Rate, 1e-9)))
	problems := make(map[string][]string)
	for _, n := range v.top.Nodes {
		if n.Problem != "" {
			problems[n.Problem] = append(problems[n.Problem], n.Node)
		}
	}
	for _, p := range sortedByNodes(problems) {
		m.add(`<p class="quiet">Without %s: %s</p>`, names(problems[p]), p)
	}
}

// sortedByNodes returns the keys, those of most nodes first.
func sortedByNodes(nodes map[string][]string) []string {
	var all []string
	for k := range nodes {
		all = append(all, k)
	}
	ordered.By(all, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(nodes[b]), len(nodes[a])), strings.Compare(a, b))
	})
	return all
}

// names returns the names of nodes, of which there may be many.
func names(nodes []string) string {
	text := strings.Join(nodes[:min(len(nodes), maxNames)], ", ")
	if more := len(nodes) - maxNames; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// answer writes the answer to the question: nodes with the same answer together.
func (v *fleetView) answer(m *markup) {
	if v.Wrong != "" {
		m.add(`<div class="result failed"><p>%s</p></div>`, v.Wrong)
	}
	if v.answers == nil {
		return
	}
	nodes, first := make(map[string][]string), make(map[string]*api.NodeExplanation)
	for i, n := range v.answers.Nodes {
		texts := []string{n.Problem}
		if n.Explanation != nil {
			for _, a := range n.Explanation.Answers {
				texts = append(texts, fmt.Sprint(a.Packet, a.Verdict, a.Reason, a.List))
			}
		}
		same := strings.Join(texts, "\n")
		nodes[same] = append(nodes[same], n.Node)
		if first[same] == nil {
			first[same] = &v.answers.Nodes[i]
		}
	}
	for _, same := range sortedByNodes(nodes) {
		m.add(`<h3>%s of %s nodes: %s</h3>`, len(nodes[same]), len(v.answers.Nodes), names(nodes[same]))
		if p := first[same].Problem; p != "" {
			m.add(`<p class="bad">%s</p>`, p)
		}
		if e := first[same].Explanation; e != nil {
			for _, a := range e.Answers {
				v.explanation(m, &a)
			}
		}
	}
	v.changeAsked(m, false)
}
