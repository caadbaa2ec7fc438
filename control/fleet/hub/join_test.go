package hub

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/fleet/authority"
	"weir/control/fleet/enrollment"
	"weir/control/serve"
	"weir/tests/wait"
)

// joins serves a hub's joins at an address of the loopback interface, and returns the URL.
func (f *fleet) joins(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
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
	return enrollment.Join(ctx, url, by, k, name)
}

// A host joins with a token, and may connect. Who has no right to is refused, and in the audit with the reason.
func TestJoin(t *testing.T) {
	f := newFleet(t)
	f.start("")
	url := f.joins(t)
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
		t.Errorf("a token of other keys: %v", err)
	}
	last("the token of other keys", func(r api.AuditRecord) bool {
		return r.Change == audit.Join && strings.Contains(r.Error, "other keys") && r.Source == "127.0.0.1"
	})
	// And a server with a certificate of the same keys, for another host.
	if _, err = askToJoin(t, strings.Replace(url, "127.0.0.1", "localhost", 1), one, keys, "edge-1"); err == nil || !strings.Contains(err.Error(), "not the hub of this token") {
		t.Errorf("another host: %v", err)
	}

	// After some refusals, the address has to wait.
	refused := func() (err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err = enrollment.Join(ctx, url, forged, keys, "edge-4")
		return err
	}
	wait.For(t, "the brakes", func() bool { err := refused(); return err != nil && strings.Contains(err.Error(), "wait a minute") })
}
