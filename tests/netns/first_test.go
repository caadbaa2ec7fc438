package netns

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir/control/attach"
	"weir/control/observe/events"
	"weir/control/quantity"
	"weir/control/stage"
	"weir/control/stage/first"
	"weir/filter/key"
	"weir/filter/newflow"
	"weir/filter/recent"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// New flows are counted by window, have events while somebody asks, and are known after a
// reload.
func TestFirstSeenByConfiguration(t *testing.T) {
	t.Parallel()
	filters := []recent.Kind{recent.Bloom}
	if long.Enabled {
		filters = append(filters, recent.IBFMC)
	}
	for _, filter := range filters {
		t.Run(filter.String(), func(t *testing.T) { firstSeenByConfiguration(t, filter) })
	}
}

func firstSeenByConfiguration(t *testing.T, filter recent.Kind) {
	l := lab.New(t)
	c := configuration(t, target(l.B))
	var f first.Spec
	f.SetDefaults()
	f.Key, f.Filter, f.Window = "flow", filter, quantity.Duration(time.Hour)
	f.Ports = []verdict.FailsafePort{{Proto: 17, Port: 53}}
	c.FirstSeen = f
	d := serve(t, c)
	tx := l.A.Sender(t)
	send := func(flow int, port uint16) {
		t.Helper()
		frame := l.Numbered(frameOf(key.Tuple{
			Src: netip.MustParseAddr("198.51.100.1"), Dst: netip.MustParseAddr("203.0.113.1"), Proto: 17, HasPorts: true,
			SrcPort: uint16(flow), DstPort: port,
		}), 1)
		if err := tx.Send(frame); err != nil {
			t.Fatal(err)
		}
	}
	status := func() attach.Status {
		t.Helper()
		all, err := attach.ReadStatus(c.Pins)
		if err != nil || len(all) != 1 || all[0].NewFlows == nil {
			t.Fatalf("%+v, %v", all, err)
		}
		return all[0]
	}
	const flows = 50
	// sendAll sends a packet of each flow until so many packets were seen.
	sent := uint64(0)
	sendAll := func() {
		t.Helper()
		for i := range flows {
			send(1000+i, 6)
		}
		sent += flows
		for deadline := wait.Deadline(); status().Total.Packets < sent; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d packets arrive, want %d", status().Total.Packets, sent)
			}
		}
	}
	sendAll()
	// The hosts send some packets of their own.
	before := status().NewFlows.Flows
	if before < flows || before > flows+20 {
		t.Fatalf("%d new flows, want %d", before, flows)
	}
	known := func(what string) {
		t.Helper()
		before := status().NewFlows.Flows
		sendAll()
		if n := status().NewFlows.Flows - before; n > flows/2 {
			t.Errorf("%s, %d of %d flows are new", what, n, flows)
		}
	}
	known("a moment later")

	reported, end := d.Events(events.Want{NewFlows: true})
	defer end()
	for i, deadline := 0, wait.Deadline(); ; i++ {
		send(2000+i, 53)
		sent++
		select {
		case e := <-reported:
			if e.Tuple.DstPort == 53 {
				if e.Importance != int(newflow.MaxImportance) || e.Reason != verdict.Clean || e.Dropped {
					t.Errorf("the event %+v", e)
				}
				goto reported
			}
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("no event of a new flow")
		}
	}
reported:
	c.Malformed = verdict.Drop
	if _, err := d.Reload(context.Background()); err != nil {
		t.Fatal(err)
	}
	known("after a reload")

	// A shorter window: the flows are forgotten.
	const window = time.Second
	c.FirstSeen.Window = quantity.Duration(window)
	began := time.Now()
	if _, err := d.Reload(context.Background()); err != nil {
		t.Fatal(err)
	}
	if time.Since(began) < window/2 { // on a busy machine, windows end meanwhile
		known("with another window")
	}
	for deadline := wait.Deadline(); ; time.Sleep(50 * time.Millisecond) {
		n := status().NewFlows
		if n.Window > 0 && n.Window < 1000 && n.WindowFlows == 0 {
			break
		}
		if text, _ := json.Marshal(n); time.Now().After(deadline) {
			t.Fatalf("no window ends without new flows: %s", text)
		}
	}
	if filter == recent.Bloom {
		time.Sleep(2500 * time.Millisecond) // the windows that the flows may have been seen in
		before := status().NewFlows.Flows
		sendAll()
		if n := status().NewFlows.Flows - before; n < flows {
			t.Errorf("after two windows, %d of %d flows are new", n, flows)
		}
	} else {
		known("after two windows")
		n := status()
		if all := n.NewFlows.ForgottenShare; n.FirstSeen.Filter != filter || len(all) != recent.MaxLevel || all[0] > 0.1 {
			t.Errorf("of known flows, %v are forgotten", all)
		}
	}
	m := d.Metrics()
	if len(m.Interfaces) != 1 || !slices.ContainsFunc(m.Interfaces[0].Stages, func(s stage.Sample) bool {
		return s.Name == "weir_first_seen_flows_total" && s.Of == "1" && s.Value >= flows
	}) {
		t.Errorf("the metrics are %+v", m.Interfaces)
	}

	c.FirstSeen = first.Spec{}
	if _, err := d.Reload(context.Background()); err != nil {
		t.Fatal(err)
	}
	if all, err := attach.ReadStatus(c.Pins); err != nil || len(all) != 1 || all[0].NewFlows != nil || all[0].FirstSeen != nil {
		t.Errorf("new flows are looked for after they were switched off: %+v, %v", all, err)
	}
}
