package console

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/api/server"
	"weir/control/observe/events"
)

const (
	tick         = time.Second // between two updates
	slowTicks    = 5           // until the next update of panels that change less often
	silentTicks  = 2           // without an update until alive is sent again
	alive        = "now"
	writeTimeout = 10 * time.Second

	eventTick  = 500 * time.Millisecond
	maxPerTick = 20  // events that a page can show
	maxGlance  = 100 // events of a page that is not live
	glance     = time.Second
)

// panel is a part of a page that is updated. The message of the stream has its name.
type panel[V any] struct {
	name  string
	every int // ticks
	write func(V, *markup)
}

var panels = []panel[*view]{
	{"alerts", 1, (*view).alerts},
	{"now", 1, (*view).now},
	{"talkers", 1, (*view).talkers},
	{"caught", 1, (*view).caught},
	{"trackers", 1, (*view).otherTrackers},
	{"reasons", 1, (*view).reasons},
	{"interfaces", 1, (*view).interfaces},
	{"memory", 1, (*view).memory},
	{"entries", slowTicks, (*view).entriesPart},
	{"audit", slowTicks, (*view).auditPart},
	{"last", slowTicks, (*view).last},
}

// stream is an answer of server-sent events.
type stream struct {
	w          http.ResponseWriter
	connection *http.ResponseController
}

func newStream(w http.ResponseWriter) stream {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, "retry: 1000\n") // milliseconds until a browser comes back
	return stream{w, http.NewResponseController(w)}
}

var lineBreaks = strings.NewReplacer("\r\n", "\n", "\r", "\n")

// send sends a message, whose text may have several lines.
func (s stream) send(name string, text []byte) error {
	_ = s.connection.SetWriteDeadline(time.Now().Add(writeTimeout)) // fails in tests only
	var b bytes.Buffer
	fmt.Fprintf(&b, "event: %s\n", name)
	// A carriage return would end a line, too.
	for part := range strings.SplitSeq(lineBreaks.Replace(string(bytes.TrimSpace(text))), "\n") {
		b.WriteString("data: " + part + "\n")
	}
	b.WriteByte('\n')
	if _, err := s.w.Write(b.Bytes()); err != nil {
		return err
	}
	return s.connection.Flush()
}

// take takes one of the streams of a session, or answers that there is none.
func take(w http.ResponseWriter, q *http.Request, one *session) bool {
	if one.begin() {
		server.Stream(q.Context()) // sessions have limits
		w.Header().Set("Connection", "close")
		return true
	}
	sorry(w, q, http.StatusTooManyRequests, "Too many pages", fmt.Sprintf("This session has %d live pages. Close one.", maxStreams))
	return false
}

// live sends the panels that have changed, until the session ends.
func (c *Console) live(w http.ResponseWriter, q *http.Request, one *session) {
	follow(c, w, q, one, panels, func(n int) *view {
		v := c.look(one)
		if n%slowTicks == 0 {
			c.lookClosely(q.Context(), v)
		}
		return v
	})
}

// follow sends the panels of the view that look returns at each tick, if they have changed. Where none
// has for some ticks, it sends alive again, so that the page does not take the console for
// dead.
func follow[V any](c *Console, w http.ResponseWriter, q *http.Request, one *session, panels []panel[V], look func(n int) V) {
	if !take(w, q, one) {
		return
	}
	defer one.done()
	s := newStream(w)
	last, silent := make(map[string][]byte), 0
	update := func(v V, n int) error {
		silent++
		for _, p := range panels {
			if n%p.every != 0 {
				continue
			}
			var m markup
			p.write(v, &m)
			if text := bytes.TrimSpace(m.Bytes()); !bytes.Equal(text, last[p.name]) {
				last[p.name], silent = text, 0
				if err := s.send(p.name, text); err != nil {
					return err
				}
			}
		}
		if silent < silentTicks {
			return nil
		}
		silent = 0
		return s.send(alive, last[alive])
	}
	each := time.NewTicker(tick)
	defer each.Stop()
	over := one.lasts(c.sessions.now())
	for n := 0; ; n++ {
		if update(look(n), n) != nil {
			return
		}
		select {
		case <-each.C:
		case <-over:
			_ = s.send("ended", nil)
			return
		case <-one.ended:
			_ = s.send("ended", nil)
			return
		case <-one.stopped:
			return
		case <-q.Context().Done():
			return
		}
	}
}

// eventsView is the events that a page shows.
type eventsView struct {
	reason string // that is wanted; "": all
	match  string // that a line must contain
	live   bool
	looked bool // rows are the events of a second
	rows   []api.Event
	wrong  string // about the question
}

// query returns the query of the stream's URL.
func (v *eventsView) query() string {
	return url.Values{"reason": {v.reason}, "match": {v.match}}.Encode()
}

// readWant reads which events a page wants.
func readWant(q *http.Request) (v eventsView, want events.Want) {
	query := q.URL.Query()
	v.reason, v.match = query.Get("reason"), strings.TrimSpace(query.Get("match"))
	if v.reason != "" {
		r, err := events.ParseReason(v.reason)
		if err != nil {
			v.wrong = err.Error()
		}
		want.Reasons = []events.Reason{r}
	}
	return v, want
}

// matches reports whether an event's line contains the text that is wanted.
func (v *eventsView) matches(e *api.Event) bool {
	return v.match == "" || strings.Contains(strings.ToLower(line(e)), strings.ToLower(v.match))
}

// line returns what is searched of an event.
func line(e *api.Event) string {
	return strings.Join([]string{e.Interface, e.Reason, e.Verdict, e.List, e.Proto, endpoint(e.Src, e.SrcPort), endpoint(e.Dst, e.DstPort)}, " ")
}

// endpoint returns an address with its port.
func endpoint(address string, port *int) string {
	if port == nil {
		return address
	}
	if strings.Contains(address, ":") {
		return fmt.Sprintf("[%s]:%d", address, *port)
	}
	return fmt.Sprintf("%s:%d", address, *port)
}

// events answers with the part of the page that follows events, or without scripts with
// those of a second.
func (c *Console) events(w http.ResponseWriter, q *http.Request, one *session) {
	v := c.look(one)
	asked, want := readWant(q)
	v.events = asked
	wanted := asked.wrong == "" && q.URL.Query().Get("stop") == ""
	if partial(q) {
		v.events.live = wanted
		show(w, q, v.eventsPart)
		return
	}
	c.lookAround(q, v)
	if wanted {
		v.events.looked = true
		v.events.rows = c.glance(q.Context(), &asked, want)
	}
	show(w, q, v.page)
}

// glance returns events of a second.
func (c *Console) glance(ctx context.Context, asked *eventsView, want events.Want) (rows []api.Event) {
	all, end := c.daemon.Events(want)
	defer end()
	over := time.After(glance)
	for len(rows) < maxGlance {
		select {
		case event, ok := <-all:
			if !ok {
				return rows
			}
			if e := event.API(); e.Lost == 0 && asked.matches(&e) {
				rows = append(rows, e)
			}
		case <-over:
			return rows
		case <-ctx.Done():
			return rows
		}
	}
	return rows
}

// batch is the part of an interval's events that is sent.
type batch struct {
	rows []api.Event // the latest first
	more int         // events that were not sent
	lost uint64      // events that this page did not get
}

// followEvents sends events until the session ends.
func (c *Console) followEvents(w http.ResponseWriter, q *http.Request, one *session) {
	asked, want := readWant(q)
	if asked.wrong != "" {
		sorry(w, q, http.StatusBadRequest, "Not understood", asked.wrong)
		return
	}
	if !take(w, q, one) {
		return
	}
	defer one.done()
	all, end := c.daemon.Events(want)
	defer end()
	s := newStream(w)
	each := time.NewTicker(eventTick)
	defer each.Stop()
	over := one.lasts(c.sessions.now())
	var b batch
	for {
		select {
		case event, ok := <-all:
			e := event.API()
			switch {
			case !ok:
				return
			case e.Lost > 0:
				b.lost += e.Lost
			case !asked.matches(&e):
			case len(b.rows) == maxPerTick:
				b.more++
			default:
				b.rows = append(b.rows, e)
			}
		case <-each.C:
			if len(b.rows) == 0 && b.lost == 0 {
				continue
			}
			slices.Reverse(b.rows)
			var m markup
			b.write(&m)
			if s.send("events", m.Bytes()) != nil {
				return
			}
			b = batch{}
		case <-over:
			_ = s.send("ended", nil)
			return
		case <-one.ended:
			_ = s.send("ended", nil)
			return
		case <-one.stopped:
			return
		case <-q.Context().Done():
			return
		}
	}
}
