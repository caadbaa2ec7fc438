package node

import (
	"errors"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"weir/control/fleet/wire"
)

// A hub of a former version does not let a node ask on a subject of its own.
func TestFormerHub(t *testing.T) {
	former := getTimeouts
	t.Cleanup(func() { getTimeouts = former })
	h := newHub(t, &server.User{Username: "hub"}, &server.User{Username: "node", Permissions: &server.Permissions{
		Publish: &server.SubjectPermission{Allow: []string{wire.FetchSubject, wire.FetchSubject + ".>", "weir.v1.up.>"}},
	}})
	h.user = "node"
	h.change(set(t, "192.0.2.1"))
	h.snapshot()
	h.release()
	n := h.start(t.TempDir())
	n.reaches(h)
	if !n.former.Load() {
		t.Error("it asks on a subject of its own")
	}
	denied := errors.Join(nats.ErrPermissionViolation, errors.New(`Permissions Violation for Publish to "`+wire.NodeFetchSubject(n.Name())+`"`))
	for _, c := range []struct {
		err  error
		want bool
	}{{denied, true}, {nats.ErrPermissionViolation, false}, {nats.ErrTimeout, false}} {
		if got := n.denied(c.err); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}
