package node

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"weir/control/fleet/enrollment"
	"weir/tests/wait"
)

// serversOf returns the servers that the protection against lock-out protects for a node's list.
func serversOf(t *testing.T, n *Node) []netip.Addr {
	t.Helper()
	all := n.Lists()
	if len(all) != 1 {
		t.Fatalf("%d lists", len(all))
	}
	return all[0].Status().Sources[0].Servers
}

// The addresses of the hub are known before a node connects, and while it is not connected.
func TestServers(t *testing.T) {
	dir := t.TempDir()
	h, r := follow(t, dir)
	local := netip.MustParseAddr("127.0.0.1")
	if got := serversOf(t, r.Node); !slices.Equal(got, []netip.Addr{local}) {
		t.Errorf("connected: %v", got)
	}
	h.server.Shutdown()
	wait.For(t, "the end of the connection", func() bool { return !r.Age().Connected })
	if got := serversOf(t, r.Node); !slices.Equal(got, []netip.Addr{local}) {
		t.Errorf("while it is away: %v", got)
	}
	r.stop()

	c := h.config(dir)
	c.Enrollment.Servers = []string{"tls://203.0.113.5:4222", "tls://[2001:db8::5]:4222", "tls://hub.example.net:4222"}
	n, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	fixed := []netip.Addr{netip.MustParseAddr("203.0.113.5"), netip.MustParseAddr("2001:db8::5")}
	if got := serversOf(t, n); !slices.Equal(got, fixed) {
		t.Errorf("before it connects: %v, want %v", got, fixed)
	}
}

// The addresses of names are those that they had last, also in the next process.
func TestNamedServers(t *testing.T) {
	dir := t.TempDir()
	open := func(urls ...string) *servers { return newServers(urls, dir, slog.New(slog.DiscardHandler)) }
	s := open("tls://hub.example.net:4222")
	var answer []netip.Addr
	s.lookup = func(context.Context, string) ([]netip.Addr, error) {
		if len(answer) == 0 {
			return nil, errors.New("the resolver is silent")
		}
		return answer, nil
	}
	local := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, n}) }
	dial := func(s *servers, address string) {
		t.Helper()
		if c, err := s.Dial("tcp", address); err == nil {
			c.Close()
			t.Fatalf("%s answers", address)
		}
	}
	is := func(what string, s *servers, want ...netip.Addr) {
		t.Helper()
		if got := s.addresses(); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	is("before", s)
	for n := range byte(20) {
		answer = append(answer, local(n+1))
	}
	dial(s, "hub.example.net:1")
	if got := s.addresses(); len(got) != 1 || !slices.Contains(answer[:maxAddresses], got[0]) {
		t.Errorf("many, of which none has a key: %v, want the last one tried", got)
	}
	prove := func(n byte) {
		t.Helper()
		answer = []netip.Addr{netip.AddrFrom16(local(n).As16())}
		dial(s, "hub.example.net:1")
		s.proved(netip.AddrPortFrom(local(n), 1).String())
	}
	prove(7)
	is("one", s, local(7))
	answer = []netip.Addr{local(8)}
	dial(s, "hub.example.net:1")
	is("tried", s, local(7), local(8))
	s.proved("")
	s.save()
	is("tried is not saved", open("tls://hub.example.net:4222"), local(7))
	prove(9)
	is("a former one is not named any more", s, local(9))
	answer = []netip.Addr{local(8), local(9)}
	for range 100 {
		if dial(s, "hub.example.net:1"); s.trying == local(8) {
			break
		}
	}
	s.proved(netip.AddrPortFrom(local(8), 1).String())
	is("both", s, local(8), local(9))
	answer = nil
	dial(s, "hub.example.net:1")
	is("a silent resolver", s, local(8), local(9))
	dial(s, "127.0.0.7:1")
	is("another server", s, local(8), local(9))
	s.save()
	is("saved", open("tls://127.0.0.3:4222", "tls://hub.example.net:4222"), local(3), local(8), local(9))
	is("another enrollment", open("tls://other.example.net:4222"))
}

// A false DNS names addresses where no server has a key of the hub: at any moment, the node protects the
// one that it tries, and none is saved.
func TestFalseDNS(t *testing.T) {
	t.Parallel() // it waits a lot
	var named []netip.Addr
	met := make(chan netip.Addr, 100)
	forger, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer forger.Close()
	port := forger.Addr().(*net.TCPAddr).Port
	for i := range byte(8) {
		a := netip.AddrFrom4([4]byte{127, 1, 0, i + 1})
		named = append(named, a)
		l, err := net.Listen("tcp", netip.AddrPortFrom(a, uint16(port)).String())
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				met <- a
				_, _ = c.Write([]byte(`INFO {"server_id":"X","version":"2.10.0","max_payload":1048576,"tls_required":true}` + "\r\n"))
				_, _ = c.Read(make([]byte, 1))
				c.Close()
			}
		}()
	}
	h := newHub(t)
	dir := t.TempDir()
	c := h.config(dir)
	enroll(t, &c.Enrollment, time.Now().Add(time.Hour))
	c.Enrollment.Servers = []string{fmt.Sprintf("tls://hub.example.net:%d", port)}
	n, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	n.servers.lookup = func(context.Context, string) ([]netip.Addr, error) { return named, nil }
	r := &run{Node: n, t: t}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- n.Run(ctx, r) }()
	for range 3 {
		<-met
		if got := n.servers.addresses(); len(got) != 1 || !slices.Contains(named, got[0]) {
			t.Errorf("protected: %v, want the one that is tried", got)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	again, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	if got := again.servers.addresses(); len(got) != 0 {
		t.Errorf("protected after a restart: %v", got)
	}
}

// Who is on the way to the hub, and has none of its keys, can change what it says before TLS. The
// servers that it names there are neither connected to nor protected.
func TestNamedInClearText(t *testing.T) {
	t.Parallel() // it waits a lot
	forger, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer forger.Close()
	other, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	met := make(chan string, 100)
	accept := func(at net.Listener) {
		for {
			c, err := at.Accept()
			if err != nil {
				return
			}
			met <- at.Addr().String()
			info := `INFO {"server_id":"X","version":"2.10.0","max_payload":1048576,"tls_required":true,"connect_urls":["%s"]}` + "\r\n"
			_, _ = fmt.Fprintf(c, info, other.Addr())
			_, _ = c.Read(make([]byte, 1))
			c.Close()
		}
	}
	go accept(forger)
	go accept(other)
	h := newHub(t)
	c := h.config(t.TempDir())
	enroll(t, &c.Enrollment, time.Now().Add(time.Hour))
	c.Enrollment.Servers = []string{"tls://" + forger.Addr().String()}
	n, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	r := &run{Node: n, t: t}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- n.Run(ctx, r) }()
	for range 3 {
		if at := <-met; at != forger.Addr().String() {
			t.Errorf("it has connected to %s", at)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got, want := n.servers.addresses(), []netip.Addr{netip.MustParseAddr("127.0.0.1")}; !slices.Equal(got, want) {
		t.Errorf("protected: %v, want %v", got, want)
	}
}

// A certificate is renewed when a third of its life is left, and those of many nodes within a tenth. A node shows its own when a
// fifth is left: the renewal is overdue.
func TestRenewAt(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	scope := must(nkeys.CreateAccount())
	const life = 90 * 24 * time.Hour
	n := &Node{}
	n.clock.local = func() time.Time { return now }
	first, last := now.Add(life), now
	for range 100 {
		e := &n.c.Enrollment
		enroll(t, e, now.Add(life))
		c := jwt.NewUserClaims(e.User())
		c.Expires = now.Add(life).Unix()
		e.JWT = must(c.Encode(scope))
		if at := e.RenewAt(); at.Before(first) {
			first = at
		} else if at.After(last) {
			last = at
		}
	}
	if from, until := now.Add(life*2/3), now.Add(life*2/3+life/10); first.Before(from.Add(-time.Minute)) || last.After(until.Add(time.Minute)) || last.Sub(first) < life/20 {
		t.Errorf("renewed from %v to %v, want %v to %v", first, last, from, until)
	}
	for left, want := range map[time.Duration]bool{life: false, life / 4: false, life / 6: true, -time.Hour: true} {
		n.clock.local = func() time.Time { return now.Add(life - left) }
		if got := !n.Expires().IsZero(); got != want {
			t.Errorf("%v before the end: shown: %t", left, got)
		}
	}
}

// enroll adds keys that no server trusts to an enrollment, and a certificate that is valid until some time.
func enroll(t *testing.T, e *enrollment.Node, until time.Time) {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	about := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: until, IsCA: true, BasicConstraintsValid: true}
	text := func(kind string, b []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	e.Certificate = text("CERTIFICATE", must(x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key)))
	e.CA, e.Key = e.Certificate, text("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(key)))
	e.JWT, e.Seed = "a.b.c", string(must(must(nkeys.CreateUser()).Seed()))
}

// The age of the lists is known while the node dials a hub that does not answer.
func TestAgeBesideSilentHub(t *testing.T) {
	t.Parallel() // it waits a lot
	h, r := follow(t, t.TempDir())
	at := h.server.Addr().String()
	h.server.Shutdown()
	silent, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	c, err := silent.Accept() // the node waits for its first message, for ten seconds
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	began := time.Now()
	r.Age()
	if took := time.Since(began); took > dialTimeout/2 {
		t.Errorf("it took %v", took)
	}
}
