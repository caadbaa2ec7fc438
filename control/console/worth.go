package console

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"weir/control/api"
	"weir/filter/ordered"
)

// Limits on what the page of lists shows.
const (
	valuedWithin = time.Minute // how long what lists are worth is shown: it takes a pass over all entries
	maxAlsoIn    = 2           // lists, in a row
	maxOverlaps  = 50          // of the opened list
	maxPartners  = 50          // of the opened list
	day          = 24 * time.Hour
)

// valued has the worth of lists, as it was counted.
type valued struct {
	at  time.Time
	all api.ListsWorth
}

// worthView has the contents of the page of lists.
type worthView struct {
	listQuestion

	valued
	wrong  string // about the question
	rows   []worthRow
	of     int       // all lists
	opened *worthRow // nil: it does not exist

	// Of the opened list.
	days     []api.HistoryPoint // with what was recorded of it, the latest first
	partners *api.ListCollateral
}

// worthRow is a list with its worth.
type worthRow struct {
	api.ListWorth
	sum   api.MonthPackets // of all months
	trial bool
}

// drops reports whether the list may have dropped addresses that are known.
func (r *worthRow) drops(w *api.ListsWorth) bool { return w.Tracked && r.Action == api.Block }

// unseen is the number of entries that no address was in which was dropped.
func (r *worthRow) unseen() int { return max(0, r.Entries-r.Seen) }

// conversed is the number of the list's addresses with which this host has conversed, -1 if
// that is not recorded.
func (r *worthRow) conversed() int {
	if r.Collateral == nil {
		return -1
	}
	return *r.Collateral
}

// overlap is the largest part of the list's entries that another list covers.
func (r *worthRow) overlap() float64 {
	if len(r.Overlaps) == 0 {
		return 0
	}
	return r.Share(r.Overlaps[0])
}

func (r *worthRow) age() int { _, rank := r.Ages.Half(); return rank }

// worthOrders are the orders of lists by what they are worth, the first by default. Where they are
// equal, names decide.
var worthOrders = []struct {
	name, says string
	compare    func(a, b *worthRow) int
}{
	{"alone", "dropped by it alone", func(a, b *worthRow) int { return cmp.Compare(b.AlonePackets, a.AlonePackets) }},
	{"hour", "last hour", func(a, b *worthRow) int { return cmp.Compare(b.AddressPackets, a.AddressPackets) }},
	{"month", "30 days", func(a, b *worthRow) int { return cmp.Compare(b.sum.Packets, a.sum.Packets) }},
	{"entries", "entries", func(a, b *worthRow) int { return cmp.Compare(b.Entries, a.Entries) }},
	{"unseen", "entries not seen", func(a, b *worthRow) int { return cmp.Compare(b.unseen(), a.unseen()) }},
	{"conversed", "conversed with", func(a, b *worthRow) int { return cmp.Compare(b.conversed(), a.conversed()) }},
	{"age", "age of entries", func(a, b *worthRow) int { return cmp.Compare(b.age(), a.age()) }},
	{"overlap", "overlap", func(a, b *worthRow) int { return cmp.Compare(b.overlap(), a.overlap()) }},
	{"name", "name", func(*worthRow, *worthRow) int { return 0 }},
}

// worths returns what lists are worth, which is counted once a minute for all pages.
func (c *Console) worths(ctx context.Context) (valued, error) {
	c.valuing.Lock()
	defer c.valuing.Unlock()
	now := c.sessions.now()
	if age := now.Sub(c.valued.at); age >= 0 && age < valuedWithin {
		return c.valued, nil
	}
	all, err := c.daemon.Worth(ctx)
	if err != nil {
		return valued{}, err
	}
	c.valued = valued{at: now, all: all}
	return c.valued, nil
}

// worth answers with what lists are worth.
func (c *Console) worth(w http.ResponseWriter, q *http.Request, one *session) {
	v := c.look(one)
	v.beside = true
	c.worthAsked(q, v)
	if partial(q) {
		show(w, q, v.worthPart)
		return
	}
	show(w, q, v.worthPage)
}

// worthAsked adds the lists that a query asks for.
func (c *Console) worthAsked(q *http.Request, v *view) {
	l := &v.worth
	l.ask(q.URL.Query())
	var err error
	if l.valued, err = c.worths(q.Context()); err != nil {
		l.wrong = err.Error()
		return
	}
	trial := make(map[string]bool)
	for _, of := range c.daemon.Lists().Lists {
		trial[of.Name] = of.Trial != nil && !of.Trial.Enforced
	}
	l.of = len(l.valued.all.Lists)
	for _, of := range l.valued.all.Lists {
		r := worthRow{ListWorth: of, trial: trial[of.Name]}
		for _, m := range of.Months {
			r.sum.Packets += m.Packets
			r.sum.Alone += m.Alone
			r.sum.Conversed = max(r.sum.Conversed, m.Conversed)
		}
		if r.Name == l.open {
			l.opened = &r
		}
		if l.finds(r.Name) {
			l.rows = append(l.rows, r)
		}
	}
	compare := worthOrders[0].compare
	for _, o := range worthOrders {
		if o.name == l.order {
			compare = o.compare
		}
	}
	ordered.By(l.rows, func(a, b worthRow) int { return cmp.Or(compare(&a, &b), strings.Compare(a.Name, b.Name)) })
	if l.opened != nil {
		c.worthOpened(q.Context(), v)
	}
}

// worthOpened adds what is shown of the opened list alone.
func (c *Console) worthOpened(ctx context.Context, v *view) {
	l := &v.worth
	past := c.past(ctx, v, api.HistoryQuestion{Since: api.MaxHistory, Step: day})
	past.Of(l.open)
	for _, p := range slices.Backward(past.Points) {
		if len(p.Lists) > 0 {
			l.days = append(l.days, p)
		}
	}
	if l.opened.conversed() <= 0 {
		return
	}
	all, err := c.daemon.Collateral(ctx, l.open)
	if err != nil {
		v.Trouble = err.Error()
		return
	}
	if len(all.Lists) > 0 {
		l.partners = &all.Lists[0]
	}
}

// worthPage writes a page that has what lists are worth alone.
func (v *view) worthPage(m *markup) {
	v.begin(m)
	l := &v.worth
	m.add(`<section class="full" id="worth" aria-labelledby="h-worth"><h2 id="h-worth">Lists <span class="quiet">and what they are worth</span></h2>
<form id="worth-form" method="get" action="%sworth" hx-get="%sworth" hx-target="#p-worth" hx-trigger="input delay:150ms, submit" hx-sync="this:replace"><div class="row">
`, v.path(), v.path())
	l.fields(m, len(worthOrders), func(i int) (name, says string) { return worthOrders[i].name, worthOrders[i].says }, l.of)
	m.add(`<span class="bottom"><button>Show</button></span></div></form>
<div id="p-worth" hx-sync="#worth-form:replace">`)
	v.worthPart(m)
	m.add("</div></section>\n")
	end(m)
}

// worthLink writes the name of a list as a link to what it is worth.
func (v *view) worthLink(m *markup, id, name string) {
	query := url.Values{"open": {name}}.Encode()
	m.add(`<a id="%s%s" href="%sworth?%s" hx-get="%sworth?%s" hx-include="#list, #sort, #all" hx-target="#p-worth" hx-swap="innerHTML show:#worth:top">%s</a>`,
		id, name, v.path(), query, v.path(), query, name)
}

func (v *view) worthPart(m *markup) {
	l := &v.worth
	if l.wrong != "" {
		m.add(`<div class="result failed"><p>%s</p></div>`, l.wrong)
		return
	}
	if l.open != "" {
		m.add(`<input type="hidden" name="open" value="%s" form="worth-form">`, l.open)
		v.worthOfList(m)
	}
	if l.of == 0 {
		m.add(`<p>There are no lists.</p>`)
		return
	}
	shown := l.rows[:min(len(l.rows), l.most())]
	m.table("What lists are worth", func() {
		for _, r := range shown {
			v.worthRow(m, &r)
		}
		if len(shown) == 0 {
			m.add(`<tr><td colspan="9">No name contains that.</td></tr>`)
		}
	}, "List", "#30 days", "#Last hour", "#Alone", "#Entries", "#Not seen", "#Conversed with", "Age", "Also in")
	if more := len(l.rows) - len(shown); more > 0 {
		m.add(`<p class="quiet">%s of %s are shown.</p>`, count(len(shown)), count(len(l.rows)))
	}
	known := "Dropped addresses are not known: set track_drops: true."
	if l.valued.all.Tracked {
		known = "Last hour, alone (what no other list would have dropped) and not seen: by the dropped addresses that are known since " + stamp(l.valued.all.Since) + ", those with the most packets."
	}
	m.add(`<p class="quiet">Packets. %s Counted %s, and again when it is asked for after a minute.</p>`, known, ago(&l.valued.at, v.Now))
}

func (v *view) worthRow(m *markup, r *worthRow) {
	month, hour, alone, unseen, conversed := "–", "–", "–", "–", ""
	if r.Packets != nil {
		month = count(r.sum.Packets)
	}
	if r.drops(&v.worth.valued.all) {
		hour, alone, unseen = count(r.AddressPackets), count(r.AlonePackets), count(r.unseen())
	}
	if n := r.conversed(); n >= 0 {
		conversed = count(n)
	}
	m.add(`<tr><th scope="row">`)
	v.worthLink(m, "w-", r.Name)
	note := ""
	switch {
	case r.Action == api.Allow:
		note = "allow"
	case r.trial:
		note = "on trial"
	}
	m.add(` <span class="quiet">%s</span></th><td class="n">%s</td><td class="n">%s</td><td class="n">%s</td><td class="n">%s</td><td class="n">%s</td><td class="n">%s</td><td>%s</td><td>%s</td></tr>`+"\n",
		note, month, hour, alone, count(r.Entries), unseen, conversed, r.Ages, r.AlsoIn(maxAlsoIn))
}

// worthOfList writes what the opened list is worth: by month and day, its overlaps, and with whom this
// host has conversed.
func (v *view) worthOfList(m *markup) {
	m.add(`<div class="opened">`)
	defer m.add("</div>\n")
	l := &v.worth
	r := l.opened
	if r == nil {
		m.add(`<p>There is no list %s.</p>`, l.open)
		return
	}
	open := url.Values{"open": {r.Name}}.Encode()
	m.add(`<h3 id="h-list">%s</h3><div class="row"><a class="button" href="%slists?%s#lists">Sources, versions and changes</a>
<a class="button" id="close" href="%sworth" hx-get="%sworth" hx-include="#list, #sort, #all" hx-target="#p-worth">Close</a></div>
`, r.Name, v.path(), open, v.path(), v.path())
	if r.drops(&l.valued.all) {
		does := "It has dropped"
		if r.trial {
			does = "On trial, it would have dropped"
		}
		m.add(`<p>%s %s sources of the last hour, %s of them alone. `, does, count(r.Addresses), count(r.Alone))
		if of := l.partners; of != nil {
			m.add(`This host has conversed with %s of its addresses, %s of them in 24 hours.`, count(of.Addresses), count(of.Day))
		}
		m.add(`</p>`)
	}
	m.add(`<div class="groups"><div>`)
	m.table("By month and by day", func() {
		row := func(when string, n api.MonthPackets) {
			m.add(`<tr><th scope="row">%s</th><td class="n">%s</td><td class="n">%s</td><td class="n">%s</td></tr>`+"\n", when, count(n.Packets), count(n.Alone), count(n.Conversed))
		}
		for _, of := range r.Months {
			row(of.Month, of)
		}
		for _, p := range l.days {
			of := p.Lists[0]
			row(p.Time.UTC().Format(time.DateOnly), api.MonthPackets{Packets: of.Packets, Alone: of.Alone, Conversed: of.Conversed})
		}
		if len(r.Months)+len(l.days) == 0 {
			m.add(`<tr><td colspan="4">Nothing is recorded.</td></tr>`)
		}
	}, "Month or day", "#Matched", "#Alone", "#Conversed with in a day")
	m.add(`</div><div>`)
	m.table("Overlaps", func() {
		for _, o := range r.Overlaps[:min(len(r.Overlaps), maxOverlaps)] {
			back := ""
			for _, other := range l.valued.all.Lists {
				if other.Name == o.List {
					back = backwards(&other, r.Name)
				}
			}
			m.add(`<tr><th scope="row">`)
			v.worthLink(m, "o-", o.List)
			m.add(`</th><td class="n">%s</td><td class="n">%s</td><td class="n">%s</td></tr>`+"\n", count(o.Entries), share(r.Share(o)), back)
		}
		if len(r.Overlaps) == 0 {
			m.add(`<tr><td colspan="4">No other list has any of its entries.</td></tr>`)
		}
	}, "Also in", "#Entries", "#Of this list", "#Of the other")
	a := r.Ages
	m.table("Age of entries", func() {
		m.add(`<tr><td class="n">%s</td><td class="n">%s</td><td class="n">%s</td><td class="n">%s</td><td class="n">%s</td></tr>`+"\n",
			count(a.Day), count(a.Week), count(a.Month), count(a.Older), count(a.Unknown))
	}, "#Listed for a day", "#7 days", "#30 days", "#Longer", "#Unknown")
	m.add(`</div></div>`)
	if l.partners == nil {
		return
	}
	shown := l.partners.Latest[:min(len(l.partners.Latest), maxPartners)]
	m.table("Conversed with", func() {
		for _, p := range shown {
			addr := p.Addr.String()
			m.add(`<tr><th scope="row"><a href="%s?%s#explain">%s</a></th><td>%s</td><td>%s</td><td>%s</td></tr>`+"\n",
				v.path(), url.Values{"q": {addr}}.Encode(), addr, strings.Join(p.How, ", "), ago(&p.First, v.Now), ago(&p.Last, v.Now))
		}
	}, "Conversed with", "How", "First", "Last")
	if more := l.partners.Addresses - len(shown); more > 0 {
		m.add(`<p class="quiet">and %s more: <code>weir collateral %s</code></p>`, count(more), r.Name)
	}
}

// backwards returns the part of a list's entries that the list of a name covers.
func backwards(of *api.ListWorth, name string) string {
	for _, o := range of.Overlaps {
		if o.List == name {
			return share(of.Share(o))
		}
	}
	return share(0)
}
