package daemon

import (
	"context"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/long"
	"weir/tests/wait"
)

// flood runs weir fleet flood.
func (f *fleet) flood(args ...string) (out string, err error) {
	c := exec.Command(releases[0].path, append([]string{"fleet", "flood", "--socket", f.file("hub.sock")}, args...)...)
	text, err := c.CombinedOutput()
	return string(text), err
}

// floods returns what nodes know, once it is as wanted.
func (f *fleet) floods(what string, is func(*api.FleetFloods) bool) (now *api.FleetFloods) {
	f.t.Helper()
	wait.For(f.t, what, func() bool {
		ctx, cancel := context.WithTimeout(f.t.Context(), wait.Patience)
		defer cancel()
		var err error
		now, err = f.api.FleetFloods(ctx, nil)
		return err == nil && is(now)
	})
	return now
}

// A flood at several nodes is one line at the hub, which one command drops on all of them. It stays dropped
// over kill -9 of the hub and of a node, also for a node that was away, and one command ends that.
func TestFleetFlood(t *testing.T) {
	t.Parallel()
	nodes := long.Or(2, 8)
	f := newFleet(t, nodes, 100)
	to := netip.MustParseAddr("203.0.113.1")
	frame := func(port uint16, length int) func(netip.Addr) []byte {
		return func(src netip.Addr) []byte {
			return append(packet.Frame(key.Tuple{Src: src, Dst: to, Proto: 17, HasPorts: true, SrcPort: port, DstPort: 443}), make([]byte, length)...)
		}
	}
	for _, n := range f.nodes[:2] {
		n.A.StartFlood(t, 0.01, frame(40_000, 10)) // less than could be a flood itself
	}
	f.floods("a baseline", func(now *api.FleetFloods) bool {
		for _, n := range now.Nodes[:2] {
			if n.Floods == nil || n.Floods.Quiet < 12 {
				return false
			}
		}
		return true
	})
	for _, n := range f.nodes[:2] {
		n.A.StartFlood(t, 0.2, frame(123, 440))
	}
	now := f.floods("a flood that both see", func(now *api.FleetFloods) bool {
		return len(now.Rules) > 0 && len(now.Rules[0].Nodes) == 2 && !now.Rules[0].Proposed
	})
	if now.Do() != "weir fleet flood --apply all" {
		t.Errorf("to do: %s", now.Do())
	}
	f.nodes[1].d.kill()
	began := time.Now()
	out, err := f.flood("--apply", "1", "--trial", "1s", "--ttl", "1h") // exit code 5
	t.Logf("after %v: %s", time.Since(began).Round(time.Millisecond), out)
	if err == nil || !strings.Contains(out, now.Rules[0].Pattern+": enforced on 1 of ") || !strings.Contains(out, "node-2: ") {
		t.Errorf("with a node that is away: %v, %s", err, out)
	}
	f.kill()
	f.nodes[0].d.kill()
	f.begin()
	for _, n := range f.nodes[:2] {
		n.d = n.start(releases[0])
	}
	enforced := func(now *api.FleetFloods) bool {
		return len(now.Patterns) == 1 && now.Patterns[0].In(api.PatternEnforced) >= 2 && now.Dropped() > 0.95
	}
	f.floods("that both nodes drop it", enforced)
	for _, n := range f.nodes[:2] {
		s, err := n.api.Status(t.Context())
		if err != nil || len(s.Policed) != 1 || !s.Policed[0].Dropping() || s.Policed[0].Until.Sub(began) > time.Hour+30*time.Second {
			t.Errorf("%s: %+v, %v", n.name, s.Policed, err)
		}
	}
	if out, err := f.flood("--end", "all"); err != nil || strings.Count(out, ": ended on ") != 1 {
		t.Errorf("%v: %s", err, out)
	}
	for _, n := range f.nodes {
		if s, err := n.api.Status(t.Context()); err != nil || len(s.Policed) > 0 {
			t.Errorf("%s: %+v, %v", n.name, s.Policed, err)
		}
	}
}
