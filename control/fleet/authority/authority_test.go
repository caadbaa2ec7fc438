package authority

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"

	"weir/tests/wait"
)

func revoked(t *testing.T, claims *jwt.AccountClaims, token string) bool {
	t.Helper()
	user, err := jwt.DecodeUserClaims(token)
	if err != nil {
		t.Fatal(err)
	}
	return claims.IsClaimRevoked(user)
}

// TestRevocation enrolls nodes and sites, again and again, and revokes them: only the
// last credentials of those that are not revoked are good.
func TestRevocation(t *testing.T) {
	a, err := Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	before, err := a.Stamp()
	if err != nil {
		t.Fatal(err)
	}
	servers := []string{"tls://hub.example.net:4222"}
	var nodes, mirrors, relays []string
	for range 3 {
		n, err := a.Enroll("edge-1", []string{"paris"}, servers)
		if err != nil {
			t.Fatal(err)
		}
		s, err := a.EnrollSite("paris", servers, []string{"tls://hub.example.net:7422"})
		if err != nil {
			t.Fatal(err)
		}
		nodes, mirrors, relays = append(nodes, n.JWT), append(mirrors, s.Stream.JWT), append(relays, s.Nodes.JWT)
	}
	other, err := a.Enroll("edge-2", nil, servers)
	if err != nil {
		t.Fatal(err)
	}
	if after, err := a.Stamp(); err != nil || after == before {
		t.Errorf("the stamp was %v and is %v, %v", before, after, err)
	}
	check := func(what string, last bool) {
		t.Helper()
		account, _, err := a.Account()
		if err != nil {
			t.Fatal(err)
		}
		stream, _, err := a.Stream()
		if err != nil {
			t.Fatal(err)
		}
		for i := range nodes {
			want := last || i < len(nodes)-1
			if revoked(t, account, nodes[i]) != want || revoked(t, account, relays[i]) != want || revoked(t, stream, mirrors[i]) != want {
				t.Errorf("%s: credentials %d: revoked: %t, %t, %t, want %t", what, i+1, revoked(t, account, nodes[i]), revoked(t, account, relays[i]), revoked(t, stream, mirrors[i]), want)
			}
		}
		if revoked(t, account, other.JWT) {
			t.Errorf("%s: another node is revoked", what)
		}
	}
	check("enrolled", false)
	if err := a.Revoke("edge-1"); err != nil {
		t.Fatal(err)
	}
	if err := a.RevokeSite("paris"); err != nil {
		t.Fatal(err)
	}
	check("revoked", true)
	for _, bad := range []error{a.Revoke("edge-9"), a.Revoke("../x"), a.RevokeSite("rome"), a.RevokeSite("../x")} {
		if bad == nil {
			t.Error("revoked what was never enrolled")
		}
	}
}

// Of commands at once that enroll one node or site, all credentials but the last are revoked.
func TestEnrollAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	if _, err := Init(dir); err != nil {
		t.Fatal(err)
	}
	const commands = 16
	servers := []string{"tls://hub.example.net:4222"}
	var nodes, relays [commands]string
	var running sync.WaitGroup
	for i := range commands {
		running.Go(func() {
			a, err := Open(dir)
			if err != nil {
				t.Error(err)
				return
			}
			n, err := a.Enroll("edge-1", nil, servers)
			if err != nil {
				t.Error(err)
			}
			s, err := a.EnrollSite("paris", servers, servers)
			if err != nil {
				t.Error(err)
			}
			nodes[i], relays[i] = n.JWT, s.Nodes.JWT
		})
	}
	running.Wait()
	if t.Failed() {
		return
	}
	a, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	account, _, err := a.Account()
	if err != nil {
		t.Fatal(err)
	}
	for what, tokens := range map[string][commands]string{"node": nodes, "site": relays} {
		n := 0
		for _, token := range tokens {
			if revoked(t, account, token) {
				n++
			}
		}
		if n != commands-1 {
			t.Errorf("%s: %d of %d credentials are revoked, want all but one", what, n, commands)
		}
	}
}

// With the keys of an older backup, credentials that were made since are unknown, and can be revoked.
func TestRevokeUser(t *testing.T) {
	a, err := Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	enroll := func(name string) (token, user string) {
		t.Helper()
		n, err := a.Enroll(name, nil, []string{"tls://hub.example.net:4222"})
		if err != nil {
			t.Fatal(err)
		}
		claims, err := jwt.DecodeUserClaims(n.JWT)
		if err != nil {
			t.Fatal(err)
		}
		return n.JWT, claims.Subject
	}
	first, firstUser := enroll("edge-1")
	backup, err := os.ReadFile(path(a, nodes, "edge-1"))
	if err != nil {
		t.Fatal(err)
	}
	anew, anewUser := enroll("edge-1")
	since, sinceUser := enroll("edge-9")
	if err := errors.Join(os.WriteFile(path(a, nodes, "edge-1"), backup, 0o600), os.Remove(path(a, nodes, "edge-9"))); err != nil {
		t.Fatal(err)
	}
	check := func(want bool) {
		t.Helper()
		account, _, err := a.Account()
		if err != nil {
			t.Fatal(err)
		}
		if revoked(t, account, first) || revoked(t, account, anew) != want || revoked(t, account, since) != want {
			t.Errorf("revoked: %t, %t, %t, want the latter two: %t", revoked(t, account, first), revoked(t, account, anew), revoked(t, account, since), want)
		}
		for user, name := range map[string]string{anewUser: "edge-1", sinceUser: "edge-9"} {
			if known, err := a.Knows(name, user); known != want || err != nil {
				t.Errorf("%s: known: %t, %v", name, known, err)
			}
		}
	}
	check(false)
	for range 2 {
		if err := errors.Join(a.RevokeUser("edge-1", anewUser), a.RevokeUser("edge-9", sinceUser)); err != nil {
			t.Fatal(err)
		}
		check(true)
	}
	for _, bad := range []error{a.RevokeUser("edge-1", firstUser), a.RevokeUser("edge-2", firstUser), a.RevokeUser("edge-1", "U"), a.RevokeUser("../x", anewUser)} {
		if bad == nil {
			t.Error("a user was revoked that must not be")
		}
	}
}

// The stamp changes with each directory, whatever the time of the other is.
func TestStampOfEachDirectory(t *testing.T) {
	a, err := Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Enroll("edge-1", nil, []string{"tls://hub.example.net:4222"}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.EnrollSite("paris", []string{"tls://paris.example.net:4222"}, []string{"tls://hub.example.net:7422"}); err != nil {
		t.Fatal(err)
	}
	for ahead, change := range map[string]func() error{
		sitesDir: func() error { return a.Revoke("edge-1") },
		nodesDir: func() error { return a.RevokeSite("paris") },
	} {
		at := time.Now().Add(time.Hour)
		if err := os.Chtimes(filepath.Join(a.dir, ahead), at, at); err != nil {
			t.Fatal(err)
		}
		before, err := a.Stamp()
		if err != nil {
			t.Fatal(err)
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if after, err := a.Stamp(); err != nil || after == before {
			t.Errorf("with %s an hour ahead, the stamp stays %v, %v", ahead, after, err)
		}
	}
}

// A change within one tick of the kernel's clock leaves the time of the directory as it was. Who has
// read the members before it reads them again.
func TestStampWithinTick(t *testing.T) {
	a, err := Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Enroll("edge-1", nil, []string{"tls://hub.example.net:4222"}); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(a.dir, nodesDir)
	at := time.Now()
	if err := os.Chtimes(dir, at, at); err != nil {
		t.Fatal(err)
	}
	stamp := func() Stamp {
		s, err := a.Stamp()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := stamp()
	if err := a.Revoke("edge-1"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(dir, at, at); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "another stamp", func() bool { return stamp() != before })
	wait.For(t, "the time to be old enough", func() bool { return time.Since(at) > stampSettles })
	settled := stamp()
	time.Sleep(2 * stampStays)
	if now := stamp(); now != settled || now.young != 0 {
		t.Errorf("without a change the stamp was %v and is %v", settled, now)
	}
}

// A node that is forgotten is among the members no more, and stays revoked, also when its
// name is used again.
func TestForget(t *testing.T) {
	a, err := Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	var nodes []string
	enroll := func() {
		t.Helper()
		n, err := a.Enroll("edge-1", nil, []string{"tls://hub.example.net:4222"})
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n.JWT)
	}
	check := func(what string, members int, good ...bool) {
		t.Helper()
		all, err := a.Members()
		if err != nil || len(all) != members {
			t.Errorf("%s: %d members, want %d: %v", what, len(all), members, err)
		}
		account, _, err := a.Account()
		if err != nil {
			t.Fatal(err)
		}
		for i, token := range nodes {
			if revoked(t, account, token) == good[i] {
				t.Errorf("%s: credentials %d: good: %t", what, i, !good[i])
			}
		}
	}
	for _, name := range []string{"edge-1", "../x", ""} {
		if a.Forget(name) == nil {
			t.Errorf("%q is forgotten, and was never enrolled", name)
		}
	}
	enroll()
	if err := a.Forget("edge-1"); err == nil || !strings.Contains(err.Error(), "revoke it first") {
		t.Errorf("a node that may connect: %v", err)
	}
	check("enrolled", 1, true)
	if err := a.Revoke("edge-1"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := a.Forget("edge-1"); err != nil {
			t.Fatal(err)
		}
		check("forgotten", 0, false)
	}
	enroll()
	check("enrolled again", 1, false, true)
	if a, err = Open(a.dir); err != nil {
		t.Fatal(err)
	}
	check("opened again", 1, false, true)
}

// TestNodePermissions holds what a node may do to what it needs. Its credentials say
// nothing: the scope of the key that signs them does.
func TestNodePermissions(t *testing.T) {
	a, err := Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := a.Enroll("edge-1", nil, []string{"tls://hub.example.net:4222"})
	if err != nil {
		t.Fatal(err)
	}
	claims, err := jwt.DecodeUserClaims(n.JWT)
	if err != nil {
		t.Fatal(err)
	}
	if !claims.HasEmptyPermissions() {
		t.Errorf("the node's own credentials grant %+v", claims.Permissions)
	}
	account, _, err := a.Account()
	if err != nil {
		t.Fatal(err)
	}
	if account.Limits.JetStreamLimits != (jwt.JetStreamLimits{}) {
		t.Errorf("the nodes' account may have streams: %+v", account.Limits.JetStreamLimits)
	}
	scope, ok := account.SigningKeys.GetScope(claims.Issuer)
	if !ok || scope == nil {
		t.Fatal("the node was not signed by the key of the scope")
	}
	may := scope.(*jwt.UserScope).Template
	for _, subject := range append(slices.Clone(may.Pub.Allow), may.Sub.Allow...) {
		if subject == ">" || subject == "_INBOX.>" || subject == "weir.>" {
			t.Errorf("a node may use %s", subject)
		}
	}
	if len(may.Pub.Allow) == 0 || len(may.Sub.Allow) == 0 {
		t.Errorf("an empty list of permissions allows all: %+v", may)
	}
}

// TestKeysStay: keys are made once, and read by their owner only.
// A site's file under another name is refused, and the error says whose it is.
func TestOtherSite(t *testing.T) {
	a, err := Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.EnrollSite("paris", []string{"tls://paris.example.net:4222"}, []string{"tls://hub.example.net:7422"}); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path(a, sites, "paris"), path(a, sites, "rome")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Site("rome"); err == nil || !strings.HasSuffix(err.Error(), `rome.json: it is of site "paris"`) {
		t.Error(err)
	}
}

func TestKeysStay(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	a, err := Init(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Init(dir); err == nil {
		t.Error("made anew")
	}
	again, err := Open(dir)
	if err != nil || !again.PublicKey().Equal(a.PublicKey()) {
		t.Error(err)
	}
	for _, name := range []string{fleetFile, caKeyFile, operatorFile, accountFile, streamFile, systemFile, scopeFile} {
		path := filepath.Join(dir, name)
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err == nil {
			t.Errorf("%s may be read by all users", name)
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text[:len(text)/2], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err == nil {
			t.Errorf("%s is cut off", name)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
