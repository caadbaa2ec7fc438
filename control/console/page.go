package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"weir/control/api"
	"weir/control/quantity"
	"weir/filter/ordered"
)

// Limits on what a page shows.
const (
	maxFirst   = 6  // flows on the first screen
	maxRows    = 15 // of other tables of flows, and of lists unless all are shown
	maxCaught  = 5  // lists that match packets
	maxAlerts  = 5  // of a kind
	maxEntries = 50
	maxChanges = 15
)

// frame has the common parts of the pages of a daemon and of a hub.
type frame struct {
	Host, Version string
	Now           time.Time
	session       *session

	Question string
	Wrong    string // about the question

	ofDaemon bool // not of a hub
	beside   bool // it is a page beside the one that shows what happens
}

// change reports whether the session may change something.
func (v *frame) change() bool { return !v.session.ReadOnly }

// path is the session's path.
func (v *frame) path() string { return sessionPath + v.session.id + "/" }

// frame returns the frame of a session's page.
func (c *Console) frame(one *session) frame {
	return frame{Host: c.host, Version: c.version, Now: c.sessions.now(), session: one}
}

// view is the contents of a daemon's page.
type view struct {
	frame

	Status  api.Status
	Top     *api.Top // nil: no interval is over
	Lists   []api.List
	Entries []api.Entry
	More    bool // entries
	Audit   []api.AuditRecord
	History api.History
	span    string            // its
	marks   []api.AuditRecord // changes meanwhile
	Trouble string            // why some of that is missing

	Answer *api.Explanation

	usual  usual
	recent string // points of the last minutes, for the chart
	lists  listsView
	events eventsView
	plan   planView
	worth  worthView
}

// passed is the rate of the packets that pass.
func (v *view) passed() float64 { return max(0, v.Top.Packets-v.Top.Dropped) }

// listRates returns the rates of the packets that lists match.
func (v *view) listRates() map[string]float64 {
	rates := make(map[string]float64)
	if v.Top != nil {
		for _, l := range v.Top.Filter.Lists {
			rates[api.ListOf(l.Name)] += l.Packets
		}
	}
	return rates
}

// unfiltered returns the number of interfaces that are not filtered as configured.
func (v *view) unfiltered() (n int) {
	for _, i := range v.Status.Interfaces {
		if i.State != api.Filtered {
			n++
		}
	}
	return n
}

// sortedReasons returns the reasons, the most frequent first.
func (v *view) sortedReasons() []api.ReasonRate {
	all := slices.Clone(v.Top.Reasons)
	ordered.By(all, func(a, b api.ReasonRate) int { return cmp.Compare(b.Packets, a.Packets) })
	return all
}

// look returns what changes each second.
func (c *Console) look(one *session) *view {
	v := &view{frame: c.frame(one), Status: c.daemon.Status(), Top: c.daemon.Top(), usual: c.usually()}
	if v.Top != nil { // what was sampled has the same tables
		t := *v.Top
		t.Trackers, v.Top = t.All(), &t
	}
	v.ofDaemon = true
	return v
}

// spans are for how long back a page shows what passed and was dropped.
var spans = []struct {
	name, says string
	since      time.Duration
}{
	{"24h", "24 hours", api.DefaultHistory}, {"1h", "1 hour", time.Hour}, {"30d", "30 days", api.MaxHistory},
}

// Points of a chart: fewer are no curve, and more than it has pixels of no use.
const (
	leastPoints = 3
	maxPoints   = 720
)

// lookBack adds what passed and was dropped, and what was changed meanwhile, for the time
// that a request asks for.
func (c *Console) lookBack(q *http.Request, v *view) {
	span := spans[0]
	for _, s := range spans {
		if s.name == q.URL.Query().Get("for") {
			span = s
		}
	}
	v.span = span.name
	v.History = c.past(q.Context(), v, api.HistoryQuestion{Since: span.since, Step: api.HistoryStep(span.since, maxPoints)})
	for _, r := range c.daemon.Audit(api.MaxAudit) {
		if changed(&r) && r.Time.After(v.Now.Add(-span.since)) {
			v.marks = append(v.marks, r)
		}
	}
}

// history answers with what passed and was dropped.
func (c *Console) history(w http.ResponseWriter, q *http.Request, one *session) {
	if !partial(q) {
		c.page(w, q, one)
		return
	}
	v := c.look(one)
	c.lookBack(q, v)
	show(w, q, v.history)
}

// past answers a question for the history.
func (c *Console) past(ctx context.Context, v *view, q api.HistoryQuestion) api.History {
	past := api.History{}
	err := q.Check() // chooses the step
	if err == nil {
		past, err = c.daemon.History(ctx, q)
	}
	if err != nil {
		v.Trouble = err.Error()
	}
	return past
}

// lookClosely adds what changes less often.
func (c *Console) lookClosely(ctx context.Context, v *view) {
	v.Audit = c.daemon.Audit(maxChanges)
	page, err := c.daemon.Entries(ctx, api.EntriesQuestion{Manual: true, Limit: maxEntries})
	if err != nil {
		v.Trouble = err.Error()
	}
	v.Entries, v.More = page.Entries, page.Next != ""
}

// page answers with the whole page, and the answer to a question.
func (c *Console) page(w http.ResponseWriter, q *http.Request, one *session) {
	v := c.look(one)
	c.lookAround(q, v)
	show(w, q, v.page)
}

// lookAround adds what a whole page has beside what changes each second.
func (c *Console) lookAround(q *http.Request, v *view) {
	c.lookClosely(q.Context(), v)
	c.lookBack(q, v)
	points := c.past(q.Context(), v, api.HistoryQuestion{Since: recently, Step: api.MinHistoryStep})
	v.recent = pointsOf(&points)
	c.listsAsked(q, v)
	c.answer(q, v)
}

// answer adds the answer to the question of a request, if it has one.
func (c *Console) answer(q *http.Request, v *view) {
	if v.Question = strings.TrimSpace(q.URL.Query().Get("q")); v.Question == "" {
		return
	}
	e, err := c.daemon.Explain(q.Context(), v.Question, true)
	if err != nil {
		v.Wrong = err.Error()
		return
	}
	v.Answer = &e
}

// explain answers a question.
func (c *Console) explain(w http.ResponseWriter, q *http.Request, one *session) {
	if !partial(q) {
		c.page(w, q, one)
		return
	}
	v := c.look(one)
	c.answer(q, v)
	show(w, q, v.answer)
}

// show answers with what write writes.
func show(w http.ResponseWriter, q *http.Request, write func(*markup)) {
	var m markup
	write(&m)
	reply(w, q, http.StatusOK, &m)
}

func count[T int | uint64](n T) string { return humanize.Comma(int64(n)) }

func pps(perSecond float64) string {
	return quantity.SI(perSecond, 1, "pps")
}

func bits(bytesPerSecond float64) string {
	return quantity.SI(8*bytesPerSecond, 1, "bit/s")
}

func size(bytes int) string { return humanize.IBytes(uint64(max(0, bytes))) }

func share(s float64) string { return fmt.Sprintf("%.1f %%", 100*s) }

// odds returns a false-positive rate, of which nil is unknown.
func odds(rate *float64) string {
	switch {
	case rate == nil:
		return "not yet"
	case *rate <= 0:
		return "none"
	}
	return "1 in " + humanize.Comma(int64(1 / *rate)) + " unlisted packets"
}

func stamp(t time.Time) string { return t.Format("2006-01-02 15:04:05 MST") }

// ago returns how long ago something was.
func ago(t *time.Time, now time.Time) string {
	if t == nil {
		return "never"
	}
	return brief(now.Sub(*t)) + " ago"
}

// within returns in what time something is.
func within(t *time.Time, now time.Time) string {
	if t == nil {
		return "never"
	}
	return "in " + brief(t.Sub(now))
}

// brief returns a duration of at most two digits, rounded down.
func brief(d time.Duration) string {
	d = max(0, d)
	switch {
	case d < 100*time.Second:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 100*time.Minute:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d d", d/day)
}
