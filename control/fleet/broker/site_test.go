package broker

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"weir/control/fleet/authority"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/wire"
	"weir/tests/wait"
)

var discard = slog.New(slog.DiscardHandler)

func start(t *testing.T) (*authority.Authority, *Server) {
	t.Helper()
	a, err := authority.Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Start(Options{Authority: a, Dir: t.TempDir(), Listen: "127.0.0.1:0", Sites: "127.0.0.1:0", Names: []string{"127.0.0.1"}, Log: discard})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return a, b
}

// A server that cannot listen says so at once.
func TestPortInUse(t *testing.T) {
	a, b := start(t)
	address := strings.TrimPrefix(b.URL(), "tls://")
	began := time.Now()
	c, err := Start(Options{Authority: a, Dir: t.TempDir(), Listen: address, Names: []string{"127.0.0.1"}, Log: discard})
	if err == nil {
		c.Close()
	}
	if err == nil || !strings.Contains(err.Error(), address) || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("%v: want the address, and that it is in use", err)
	}
	if took := time.Since(began); took > startTimeout/3 {
		t.Errorf("it took %v", took)
	}
}

// A user that the keys do not know, since they are an older backup's, is let in. The log says so, once, and how to
// cut it off.
func TestUnknownUser(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	a, err := authority.Init(dir)
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	logged := func() string {
		text, err := os.ReadFile(log.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	b, err := Start(Options{Authority: a, Dir: t.TempDir(), Listen: "127.0.0.1:0", Names: []string{"127.0.0.1"}, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var users []string
	var unknown *nats.Conn
	for _, name := range []string{"edge-1", "edge-9", "edge-9", "edge-2"} { // edge-9 is enrolled anew
		n, err := a.Enroll(name, nil, []string{b.URL()})
		if err != nil {
			t.Fatal(err)
		}
		claims, err := jwt.DecodeUserClaims(n.JWT)
		if err != nil {
			t.Fatal(err)
		}
		users = append(users, claims.Subject)
		if name == "edge-9" {
			if err := os.Remove(filepath.Join(dir, "nodes", "edge-9.json")); err != nil {
				t.Fatal(err)
			}
		}
		o, err := n.Options()
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			c, err := connect(t, b.URL(), append(o, nats.Timeout(wait.Patience), nats.NoReconnect())...)
			if err != nil {
				t.Fatal(err)
			}
			if name == "edge-9" {
				unknown = c
			}
		}
	}
	wait.For(t, "both users are in the log", func() bool {
		return strings.Contains(logged(), "node=edge-9 user="+users[1]) && strings.Contains(logged(), "node=edge-9 user="+users[2])
	})
	if err := errors.Join(a.RevokeUser("edge-9", users[2]), b.Refresh()); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the user is cut off", unknown.IsClosed)
	if n := strings.Count(logged(), "revoke NODE --user USER"); n != 2 {
		t.Errorf("%d warnings, want one for each unknown user:\n%s", n, logged())
	}
}

// A server that is closed leaves no goroutine.
func TestCloseEnds(t *testing.T) {
	_, b := start(t)
	b.Close()
	buffer := make([]byte, 1<<20)
	wait.For(t, "no goroutine is left", func() bool { // one may have been about to end
		return !strings.Contains(string(buffer[:runtime.Stack(buffer, true)]), "broker.(*inside)")
	})
}

// leafURL returns where servers of sites connect.
func (b *Server) leafURL(t *testing.T) string {
	t.Helper()
	v, err := b.server.Varz(nil)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("tls://127.0.0.1:%d", v.LeafNode.Port)
}

func connect(t *testing.T, url string, more ...nats.Option) (*nats.Conn, error) {
	t.Helper()
	c, err := nats.Connect(url, more...)
	if err == nil {
		t.Cleanup(c.Close)
	}
	return c, err
}

// A site's server has credentials for the hub: they must let it have the stream and
// speak for its nodes, and nothing else, even if it runs another program.
func TestSitePermissions(t *testing.T) {
	a, b := start(t)
	e, err := a.EnrollSite("paris", []string{"tls://127.0.0.1:4222"}, []string{b.leafURL(t)})
	if err != nil {
		t.Fatal(err)
	}
	// No client may use them.
	own, err := e.TLS()
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]enrollment.Credentials{"stream": e.Stream, "nodes": e.Nodes, "own": e.Own, "events": e.Events} {
		if _, err := connect(t, b.URL(), nats.Secure(own), nats.UserJWTAndSeed(c.JWT, c.Seed)); err == nil {
			t.Errorf("%s: a client is connected", what)
		}
	}
	// Subscribed in each account at the hub: what a rogue server with these credentials
	// sends.
	heard := make(chan string, 1000)
	listen := func(token, seed string, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		c, err := connect(t, "", append(b.Options(), nats.UserJWTAndSeed(token, seed))...)
		if err != nil {
			t.Fatal(err)
		}
		own := func(subject string) bool { // the hub's own reading of the stream
			return strings.HasPrefix(subject, wire.HubInbox+".fetch.") || subject == "$JS.API.STREAM.INFO."+wire.Stream
		}
		if _, err := c.Subscribe(">", func(m *nats.Msg) {
			if !own(m.Subject) {
				heard <- m.Subject
			}
		}); err != nil {
			t.Fatal(err)
		}
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	listen(a.Own(false))
	listen(a.OwnStream())
	rogue, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(), JetStreamDomain: wire.HubDomain,
		LeafNode: server.LeafNodeOpts{Remotes: []*server.RemoteLeafOpts{rogueRemote(t, e, "S", e.Stream), rogueRemote(t, e, "N", e.Nodes)}},
		Accounts: []*server.Account{server.NewAccount("S"), server.NewAccount("N")},
		Users:    []*server.User{{Username: "s", Password: "s", Account: server.NewAccount("S")}, {Username: "n", Password: "n", Account: server.NewAccount("N")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	go rogue.Start()
	t.Cleanup(func() { rogue.Shutdown(); rogue.WaitForShutdown() })
	if !rogue.ReadyForConnections(10 * time.Second) {
		t.Fatal("not ready")
	}
	for end := wait.Deadline(); rogue.NumLeafNodes() < 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d connections to the hub", rogue.NumLeafNodes())
		}
	}
	var expected []string
	var publish []func() error
	for account, allowed := range map[string][]string{
		"s": {"$JS.FC." + wire.Stream + ".x"},
		"n": {wire.StatusSubject("edge-1"), wire.HubInbox + ".x"},
	} {
		c, err := connect(t, rogue.ClientURL(), nats.UserInfo(account, account))
		if err != nil {
			t.Fatal(err)
		}
		for _, subject := range append(allowed,
			wire.CatalogSubject(), wire.DownPrefix+wire.CatalogSubject(), wire.DeltaSubject("a"), wire.AskSubject("edge-1", "x"), "_INBOX.edge-1.x", "foo",
			"$JS.API.STREAM.DELETE."+wire.Stream, "$JS."+wire.HubDomain+".API.STREAM.DELETE."+wire.Stream, "$JS."+wire.HubDomain+".API.STREAM.PURGE."+wire.Stream,
			"$JS."+wire.HubDomain+".API.STREAM.UPDATE."+wire.Stream, "$JS."+wire.HubDomain+".API.CONSUMER.DELETE."+wire.Stream+".x", "$SYS.REQ.SERVER.PING",
		) {
			publish = append(publish, func() error { return c.Publish(subject, []byte("x")) })
		}
		publish = append(publish, c.Flush)
		expected = append(expected, allowed...)
	}
	seen := make(map[string]bool)
	listenFor := func(d time.Duration) {
		for end := time.After(d); ; {
			select {
			case subject := <-heard:
				if strings.HasPrefix(subject, "weir.") || strings.HasPrefix(subject, "$JS.FC") || strings.HasPrefix(subject, "_INBOX.") || subject == "foo" || strings.Contains(subject, "API.STREAM") || strings.Contains(subject, "CONSUMER.DELETE") {
					seen[subject] = true
				}
			case <-end:
				return
			}
		}
	}
	// The rogue learns of the hub's subscriptions in its time.
	unseen := func(subject string) bool { return !seen[subject] }
	for end := wait.Deadline(); slices.ContainsFunc(expected, unseen) && time.Now().Before(end); listenFor(50 * time.Millisecond) {
		for _, do := range publish {
			if err := do(); err != nil {
				t.Fatal(err)
			}
		}
	}
	listenFor(time.Second)
	for _, subject := range expected {
		if !seen[subject] {
			t.Errorf("%s does not arrive", subject)
		}
		delete(seen, subject)
	}
	if len(seen) > 0 {
		t.Errorf("the hub hears %v", seen)
	}

	// Revoked: cut off, and not let in again.
	if err := a.RevokeSite("paris"); err != nil {
		t.Fatal(err)
	}
	if err := b.Refresh(); err != nil {
		t.Fatal(err)
	}
	for end := wait.Deadline(); b.server.NumLeafNodes() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a revoked site stays connected")
		}
	}
}

func rogueRemote(t *testing.T, e enrollment.Site, account string, c enrollment.Credentials) *server.RemoteLeafOpts {
	t.Helper()
	r, err := (&Site{o: SiteOptions{Enrollment: e}}).remote(account, c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// paris enrolls a site and starts its server.
func paris(t *testing.T, a *authority.Authority, b *Server) *Site {
	t.Helper()
	e, err := a.EnrollSite("paris", []string{"tls://127.0.0.1:4222"}, []string{b.leafURL(t)})
	if err != nil {
		t.Fatal(err)
	}
	site, err := StartSite(SiteOptions{Enrollment: e, Dir: t.TempDir(), Listen: "127.0.0.1:0", Log: discard})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(site.Close)
	return site
}

// A node's key with another node's certificate is cut off, at the hub and at a site.
func TestMixed(t *testing.T) {
	a, b := start(t)
	site := paris(t, a, b)
	for what, url := range map[string]string{"hub": b.URL(), "site": site.URL()} {
		var nodes []enrollment.Node
		for _, name := range []string{"edge-1", "edge-2"} {
			n, err := a.Enroll(name, nil, []string{url})
			if err != nil {
				t.Fatal(err)
			}
			nodes = append(nodes, n)
		}
		join := func(n enrollment.Node) (closed chan struct{}, err error) {
			o, err := n.Options()
			if err != nil {
				t.Fatal(err)
			}
			closed = make(chan struct{})
			_, err = connect(t, n.URL(), append(o, nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))...)
			return closed, err
		}
		mixed := nodes[0]
		mixed.Certificate, mixed.Key = nodes[1].Certificate, nodes[1].Key
		if closed, err := join(mixed); err == nil {
			select {
			case <-closed:
			case <-time.After(wait.Patience):
				t.Errorf("%s: it stays connected", what)
			}
		}
		closed, err := join(nodes[0])
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		select {
		case <-closed:
			t.Errorf("%s: a node that is whole is cut off", what)
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// An error that stays is in the log once, not each second.
func TestSiteErrors(t *testing.T) {
	a, b := start(t)
	e, err := a.EnrollSite("paris", []string{"tls://127.0.0.1:4222"}, []string{b.leafURL(t)})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	site, err := StartSite(SiteOptions{Enrollment: e, Dir: t.TempDir(), Listen: "127.0.0.1:0", Log: discard})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(site.Close)
	site.log = slog.New(slog.NewTextHandler(&log, nil))
	site.conn.Close()
	var w watch
	for range 3 {
		site.look(t.Context(), &w)
	}
	for _, what := range []string{"which nodes are revoked cannot be read", "the mirror of the hub's stream: "} {
		if n := strings.Count(log.String(), what); n != 1 {
			t.Errorf("%q is in the log %d times:\n%s", what, n, &log)
		}
	}
}

// A forged account does not let revoked nodes in.
func TestSiteAccount(t *testing.T) {
	a, b := start(t)
	site := paris(t, a, b)
	other, _ := start(t)
	_, forged, err := other.Account()
	if err != nil {
		t.Fatal(err)
	}
	_, stream, err := a.Stream()
	if err != nil {
		t.Fatal(err)
	}
	_, good, err := a.Account()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := site.check(good); err != nil {
		t.Error(err)
	}
	for what, token := range map[string]string{"of another fleet": forged, "of another account": stream, "empty": "", "cut off": good[:len(good)-9]} {
		if _, err := site.check(token); err == nil {
			t.Errorf("%s: taken", what)
		}
	}
}

// Nodes of a site reach the hub when the imports of their account change, as with another version of the hub.
func TestSiteImports(t *testing.T) {
	a, b := start(t)
	token, seed, err := a.Own(false)
	if err != nil {
		t.Fatal(err)
	}
	hub, err := connect(t, "", append(b.Options(), nats.UserJWTAndSeed(token, seed))...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hub.Subscribe(wire.OriginSubject("*"), func(m *nats.Msg) { _ = m.Respond([]byte("{}")) }); err != nil {
		t.Fatal(err)
	}
	site := paris(t, a, b)
	e, err := a.Enroll("edge-1", nil, []string{site.URL()})
	if err != nil {
		t.Fatal(err)
	}
	o, err := e.Options()
	if err != nil {
		t.Fatal(err)
	}
	node, err := connect(t, site.URL(), append(o, nats.Timeout(wait.Patience))...)
	if err != nil {
		t.Fatal(err)
	}
	answered := func() bool {
		_, err := node.Request(wire.OriginSubject("edge-1"), []byte("{}"), wait.Patience)
		return err == nil
	}
	wait.For(t, "the hub answers", answered)
	c, token, err := a.Account()
	if err != nil {
		t.Fatal(err)
	}
	c.Imports = c.Imports[:1]
	if err := site.update(c, token+" with fewer imports"); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the hub answers with fewer imports", answered)
}

// A server that requires TLS first says nothing before, and one that accepts it lets in nodes
// of both kinds.
func TestTLSFirst(t *testing.T) {
	a, err := authority.Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[TLSFirst]struct{ first, later bool }{TLSLater: {false, true}, TLSAccept: {true, true}, TLSRequire: {true, false}} {
		b, err := Start(Options{Authority: a, Dir: t.TempDir(), Listen: "127.0.0.1:0", Names: []string{"127.0.0.1"}, TLSFirst: mode, Log: discard})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		n, err := a.Enroll("edge-1", nil, []string{b.URL()})
		if err != nil {
			t.Fatal(err)
		}
		for _, n.TLSFirst = range []bool{true, false} {
			o, err := n.Options()
			if err != nil {
				t.Fatal(err)
			}
			_, err = connect(t, n.URL(), append(o, nats.Timeout(10*time.Second))...)
			if let := err == nil; let != (n.TLSFirst && want.first || !n.TLSFirst && want.later) {
				t.Errorf("mode %d, a node that begins with TLS: %v: %v", mode, n.TLSFirst, err)
			}
		}
		c, err := net.Dial("tcp", strings.TrimPrefix(b.URL(), "tls://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		end := wait.Deadline()
		if mode == TLSRequire {
			end = time.Now().Add(2 * time.Second)
		}
		if err := c.SetReadDeadline(end); err != nil {
			t.Fatal(err)
		}
		text := make([]byte, 1000)
		if k, _ := c.Read(text); (k > 0) == (mode == TLSRequire) {
			t.Errorf("mode %d: before TLS the server says %q", mode, text[:k])
		}
	}
}
