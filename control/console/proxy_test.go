package console

import (
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"weir/control/api"
)

// naming sends requests as a reverse proxy does that names a user.
type naming struct {
	users []string
	by    http.RoundTripper
}

func (n naming) RoundTrip(q *http.Request) (*http.Response, error) {
	q = q.Clone(q.Context())
	q.Header["X-Forwarded-User"] = n.users
	return n.by.RoundTrip(q)
}

// proxy starts a server for a reverse proxy, and returns what makes browsers behind it.
func (s *setup) proxy() func(users ...string) *browser {
	server := httptest.NewTLSServer(s.Proxy("X-Forwarded-User"))
	s.t.Cleanup(func() { s.End(); server.CloseClientConnections(); server.Close() })
	return func(users ...string) *browser {
		jar, _ := cookiejar.New(nil)
		return &browser{t: s.t, base: server.URL + "/", client: http.Client{
			Jar: jar, Transport: naming{users, server.Client().Transport},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}}
	}
}

// enter begins a session behind a reverse proxy.
func (b *browser) enter(form url.Values) *browser {
	b.t.Helper()
	status, text := b.post("", form, "Sec-Fetch-Site: same-origin")
	m := regexp.MustCompile(`content="0;url=/([^"]+)"`).FindStringSubmatch(text)
	if status != http.StatusOK || m == nil {
		b.t.Fatalf("status %d\n%s", status, text)
	}
	in := *b
	in.base += m[1]
	if _, text = in.get(in.base); form == nil {
		in.form = regexp.MustCompile(`name="form" value="([^"]+)"`).FindStringSubmatch(text)[1]
	}
	return &in
}

// Behind a reverse proxy, each user has sessions, and changes something, under a name.
func TestProxyUsers(t *testing.T) {
	s := start(t)
	as := s.proxy()
	if status, text := as("alice").get(as().base); status != http.StatusOK || !strings.Contains(text, "You are alice.") {
		t.Fatalf("status %d\n%s", status, text)
	}
	if len(s.daemon.opened) > 0 {
		t.Error("a look at the first page opens a session")
	}
	alice, bob := as("alice").enter(nil), as("bob").enter(nil)
	for name, b := range map[string]*browser{"alice": alice, "bob": bob} {
		if _, text := b.get(b.base); !strings.Contains(text, " · "+name) {
			t.Errorf("the page does not say %s", name)
		}
		if status, text := b.post("change", b.change("block", "192.0.2.1")); status != http.StatusSeeOther {
			t.Fatalf("%s: status %d\n%s", name, status, text)
		}
		if c := s.daemon.last(t); c.UID != api.NoUID || c.Client != api.ByProxy(name) || c.Connection != "" {
			t.Errorf("%s: by %d %q from %q", name, c.UID, c.Client, c.Connection)
		}
	}
	if o := s.daemon.opened; len(o) != 2 || o[0].Client != api.ByProxy("alice") || o[0].UID != api.NoUID || o[0].ReadOnly {
		t.Errorf("%+v", o)
	}
	only := as("carol").enter(url.Values{"read-only": {"1"}})
	if status, _ := only.post("change", url.Values{"block": {"192.0.2.1"}}); status != http.StatusForbidden {
		t.Errorf("read-only: status %d", status)
	}
}

// A session is its user's, and of the way on which it began.
func TestProxyKeepsApart(t *testing.T) {
	s := start(t)
	as := s.proxy()
	alice, local := as("alice").enter(nil), s.open(false)
	crossed := func(b *browser, base string, users ...string) {
		t.Helper()
		from, _ := url.Parse(b.base)
		q, _ := http.NewRequest(http.MethodPost, base+from.Path[1:]+"change", strings.NewReader(b.change("block", "192.0.2.1").Encode()))
		q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		q.Header["X-Forwarded-User"] = users
		for _, c := range b.client.Jar.Cookies(from) {
			q.AddCookie(c)
		}
		client := as(users...)
		if base == s.server.URL+"/" {
			client.client.Transport = nil
		}
		if status, text, _ := client.do(q); status != http.StatusForbidden || !strings.Contains(text, "No session") {
			t.Errorf("status %d\n%s", status, text)
		}
		s.daemon.unchanged(t, "another's session")
	}
	crossed(alice, as().base, "bob")
	crossed(alice, s.server.URL+"/", "alice") // the header is forged
	crossed(alice, s.server.URL+"/")
	crossed(local, as().base, "alice")

	// A header opens nothing elsewhere, nor a URL here.
	forged := as("root")
	forged.client.Transport = naming{[]string{"root"}, http.DefaultTransport}
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		q, _ := http.NewRequest(method, s.server.URL+"/", nil)
		if status, text, _ := forged.do(q); status != http.StatusForbidden || strings.Contains(text, "root.") {
			t.Errorf("%s: status %d\n%s", method, status, text)
		}
	}
	opened := s.Open(api.ConsoleRequest{})
	path := strings.TrimPrefix(opened.URL, s.server.URL+"/")
	if status, text := as("alice").get(as().base + path); status != http.StatusForbidden || strings.Contains(text, "url=") {
		t.Errorf("status %d\n%s", status, text)
	}
	if status, _ := local.get(opened.URL); status != http.StatusOK {
		t.Errorf("its URL is used up: status %d", status)
	}
}

// Without one user, whose name can be shown, there is nothing to see.
func TestProxyBadUsers(t *testing.T) {
	s := start(t)
	as := s.proxy()
	for what, users := range map[string][]string{
		"sends no header": {}, "sends no header X": {""}, "twice": {"alice", "root"},
		"printable characters.": {strings.Repeat("a", 65)}, "has up to 64": {"ali\u202ece"}, "printable": {"al\x80ice"}, "64 printable": {"alice\tx"},
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			q, _ := http.NewRequest(method, as().base, nil)
			if status, text, _ := as(users...).do(q); status != http.StatusForbidden || !strings.Contains(text, what) {
				t.Errorf("%q: status %d\n%s", users, status, text)
			}
		}
	}
	if len(s.daemon.opened) > 0 {
		t.Errorf("%+v", s.daemon.opened)
	}
	as(strings.Repeat("ü", 64)).enter(nil)
	as(`<b>"x"`).enter(nil)
	if _, text := as(`<b>"x"`).get(as().base); strings.Contains(text, "<b>") {
		t.Error(text)
	}
}

// Other sites open no session, and many of one user end no one else's.
func TestProxyBounds(t *testing.T) {
	s := start(t)
	as := s.proxy()
	for _, header := range []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Origin: https://elsewhere.example"} {
		if status, _ := as("alice").post("", nil, header); status != http.StatusForbidden || len(s.daemon.opened) > 0 {
			t.Errorf("%s: status %d", header, status)
		}
	}
	local, bob, first := s.open(false), as("bob").enter(nil), as("alice").enter(nil)
	var last *browser
	for range maxOfUser {
		s.advance(1)
		last = as("alice").enter(nil)
	}
	for b, want := range map[*browser]int{local: http.StatusOK, bob: http.StatusOK, last: http.StatusOK, first: http.StatusForbidden} {
		if status, _ := b.get(b.base); status != want {
			t.Errorf("status %d, want %d", status, want)
		}
	}
	refused := 0
	for i := range 2 * requestBurst {
		if status, _ := as(fmt.Sprint("user-", i)).post("", nil); status == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no bound")
	}
}
