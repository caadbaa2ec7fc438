package hub

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/fleet/authority"
	"weir/control/fleet/wire"
	"weir/tests/wait"
)

func status(t *testing.T, s wire.Status) []byte {
	t.Helper()
	s.Interfaces, s.Filtered = 1, 1 // it enforces
	text, err := wire.MarshalStatus(s)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestReports(t *testing.T) {
	n := newNodes(testLog())
	now := time.Now()
	good := status(t, wire.Status{Version: "1"})
	for i := range 100 {
		n.report(wire.StatusSubject("loud"), good, now.Add(time.Duration(i)*time.Millisecond))
	}
	if loud := n.all["loud"]; loud.ignored < 100-wire.ReportBurst-1 || loud.ignored > 100-wire.ReportBurst {
		t.Errorf("%d of 100 reports ignored", loud.ignored)
	}
	n.report(wire.StatusSubject("quiet"), good, now)
	n.report(wire.StatusSubject("broken"), []byte("{"), now)
	n.report(wire.StatusSubject("huge"), bytes.Repeat([]byte(" "), wire.MaxStatus+1), now)
	if q := n.all["quiet"]; q.ignored != 0 || q.status.Version != "1" {
		t.Errorf("%+v", q)
	}
	for _, name := range []string{"broken", "huge"} {
		if b := n.all[name]; b.ignored != 1 || !b.seen.IsZero() {
			t.Errorf("%s: %+v", name, b)
		}
	}
	n.report(wire.StatusSubject("loud"), status(t, wire.Status{Version: "2"}), now.Add(time.Minute))
	if n.all["loud"].status.Version != "2" {
		t.Error("a node that has calmed down is still ignored")
	}
}

// TestFlood has one node send as fast as it can: commands and the reports of others
// arrive.
func TestFlood(t *testing.T) {
	f := newFleet(t)
	f.start("")
	_, loud := f.enroll("loud")
	_, quiet := f.enroll("quiet")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan int)
	go func() {
		junk, n := bytes.Repeat([]byte("x"), 20_000), 0
		for ; ctx.Err() == nil; n++ {
			_ = loud.Publish(wire.StatusSubject("loud"), junk)
		}
		done <- n
	}()
	defer stop()
	for i := range 20 {
		if changed := f.change(block(fmt.Sprintf("192.0.2.%d", i))); !changed.Published {
			t.Fatalf("command %d was not published", i)
		}
	}
	f.change(block("192.0.2.100"))
	report := status(t, wire.Status{Lists: []wire.ListStatus{f.has(config.FleetBlock), f.has(config.FleetAllow)}})
	var s api.HubStatus
	wait.Until(t, func() (err error) {
		if err := quiet.Publish(wire.StatusSubject("quiet"), report); err != nil {
			return err
		}
		if s, err = f.hub.Fleet(t.Context()); err != nil {
			return err
		}
		for _, n := range s.Nodes {
			if n.Name == "quiet" && n.State != api.NodeCurrent {
				return fmt.Errorf("node quiet is %s", n.State)
			}
		}
		return nil
	})
	if !s.Connected || s.Ignored == 0 {
		t.Errorf("connected: %v, ignored reports: %d", s.Connected, s.Ignored)
	}
	stop()
	t.Logf("%d messages of 20 kB, %d reports ignored", <-done, s.Ignored)
}

// A change is counted at the nodes that are enrolled when it is made.
func TestEnforcingMembers(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	for i, change := range []func() error{
		func() error { _, err := f.authority.Enroll("edge-1", nil, []string{f.broker.URL()}); return err },
		func() error { _, err := f.authority.Enroll("edge-2", nil, []string{f.broker.URL()}); return err },
		func() error { return f.authority.Revoke("edge-1") },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if got := f.change(block(fmt.Sprintf("192.0.2.%d", i))).Nodes; got != []int{1, 2, 1}[i] {
			t.Errorf("change %d is counted at %d nodes", i+1, got)
		}
	}
}

// A node enforces a change by a version of the hub's history, and not by another one with the same or a later number, as
// after the hub was restored.
func TestEnforcingHistory(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	f.enroll("edge-1")
	f.change(block("192.0.2.1"))
	own := f.has(config.FleetBlock)
	another, later := own, own
	another.ID, another.Sum = strings.Repeat("A", len(own.ID)), strings.Repeat("0", len(own.Sum))
	later.Active.Version++
	later.ID = another.ID
	changed := &api.FleetChanged{Changed: api.Changed{List: config.FleetBlock}, Version: own.Active}
	counted := func(what string, has wire.ListStatus, wantEnforcing, wantPending int) {
		t.Helper()
		now := time.Now()
		f.hub.nodes.report(wire.StatusSubject("edge-1"), status(t, wire.Status{Lists: []wire.ListStatus{has}}), now)
		members, err := f.authority.Members()
		if err != nil {
			t.Fatal(err)
		}
		all, enforcing, pending := f.hub.nodes.enforcing(members, changed, f.hub.publisher.lists.history(config.FleetBlock), block("192.0.2.1"), time.Minute, now)
		if all != 1 || enforcing != wantEnforcing || pending != wantPending {
			t.Errorf("%s: %d of %d enforce, %d may yet, want %d and %d", what, enforcing, all, pending, wantEnforcing, wantPending)
		}
	}
	counted("the hub's", own, 1, 0)
	counted("another", another, 0, 1)
	counted("a later one", later, 0, 1)
	// The hub has begun another epoch since, and knows the versions of the one before no more.
	if err := f.hub.Do(t.Context(), func() error { return f.hub.publisher.releases.newEpoch(own.Active.Epoch) }); err != nil {
		t.Fatal(err)
	}
	counted("another of before", another, 0, 1)
	counted("the next epoch's", f.has(config.FleetBlock), 1, 0)
}

// A node that is revoked is no problem any more, and one that is forgotten is nowhere.
func TestForgotten(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	_, c := f.enroll("edge-1")
	f.enroll("edge-2")
	f.change(block("192.0.2.1"))
	wrong := f.has(config.FleetBlock)
	wrong.Sum = "00"
	report := status(t, wire.Status{Time: time.Now().Add(time.Hour), Lists: []wire.ListStatus{wrong}})
	shows := func(nodes, problems int) {
		t.Helper()
		wait.Until(t, func() error {
			if problems > 0 {
				if err := c.Publish(wire.StatusSubject("edge-1"), report); err != nil {
					return err
				}
			}
			s, err := f.hub.Fleet(t.Context())
			about := 0
			for _, p := range s.Problems {
				if strings.Contains(p, "edge-1") {
					about++
				}
			}
			if err == nil && (len(s.Nodes) != nodes || about != problems) {
				err = fmt.Errorf("%d nodes, problems %q", len(s.Nodes), s.Problems)
			}
			return err
		})
	}
	shows(2, 2) // what it has, and its clock
	if err := f.authority.Revoke("edge-1"); err != nil {
		t.Fatal(err)
	}
	shows(2, 0)
	if err := f.authority.Forget("edge-1"); err != nil {
		t.Fatal(err)
	}
	shows(1, 0)
	wait.Until(t, func() error {
		f.hub.nodes.mu.Lock()
		defer f.hub.nodes.mu.Unlock()
		if f.hub.nodes.all["edge-1"] != nil {
			return fmt.Errorf("its report is kept")
		}
		return nil
	})
}

// The status says whose clock is wrong.
func TestClocks(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		ahead []time.Duration
		want  []string
	}{
		{[]time.Duration{0, time.Second, -9 * time.Second}, nil},
		{[]time.Duration{0, time.Hour, 0, -time.Minute}, []string{"node b: its clock is 1h0m0s ahead of the hub's: ", "node d: its clock is 1m0s behind the hub's: "}},
		{[]time.Duration{time.Hour}, []string{"node a: its clock is 1h0m0s ahead of the hub's: "}},
		{[]time.Duration{time.Hour, 0, time.Hour, time.Hour}, []string{"the hub's clock is 1h0m0s behind those of most nodes: "}},
		{[]time.Duration{-time.Hour, -time.Hour}, []string{"the hub's clock is 1h0m0s ahead of those of most nodes: "}},
	} {
		n := newNodes(testLog())
		for i, by := range c.ahead {
			n.report(wire.StatusSubject(string(rune('a'+i))), status(t, wire.Status{Time: now.Add(by)}), now)
		}
		got := n.clocks()
		if len(got) != len(c.want) {
			t.Errorf("%v: %q", c.ahead, got)
			continue
		}
		for i := range got {
			if !strings.HasPrefix(got[i], c.want[i]) {
				t.Errorf("%v: %q, want %q", c.ahead, got[i], c.want[i])
			}
		}
	}
}

// A node that has other entries than the hub in the version that it is to have is not current.
func TestDiffers(t *testing.T) {
	n := newNodes(testLog())
	n.compare = func(_ string, s *wire.Status) (*lost, string) { return nil, s.Version }
	now := time.Now()
	for differs, want := range map[string]string{"": api.NodeCurrent, "other entries": api.NodeBehind} {
		n.report(wire.StatusSubject("edge-1"), status(t, wire.Status{Version: differs}), now)
		if got := n.all["edge-1"].stateOf(authority.Member{}, nil, time.Minute, now); got != want {
			t.Errorf("differs %q: it is %s, want %s", differs, got, want)
		}
	}
}

// A node that misses one report is not silent, whatever max_age is.
func TestSilent(t *testing.T) {
	now := time.Now()
	for ago, want := range map[time.Duration]string{wire.StatusInterval + time.Second: api.NodeCurrent, 2*wire.StatusInterval + time.Second: api.NodeSilent} {
		n := &node{seen: now.Add(-ago)}
		if got := n.stateOf(authority.Member{}, nil, 10*time.Second, now); got != want {
			t.Errorf("after %v it is %s, want %s", ago, got, want)
		}
	}
	n := &node{seen: now.Add(-time.Minute)}
	if got := n.stateOf(authority.Member{}, nil, 2*time.Minute, now); got != api.NodeCurrent {
		t.Errorf("within max_age it is %s", got)
	}
}

// What nodes report is looked at for the lists with an active rollout, and no others.
func TestObserve(t *testing.T) {
	list := func(name, state string) *managed {
		l := &managed{released: &released{}}
		if l.Name = name; state != "" {
			l.released.Rollout = &rollout{State: state}
		}
		return l
	}
	all := table{all: []*managed{{}, list("none", ""), list("done", api.RolloutDone), list("running", api.RolloutRunning), list("halted", api.RolloutHalted)}}
	n := newNodes(testLog())
	now := time.Now()
	n.report(wire.StatusSubject("edge-1"), status(t, wire.Status{Lists: []wire.ListStatus{
		{Name: "halted", Entries: 4}, {Name: "none", Entries: 1}, {Name: "done", Entries: 2}, {Name: "running", Entries: 3},
	}}), now)
	members := map[string]authority.Member{"edge-1": {Labels: []string{"paris"}}, "edge-2": {}, "gone": {Revoked: now}}
	got := n.observe(members, all.rolling())
	if len(got) != 2 {
		t.Fatalf("%d lists, want 2", len(got))
	}
	for name, entries := range map[string]int{"running": 3, "halted": 4} {
		if len(got[name]) != 2 {
			t.Fatalf("list %s: %+v", name, got[name])
		}
		for _, o := range got[name] {
			switch seen := o.name == "edge-1"; {
			case seen && (o.list.Entries != entries || o.seen.IsZero() || len(o.labels) != 1), !seen && (o.list.Entries != 0 || !o.seen.IsZero()):
				t.Errorf("list %s: %+v", name, o)
			}
		}
	}
}
