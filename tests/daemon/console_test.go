package daemon

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/tests/must"
	"weir/tests/wait"
)

// issuer issues certificates for a test.
type issuer struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
	pem  []byte
}

func newIssuer(t *testing.T, name string) *issuer {
	t.Helper()
	i := &issuer{t: t, pool: x509.NewCertPool()}
	c := i.issue(&x509.Certificate{Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	i.cert, i.key = c.Leaf, c.PrivateKey.(*ecdsa.PrivateKey)
	i.pool.AddCert(c.Leaf)
	i.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Leaf.Raw})
	return i
}

// issue issues a certificate; its own, while it has none.
func (i *issuer) issue(c *x509.Certificate) tls.Certificate {
	i.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	parent, by := i.cert, i.key
	if parent == nil {
		parent, by = c, key
	}
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err != nil {
		i.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		i.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func (i *issuer) end(use x509.ExtKeyUsage, until time.Time) tls.Certificate {
	return i.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "ada"}, NotBefore: until.Add(-2 * time.Hour), NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 99, 97, 3)}, ExtKeyUsage: []x509.ExtKeyUsage{use},
	})
}

// browserOf is a client with cookies, and a certificate or none.
func browserOf(trusts *issuer, own ...tls.Certificate) *http.Client {
	jar, _ := cookiejar.New(nil)
	return &http.Client{Jar: jar, Timeout: wait.Patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusts.pool, Certificates: own}}}
}

// Beyond loopback the console is for browsers with a certificate of the authority, and
// even they see nothing without a session. No page and no stream has a secret of the
// configuration, whatever fails, is redirected or changes.
func TestConsoleOverTLS(t *testing.T) {
	t.Parallel()
	h, ours, others := newHost(t), newIssuer(t, "ours"), newIssuer(t, "others")
	server := ours.end(x509.ExtKeyUsageServerAuth, time.Now().Add(time.Hour))
	keyDER, err := x509.MarshalPKCS8PrivateKey(server.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	serverKey := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	h.write("cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Leaf.Raw}))
	h.write("key.pem", serverKey)
	h.write("ca.pem", ours.pem)
	h.write("secret", []byte("S3CRET-of-a-file-S3CRET\n"))
	feeds := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/moved":
			http.Redirect(w, q, "http://mover:S3CRET-of-a-redirection@127.0.0.1:1/x?token=S3CRET-where-it-leads", http.StatusFound)
		case "/good":
			fmt.Fprintln(w, "203.0.113.0/24")
		default:
			http.Error(w, "no: "+q.URL.String()+q.Header.Get("X-Api-Key"), http.StatusForbidden)
		}
	}))
	t.Cleanup(feeds.Close)
	free, err := net.Listen("tcp", "127.99.97.3:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	host := strings.TrimPrefix(feeds.URL, "http://")
	configure := func(more string) {
		h.configure(h.B.Iface, `
console: {listen: %q, tls: {cert: %s, key: %s, client_ca: %s}}
lists:
  refused: {sources: [{url: "http://user:S3CRET-password@%s/refused?key=S3CRET-query%s", headers: {X-Api-Key: S3CRET-header%s}}]}
  moved: {sources: [{url: "http://%s/moved?key=S3CRET-query"}]}
  closed: {sources: [{url: "http://user:S3CRET-password@127.0.0.1:1/?key=S3CRET-query"}]}
  good: {sources: [{url: "http://user:S3CRET-password@%s/good?key=S3CRET-query"}]}
notify:
  targets:
    one: {url: "http://user:S3CRET-password@127.0.0.1:1/S3CRET-path?key=S3CRET-query", secret: S3CRET-that-signs-S3CRET%s, headers: {Authorization: S3CRET-bearer}}
    two: {url: "%s/S3CRET-path", secret_file: %s}
`, address, h.path("cert.pem"), h.path("key.pem"), h.path("ca.pem"), host, more, more, host, host, more, feeds.URL, h.path("secret"))
	}
	configure("")
	h.start(releases[0])
	h.settled("good")
	opened, err := h.api.OpenConsole(t.Context(), api.ConsoleRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(opened.URL, "https://"+address+"/open/") {
		t.Fatal(opened.URL)
	}

	// No certificate, or a wrong one: not even the handshake succeeds, nor is the URL
	// used up.
	soon := time.Now().Add(time.Hour)
	for name, b := range map[string]*http.Client{
		"no certificate":                 browserOf(ours),
		"another authority":              browserOf(ours, others.end(x509.ExtKeyUsageClientAuth, soon)),
		"expired":                        browserOf(ours, ours.end(x509.ExtKeyUsageClientAuth, time.Now().Add(-time.Minute))),
		"not yet valid":                  browserOf(ours, ours.end(x509.ExtKeyUsageClientAuth, time.Now().Add(9*time.Hour))),
		"a server's":                     browserOf(ours, ours.end(x509.ExtKeyUsageServerAuth, soon)),
		"signed by itself, like its own": browserOf(ours, newIssuer(t, "ours").end(x509.ExtKeyUsageClientAuth, soon)),
	} {
		for _, address := range []string{opened.URL, "https://" + address + "/"} {
			if r, err := b.Get(address); err == nil {
				r.Body.Close()
				t.Errorf("%s: %s", name, r.Status)
			}
		}
	}
	if r, err := http.Get("http" + strings.TrimPrefix(opened.URL, "https")); err == nil {
		if r.Body.Close(); r.StatusCode != http.StatusBadRequest {
			t.Errorf("without TLS: %s", r.Status)
		}
	}

	// The right one, which shows nothing by itself.
	b := browserOf(ours, ours.end(x509.ExtKeyUsageClientAuth, soon))
	get := func(address string, headers ...string) (int, string, http.Header) {
		t.Helper()
		q, err := http.NewRequest(http.MethodGet, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			if q.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
				q.Host = headers[i+1]
			}
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
		return r.StatusCode, string(text), r.Header
	}
	if status, text, _ := get("https://" + address + "/"); status != http.StatusForbidden || strings.Contains(text, h.B.Iface) {
		t.Errorf("without a session: status %d", status)
	}
	status, text, header := get(opened.URL)
	path := regexp.MustCompile(`content="0;url=([^"]+)"`).FindStringSubmatch(text)
	if cookie := header.Get("Set-Cookie"); status != http.StatusOK || path == nil || !strings.Contains(cookie, "; Secure") || !strings.Contains(cookie, "; HttpOnly") {
		t.Fatalf("status %d, %s", status, cookie)
	}
	base := "https://" + address + path[1]
	if status, _, _ := get(base, "Host", "evil.example"); status != http.StatusMisdirectedRequest {
		t.Errorf("another name: status %d", status)
	}

	// A reload that changes secrets is in the audit, and one that fails in the log.
	secrets := []string{"S3CRET", string(serverKey[30:60])}
	u, _ := url.Parse(base)
	for _, c := range b.Jar.Cookies(u) {
		secrets = append(secrets, c.Value)
	}
	configure("-new")
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := h.api.Refresh(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	h.api.TestNotify(t.Context(), "") // which fails
	check := func(what, text string) {
		t.Helper()
		for _, s := range secrets {
			if i := strings.Index(text, s); i >= 0 {
				t.Errorf("%s has a secret: …%s…", what, text[max(0, i-200):min(len(text), i+60)])
			}
		}
	}
	_, page, header := get(base)
	for _, want := range []string{"Failing: 3 of 4 sources.", "http://" + host + "/refused", "reload"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q, and so proves little:\n%s", want, page)
		}
	}
	check("the page", page+fmt.Sprint(header))
	for _, path := range []string{"?q=203.0.113.7", "explain?q=203.0.113.7", "lists?open=refused", "plan", "events", "events?reason=blocked", "end"} {
		_, text, _ := get(base + path)
		check(path, text)
		_, text, _ = get(base+path, "HX-Request", "true")
		check("part "+path, text)
	}
	q, _ := http.NewRequest(http.MethodGet, base+"live", nil)
	r, err := b.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	lines, streamed := bufio.NewScanner(r.Body), ""
	lines.Buffer(nil, 1<<20)
	for lines.Scan() && !strings.Contains(streamed, "event: last") { // of all parts
		streamed += lines.Text() + "\n"
	}
	for _, want := range []string{"event: alerts", "event: audit", "/refused"} {
		if !strings.Contains(streamed, want) {
			t.Errorf("the stream lacks %q", want)
		}
	}
	check("the stream", streamed)

	// Certificates of an authority that was removed are refused.
	must.Write(t, h.path("ca.pem"), others.pem)
	b.CloseIdleConnections()
	if r, err := b.Get(base); err == nil {
		r.Body.Close()
		t.Errorf("after its authority was removed: %s", r.Status)
	}
}
