package hub

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"weir/control/api"
	"weir/tests/wait"
)

func TestUnconnected(t *testing.T) {
	all := []api.FleetNode{{Name: "a", State: api.NodeUnseen}, {Name: "b", State: api.NodeSilent}, {Name: "c", State: api.NodeRevoked}}
	if got := unconnected(all, settle); len(got) != 1 || !strings.HasPrefix(got[0], "0 of 2 nodes are connected") {
		t.Errorf("%q", got)
	}
	if got := unconnected(all, settle-time.Second); len(got) != 0 {
		t.Errorf("before nodes could report: %q", got)
	}
	all[0].State = api.NodeBehind
	if got := unconnected(all, settle); len(got) != 0 {
		t.Errorf("where one reports: %q", got)
	}
	if got := unconnected(all[2:], settle); len(got) != 0 {
		t.Errorf("where all are revoked: %q", got)
	}
}

func TestReplicas(t *testing.T) {
	peers := func(all ...*jetstream.PeerInfo) *jetstream.ClusterInfo {
		return &jetstream.ClusterInfo{Leader: "a", Replicas: all}
	}
	good := &jetstream.PeerInfo{Name: "b", Current: true}
	for _, c := range []struct {
		what   string
		in     *jetstream.ClusterInfo
		wanted int
		says   []string
	}{
		{"the server inside", nil, 1, nil},
		{"good", peers(good, good), 3, nil},
		{"offline", peers(good, &jetstream.PeerInfo{Name: "c", Offline: true}), 3, []string{`on server "c" is offline`}},
		{"lagging", peers(good, &jetstream.PeerInfo{Name: "c", Lag: maxLag + 1}), 3, []string{`on server "c" lacks 1001 messages`}},
		{"quiet", peers(good, &jetstream.PeerInfo{Name: "c", Active: time.Minute}), 3, []string{`on server "c" has not answered for 1m0s`}},
		{"following", peers(good, &jetstream.PeerInfo{Name: "c", Lag: 3, Active: time.Second}), 3, nil},
		{"missing", peers(good), 3, []string{"has 2 of 3 replicas"}},
	} {
		got := replicas(c.in, c.wanted)
		if len(got) != len(c.says) || len(got) > 0 && !strings.Contains(got[0], c.says[0]) {
			t.Errorf("%s: %q, want %q", c.what, got, c.says)
		}
	}
}

// A hub says that none of its nodes is connected, until one is.
func TestNoNodeConnected(t *testing.T) {
	t.Parallel() // it waits
	f := newFleet(t)
	f.start("")
	h := f.host("edge-1")
	const problem = "0 of 1 nodes are connected"
	says := func() bool { return strings.Contains(strings.Join(f.problems(), "\n"), problem) }
	h.stop()
	f.stop()
	f.start("")
	wait.For(t, problem, says)
	f.again(h)
	wait.For(t, "the node is connected", func() bool { return !says() })
}
