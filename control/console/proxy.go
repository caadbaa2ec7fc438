package console

import (
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"golang.org/x/time/rate"

	"weir/control/api"
)

// maxUser bounds the name of a user that a reverse proxy sends, in characters.
const maxUser = 64

// Proxy returns the handler of requests from a reverse proxy, which has to be the only one to
// reach it: it is believed who the user is, by a header. A user begins a session with a button
// and not with a URL. Sessions of others, and those of URLs, cannot be used here, nor those
// that begin here elsewhere.
func (c *Console) Proxy(header string) http.Handler {
	begins := rate.NewLimiter(requestRate, requestBurst)
	mux := http.NewServeMux()
	mux.Handle("/", c.mux)
	mux.HandleFunc(openPath, func(w http.ResponseWriter, q *http.Request) {
		sorry(w, q, http.StatusForbidden, "No session", "URLs of "+c.command+" are for its own address. "+c.another(q))
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, q *http.Request) {
		var m markup
		welcomePage(&m, c.host, proxyUser(q))
		reply(w, q, http.StatusOK, &m)
	})
	mux.HandleFunc("POST /{$}", func(w http.ResponseWriter, q *http.Request) {
		if fromElsewhere(w, q) {
			return
		}
		if !begins.Allow() {
			sorry(w, q, http.StatusTooManyRequests, "Too many requests", "Wait a second.")
			return
		}
		if err := q.ParseForm(); err != nil {
			sorry(w, q, http.StatusBadRequest, "Not understood", err.Error())
			return
		}
		by, _ := api.CallerOf(q.Context())
		opened, err := c.opener.OpenConsole(q.Context(), api.ConsoleRequest{ReadOnly: q.PostForm.Has("read-only"), UID: by.UID, Client: by.Client})
		if err != nil {
			sorry(w, q, http.StatusInternalServerError, "No session", err.Error())
			return
		}
		_, token, _ := strings.Cut(opened.URL, openPath)
		c.begin(w, q, token)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		secure(w)
		user, wrong := userIn(q.Header.Values(header), header)
		if wrong != "" {
			sorry(w, q, http.StatusForbidden, "No user", wrong)
			return
		}
		q.Body = http.MaxBytesReader(w, q.Body, maxForm)
		mux.ServeHTTP(w, q.WithContext(api.As(q.Context(), api.Caller{UID: api.NoUID, Client: api.ByProxy(user)})))
	})
}

// userIn returns the user that the values of a header name, or what is wrong with them.
func userIn(values []string, header string) (user, wrong string) {
	switch {
	case len(values) == 0 || len(values) == 1 && values[0] == "":
		return "", "The reverse proxy sends no header " + header + ". It must log users in, and set the header to the user's name."
	case len(values) > 1:
		return "", "The request has the header " + header + " twice. The reverse proxy must replace what a browser sends."
	}
	user = values[0]
	if !utf8.ValidString(user) || utf8.RuneCountInString(user) > maxUser || strings.ContainsFunc(user, api.NotPrintable) {
		return "", fmt.Sprintf("The header %s is no user's name, which has up to %d printable characters.", header, maxUser)
	}
	return user, ""
}

// proxyUser returns the user whom a reverse proxy has named, "" for requests of other ways.
func proxyUser(q *http.Request) string {
	by, _ := api.CallerOf(q.Context())
	user, _ := api.ProxyUser(by.Client)
	return user
}

// another says how to begin another session.
func (c *Console) another(q *http.Request) string {
	if proxyUser(q) != "" {
		return "The first page, /, begins another one."
	}
	return "Run " + c.command + ", and open the URL that it prints."
}

// proxied reports whether a reverse proxy has named the user who began the session.
func (one *session) proxied() bool {
	_, ok := api.ProxyUser(one.Client)
	return ok
}

// of reports whether a request comes the way that its session began, by the same user.
func (one *session) of(q *http.Request) bool {
	owner, _ := api.ProxyUser(one.Client)
	return owner == proxyUser(q)
}
