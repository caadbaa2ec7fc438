package hub

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"weir/control/config"
	"weir/control/fleet/authority"
	"weir/tests/long"
	"weir/tests/wait"
)

// More revoked credentials than a message has room for keep no change from the nodes. The hub says that
// the servers of sites do not know them.
func TestManyRevoked(t *testing.T) {
	long.Unraced(t)
	t.Parallel() // it waits
	f := newFleet(t)
	m := authority.Member{Name: "edge-0", Enrolled: time.Now(), Former: make(map[string]time.Time)}
	for i := range 12_001 {
		user, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			m.Former[m.User] = time.Now()
		}
		if m.User, err = user.PublicKey(); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.dir, "keys", "nodes", m.Name+".json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	f.start("lists: {}\n")
	n, c := f.enroll("edge-1")
	w := f.follower(n, c)
	f.change(block("192.0.2.1"))
	wait.Until(t, func() error {
		have, _, _, err := w.read(config.FleetBlock)
		if err != nil {
			return err
		}
		return wantEntries(have, "192.0.2.1")
	})
	wait.Until(t, func() error {
		s, err := f.hub.Fleet(t.Context())
		if err != nil {
			return err
		}
		if all := strings.Join(s.Problems, "\n"); !strings.Contains(all, "servers of sites do not know which nodes are revoked: ") || strings.Contains(all, "publishing failed") {
			return fmt.Errorf("problems:\n%s", all)
		}
		return nil
	})
}
