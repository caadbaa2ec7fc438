// Package console is the page that the daemon serves to browsers: what it filters,
// what it drops and why, live, and the changes that an operator makes during an
// incident; and that of a hub, for a fleet. It asks the daemon or the hub as the API does,
// and decides nothing itself.
//
// Any user of the host reaches a loopback address, and so does any site that a browser
// there shows. So a page belongs to a session, which begins with a URL that works once
// and that only users of the API's socket get.
package console

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"weir/control/api"
	"weir/control/api/server"
	"weir/control/observe/events"
)

// The paths.
const (
	openPath    = "/open/"
	sessionPath = "/s/"
	staticPath  = "/static/"
)

// maxForm bounds a form, in bytes: an entry has up to 256, a reason 500.
const maxForm = 8 << 10

// Daemon has the state that the page of a daemon shows and changes.
type Daemon interface {
	server.Snapshots
	server.Auditor
	server.Refresher
	server.Versioner
	server.Appraiser
	server.Consoles
	server.Monitor
	Explain(ctx context.Context, question string, places bool) (api.Explanation, error)
	History(context.Context, api.HistoryQuestion) (api.History, error)
	Entries(context.Context, api.EntriesQuestion) (api.Entries, error)
	Change(context.Context, api.Change) (api.Changed, error)
	Confirm(context.Context) error
	Enforce(ctx context.Context, list string, c api.EnforceChange) (api.Enforced, error)
	// Events returns a channel of events that is open until end is called or the
	// daemon stops.
	Events(events.Want) (all <-chan events.Event, end func())
}

// Console serves the page.
type Console struct {
	daemon   Daemon // nil: it is a hub's
	changer  changer
	opener   server.Consoles
	url      string // without a path
	secure   bool   // over TLS
	version  string
	command  string // that prints URLs
	host     string // name of this host
	sessions *sessions
	mux      *http.ServeMux

	knowing sync.Mutex // guards the following
	known   usual

	valuing sync.Mutex // guards the following
	valued  valued
}

// New returns the console of a daemon, for an address to listen on, with TLS if it is
// secure.
func New(d Daemon, address string, secure bool, version string) *Console {
	c := newConsole("weir console", address, secure, version)
	c.daemon, c.changer, c.opener = d, ofDaemon{c}, d
	c.at("GET {$}", c.page)
	c.at("GET live", c.live)
	c.at("GET explain", c.explain)
	c.at("GET lists", c.lists)
	c.at("GET history", c.history)
	c.at("GET plan", c.plan)
	c.at("GET worth", c.worth)
	c.at("GET events", c.events)
	c.at("GET events/live", c.followEvents)
	c.at("GET events/capture", c.capture)
	return c
}

// newConsole returns a console without a page.
func newConsole(command, address string, secure bool, version string) *Console {
	c := &Console{command: command, secure: secure, version: version, sessions: newSessions(time.Now), mux: http.NewServeMux()}
	c.host, _ = os.Hostname()
	c.url = urlOf(address, c.host, secure)
	c.mux.HandleFunc("GET "+openPath+"{token}", c.open)
	c.mux.HandleFunc("GET "+staticPath+"{name}", static)
	c.mux.HandleFunc("GET /favicon.ico", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	c.mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		sorry(w, q, http.StatusForbidden, "No session", c.another(q)+" It must run on the host that serves this, as root or in the group of its socket.")
	})
	c.at("POST change", c.change)
	c.at("POST end", c.end)
	return c
}

// at has a handler answer what is below a session's path.
func (c *Console) at(pattern string, h func(http.ResponseWriter, *http.Request, *session)) {
	method, path, _ := strings.Cut(pattern, " ")
	c.mux.HandleFunc(method+" "+sessionPath+"{id}/"+path, func(w http.ResponseWriter, q *http.Request) { c.inSession(w, q, h) })
}

// urlOf returns the URL of an address to listen on.
func urlOf(address, host string, secure bool) string {
	scheme := "http://"
	if secure {
		scheme = "https://"
	}
	name, port, err := net.SplitHostPort(address)
	if a, bad := netip.ParseAddr(name); err == nil && (name == "" || bad == nil && a.IsUnspecified()) {
		address = net.JoinHostPort(host, port)
	}
	return scheme + address
}

// Open returns a URL that opens a session, once.
func (c *Console) Open(asked api.ConsoleRequest) api.ConsoleOpened {
	token, expires := c.sessions.grant(asked)
	return api.ConsoleOpened{URL: c.url + openPath + token, Expires: expires, ReadOnly: asked.ReadOnly}
}

// End ends all sessions and returns their number, with that of the URLs that were not
// opened.
func (c *Console) End() int { return c.sessions.endAll() }

// policy allows what the page consists of, all of it from here: nothing inline, no
// frames, no forms to elsewhere.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// ServeHTTP answers a request.
func (c *Console) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	secure(w)
	if !c.named(q) {
		http.Error(w, "421 this server has no such name", http.StatusMisdirectedRequest)
		return
	}
	q.Body = http.MaxBytesReader(w, q.Body, maxForm)
	c.mux.ServeHTTP(w, q)
}

// secure adds the headers of all answers.
func secure(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin") // no-referrer would hide the origin of forms, too
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// named reports whether a request is for a name of this server. A site whose name leads
// to this address (DNS rebinding) has the browser send its own.
func (c *Console) named(q *http.Request) bool {
	name := q.Host
	if host, _, err := net.SplitHostPort(name); err == nil {
		name = host
	}
	a, err := netip.ParseAddr(strings.Trim(name, "[]"))
	if c.secure {
		// The certificate was valid for the name that the browser wanted.
		return err == nil || q.TLS != nil && strings.EqualFold(name, q.TLS.ServerName)
	}
	// Any port: it may be forwarded, as by ssh -L.
	return err == nil && a.Unmap().IsLoopback() || strings.EqualFold(name, "localhost")
}

// sorry answers with a message.
func sorry(w http.ResponseWriter, q *http.Request, status int, title, text string) {
	var m markup
	message(&m, title, text, partial(q))
	reply(w, q, status, &m)
}

// partial reports whether htmx wants a part of the page.
func partial(q *http.Request) bool { return q.Header.Get("HX-Request") != "" }

// reply answers with HTML, compressed where the browser takes that: a page has secrets, but
// no other site can have it loaded.
func reply(w http.ResponseWriter, q *http.Request, status int, m *markup) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	body := m.Bytes()
	if strings.Contains(q.Header.Get("Accept-Encoding"), "gzip") {
		body = compress(body)
		h.Set("Content-Encoding", "gzip")
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // an error means that the client has gone
}

// cookieName is the name of all sessions' cookies: their paths distinguish them.
const cookieName = "weir"

// open begins a session. The page that it answers with leads to the session's: a
// redirection would be one from the site where the URL was followed, and the browser
// send no cookie.
func (c *Console) open(w http.ResponseWriter, q *http.Request) {
	// What loads a page before its user does must not use the URL up.
	if q.Method != http.MethodGet || q.Header.Get("Sec-Purpose") != "" || q.Header.Get("Purpose") != "" {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	c.begin(w, q, q.PathValue("token"))
}

// begin begins the session of a token.
func (c *Console) begin(w http.ResponseWriter, q *http.Request, token string) {
	one, cookie := c.sessions.open(token)
	if one == nil {
		sorry(w, q, http.StatusForbidden, "This URL does not open the console any more",
			"It works once, and for five minutes. "+c.another(q))
		return
	}
	path := sessionPath + one.id + "/"
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: cookie, Path: path, Expires: one.expires, HttpOnly: true, Secure: c.secure || one.proxied(), SameSite: http.SameSiteStrictMode,
	})
	var m markup
	openPage(&m, path)
	reply(w, q, http.StatusOK, &m)
}

// sameSite refuses changes that other sites have a browser send.
var sameSite = http.NewCrossOriginProtection()

// fromElsewhere refuses a request that another site has a browser send.
func fromElsewhere(w http.ResponseWriter, q *http.Request) bool {
	site := q.Header.Get("Sec-Fetch-Site")
	if (site == "" || site == "same-origin" || site == "none") && sameSite.Check(q) == nil {
		return false
	}
	sorry(w, q, http.StatusForbidden, "From another site", "Other sites may not lead here. Enter the URL by hand.")
	return true
}

// inSession answers a request of a session.
func (c *Console) inSession(w http.ResponseWriter, q *http.Request, h func(http.ResponseWriter, *http.Request, *session)) {
	if fromElsewhere(w, q) {
		return
	}
	cookie, err := q.Cookie(cookieName)
	var one *session
	if err == nil {
		one = c.sessions.find(q.PathValue("id"), cookie.Value)
	}
	if one == nil || !one.of(q) {
		sorry(w, q, http.StatusForbidden, "No session", "It has ended or expired, or is another browser's. "+c.another(q))
		return
	}
	if !one.limit.AllowN(c.sessions.now(), 1) {
		w.Header().Set("Retry-After", "1")
		sorry(w, q, http.StatusTooManyRequests, "Too many requests", "Wait a second, and load the page again.")
		return
	}
	if q.Method == http.MethodPost {
		if err := q.ParseForm(); err != nil {
			sorry(w, q, http.StatusBadRequest, "Not understood", err.Error())
			return
		}
		if !one.submitted(q.PostForm.Get("form")) {
			sorry(w, q, http.StatusForbidden, "Nothing was changed", "The form is of another session. Load the page again.")
			return
		}
	}
	h(w, q, one)
}

// end ends the session.
func (c *Console) end(w http.ResponseWriter, q *http.Request, one *session) {
	c.sessions.end(one)
	w.Header().Set("Clear-Site-Data", `"cache"`)
	http.SetCookie(w, &http.Cookie{Name: cookieName, Path: sessionPath + one.id + "/", MaxAge: -1, HttpOnly: true, Secure: c.secure || one.proxied(), SameSite: http.SameSiteStrictMode})
	sorry(w, q, http.StatusOK, "The session has ended", "weir goes on filtering. "+c.another(q))
}
