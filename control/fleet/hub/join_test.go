package hub

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/fleet/authority"
	"weir/control/fleet/enrollment"
	"weir/control/serve"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/seed"
	"weir/tests/timed"
	"weir/tests/wait"
)

// joins serves a hub's joins at an address of the loopback interface, and returns the URL.
func (f *fleet) joins(t *testing.T, at string) string {
	t.Helper()
	config, err := f.authority.JoinTLS([]string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	wait := serve.Config{Join: at, Joins: f.hub.Joins(config)}.RunHub(ctx, f.hub, testLog())
	t.Cleanup(func() { cancel(); wait() })
	return "https://" + at
}

// token makes a token, for one host within an hour where t does not say otherwise.
func (f *fleet) token(t *testing.T, of authority.Token) (authority.Token, enrollment.Token) {
	t.Helper()
	if of.Count == 0 {
		of.Count = 1
	}
	if of.Expires.IsZero() {
		of.Expires = time.Now().Add(time.Hour)
	}
	made, text, err := f.authority.NewToken(of)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := enrollment.ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	return made, parsed
}

func newKeys(t *testing.T) enrollment.Keys {
	t.Helper()
	k, err := enrollment.NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// askToJoin asks to join, once the hub listens, until there is an answer.
func askToJoin(t *testing.T, url string, by enrollment.Token, k enrollment.Keys, name string) (enrollment.Node, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience)
	defer cancel()
	return enrollment.Join(ctx, url, by, k, name, func(error) {})
}

// A host joins with a token, and may connect. Who has no right to is refused, and in the audit with the reason.
func TestJoin(t *testing.T) {
	f := newFleet(t)
	f.start("")
	url := f.joins(t, lab.FreeAddress(t))
	made, one := f.token(t, authority.Token{Labels: []string{"paris"}})
	keys := newKeys(t)
	n, err := askToJoin(t, url, one, keys, "edge-1")
	if err != nil {
		t.Fatal(err)
	}
	if n.Key != keys.Key || n.Seed != keys.Seed || !slices.Equal(n.Labels, []string{"paris"}) || n.Name != "edge-1" || !n.IsOf(one) {
		t.Errorf("joined as %+v", n)
	}
	if _, err := f.connect(n); err != nil {
		t.Error(err)
	}
	last := func(what string, check func(api.AuditRecord) bool) {
		t.Helper()
		wait.For(t, what+" is in the audit", func() bool { return slices.ContainsFunc(f.hub.Audit(5), check) })
	}
	last("the join", func(r api.AuditRecord) bool {
		return r.Change == audit.Join && r.Error == "" && slices.Equal(r.First, []string{"edge-1"}) && r.Source == "127.0.0.1" && r.Reason == "token "+made.ID
	})

	// The same host again, as where the answer was lost.
	again, err := askToJoin(t, url, one, keys, "edge-1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.connect(again); err != nil {
		t.Error(err)
	}
	wide := func(of authority.Token) enrollment.Token { of.Count = 9; _, text := f.token(t, of); return text }
	forged := wide(authority.Token{})
	forged.Secret = strings.Repeat("A", len(forged.Secret))
	revoked := wide(authority.Token{})
	if err := f.authority.RevokeToken(revoked.ID); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what  string
		token enrollment.Token
		name  string
		want  string
	}{
		{"forged", forged, "edge-2", "no such token"},
		{"unknown", enrollment.Token{ID: "00000000", Secret: one.Secret, CA: one.CA}, "edge-2", "no such token"},
		{"replayed", one, "edge-2", "used up"},
		{"with other keys", one, "edge-1", "used up"},
		{"expired", wide(authority.Token{Expires: time.Now().Add(-time.Second)}), "edge-2", "expired"},
		{"revoked", revoked, "edge-2", "revoked"},
		{"out of range", wide(authority.Token{Ranges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}), "edge-2", "from 127.0.0.1"},
		{"a name that lives", wide(authority.Token{}), "edge-1", "there is a node edge-1"},
	} {
		_, err := askToJoin(t, url, c.token, newKeys(t), c.name)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
			continue
		}
		last(c.what, func(r api.AuditRecord) bool {
			return r.Change == audit.Join && strings.Contains(r.Error, c.want) && slices.Equal(r.First, []string{c.name}) && r.Source == "127.0.0.1" && r.Reason == "token "+c.token.ID
		})
	}
	members, err := f.authority.Members()
	if err != nil || len(members) != 1 {
		t.Errorf("%d nodes, %v", len(members), err)
	}

	// The token of other keys: the host says nothing to this hub.
	other, err := authority.Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, err := other.NewToken(authority.Token{Count: 1, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := enrollment.ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = askToJoin(t, url, theirs, newKeys(t), "edge-3"); err == nil || !strings.Contains(err.Error(), "not the hub of this token") {
		t.Fatalf("a token of other keys: %v", err)
	}
	last("the token of other keys", func(r api.AuditRecord) bool {
		return r.Change == audit.Join && strings.Contains(r.Error, "other keys") && r.Source == "127.0.0.1"
	})
	// And a server with a certificate of the same keys, for another host.
	if _, err = askToJoin(t, strings.Replace(url, "127.0.0.1", "localhost", 1), one, keys, "edge-1"); err == nil || !strings.Contains(err.Error(), "not the hub of this token") {
		t.Fatalf("another host: %v", err)
	}

	// After some refusals, the address has to wait.
	refused := func() (err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err = enrollment.Join(ctx, url, forged, keys, "edge-4", func(error) {})
		return err
	}
	wait.For(t, "the brakes", func() bool { err := refused(); return err != nil && strings.Contains(err.Error(), "wait a minute") })
}

// A hub that is killed while hosts join lets as many join as the token permits, and a host that had no answer joins
// again.
func TestJoinKilled(t *testing.T) {
	long.Unraced(t)
	t.Parallel() // it waits a lot
	random := seed.New(t)
	kills, count := long.Rounds(3, 5, 30), 4
	f := newFleet(t)
	f.reserve()
	at := lab.FreeAddress(t)
	f.joinsAt = at
	_, token := f.token(t, authority.Token{Count: count})
	type host struct {
		name string
		keys enrollment.Keys
	}
	hosts := make([]host, 3*count)
	for i := range hosts {
		hosts[i] = host{fmt.Sprintf("edge-%d", i), newKeys(t)}
	}
	var mu sync.Mutex
	answered := make(map[string]bool)
	ask := func(h host, within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		_, err := enrollment.Join(ctx, "https://"+at, token, h.keys, h.name, func(error) {})
		if err == nil {
			mu.Lock()
			answered[h.name] = true
			mu.Unlock()
		}
		return err
	}
	counted := func() (names []string) {
		t.Helper()
		all, err := f.authority.Tokens()
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range all[0].Joined {
			names = append(names, j.Node)
		}
		if len(names) > count {
			t.Fatalf("counted: %q, and the token permits %d", names, count)
		}
		return names
	}
	hub := f.process("")
	defer func() { _ = hub.Process.Kill(); _ = hub.Wait() }()
	for range kills {
		wait.For(t, "the hub to listen", func() bool {
			c, err := net.Dial("tcp", at)
			if err == nil {
				c.Close()
			}
			return err == nil
		})
		var asking sync.WaitGroup
		for _, h := range hosts {
			asking.Go(func() { _ = ask(h, time.Second) })
		}
		time.Sleep(time.Duration(random.IntN(40)) * time.Millisecond)
		_ = hub.Process.Kill()
		_ = hub.Wait()
		asking.Wait()
		counted()
		hub = f.process("")
	}
	had := counted() // first: who is refused often waits
	slices.SortStableFunc(hosts, func(a, b host) int {
		return slices.Index(had, b.name) - slices.Index(had, a.name)
	})
	for _, h := range hosts {
		if err := ask(h, wait.Patience); err != nil && !strings.Contains(err.Error(), "used up") && !strings.Contains(err.Error(), "wait a minute") {
			t.Errorf("%s: %v", h.name, err)
		}
	}
	names := counted()
	members, err := f.authority.Members()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, ok := members[name]; !ok {
			t.Errorf("%s is counted, and has not joined", name)
		}
	}
	if len(answered) != count || len(names) != count || len(members) != count {
		t.Errorf("answered: %d, counted: %d, nodes: %d, want %d", len(answered), len(names), len(members), count)
	}
}

// What a host sends and gets has nothing of its private keys. A server with the hub's certificate reads it.
func TestJoinSendsNoKey(t *testing.T) {
	f := newFleet(t)
	f.start("")
	_, token := f.token(t, authority.Token{})
	config, err := f.authority.JoinTLS([]string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	var wire bytes.Buffer
	between := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		sent, err := httputil.DumpRequest(q, true)
		if err != nil {
			t.Error(err)
		}
		answer := httptest.NewRecorder()
		f.hub.Joins(config).ServeHTTP(answer, q)
		wire.Write(sent)
		wire.Write(answer.Body.Bytes())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	})}
	go between.Serve(l)
	keys := newKeys(t)
	n, err := askToJoin(t, "https://"+l.Addr().String(), token, keys, "edge-1")
	between.Close()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode([]byte(keys.Key))
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	scalar, err := key.(*ecdsa.PrivateKey).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := base32.StdEncoding.WithPadding(base32.NoPadding).DecodeString(keys.Seed)
	if err != nil {
		t.Fatal(err)
	}
	seed = seed[2:34]
	crossed := wire.Bytes()
	if !bytes.Contains(crossed, []byte(token.Secret)) || !bytes.Contains(crossed, []byte(n.JWT)) {
		t.Fatalf("the wire has not the request and the answer:\n%s", crossed)
	}
	// All that is binary there is in base64, at any of three places.
	whole := string(crossed)
	for _, text := range regexp.MustCompile(`[A-Za-z0-9+/_-]{16,}`).FindAllString(strings.ReplaceAll(whole, `\n`, ""), -1) {
		for _, by := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			for skip := range 4 {
				some := text[skip:]
				if len(some)%4 == 1 {
					some = some[:len(some)-1]
				}
				if b, err := by.DecodeString(some); err == nil {
					whole += string(b)
				}
			}
		}
	}
	for what, secret := range map[string]string{
		"the key of the certificate": string(scalar), "in hexadecimal": hex.EncodeToString(scalar), "in PKCS #8": string(block.Bytes), "its seed": string(seed),
		"in NATS's form": keys.Seed, "in PEM": "PRIVATE KEY",
	} {
		if strings.Contains(whole, secret) {
			t.Errorf("%s is on the wire", what)
		}
	}
	public, err := key.(*ecdsa.PrivateKey).PublicKey.Bytes()
	if err != nil || !strings.Contains(whole, string(public)) {
		t.Error("the public key is not on the wire: the search finds nothing")
	}
}

// 500 hosts that are made at once join by one token, from one address, and connect.
func TestJoinMany(t *testing.T) {
	long.Only(t, "500 hosts")
	timed.Alone(t)
	const hosts, within = 500, time.Minute
	f := newFleet(t)
	f.reserve()
	f.joinsAt = lab.FreeAddress(t)
	_, token := f.token(t, authority.Token{Count: hosts})
	hub := f.process("")
	defer func() { _ = hub.Process.Kill(); _ = hub.Wait() }()
	f.ready()
	began := time.Now()
	var all sync.WaitGroup
	var mu sync.Mutex
	var joined, connected []time.Duration
	for i := range hosts {
		all.Go(func() {
			n, err := askToJoin(t, "https://"+f.joinsAt, token, newKeys(t), fmt.Sprintf("edge-%d", i))
			at := time.Since(began)
			if err == nil {
				_, err = f.connect(n)
			}
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			joined, connected = append(joined, at), append(connected, time.Since(began))
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	members, err := f.authority.Members()
	if err != nil || len(members) != hosts {
		t.Errorf("%d nodes, %v", len(members), err)
	}
	slices.Sort(joined)
	slices.Sort(connected)
	t.Logf("joined: half after %v, all after %v; connected after %v", joined[hosts/2], joined[hosts-1], connected[hosts-1])
	if last := connected[hosts-1]; last > within {
		t.Errorf("the last host is connected after %v, want %v", last, within)
	}
}
