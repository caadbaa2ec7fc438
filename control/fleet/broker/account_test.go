package broker

import (
	"os"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"

	"weir/control/fleet/wire"
	"weir/tests/wait"
)

// A site takes an account that was issued earlier, as where the hub's clock was set back, if it
// revokes all that the present one does. It keeps it over a restart.
func TestAccountAfterClockWasSetBack(t *testing.T) {
	a, b := start(t)
	hub := hubWithStream(t, a, b)
	n, err := a.Enroll("edge-1", nil, []string{b.URL()})
	if err != nil {
		t.Fatal(err)
	}
	e, err := a.EnrollSite("paris", []string{"tls://127.0.0.1:4222"}, []string{b.leafURL(t)})
	if err != nil {
		t.Fatal(err)
	}
	o := SiteOptions{Enrollment: e, Dir: t.TempDir(), Listen: "127.0.0.1:0", Log: discard}
	site, err := StartSite(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { site.Close() })
	if err := site.mirror(t.Context()); err != nil {
		t.Fatal(err)
	}
	revoked := func() bool {
		user, err := jwt.DecodeUserClaims(n.JWT)
		if err != nil {
			t.Fatal(err)
		}
		return site.account.IsClaimRevoked(user)
	}
	site.account.IssuedAt = time.Now().Add(time.Hour).Unix() // as the hub's clock was
	if err := a.Revoke(n.Name); err != nil {
		t.Fatal(err)
	}
	m := nats.NewMsg(wire.AccountSubject())
	_, account, err := a.Account()
	if err != nil {
		t.Fatal(err)
	}
	m.Data = []byte(account)
	if _, err := hub.PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	// As long as it cannot be saved, that is an error. It is saved once it can be.
	blocked := site.accountPath() + ".new"
	if err := os.Mkdir(blocked, 0o700); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the site takes the account that revokes a node", func() bool {
		err := site.refresh(t.Context())
		if (err != nil) != revoked() {
			t.Fatal(err)
		}
		return revoked()
	})
	if err := site.refresh(t.Context()); err == nil {
		t.Error("the site says that it has saved the account")
	}
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	if err := site.refresh(t.Context()); err != nil {
		t.Error(err)
	}
	if saved, err := os.ReadFile(site.accountPath()); err != nil || string(saved) != account {
		t.Errorf("saved %q, want %q: %v", saved, account, err)
	}
	// Started again: what is saved revokes more than the file of the site, whatever the times say.
	site.Close()
	early := *site.account
	if site, err = StartSite(o); err != nil {
		t.Fatal(err)
	}
	if !revoked() {
		t.Error("the site has forgotten who is revoked")
	}
	later := early
	later.IssuedAt, early.IssuedAt = early.IssuedAt+60, early.IssuedAt-60
	less := early
	less.Revocations = nil
	for what, c := range map[string]struct {
		account *jwt.AccountClaims
		want    bool
	}{"earlier, that revokes the same": {&early, true}, "later": {&later, true}, "earlier, that revokes less": {&less, false}} {
		if got := replaces(c.account, site.account); got != c.want {
			t.Errorf("%s: taken: %v", what, got)
		}
	}
}
