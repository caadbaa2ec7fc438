package broker

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"weir/control/fleet/authority"
	"weir/control/fleet/enrollment"
	"weir/tests/long"
)

// The server starts with more revoked credentials than it can read from an account, and lets in only
// nodes that are not revoked.
func TestManyRevoked(t *testing.T) {
	long.Unraced(t)
	dir := filepath.Join(t.TempDir(), "keys")
	a, err := authority.Init(dir)
	if err != nil {
		t.Fatal(err)
	}
	m := authority.Member{Name: "edge-0", Enrolled: time.Now(), Former: make(map[string]time.Time)}
	for range 12_000 {
		user, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		if m.User, err = user.PublicKey(); err != nil {
			t.Fatal(err)
		}
		m.Former[m.User] = time.Now()
	}
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "nodes", m.Name+".json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	var nodes []enrollment.Node
	for _, name := range []string{"edge-1", "edge-2"} {
		n, err := a.Enroll(name, nil, []string{"tls://127.0.0.1:4222"})
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	if err := a.Revoke("edge-1"); err != nil {
		t.Fatal(err)
	}
	b, err := Start(Options{Authority: a, Dir: t.TempDir(), Listen: "127.0.0.1:0", Names: []string{"127.0.0.1"}, Log: discard})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	for refreshed := range 2 {
		for i, n := range nodes {
			o, err := n.Options()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := connect(t, b.URL(), o...); (err == nil) != (i == 1) {
				t.Errorf("refreshed %d times: %s: %v", refreshed, n.Name, err)
			}
		}
		if err := b.Refresh(); err != nil {
			t.Fatal(err)
		}
	}
}
