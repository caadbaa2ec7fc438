package console

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"weir/control/api"
	"weir/filter/ordered"
)

// Limits on the lists that a page shows.
const (
	maxLists   = 1000 // rows, if all are shown
	maxSources = 50   // of a list
	maxNotes   = 10   // entries of a list that are left out
)

// orders are the orders of lists that a page offers, the first by default.
var orders = []struct{ name, says string }{
	{"rate", "rate now"}, {"packets", "packets caught"}, {"trouble", "trouble"}, {"entries", "entries"}, {"conversed", "conversed with"}, {"name", "name"},
}

// listQuestion says which lists a page shows.
type listQuestion struct {
	search, order string
	all           bool
	open          string // the name of a list that is shown with more about it
}

// ask takes the question from a query.
func (l *listQuestion) ask(query url.Values) {
	*l = listQuestion{strings.TrimSpace(query.Get("list")), query.Get("sort"), query.Get("all") != "", query.Get("open")}
}

// finds reports whether a list of the name is searched for.
func (l *listQuestion) finds(name string) bool {
	return strings.Contains(strings.ToLower(name), strings.ToLower(l.search))
}

// most returns the number of lists that are shown at most.
func (l *listQuestion) most() int {
	if l.all {
		return maxLists
	}
	return maxRows
}

// fields writes the fields of a form that asks it, with some orders, and the number of all lists.
func (l *listQuestion) fields(m *markup, orders int, order func(i int) (name, says string), of int) {
	checked := literal("")
	if l.all {
		checked = " checked"
	}
	m.add(`<span class="grow"><label for="list">Name contains</label><input id="list" name="list" value="%s" type="search" maxlength="64" autocomplete="off" spellcheck="false"></span>
<span><label for="sort">Sort by</label><select id="sort" name="sort">`, l.search)
	for i := range orders {
		name, says := order(i)
		selected := literal("")
		if name == l.order {
			selected = " selected"
		}
		m.add(`<option value="%s"`+selected+`>%s</option>`, name, says)
	}
	m.add(`</select></span>
<span class="bottom"><label class="choice"><input type="checkbox" id="all" name="all" value="1"`+checked+`> Show all %s</label></span>
`, count(of))
}

// listsView has the lists that a page shows.
type listsView struct {
	listQuestion

	rows    []listRow // in order, as searched
	of      int       // all lists
	sources int
	failing int
	opened  *listRow             // nil: it does not exist
	before  []api.SourceVersions // of the opened list
}

// listRow is a list with what orders it.
type listRow struct {
	*api.List
	rate    float64
	caught  uint64
	failing int        // sources
	good    *time.Time // when the source was last good that is the oldest
}

// troubled reports whether there is something to look into.
func (r *listRow) troubled() bool { return r.failing > 0 || len(r.LeftOut) > 0 || len(r.Spare) > 0 }

// conversed is the number of the list's addresses with which this host has conversed, -1 if
// that is not recorded.
func (r *listRow) conversed() int {
	if r.Collateral == nil {
		return -1
	}
	return r.Collateral.Addresses
}

// listsAsked adds the lists that a query asks for.
func (c *Console) listsAsked(q *http.Request, v *view) {
	l := &v.lists
	l.ask(q.URL.Query())
	lists, rates := c.daemon.Lists().Lists, v.listRates()
	l.of = len(lists)
	for i := range lists {
		r := listRow{List: &lists[i], rate: rates[lists[i].Name]}
		if r.Packets != nil {
			r.caught = *r.Packets
		}
		for _, f := range r.Feeds {
			l.sources++
			if f.Outcome == api.Failed {
				r.failing++
			}
			if f.Read != nil && (r.good == nil || f.Read.Before(*r.good)) {
				r.good = f.Read
			}
		}
		l.failing += r.failing
		if r.Name == l.open {
			l.opened = &r
		}
		if l.finds(r.Name) {
			l.rows = append(l.rows, r)
		}
	}
	if l.opened != nil && len(l.opened.Feeds) > 0 {
		of, err := c.daemon.Versions(q.Context(), l.open)
		if err != nil {
			v.Trouble = err.Error()
		}
		l.before = of.Sources
	}
	ordered.By(l.rows, func(a, b listRow) int {
		name := strings.Compare(a.Name, b.Name)
		rate := cmp.Or(cmp.Compare(b.rate, a.rate), cmp.Compare(b.caught, a.caught))
		switch l.order {
		case "packets":
			return cmp.Or(cmp.Compare(b.caught, a.caught), name)
		case "entries":
			return cmp.Or(cmp.Compare(b.Entries, a.Entries), name)
		case "conversed":
			return cmp.Or(cmp.Compare(b.conversed(), a.conversed()), name)
		case "trouble":
			return cmp.Or(cmp.Compare(b.failing, a.failing), cmp.Compare(trouble(!b.troubled()), trouble(!a.troubled())), rate, name)
		case "name":
			return name
		}
		return cmp.Or(rate, name)
	})
}

// trouble is 0 if there is some, so that it comes first.
func trouble(is bool) int {
	if is {
		return 0
	}
	return 1
}

// lists answers with the lists that are asked for.
func (c *Console) lists(w http.ResponseWriter, q *http.Request, one *session) {
	if !partial(q) {
		c.page(w, q, one)
		return
	}
	v := c.look(one)
	c.listsAsked(q, v)
	show(w, q, v.listsPart)
}

// listsSection writes the section of the lists. All requests for them are synchronized by
// the form: what an operator asks for replaces what is under way, and the one each 5 s gives
// way to it, so that its answer does not close the list that was just opened.
func (v *view) listsSection(m *markup) {
	l := &v.lists
	m.add(`<section class="full" id="lists" aria-labelledby="h-lists"><h2 id="h-lists">Lists</h2>
<form id="lists-form" method="get" action="%slists#lists" hx-get="%slists" hx-target="#p-lists" hx-trigger="input delay:150ms, submit" hx-sync="this:replace"><div class="row">
`, v.path(), v.path())
	l.fields(m, len(orders), func(i int) (name, says string) { return orders[i].name, orders[i].says }, l.of)
	m.add(`<noscript><span class="bottom"><button>Show</button></span></noscript></div></form>
<div hidden id="lists-poll" hx-get="%slists" hx-include="#lists-form" hx-target="#p-lists" hx-trigger="every 5s" hx-sync="#lists-form:abort"></div>
<div id="p-lists" hx-sync="#lists-form:replace">`, v.path())
	v.listsPart(m)
	m.add("</div></section>\n")
}

// listLink writes the name of a list as a link to its sources.
func (v *frame) listLink(m *markup, id, name string) {
	query := url.Values{"open": {name}}.Encode()
	m.add(`<a id="%s%s" href="%slists?%s#lists" hx-get="%slists?%s" hx-include="#list, #sort, #all" hx-target="#p-lists" hx-swap="innerHTML show:#lists:top">%s</a>`,
		id, name, v.path(), query, v.path(), query, name)
}

func (v *view) listsPart(m *markup) {
	l := &v.lists
	if l.open != "" {
		m.add(`<input type="hidden" name="open" value="%s" form="lists-form">`, l.open)
		v.listPart(m)
	}
	switch {
	case l.of == 0:
		m.add(`<p>There are no lists.</p>`)
		return
	case l.failing > 0:
		m.add(`<p><strong class="bad">Failing: %s of %s sources.</strong> Their last good contents stay active.</p>`, count(l.failing), count(l.sources))
	case l.sources > 0:
		m.add(`<p>No source fails, of %s.</p>`, count(l.sources))
	}
	shown := l.rows[:min(len(l.rows), l.most())]
	m.table("Lists", func() {
		for _, r := range shown {
			v.listRow(m, &r)
		}
		if len(shown) == 0 {
			m.add(`<tr><td colspan="8">No name contains that.</td></tr>`)
		}
	}, "List", "#Rate", "#Packets", "#Entries", "#Conversed with", "Action", "Sources", "Notes")
	if more := len(l.rows) - len(shown); more > 0 {
		m.add(`<p class="quiet">%s of %s are shown.</p>`, count(len(shown)), count(len(l.rows)))
	}
}

func (v *view) listRow(m *markup, r *listRow) {
	rate, caught := "–", "–"
	if r.Packets != nil {
		rate, caught = pps(r.rate), count(*r.Packets)
	}
	class, sources := "", "manual entries only"
	switch {
	case r.failing > 0:
		class, sources = "bad", count(r.failing)+" of "+count(len(r.Feeds))+" failing"
	case len(r.Feeds) > 0:
		sources = "good " + ago(r.good, v.Now)
	}
	conversed := ""
	if n := r.conversed(); n >= 0 {
		conversed = count(n)
	}
	var notes []string
	if r.Packets != nil && *r.Packets == 0 && r.Entries > 0 {
		notes = append(notes, "has never matched")
	}
	if n := len(r.LeftOut) + len(r.Spare); n > 0 {
		notes = append(notes, count(n)+" left out")
	}
	if r.Private > 0 {
		notes = append(notes, count(r.Private)+" private")
	}
	if r.onTrial() {
		notes = append(notes, "on trial")
	}
	m.add(`<tr><th scope="row">`)
	v.listLink(m, "l-", r.Name)
	m.add(`</th><td class="n">%s</td><td class="n">%s</td><td class="n">%s</td><td class="n">%s</td><td>%s %s</td><td class="%s">%s</td><td class="never">%s</td></tr>`+"\n",
		rate, caught, count(r.Entries), conversed, r.Action, r.Direction, class, sources, strings.Join(notes, ", "))
}

// listPart writes a list with its sources, and what can be done about them.
func (v *view) listPart(m *markup) {
	m.add(`<div class="opened">`)
	defer m.add("</div>\n")
	r := v.lists.opened
	if r == nil {
		m.add(`<p>There is no list %s.</p>`, v.lists.open)
		return
	}
	m.add(`<h3 id="h-list">%s <span class="quiet">%s entries, %s manual, priority %s</span></h3><div class="row">`, r.Name, count(r.Entries), count(r.Manual), r.Priority)
	if v.change() && len(r.Feeds) > 0 {
		quick(m, "refresh", "sure", refresh+" "+r.Name, "Read again", "Read the sources of "+r.Name+" again")
		quick(m, "rollback", "do", rollback+" "+r.Name, "Roll back…", "Return "+r.Name+" to what it had before")
		if r.acceptable() {
			quick(m, "accept", "do", accept+" "+r.Name, "Accept…", "Accept what the sources of "+r.Name+" have now")
		}
	}
	switch {
	case !v.change() || !r.mayBeOnTrial():
	case r.onTrial():
		quick(m, "enforce", "do", enforce+" "+r.Name, "Enforce…", "End the trial of list "+r.Name)
	case v.Status.Mode == "exact":
		quick(m, "enforce", "do", try+" "+r.Name, "Put on trial…", "Put list "+r.Name+" on trial")
	}
	m.add(`<a class="button" id="close" href="%s#lists" hx-get="%slists" hx-include="#list, #sort, #all" hx-target="#p-lists">Close</a></div>`, v.path(), v.path())
	if len(r.Feeds) > 0 {
		m.table("Sources of "+r.Name, func() {
			for _, f := range r.Feeds[:min(len(r.Feeds), maxSources)] {
				v.feed(m, r.Name, &f)
			}
			if more := len(r.Feeds) - maxSources; more > 0 {
				m.add(`<tr><td colspan="7">and %s more</td></tr>`, count(more))
			}
		}, "List", "Source", "Last attempt", "#Entries", "Last good", "Next", "Trouble")
	}
	v.versions(m)
	if r.Trial != nil {
		m.add(`<p class="never">The list %s.</p>`, r.Trial)
	}
	if r.conversed() > 0 {
		v.partners(m, r)
	}
	if r.For != "" {
		m.add(`<p>It is only for %s.</p>`, r.For)
	}
	var notes []string
	for _, o := range r.LeftOut {
		notes = append(notes, "left out: "+o.Entry+": "+o.Why())
	}
	for _, s := range r.Spare {
		notes = append(notes, "left out: "+s.String())
	}
	for _, n := range notes[:min(len(notes), maxNotes)] {
		m.add(`<p class="bad">%s</p>`, n)
	}
	if more := len(notes) - maxNotes; more > 0 {
		m.add(`<p class="bad">and %s more are left out</p>`, count(more))
	}
	if r.Private > 0 {
		done := "left out"
		if r.PrivateBlocked {
			done = "blocked"
		}
		m.add(`<p>%s entries of private networks are %s.</p>`, count(r.Private), done)
	}
}

// partners writes with which of the list's addresses this host has conversed.
func (v *view) partners(m *markup, r *listRow) {
	of := r.Collateral
	var some []string
	for _, p := range of.Latest {
		some = append(some, p.Addr.String()+" ("+ago(&p.Last, v.Now)+")")
	}
	if more := of.Addresses - len(some); more > 0 {
		some = append(some, count(more)+" more")
	}
	m.add(`<p>This host has conversed with %s addresses that the list has, %s of them in 24 hours: %s.</p>`,
		count(of.Addresses), count(of.Day), strings.Join(some, ", "))
}

// versions writes what the sources of the opened list had before.
func (v *view) versions(m *markup) {
	shown := 0
	for _, s := range v.lists.before[:min(len(v.lists.before), maxSources)] {
		if len(s.Versions) < 2 {
			continue
		}
		m.table("Versions of "+s.Source, func() {
			for i, of := range s.Versions {
				active, added, removed := "", "", ""
				if i == 0 {
					active = "active"
				}
				if i+1 < len(s.Versions) {
					added, removed = "+"+count(of.Added), "−"+count(of.Removed)
				}
				m.add(`<tr><th scope="row" class="long">%s</th><td>%s</td><td class="n">%s</td><td class="n">%s</td><td class="n">%s</td><td>%s</td><td><code>%s</code></td></tr>`+"\n",
					s.Source, stamp(of.Since), count(of.Entries), added, removed, active, of.SHA256[:min(len(of.SHA256), 12)])
			}
		}, "Versions of", "Since", "#Entries", "#Added", "#Removed", "-State", "SHA-256")
		shown++
	}
	if shown == 0 && len(v.lists.before) > 0 {
		m.add(`<p class="quiet">No version before this one is known: the last five are kept from the next change on.</p>`)
	}
}

// onTrial reports whether what the list matches passes.
func (r *listRow) onTrial() bool { return r.Trial != nil && !r.Trial.Enforced }

// mayBeOnTrial reports whether that can change: not of an allow list, or of one of the fleet,
// whose sources have versions.
func (r *listRow) mayBeOnTrial() bool {
	return r.Action == api.Block && !slices.ContainsFunc(r.Feeds, func(f api.FeedSource) bool { return f.Version != "" })
}

// acceptable reports whether a source of the list has something that was refused by a
// bound, or that an operator has returned from.
func (r *listRow) acceptable() bool {
	return slices.ContainsFunc(r.Feeds, func(f api.FeedSource) bool {
		return f.RolledBack != nil || f.Outcome == api.Failed && slices.Contains([]string{"shrunk", "grown", "refused"}, f.Failure)
	})
}
