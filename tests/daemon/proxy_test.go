package daemon

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"weir/control/api"
	"weir/tests/lab"
)

// Two users behind a reverse proxy change entries under their names, also after a restart,
// while the header is worth nothing on any other way.
func TestConsoleBehindProxy(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	address := lab.FreeAddress(t)
	h.configure(h.B.Iface, "console: {listen: %q, proxy: {socket: %s, group: nogroup}}\nlists: {jail: {}}\n", address, h.path("console.sock"))
	d := h.start(releases[0])
	if info, err := os.Stat(h.path("console.sock")); err != nil || info.Mode().Perm() != 0o660 {
		t.Fatalf("%v, %v", info, err)
	}
	over := func(network, address string) *http.Transport {
		return &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		}}
	}
	front := httptest.NewTLSServer(&httputil.ReverseProxy{Transport: over("unix", h.path("console.sock")), Rewrite: func(r *httputil.ProxyRequest) {
		user, _, _ := r.In.BasicAuth()
		r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", "console", r.In.Host
		r.Out.Header.Set("X-Forwarded-User", user)
	}})
	t.Cleanup(front.Close)

	type browser struct {
		http.Client
		user, base, form string
	}
	ask := func(b *browser, method, address string, form url.Values, headers ...string) (int, string) {
		t.Helper()
		q, err := http.NewRequest(method, address, strings.NewReader(form.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		q.SetBasicAuth(b.user, "")
		if form != nil {
			q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		for i := 0; i < len(headers); i += 2 {
			q.Header.Add(headers[i], headers[i+1])
		}
		r, err := b.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(text)
	}
	leads := regexp.MustCompile(`content="0;url=/([^"]+)"`)
	open := func(user string) *browser {
		t.Helper()
		b := &browser{user: user}
		b.Transport = front.Client().Transport
		b.Jar, _ = cookiejar.New(nil)
		// What the browser sends itself is replaced.
		status, text := ask(b, http.MethodPost, front.URL+"/", url.Values{}, "X-Forwarded-User", "root")
		m := leads.FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("status %d\n%s", status, text)
		}
		b.base = front.URL + "/" + m[1]
		_, text = ask(b, http.MethodGet, b.base, nil)
		b.form = regexp.MustCompile(`name="form" value="([^"]+)"`).FindStringSubmatch(text)[1]
		return b
	}
	changes := func(b *browser, base, field, value string, want int, headers ...string) {
		t.Helper()
		if status, text := ask(b, http.MethodPost, base+"change", url.Values{"form": {b.form}, field: {value}}, headers...); status != want {
			t.Fatalf("%s: status %d\n%s", b.user, status, text)
		}
	}
	by := func(change, who, source string) {
		t.Helper()
		out := h.succeeds("", "audit", "--limit", "1")
		a, err := h.api.Audit(t.Context(), 1)
		if err != nil || len(a.Changes) != 1 {
			t.Fatalf("%+v, %v", a, err)
		}
		if r := a.Changes[0]; r.Change != change || r.Who() != who || r.Source != source || !strings.Contains(out, who) {
			t.Errorf("%+v, by %s:\n%s", r, r.Who(), out)
		}
	}
	alice, bob := open("alice"), open("bob")
	by("console", "bob (proxy)", "proxy")
	changes(alice, alice.base, "block", "192.0.2.1", http.StatusOK)
	by("block", "alice (proxy)", "proxy")
	changes(bob, bob.base, "block", "192.0.2.2", http.StatusOK)
	by("block", "bob (proxy)", "proxy")
	h.explain("192.0.2.2", true)
	changes(alice, alice.base, "sure", "monitor-on", http.StatusOK)
	by("monitor on", "alice (proxy)", "proxy")
	if s, err := h.api.Status(t.Context()); err != nil || s.MonitorOverride == nil || s.MonitorOverride.Who() != "alice (proxy)" {
		t.Errorf("%+v, %v", s.MonitorOverride, err)
	}
	_, page := ask(bob, http.MethodGet, bob.base, nil)
	for _, want := range []string{"<td>alice (proxy)</td>", ", by alice (proxy)", "Switched on by alice (proxy)"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q\n%s", want, page)
		}
	}

	// The sessions of both go on after a restart, and remain theirs.
	d.stop()
	h.start(releases[0])
	changes(bob, bob.base, "block", "192.0.2.3", http.StatusOK)
	by("block", "bob (proxy)", "proxy")
	mallory := *bob
	mallory.user = "mallory"
	changes(&mallory, bob.base, "block", "192.0.2.4", http.StatusForbidden)

	// A forged header over TCP and at the API's socket.
	opened, err := h.api.OpenConsole(t.Context(), api.ConsoleRequest{})
	if err != nil {
		t.Fatal(err)
	}
	local := &browser{user: "root"}
	local.Jar, _ = cookiejar.New(nil)
	_, text := ask(local, http.MethodGet, opened.URL, nil, "X-Forwarded-User", "alice")
	local.base = "http://" + address + "/" + leads.FindStringSubmatch(text)[1]
	_, text = ask(local, http.MethodGet, local.base, nil)
	local.form = regexp.MustCompile(`name="form" value="([^"]+)"`).FindStringSubmatch(text)[1]
	changes(local, local.base, "block", "192.0.2.5", http.StatusOK, "X-Forwarded-User", "alice")
	by("block", "root", "socket")
	forged := &browser{user: "bob"}
	if status, text := ask(forged, http.MethodPost, "http://"+address+"/", url.Values{}, "X-Forwarded-User", "bob"); status != http.StatusForbidden || leads.MatchString(text) {
		t.Errorf("status %d\n%s", status, text)
	}
	forged.Transport = over("unix", h.path("weir.sock"))
	if status, text := ask(forged, http.MethodPost, "http://console/", url.Values{}, "X-Forwarded-User", "bob"); status != http.StatusNotFound || leads.MatchString(text) {
		t.Errorf("status %d\n%s", status, text)
	}
	forged.Transport = over("unix", h.path("console.sock"))
	for what, headers := range map[string][]string{
		"sends no header": nil, "twice": {"X-Forwarded-User", "alice", "X-Forwarded-User", "root"}, "printable": {"X-Forwarded-User", strings.Repeat("x", 65)},
	} {
		if status, text := ask(forged, http.MethodPost, "http://console/", url.Values{}, headers...); status != http.StatusForbidden || !strings.Contains(text, what) {
			t.Errorf("%s: status %d\n%s", what, status, text)
		}
	}
	by("block", "root", "socket")
}
