package hub

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/fleet/wire"
)

func status(t *testing.T, s wire.Status) []byte {
	t.Helper()
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
	if loud := n.all["loud"]; loud.ignored < 100-statusBurst-1 || loud.ignored > 100-statusBurst {
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
	place := f.change(block("192.0.2.100")).Version
	var s api.HubStatus
	eventually(t, func() (err error) {
		if err := quiet.Publish(wire.StatusSubject("quiet"), status(t, wire.Status{Lists: []wire.ListStatus{{Name: config.FleetBlock, Active: place}, {Name: config.FleetAllow, Active: place}}})); err != nil {
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
