package authority

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/durable"
	"weir/control/fleet/enrollment"
)

// host is one that joins.
type host struct {
	name string
	keys enrollment.Keys
}

func newHost(t *testing.T, name string) host {
	t.Helper()
	k, err := enrollment.NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	return host{name, k}
}

// joins has a host ask to join by a token.
func (h host) joins(t *testing.T, a *Authority, by enrollment.Token) (enrollment.Node, error) {
	t.Helper()
	r, err := h.keys.Request(by, h.name)
	if err != nil {
		t.Fatal(err)
	}
	return a.Join(r, netip.MustParseAddr("192.0.2.7"), []string{"tls://hub.example.net:4222"}, false)
}

func newToken(t *testing.T, a *Authority, of Token) enrollment.Token {
	t.Helper()
	if of.Expires.IsZero() {
		of.Expires = time.Now().Add(time.Hour)
	}
	_, text, err := a.NewToken(of)
	if err != nil {
		t.Fatal(err)
	}
	token, err := enrollment.ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func newAuthority(t *testing.T) *Authority {
	t.Helper()
	a, err := Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Of hosts that ask at once, as many join as the token permits. Its record does not let anybody join.
func TestTokenCounts(t *testing.T) {
	a := newAuthority(t)
	const count, asking = 3, 12
	token := newToken(t, a, Token{Count: count})
	var all sync.WaitGroup
	var joined [asking]bool
	for i := range asking {
		h := newHost(t, fmt.Sprintf("edge-%d", i))
		all.Go(func() {
			_, err := h.joins(t, a, token)
			if joined[i] = err == nil; err != nil && !strings.Contains(err.Error(), "used up") {
				t.Error(err)
			}
			again, err := h.joins(t, a, token)
			if (err == nil) != joined[i] {
				t.Errorf("%s joined: %t, and again: %v, %v", h.name, joined[i], again, err)
			}
		})
	}
	all.Wait()
	members, err := a.Members()
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := a.Tokens()
	if err != nil || len(tokens) != 1 {
		t.Fatalf("%d tokens, %v", len(tokens), err)
	}
	n := 0
	for i := range joined {
		if joined[i] {
			n++
		}
	}
	if n != count || len(members) != count || len(tokens[0].Joined) != count {
		t.Errorf("%d joined, %d are recorded, and %d counted, want %d", n, len(members), len(tokens[0].Joined), count)
	}
	text, err := os.ReadFile(filepath.Join(a.dir, TokensDir, token.ID+".json"))
	if err != nil || bytes.Contains(text, []byte(token.Secret)) || !bytes.Contains(text, []byte("secret_sha256")) {
		t.Errorf("%v, the record: %s", err, text)
	}
}

// fullDisk is a disk without room, after some files.
type fullDisk struct {
	durable.Disk
	left int
}

func (d *fullDisk) Rename(from, to string) error {
	if d.left--; d.left < 0 {
		return &os.PathError{Op: "rename", Path: to, Err: unix.ENOSPC}
	}
	return d.Disk.Rename(from, to)
}

// A host that was not answered, since the disk was full or the hub was killed, joins again with the same keys, and counts
// once. Others do not get its place.
func TestJoinCutShort(t *testing.T) {
	for files := range 2 { // the record of the token, and that of the node
		a := newAuthority(t)
		token := newToken(t, a, Token{Count: 1})
		h := newHost(t, "edge-1")
		disk := &fullDisk{left: files}
		disk.Disk = durable.UseDisk(disk)
		_, err := h.joins(t, a, token)
		durable.UseDisk(disk.Disk)
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("after %d files: %v", files, err)
		}
		if members, err := a.Members(); err != nil || len(members) != 0 {
			t.Errorf("after %d files there are %d nodes, %v", files, len(members), err)
		}
		if _, err := newHost(t, "edge-2").joins(t, a, token); (err != nil) != (files > 0) {
			t.Errorf("after %d files, another host: %v", files, err)
		} else if err == nil {
			continue // nothing was counted
		}
		if n, err := h.joins(t, a, token); err != nil || n.Name != "edge-1" {
			t.Errorf("after %d files, again: %v", files, err)
		}
	}
}

// A host whose keys are revoked hears so, and joins with others. A name in use is not replaced.
func TestJoinAnew(t *testing.T) {
	a := newAuthority(t)
	token := newToken(t, a, Token{Count: 9})
	first := newHost(t, "edge-1")
	if _, err := first.joins(t, a, token); err != nil {
		t.Fatal(err)
	}
	second := newHost(t, "edge-1")
	if _, err := second.joins(t, a, token); err == nil || !strings.Contains(err.Error(), "there is a node edge-1, which is not replaced") {
		t.Errorf("a name in use: %v", err)
	}
	other := newToken(t, a, Token{Count: 1})
	if _, err := first.joins(t, a, other); err != nil {
		t.Errorf("the same host with another token: %v", err)
	}
	if err := a.Revoke("edge-1"); err != nil {
		t.Fatal(err)
	}
	revoked := func(what string) {
		t.Helper()
		_, err := first.joins(t, a, token)
		if why, ok := errors.AsType[Refused](err); !ok || !why.Keys || why.Node != "edge-1" || why.Token != token.ID {
			t.Errorf("%s: %v", what, err)
		}
	}
	revoked("revoked")
	if _, err := second.joins(t, a, token); err != nil {
		t.Errorf("with other keys: %v", err)
	}
	revoked("replaced")
}

// Only who has the private keys asks for their certificate.
func TestJoinNeedsKeys(t *testing.T) {
	a := newAuthority(t)
	token := newToken(t, a, Token{Count: 9})
	mine, theirs := newHost(t, "edge-1"), newHost(t, "edge-2")
	for what, change := range map[string]func(r, of *enrollment.Request){
		"the user of another":    func(r, of *enrollment.Request) { r.User = of.User },
		"and its signature":      func(r, of *enrollment.Request) { r.User, r.Signature = of.User, of.Signature },
		"the request of another": func(r, of *enrollment.Request) { r.CSR = of.CSR },
		"a changed request":      func(r, _ *enrollment.Request) { r.CSR[len(r.CSR)-1] ^= 1 },
		"no request":             func(r, _ *enrollment.Request) { r.CSR = nil },
		"no name":                func(r, _ *enrollment.Request) { *r, _ = mine.keys.Request(token, "") },
		"a path as a name":       func(r, _ *enrollment.Request) { *r, _ = mine.keys.Request(token, "../edge") },
		"a path as a token":      func(r, _ *enrollment.Request) { r.Token = "../nodes" },
	} {
		r, err := mine.keys.Request(token, mine.name)
		if err != nil {
			t.Fatal(err)
		}
		of, err := theirs.keys.Request(token, theirs.name)
		if err != nil {
			t.Fatal(err)
		}
		change(&r, &of)
		if _, err := a.Join(r, netip.MustParseAddr("192.0.2.7"), nil, false); err == nil {
			t.Errorf("%s: it joins", what)
		} else if _, ok := errors.AsType[Refused](err); !ok {
			t.Errorf("%s: %v", what, err)
		}
	}
	if all, err := a.Tokens(); err != nil || len(all[0].Joined) > 0 {
		t.Errorf("joined: %+v, %v", all, err)
	}
}

// A token has the fields that its command sets, and is removed a month after its end.
func TestTokens(t *testing.T) {
	a := newAuthority(t)
	if _, _, err := a.NewToken(Token{Count: 1, Labels: []string{"A B"}}); err == nil {
		t.Error("a wrong label")
	}
	if _, _, err := a.NewToken(Token{Count: 1, Site: "paris"}); err == nil || !strings.Contains(err.Error(), "no site") {
		t.Errorf("an unknown site: %v", err)
	}
	if _, err := a.EnrollSite("paris", []string{"tls://paris.example.net:4222"}, []string{"tls://hub.example.net:7422"}); err != nil {
		t.Fatal(err)
	}
	old := newToken(t, a, Token{Count: 1, Expires: time.Now().Add(-keptFor - time.Hour)})
	token := newToken(t, a, Token{Count: 1, Site: "paris", Labels: []string{"web"}, Ranges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}})
	all, err := a.Tokens()
	if err != nil || slices.ContainsFunc(all, func(t Token) bool { return t.ID == old.ID }) {
		t.Errorf("%+v, %v", all, err)
	}
	n, err := newHost(t, "edge-1").joins(t, a, token)
	if err != nil || !slices.Equal(n.Servers, []string{"tls://paris.example.net:4222"}) || !slices.Equal(n.Labels, []string{"web"}) {
		t.Errorf("%+v, %v", n, err)
	}
	for _, id := range []string{"00000000", "../x", ""} {
		if a.RevokeToken(id) == nil {
			t.Errorf("revoked %q", id)
		}
	}
}
