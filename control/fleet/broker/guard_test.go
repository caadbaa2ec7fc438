package broker

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"strings"
	"testing"
	"time"
)

// A node that connects all the time, or is cut off, is refused when its certificate is known.
// Others are not.
func TestHello(t *testing.T) {
	g := newGuard(discard)
	hello := func(name string) error {
		return g.hello(tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Subject: pkix.Name{CommonName: name}}}})
	}
	refused := 0
	for range 10 * helloBurst {
		if err := hello("bad"); err != nil {
			refused++
		}
	}
	if least := 10*helloBurst - helloBurst - 10; refused < least {
		t.Errorf("%d connections were refused, want %d or more", refused, least)
	}
	if err := hello("good"); err != nil {
		t.Error(err)
	}
	if n := g.nodes["bad"]; n.total != uint64(refused) || !strings.Contains(n.last, "more often than once a second") {
		t.Errorf("%d violations, the last is %q", n.total, n.last)
	}
	g.nodes["good"].bar(time.Now())
	if err := hello("good"); err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("a node that is cut off: %v", err)
	}
	g.nodes["good"].barred = time.Now().Add(-time.Second)
	if err := hello("good"); err != nil {
		t.Errorf("a minute later: %v", err)
	}
}
