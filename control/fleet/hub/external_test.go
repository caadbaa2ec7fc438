package hub

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"weir/control/fleet/authority"
	"weir/tests/lab"
	"weir/tests/wait"
)

// Servers of others that come back hear which nodes were revoked meanwhile, without anything else
// that changes.
func TestExternalComesBack(t *testing.T) {
	f := newFleet(t)
	u := fmt.Sprintf("tls://127.0.0.1:%d", lab.FreePort(t))
	files := filepath.Join(f.dir, "cluster")
	if _, err := (authority.Cluster{
		Servers: []string{u}, Routes: lab.FreePort(t), Leaves: lab.FreePort(t), Files: filepath.Join(files, "127.0.0.1"), State: filepath.Join(f.dir, "state"),
	}).Write(f.authority, files); err != nil {
		t.Fatal(err)
	}
	run := func() *server.Server {
		t.Helper()
		o, err := server.ProcessConfigFile(filepath.Join(files, "127.0.0.1", "nats-server.conf"))
		if err != nil {
			t.Fatal(err)
		}
		o.NoSigs, o.NoLog = true, true
		o.JetStream, o.Cluster = false, server.ClusterOpts{} // a server alone
		s, err := server.NewServer(o)
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		return s
	}
	s := run()
	e, err := NewExternal([]string{u}, f.authority, testLog())
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	wait.Until(t, e.Refresh)
	if !e.hears(1) || e.hears(2) {
		t.Error("a server alone hears others, or does not hear itself")
	}
	n, err := f.authority.Enroll("edge-1", nil, []string{u})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.connect(n); err != nil {
		t.Fatal(err)
	}
	s.Shutdown()
	s.WaitForShutdown()
	if err := f.authority.Revoke(n.Name); err != nil {
		t.Fatal(err)
	}
	run()
	wait.For(t, "the revoked node is not let in", func() bool {
		c, err := f.tryConnect(n)
		if err == nil {
			c.Close()
		}
		return err != nil && strings.Contains(strings.ToLower(err.Error()), "authorization")
	})
}
