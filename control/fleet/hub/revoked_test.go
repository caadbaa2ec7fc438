package hub

import (
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"

	"weir/control/config"
	"weir/control/fleet/broker"
	"weir/tests/wait"
)

// A node that is revoked after the server inside the hub has started, and before the hub runs, is cut
// off, too.
func TestRevokedWhileStarting(t *testing.T) {
	f := newFleet(t)
	f.start("lists: {}\n")
	n, c := f.enroll("edge-1")
	c.Close()
	f.stop()

	b, err := broker.Start(broker.Options{
		Authority: f.authority, Dir: filepath.Join(f.dir, "broker"), Listen: f.listen, Names: []string{"127.0.0.1"}, Log: testLog(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	closed := make(chan struct{})
	if _, err := f.connect(n, nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(closed) })); err != nil {
		t.Fatal(err)
	}
	if err := f.authority.Revoke(n.Name); err != nil {
		t.Fatal(err)
	}
	conf, err := config.ParseHub("hub.yaml", []byte(f.text))
	if err != nil {
		t.Fatal(err)
	}
	f.run(conf, b)
	wait.For(t, "the revoked node is cut off", func() bool {
		select {
		case <-closed:
			return true
		default:
			return false
		}
	})
	f.stop()
}
