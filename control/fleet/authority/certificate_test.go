package authority

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"path/filepath"
	"testing"
	"time"
)

// Certificates are valid as early as the authority's own: the hub's clock may be ahead when it makes
// one, and a node's clock behind when it verifies one.
func TestCertificateStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	a, err := Init(dir)
	if err != nil {
		t.Fatal(err)
	}
	aged(t, a, time.Now().Add(-30*24*time.Hour))
	config, err := a.ServerTLS([]string{"hub.example.net"})
	if err != nil {
		t.Fatal(err)
	}
	site, err := a.EnrollSite("paris", []string{"tls://paris.example.net:4222"}, []string{"tls://hub.example.net:7422"})
	if err != nil {
		t.Fatal(err)
	}
	ofSite, err := tls.X509KeyPair([]byte(site.Certificate), []byte(site.Key))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]tls.Certificate{"hub.example.net": config.Certificates[0], "paris.example.net": ofSite} {
		leaf, err := x509.ParseCertificate(c.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		if !leaf.NotBefore.Equal(a.ca.NotBefore) {
			t.Errorf("%s: valid from %v, the authority from %v", name, leaf.NotBefore, a.ca.NotBefore)
		}
		for _, at := range []time.Duration{-3 * time.Hour, 0, 3 * time.Hour} {
			if _, err := leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: config.RootCAs, CurrentTime: time.Now().Add(at)}); err != nil {
				t.Errorf("%s, by a clock that is off by %v: %v", name, at, err)
			}
		}
	}
}

// aged has the authority's own certificate be valid from an earlier time.
func aged(t *testing.T, a *Authority, from time.Time) {
	t.Helper()
	about := *a.ca
	about.NotBefore = from
	der, err := x509.CreateCertificate(rand.Reader, &about, &about, a.caKey.Public(), a.caKey)
	if err != nil {
		t.Fatal(err)
	}
	if a.ca, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.caPEM = certificatePEM(der)
}
