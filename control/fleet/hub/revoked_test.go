package hub

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"weir/control/config"
	"weir/control/fleet/broker"
	"weir/control/list"
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

// A node that the hub does not let in says why, and what to do: not only that there is no
// connection.
func TestWhyNotConnected(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("lists: {}\n")
	revoked := f.host("edge-1")
	wait.For(t, "the node hears the hub", func() bool { return revoked.Age().Err() == nil })
	if err := f.authority.Revoke("edge-1"); err != nil {
		t.Fatal(err)
	}
	former := newFleet(t) // whose keys the hub had before
	e, err := former.authority.Enroll("edge-2", nil, []string{f.broker.URL()})
	if err != nil {
		t.Fatal(err)
	}
	stranger := &host{t: t, name: e.Name, sets: make(map[string]*list.Set), enrollment: e, dir: t.TempDir()}
	f.follow(stranger)
	says := func(h *host, text string) {
		t.Helper()
		wait.For(t, text, func() bool {
			a := h.Age()
			return !a.Connected && strings.Contains(a.Why, text) && strings.Contains(a.Why, "new weir hub enroll")
		})
	}
	says(revoked, "refuses this node")
	says(stranger, "not of the keys")
	if text := stranger.Age().Err().Error(); !strings.Contains(text, "not of the keys") {
		t.Error(text)
	}
}
