package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/api/client"
	"weir/tests/must"
	"weir/tests/wait"
)

// authority issues certificates for a test.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	file        string // in PEM
}

func newAuthority(t *testing.T, name string) authority {
	t.Helper()
	a := authority{key: newKey(t), file: filepath.Join(t.TempDir(), "ca.pem")}
	der := a.issue(t, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, a.key)
	var err error
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	writePEM(t, a.file, "CERTIFICATE", der)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// issue signs a certificate; the authority's own while it has none.
func (a authority) issue(t *testing.T, c *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	parent := a.certificate
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// pair writes a certificate and its key to files.
func (a authority) pair(t *testing.T, name string, use x509.ExtKeyUsage, until time.Time) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	k := newKey(t)
	writePEM(t, cert, "CERTIFICATE", a.issue(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name, Organization: []string{"example"}},
		NotBefore: until.Add(-time.Hour), NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{use},
	}, k))
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, key, "PRIVATE KEY", der)
	return cert, key
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	must.Write(t, path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// client asks with a certificate, or without one, and takes a server of one
// authority only.
func (a authority) client(t *testing.T, cert, key string) *http.Client {
	t.Helper()
	c := &tls.Config{RootCAs: x509.NewCertPool()}
	c.RootCAs.AddCert(a.certificate)
	if cert != "" {
		own, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{own}
	}
	transport := &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}
	return &http.Client{Transport: transport, Timeout: wait.Patience}
}

func serveTLS(t *testing.T, c controls, cert, key, clientCA string) string {
	t.Helper()
	l, err := ListenTLS("127.0.0.1:0", cert, key, clientCA)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, Handler(daemon{source{}, c}), slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return "https://" + l.Addr().String()
}

const change = `{"action": "block", "entries": ["192.0.2.1"]}`

func TestOverTCPOnlyCertificatesMayAsk(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	soon := time.Now().Add(30 * time.Minute)
	cert, key := ours.pair(t, "weir", x509.ExtKeyUsageServerAuth, soon)
	c := &control{}
	url := serveTLS(t, c, cert, key, ours.file)

	for _, who := range []struct {
		name      string
		authority authority
		use       x509.ExtKeyUsage
		until     time.Time
		ok        bool
	}{
		{"ours", ours, x509.ExtKeyUsageClientAuth, soon, true},
		{"of another authority", theirs, x509.ExtKeyUsageClientAuth, soon, false},
		{"expired", ours, x509.ExtKeyUsageClientAuth, time.Now().Add(-time.Minute), false},
		{"for a server", ours, x509.ExtKeyUsageServerAuth, soon, false},
	} {
		clientCert, clientKey := who.authority.pair(t, "ops", who.use, who.until)
		r, err := ours.client(t, clientCert, clientKey).Post(url+api.EntriesPath, "application/json", strings.NewReader(change))
		if (err == nil) != who.ok {
			t.Errorf("%s: %v", who.name, err)
		}
		if err == nil {
			r.Body.Close()
		}
	}
	clientCert, clientKey := ours.pair(t, "ops", x509.ExtKeyUsageClientAuth, soon)
	if _, err := ours.client(t, "", "").Get(url + api.ListsPath); err == nil {
		t.Error("without a certificate there is an answer")
	}
	old := ours.client(t, clientCert, clientKey)
	old.Transport.(*http.Transport).TLSClientConfig.MaxVersion = tls.VersionTLS12
	if _, err := old.Get(url + api.ListsPath); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.2: %v", err)
	}
	if len(c.asked) != 1 {
		t.Fatalf("asked for %+v", c.asked)
	}
	if asked := c.asked[0].(api.Change); asked.UID != api.NoUID || asked.Client != "CN=ops,O=example" {
		t.Errorf("asked by %d, %q", asked.UID, asked.Client)
	}
	if r, err := http.Get(strings.Replace(url, "https", "http", 1) + api.ListsPath); err == nil {
		body, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode == http.StatusOK || bytes.Contains(body, []byte("lists")) {
			t.Errorf("without TLS: %s %s", r.Status, body)
		}
	}
}

// Certificates are replaced while weir runs, maybe not all of the files at once.
func TestCertificatesAreReplaced(t *testing.T) {
	old, next := newAuthority(t, "old"), newAuthority(t, "next")
	soon := time.Now().Add(30 * time.Minute)
	cert, key := old.pair(t, "weir", x509.ExtKeyUsageServerAuth, soon)
	url := serveTLS(t, &control{}, cert, key, old.file)
	asks := func(a authority) bool {
		clientCert, clientKey := a.pair(t, "ops", x509.ExtKeyUsageClientAuth, soon)
		r, err := a.client(t, clientCert, clientKey).Get(url + api.ListsPath)
		if err == nil {
			r.Body.Close()
		}
		return err == nil
	}
	replace := func(path, by string) {
		text, err := os.ReadFile(by)
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !asks(old) || asks(next) {
		t.Fatal("before")
	}
	nextCert, nextKey := next.pair(t, "weir", x509.ExtKeyUsageServerAuth, soon)
	replace(cert, nextCert) // the key does not fit
	if !asks(old) {
		t.Error("while the files do not fit together")
	}
	replace(key, nextKey)
	replace(old.file, next.file)
	if asks(old) || !asks(next) {
		t.Error("after")
	}
}

func TestListenTLSRefuses(t *testing.T) {
	a := newAuthority(t, "ours")
	cert, key := a.pair(t, "weir", x509.ExtKeyUsageServerAuth, time.Now().Add(time.Minute))
	_, otherKey := a.pair(t, "weir", x509.ExtKeyUsageServerAuth, time.Now().Add(time.Minute))
	for _, c := range []struct{ name, addr, cert, key, clientCA, want string }{
		{"no certificate", "127.0.0.1:0", "/nowhere/cert.pem", key, a.file, "/nowhere/cert.pem"},
		{"another's key", "127.0.0.1:0", cert, otherKey, a.file, "private key does not match"},
		{"no authorities", "127.0.0.1:0", cert, key, "/nowhere/ca.pem", "/nowhere/ca.pem"},
		{"a key as authorities", "127.0.0.1:0", cert, key, key, "no certificate in PEM"},
		{"no address", "127.0.0.1:x", cert, key, a.file, "127.0.0.1:x"},
	} {
		l, err := ListenTLS(c.addr, c.cert, c.key, c.clientCA)
		if err == nil {
			l.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// A client with a certificate reaches weir where it is served to such, and says
// what is wrong where it cannot.
func TestDialTLS(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	soon := time.Now().Add(30 * time.Minute)
	cert, key := ours.pair(t, "weir", x509.ExtKeyUsageServerAuth, soon)
	mine, mineKey := ours.pair(t, "me", x509.ExtKeyUsageClientAuth, soon)
	url := serveTLS(t, nil, cert, key, ours.file)
	c, err := client.DialTLS(url, mine, mineKey, ours.file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Weights(t.Context()); err == nil || err.Error() != "this daemon learns no weights: that requires mode: approx in weir.yaml" {
		t.Errorf("weights: %v", err)
	}
	if _, err := c.Trace(t.Context(), api.TraceQuestion{Packets: []api.TraceAbout{{From: time.Now(), To: time.Now()}}}); err == nil || err.Error() != api.ErrNoDigests.Error() {
		t.Errorf("trace: %v", err)
	}
	if c, err = client.DialTLS(url, mine, mineKey, theirs.file); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Top(t.Context()); err == nil || !strings.Contains(err.Error(), url) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a daemon of another authority: %v", err)
	}
	for _, bad := range []struct{ url, cert, key, ca, want string }{
		{"http://localhost:1", mine, mineKey, ours.file, "https://HOST:PORT"},
		{url + "/v1/top", mine, mineKey, ours.file, "https://HOST:PORT"},
		{url, "", "", ours.file, "certificate"},
		{url, mine, mineKey, mineKey, "no certificate"},
		{url, mine, mineKey, "", "no such file"},
	} {
		if _, err := client.DialTLS(bad.url, bad.cert, bad.key, bad.ca); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
