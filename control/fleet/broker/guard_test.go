package broker

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"weir/control/fleet/enrollment"
	"weir/tests/long"
	"weir/tests/wait"
)

// A node that connects all the time, or is cut off, is refused when its certificate is known.
// Others are not.
func TestHello(t *testing.T) {
	g := newGuard(discard)
	hello := func(name string) error {
		return g.hello(tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Raw: []byte(name), Subject: pkix.Name{CommonName: name}}}})
	}
	for _, name := range []string{"bad", "good"} {
		g.connected(name, name, sha256.Sum256([]byte(name)), connection{})
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
	if closed := g.connected("good", "good", fingerprint{1}, connection{id: 5}); len(closed) != 1 || closed[0] != 5 {
		t.Errorf("a node that is cut off, with another certificate: %v", closed)
	}
	g.nodes["good"].barred = time.Now().Add(-time.Second)
	if err := hello("good"); err != nil {
		t.Errorf("a minute later: %v", err)
	}
}

// Who has a revoked file of a node, or the file of a site with the node's name, does not keep the node
// out, neither at the hub nor at a site: it was enrolled anew.
func TestFormerFile(t *testing.T) {
	long.Seconds(t)
	a, b := start(t)
	enroll := func() enrollment.Node {
		n, err := a.Enroll("edge-1", nil, []string{b.URL()})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	former, now := enroll(), enroll()
	e, err := a.EnrollSite("edge-1", []string{"tls://127.0.0.1:4222"}, []string{"tls://127.0.0.1:7422"})
	if err != nil {
		t.Fatal(err)
	}
	site, err := StartSite(SiteOptions{Enrollment: e, Dir: t.TempDir(), Listen: "127.0.0.1:0", Log: discard})
	if err != nil {
		t.Fatal(err)
	}
	defer site.Close()
	if err := b.Refresh(); err != nil {
		t.Fatal(err)
	}
	options := func(n enrollment.Node) []nats.Option {
		o, err := n.Options()
		if err != nil {
			t.Fatal(err)
		}
		return append(o, nats.Timeout(wait.Patience))
	}
	ofSite := former
	ofSite.Certificate, ofSite.Key = e.Certificate, e.Key
	for at, in := range map[string]*inside{"hub": &b.inside, "site": &site.inside} {
		for what, n := range map[string]enrollment.Node{"revoked": former, "of the site": ofSite} {
			before, _, _ := in.Misuse()
			for tries, most := 0, before; tries < 4*helloBurst && most == before; tries++ {
				most, _, _ = in.Misuse()
				if c, err := nats.Connect(in.URL(), append(options(n), nats.NoReconnect())...); err == nil {
					c.Close()
					t.Fatalf("%s: who has a file that is %s is let in", at, what)
				}
			}
			c, err := nats.Connect(in.URL(), options(now)...)
			if err != nil {
				t.Errorf("%s: the node is not let in beside a file that is %s: %v", at, what, err)
				continue
			}
			c.Close()
		}
		if all := in.Violations(); len(all) > 0 {
			t.Errorf("%s: the node has tried what it may not do: %v", at, all)
		}
		if all, _, _ := in.Misuse(); all == 0 {
			t.Errorf("%s: nothing was counted", at)
		}
	}
}
