package authority

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
)

// issuedAhead returns a token as one that was issued to a user by a clock that was ahead.
func issuedAhead(t *testing.T, token string) *jwt.UserClaims {
	t.Helper()
	c, err := jwt.DecodeUserClaims(token)
	if err != nil {
		t.Fatal(err)
	}
	c.IssuedAt += int64((48 * time.Hour).Seconds())
	return c
}

// What was enrolled while the clock was ahead is revoked all the same, also what an earlier
// version has recorded.
func TestRevokedAfterClockWasAhead(t *testing.T) {
	a, err := Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	var nodes, mirrors, relays []*jwt.UserClaims
	for range 2 { // the first is a former one of the same name
		n, err := a.Enroll("edge-1", nil, []string{"tls://hub.example.net:4222"})
		if err != nil {
			t.Fatal(err)
		}
		s, err := a.EnrollSite("paris", []string{"tls://paris.example.net:4222"}, []string{"tls://hub.example.net:7422"})
		if err != nil {
			t.Fatal(err)
		}
		nodes, mirrors, relays = append(nodes, issuedAhead(t, n.JWT)), append(mirrors, issuedAhead(t, s.Stream.JWT)), append(relays, issuedAhead(t, s.Nodes.JWT))
	}
	if err := a.Revoke("edge-1"); err != nil {
		t.Fatal(err)
	}
	if err := a.RevokeSite("paris"); err != nil {
		t.Fatal(err)
	}
	account, _, err := a.Account()
	if err != nil {
		t.Fatal(err)
	}
	stream, _, err := a.Stream()
	if err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		if !account.IsClaimRevoked(nodes[i]) {
			t.Errorf("node, credentials %d: good", i)
		}
		if !account.IsClaimRevoked(relays[i]) || !stream.IsClaimRevoked(mirrors[i]) {
			t.Errorf("site, credentials %d: good", i)
		}
	}
}
