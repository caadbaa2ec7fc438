package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/fleet/wire"
)

func TestFleetRollout(t *testing.T) {
	now := time.Now()
	r := &api.FleetRollout{
		State: api.RolloutRunning, From: wire.Place{Epoch: 7, Version: 3}, To: wire.Place{Epoch: 7, Version: 4}, Wave: 2, Limit: 0.001,
		Waves: []api.FleetWave{{Labels: []string{"canary"}, Mode: "rehearse", For: 600}, {Labels: []string{"canary", "paris"}, Mode: "enforce", For: 300}, {Mode: "rehearse", For: 60}},
		Began: now.Add(-time.Hour), Nodes: 20, Confirmed: 17, Needed: 18, Absent: 1, WaitsFor: "nodes to confirm", Newer: true,
		Looked: 1000, Passed: 64000, WouldDrop: 64, MaxConversed: new(2), Collateral: api.FleetCollateral{
			Measured: 2, Unmeasured: 1, Conversed: 1, Most: []api.FleetConversed{{Node: "edge-1", Conversed: api.Conversed{Addresses: 7, Latest: []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}}}},
		},
		Top: []api.FleetAffected{{Node: "edge-1", Affected: wire.Affected{Source: "192.0.2.1", Entry: "192.0.0.0/8", Packets: 64}}},
	}
	h := &hubOf{fleet: api.HubStatus{Time: now, Lists: []api.FleetList{{Name: "drop", Rollout: r}, {Name: "block"}}}}
	socket := serveHub(t, h)
	const want = `drop: running, from version 7.3 to 7.4, begun 1h0m0s ago
   wave 1: rehearse for 10m on canary: done
 > wave 2: enforce for 5m on canary,paris: 17 of 19 nodes have confirmed, 1 were silent before
   wave 3: rehearse for 1m on all nodes
  64 of 64 k packets that pass would be dropped in addition, 1 k were looked at; the limit is 0.1%
    edge-1: 64 packets from 192.0.2.1 by 192.0.0.0/8
  nodes that have conversed in 24h with what would be dropped in addition: edge-1 with 7: 192.0.2.1, 192.0.2.2, 192.0.2.3, 4 more (not measured by 1 of 3 nodes); max_conversed is 2 a node
  waits for nodes to confirm
  the feed has newer contents, which go out after this
`
	if code, out, _ := weir(t, "", "fleet", "rollout", "--socket", socket); code != exitOK || out != want {
		t.Errorf("%d:\n%s\nwant\n%s", code, out, want)
	}
	if code, out, _ := weir(t, "", "fleet", "status", "--socket", socket); code != exitOK || !strings.Contains(out, "rollout of drop: version 7.4 is running, in wave 2 of 3") {
		t.Errorf("%d: %s", code, out)
	}
	r.State, r.Reason = api.RolloutHalted, "node edge-1 would drop too much"
	code, out, _ := weir(t, "", "fleet", "rollout", "drop", "--socket", socket)
	if code != exitUnfiltered || !strings.Contains(out, "\n  node edge-1 would drop too much\n") || !strings.Contains(out, "weir fleet resume drop") {
		t.Errorf("%d: %s", code, out)
	}
	var got struct{ Rollouts map[string]api.FleetRollout }
	if code, out, _ = weir(t, "", "fleet", "rollout", "--json", "--socket", socket); code != exitUnfiltered || json.Unmarshal([]byte(out), &got) != nil || got.Rollouts["drop"].WouldDrop != 64 {
		t.Errorf("%d: %s", code, out)
	}
	for _, state := range []string{api.RolloutHalted, api.RolloutRunning} { // whichever of two lists is halted
		other := *r
		if other.State = state; state == api.RolloutHalted {
			r.State = api.RolloutRunning
		} else {
			r.State = api.RolloutHalted
		}
		h.fleet.Lists[1].Rollout = &other
		if code, out, _ := weir(t, "", "fleet", "rollout", "--socket", socket); code != exitUnfiltered || !strings.Contains(out, "drop: "+r.State) || !strings.Contains(out, "block: "+state) {
			t.Errorf("%d: %s", code, out)
		}
	}
	if code, out, _ := weir(t, "", "fleet", "rollout", "block", "--socket", socket); code != exitOK || !strings.HasPrefix(out, "block: running") {
		t.Errorf("beside a list that is halted: %d: %s", code, out)
	}
	h.fleet.Lists[1].Rollout = nil
	if code, out, _ = weir(t, "", "fleet", "rollout", "block", "--socket", socket); code != exitOK || !strings.HasPrefix(out, "no rollouts") {
		t.Errorf("%d: %s", code, out)
	}
	if code, _, _ = weir(t, "", "fleet", "rollout", "none", "--socket", socket); code != exitFailure {
		t.Error(code)
	}
}

func TestFleetRoll(t *testing.T) {
	h := &hubOf{}
	socket := serveHub(t, h)
	for _, c := range []struct {
		args  string
		asked api.FleetRoll
		says  string
	}{
		{"pause", api.FleetRoll{Do: api.RollPause}, "paused: drop\nIt is not published yet"},
		{"pause drop", api.FleetRoll{Do: api.RollPause, List: "drop"}, "paused: drop\n"},
		{"resume", api.FleetRoll{Do: api.RollResume}, "resumed: drop\n"},
		{"resume --now drop", api.FleetRoll{Do: api.RollForward, List: "drop"}, "released to all nodes: drop\n"},
		{"rollback drop", api.FleetRoll{Do: api.RollRollback, List: "drop"}, "rolled back: drop\n"},
	} {
		code, out, _ := weir(t, "", append(append([]string{"fleet"}, strings.Fields(c.args)...), "--socket", socket)...)
		want := exitOK
		if c.asked.Do == api.RollPause { // which the hub has not published
			want = exitUnpublished
		}
		if code != want || h.rolled != c.asked || !strings.HasPrefix(out, c.says) {
			t.Errorf("%s: %d, %q, %+v", c.args, code, out, h.rolled)
		}
	}
	for args, want := range map[string]int{"rollback": exitUsage, "resume --now": exitUsage, "pause a b": exitUsage, "pause none": exitFailure} {
		if code, out, _ := weir(t, "", append(append([]string{"fleet"}, strings.Fields(args)...), "--socket", socket)...); code != want {
			t.Errorf("%s: %d, %s", args, code, out)
		}
	}
	code, out, _ := weir(t, "", "fleet", "pause", "--json", "--socket", socket)
	var got api.FleetRolled
	if code != exitUnpublished || json.Unmarshal([]byte(out), &got) != nil || len(got.Lists) != 1 || got.Published {
		t.Errorf("%d: %s", code, out)
	}
}
