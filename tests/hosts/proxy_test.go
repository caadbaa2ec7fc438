package hosts

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"weir/tests/certificate"
	"weir/tests/lab"
	"weir/tests/wait"
)

// site is the name of the proxy in docs/console.md.
const site = "weir.example.org"

// block returns the indented block of a page that begins with a text.
func block(t *testing.T, name, begin string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\n    "+begin)
	if !ok {
		t.Fatalf("%s has no block that begins with %q", name, begin)
	}
	rest = begin + rest
	var b strings.Builder
	for i, line := range strings.Split(rest, "\n") {
		line, indented := strings.CutPrefix(line, "    ")
		if i > 0 && line != "" && !indented {
			break
		}
		b.WriteString(line + "\n")
	}
	return strings.TrimSpace(b.String()) + "\n"
}

// swap replaces a part of a block, which must be in it.
func swap(t *testing.T, text string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("%q is not in\n%s", pairs[i], text)
		}
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	return text
}

// oauth stands in for oauth2-proxy: a cookie is the name of a user.
func (h *host) oauth(t *testing.T) {
	t.Helper()
	h.In(t, func() {
		l, err := net.Listen("tcp", "127.0.0.1:4180")
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			user, err := q.Cookie("user")
			switch {
			case q.URL.Path != "/oauth2/auth":
				fmt.Fprintln(w, "Sign in")
			case err != nil:
				w.WriteHeader(http.StatusUnauthorized)
			default:
				w.Header().Set("X-Auth-Request-User", user.Value)
				w.WriteHeader(http.StatusAccepted)
			}
		})}
		go s.Serve(l)
		t.Cleanup(func() { s.Close() })
	})
}

// nginx and Caddy log users in before the console, with the lines that the page has for them.
func TestProxies(t *testing.T) {
	lab.Root(t)
	nginx := block(t, "console.md", "server {")
	passwords := regexp.MustCompile("`(auth_basic [^`]*)`").FindStringSubmatch(strings.ReplaceAll(readDoc(t, "console.md"), "\n", " "))
	if passwords == nil {
		t.Fatal("the page has no lines for passwords")
	}
	request := regexp.MustCompile(`(?m)^ *(auth_request|error_page|auth_request_set) .*\n`)
	if n := len(request.FindAllString(nginx, -1)); n != 3 {
		t.Fatalf("the page has %d lines of auth_request, and says that these are three", n)
	}
	withPasswords := swap(t, request.ReplaceAllString(nginx, ""), "$user", "$remote_user", "location / {", "location / {\n"+passwords[1])
	const hash = "$2a$04$VvfumSJO0LIQxM/8h0xBJ.5IY23L3Lhh55K5K7U6W3Ius86.eVA6i" // of "secret", at a low cost
	caddy := block(t, "console.md", site+" {")
	caddy = swap(t, caddy, "$2a$14$…", hash+"\nbob "+hash)
	cases := []struct {
		name, user, config string
		login              func(*http.Request, string)
		out                func(*http.Response, string) bool // of who is not logged in
	}{
		{"nginx", "www-data", nginx, byCookie, func(r *http.Response, text string) bool { return strings.Contains(text, "Sign in") }},
		{"nginx", "www-data", withPasswords, byPassword, unauthorized},
		{"caddy", "caddy", caddy, byPassword, unauthorized},
	}
	for _, c := range cases {
		name := c.name
		if c.config == withPasswords {
			name += " with passwords"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lab.Tool(t, c.name)
			// The names of this machine, for the groups of the page.
			accounts := t.TempDir()
			for _, name := range []string{"passwd", "group", "shadow", "gshadow", "login.defs"} {
				text, err := os.ReadFile("/etc/" + name)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(accounts+"/"+name, text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			h, clients, _ := newServer(t)
			h.oauth(t)
			must(t, h, "set -e; cp "+accounts+"/* /etc; chmod 644 /etc/passwd /etc/group; mkdir -p /etc/ssl /etc/nginx/sites-enabled; touch /etc/nginx/weir.htpasswd")
			for _, line := range strings.Split(block(t, "console.md", "groupadd "), "\n")[:2] {
				must(t, h, strings.Replace(line, "www-data", c.user, 1))
			}
			cert, key := certificate.SelfSigned(t, site)
			must(t, h, fmt.Sprintf("set -e; cp %s /etc/ssl/%s.pem; cp %s /etc/ssl/%[2]s.key", cert, site, key))
			must(t, h, "cat >/etc/weir/weir.yaml <<'CONFIG'\ninterfaces: [{name: eth0, hook: tc}]\nlists: {jail: {}}\n"+block(t, "console.md", "console:\n      listen: 127.0.0.1:9479\n      proxy:")+"CONFIG")
			h.start(t)
			if c.name == "nginx" {
				must(t, h, "cat >/etc/nginx/sites-enabled/weir <<'CONFIG'\n"+c.config+`CONFIG
printf 'alice:{PLAIN}secret\nbob:{PLAIN}secret\n' >/etc/nginx/weir.htpasswd
cat >/etc/nginx/nginx.conf <<'CONFIG'
user www-data;
pid DIR/nginx.pid;
error_log DIR/error.log;
events {}
http { access_log off; include /etc/nginx/sites-enabled/*; }
CONFIG
chmod 711 DIR
mount -t tmpfs none /var/log; mkdir /var/log/nginx; mkdir -p /var/lib/nginx
nsenter --net=/run/netns/NS nginx`)
				t.Cleanup(func() { h.run(t, "kill $(cat DIR/nginx.pid); cat DIR/error.log >&2") })
			} else {
				// Its own certificates, since there is no network.
				must(t, h, "mkdir -p /etc/caddy; cat >/etc/caddy/Caddyfile <<'CONFIG'\n{\n local_certs\n skip_install_trust\n admin off\n}\n"+c.config+`CONFIG
mkdir -p /var/lib/caddy; chown caddy: /var/lib/caddy
HOME=/var/lib/caddy nsenter --net=/run/netns/NS setpriv --reuid caddy --regid caddy --init-groups \
	--inh-caps +net_bind_service --ambient-caps +net_bind_service caddy run --config /etc/caddy/Caddyfile >DIR/caddy.log 2>&1 & echo $! >DIR/caddy.pid`)
				t.Cleanup(func() { h.run(t, "kill $(cat DIR/caddy.pid); cat DIR/caddy.log >&2") })
			}
			throughProxy(t, h, clients, c.login, c.out)
		})
	}
}

func readDoc(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func byCookie(q *http.Request, user string)   { q.AddCookie(&http.Cookie{Name: "user", Value: user}) }
func byPassword(q *http.Request, user string) { q.SetBasicAuth(user, "secret") }

func unauthorized(r *http.Response, _ string) bool { return r.StatusCode == http.StatusUnauthorized }

// throughProxy has two users open the console, one change something and follow the panels, and
// one come as somebody else.
func throughProxy(t *testing.T, h *host, clients machine, login func(*http.Request, string), out func(*http.Response, string) bool) {
	t.Helper()
	over := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: site}, DialContext: func(context.Context, string, string) (c net.Conn, err error) {
		clients.In(t, func() { c, err = net.DialTimeout("tcp", hostAddress+":443", time.Second) })
		return c, err
	}}
	t.Cleanup(over.CloseIdleConnections)
	jar, _ := cookiejar.New(nil)
	browser := &http.Client{Transport: over, Jar: jar}
	ask := func(user, method, path string, form url.Values) (*http.Response, string, error) {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), method, "https://"+site+path, strings.NewReader(form.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		if form != nil {
			q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		q.Header.Set("X-Forwarded-User", "root") // which the proxy replaces
		if user != "" {
			login(q, user)
		}
		r, err := browser.Do(q)
		if err != nil {
			return nil, "", err
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		return r, string(text), err
	}
	for deadline := wait.Deadline(); ; time.Sleep(100 * time.Millisecond) { // until it listens
		r, text, err := ask("", http.MethodGet, "/", nil)
		if err == nil && out(r, text) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("who is not logged in gets %v, %v\n%s", r, err, text)
		}
	}
	r, text, err := ask("alice", http.MethodPost, "/", url.Values{})
	leads := regexp.MustCompile(`content="0;url=(/[^"]+)"`).FindStringSubmatch(text)
	if err != nil || leads == nil {
		t.Fatalf("%v, %v\n%s", r, err, text)
	}
	base := leads[1]
	_, text, err = ask("alice", http.MethodGet, base, nil)
	form := regexp.MustCompile(`name="form" value="([^"]+)"`).FindStringSubmatch(text)
	if err != nil || form == nil {
		t.Fatalf("%v\n%s", err, text)
	}

	// What is live comes at once: nothing between keeps it.
	q, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+site+base+"live", nil)
	login(q, "alice")
	begun := time.Now()
	live, err := browser.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer live.Body.Close()
	lines := bufio.NewScanner(live.Body)
	events := 0
	for events < 3 && lines.Scan() {
		if strings.HasPrefix(lines.Text(), "event: now") {
			events++
		}
	}
	if events < 3 || time.Since(begun) > 20*time.Second {
		t.Errorf("%d panels in %v: %v", events, time.Since(begun), lines.Err())
	}

	change := url.Values{"form": {form[1]}, "block": {"192.0.2.99"}}
	if r, text, err := ask("alice", http.MethodPost, base+"change", change); err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("%v, %v\n%s", r, err, text)
	}
	if out, _ := h.in(t, "weir audit --limit 1"); !strings.Contains(out, "alice (proxy)") || !strings.Contains(out, "192.0.2.99") {
		t.Errorf("the audit:\n%s", out)
	}
	// Another user has alice's cookie.
	if r, text, err := ask("bob", http.MethodPost, base+"change", change); err != nil || r.StatusCode != http.StatusForbidden {
		t.Errorf("%v, %v\n%s", r, err, text)
	}
}
