package authority

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"path/filepath"
	"slices"
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
		if !leaf.NotBefore.Equal(a.ca.Load().issuer().NotBefore) {
			t.Errorf("%s: valid from %v, the authority from %v", name, leaf.NotBefore, a.ca.Load().issuer().NotBefore)
		}
		for _, at := range []time.Duration{-3 * time.Hour, 0, 3 * time.Hour} {
			if _, err := leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: config.RootCAs, CurrentTime: time.Now().Add(at)}); err != nil {
				t.Errorf("%s, by a clock that is off by %v: %v", name, at, err)
			}
		}
	}
}

// A clock that is years behind makes no certificate that has expired by the clocks of all others. The
// hub's own is valid as long as the authority's.
func TestCertificateEnd(t *testing.T) {
	a, err := Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	aged(t, a, time.Now().Add(6*365*24*time.Hour)) // this clock is six years behind
	now := a.ca.Load().issuer().NotBefore.Add(time.Hour)
	config, err := a.ServerTLS([]string{"hub.example.net"})
	if err != nil {
		t.Fatal(err)
	}
	n, err := a.Enroll("edge-1", nil, []string{"tls://hub.example.net:4222"})
	if err != nil {
		t.Fatal(err)
	}
	ofNode, err := n.TLS()
	if err != nil {
		t.Fatal(err)
	}
	site, err := a.EnrollSite("paris", []string{"tls://paris.example.net:4222"}, []string{"tls://hub.example.net:7422"})
	if err != nil {
		t.Fatal(err)
	}
	ofSite, err := site.TLS()
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]tls.Certificate{"hub": config.Certificates[0], "node": ofNode.Certificates[0], "site": ofSite.Certificates[0]} {
		if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: config.RootCAs, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if until := config.Certificates[0].Leaf.NotAfter; !until.Equal(a.ca.Load().issuer().NotAfter) {
		t.Errorf("the hub's own is valid until %v, the authority's until %v", until, a.ca.Load().issuer().NotAfter)
	}
}

// Certificates of nodes and sites, and the authority's own, are named before they expire, but for
// revoked ones.
func TestExpiring(t *testing.T) {
	a, err := Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"edge-1", "edge-2", "edge-3"} {
		if _, err := a.Enroll(name, nil, []string{"tls://hub.example.net:4222"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Revoke("edge-2"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.EnrollSite("paris", []string{"tls://paris.example.net:4222"}, []string{"tls://hub.example.net:7422"}); err != nil {
		t.Fatal(err)
	}
	members, err := a.Members()
	if err != nil {
		t.Fatal(err)
	}
	sites, err := a.Sites()
	if err != nil {
		t.Fatal(err)
	}
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	for after, want := range map[time.Duration][]string{
		70 * day: nil, 73 * day: {"node edge-1", "node edge-3"}, 5*year - 80*day: {"node edge-1", "node edge-3", "site paris"},
		20*year - 80*day: {"node edge-1", "node edge-3", "site paris", "authority"},
	} {
		var got []string
		for _, e := range a.Expiring(members, sites, time.Now().Add(after)) {
			got = append(got, e.What)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("after %v: %q, want %q", after, got, want)
		}
	}
}

// aged has the authority's own certificate be valid from an earlier time.
func aged(t *testing.T, a *Authority, from time.Time) {
	t.Helper()
	ca := *a.ca.Load()
	about := *ca.issuer()
	about.NotBefore = from
	der, err := x509.CreateCertificate(rand.Reader, &about, &about, ca.keys[0].Public(), ca.keys[0])
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	ca.all, ca.pem, ca.pool = []*x509.Certificate{c}, certificatePEM(der), x509.NewCertPool()
	ca.pool.AddCert(c)
	a.ca.Store(&ca)
}
