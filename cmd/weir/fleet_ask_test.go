package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/fleet/wire"
)

// nodesOf answers for the nodes of a fleet.
type nodesOf struct {
	explanation api.FleetExplanation
	top         api.FleetTop
	traced      api.FleetTraced
	floods      api.FleetFloods
	nodes       []string
	asked       any
	err         error
}

func (n *nodesOf) Explain(_ context.Context, nodes []string, packets string) (api.FleetExplanation, error) {
	n.nodes, n.asked = nodes, packets
	return n.explanation, n.err
}

func (n *nodesOf) Top(_ context.Context, nodes []string, asked api.FleetTopQuestion) (api.FleetTop, error) {
	n.nodes, n.asked = nodes, asked
	return n.top, n.err
}

func (n *nodesOf) Trace(_ context.Context, nodes []string, asked api.TraceQuestion) (api.FleetTraced, error) {
	n.nodes, n.asked = nodes, asked
	return n.traced, n.err
}

func (n *nodesOf) Floods(_ context.Context, nodes []string) (api.FleetFloods, error) {
	n.nodes = nodes
	return n.floods, n.err
}

func TestFleetExplain(t *testing.T) {
	packets := 0
	says := func(answer string) *api.Explanation {
		packets++
		var e api.Explanation
		if err := json.Unmarshal(fmt.Appendf(nil, answer, packets), &e); err != nil {
			t.Fatal(err)
		}
		return &e
	}
	const drop = `{"verdict": "drop", "answers": [{"packet": "from 192.0.2.1", "verdict": "drop", "reason": "blocked", "list": "fleet.drop",
		"matches": [{"list": "fleet.drop", "action": "block", "entry": "192.0.2.0/24", "source": "drop.txt\u001b[2J", "line": 17, "total_packets": %d}]}]}`
	const pass = `{"verdict": "pass", "answers": [{"packet": "from 192.0.2.1", "verdict": "pass", "reason": "clean", "matches": [], "depends_more": %d}]}`
	n := &nodesOf{explanation: api.FleetExplanation{Question: "192.0.2.1", Nodes: []api.NodeExplanation{
		{Node: "edge-1", Explanation: says(drop)},
		{Node: "edge-2", Explanation: says(pass)},
		{Node: "edge-3", Explanation: says(drop)},
	}}}
	socket := serveHub(t, &hubOf{Asker: n})
	code, out, log := weir(t, "", "fleet", "explain", "--socket", socket, "192.0.2.1")
	if code != exitOK || !strings.HasPrefix(out, "192.0.2.1: dropped by 2 of 3 nodes that have answered\n\nedge-1, edge-3:\n  from 192.0.2.1: drop (blocked, list fleet.drop)\n") ||
		!strings.Contains(out, `drop.txt\u001b[2J:17`) || !strings.Contains(out, "\nedge-2:\n  from 192.0.2.1: pass (clean)\n") || strings.Count(out, "fleet.drop") != 2 {
		t.Errorf("%d: %s%s", code, out, log)
	}
	if n.asked != "192.0.2.1" || n.nodes != nil {
		t.Errorf("asked %v for %v", n.nodes, n.asked)
	}
	if code, _, _ := weir(t, "", "fleet", "explain", "--exit-code", "--node", "edge-1,edge-2", "--socket", socket, "tcp", "192.0.2.1:*", ">", "192.0.2.2:25"); code != exitDropped ||
		n.asked != "tcp 192.0.2.1:* > 192.0.2.2:25" || !slices.Equal(n.nodes, []string{"edge-1", "edge-2"}) {
		t.Errorf("%d: asked %v for %v", code, n.nodes, n.asked)
	}
	n.explanation.Nodes[1] = api.NodeExplanation{Node: "edge-2", Problem: "not connected"}
	if code, out, log = weir(t, "", "fleet", "explain", "--exit-code", "--socket", socket, "192.0.2.1"); code != exitFailure ||
		!strings.Contains(log, "from 1 of 3 nodes: edge-2 (not connected)") || !strings.Contains(out, "by 2 of 2 nodes") {
		t.Errorf("%d: %s%s", code, out, log)
	}
	var got api.FleetExplanation
	if code, out, _ = weir(t, "", "fleet", "explain", "--json", "--socket", socket, "192.0.2.1"); code != exitFailure || json.Unmarshal([]byte(out), &got) != nil || len(got.Nodes) != 3 {
		t.Errorf("%d: %s", code, out)
	}
	n.err = &api.BadRequest{Err: errors.New(`no node "x" was enrolled`)}
	if code, _, log = weir(t, "", "fleet", "explain", "--node", "x", "--socket", socket, "192.0.2.1"); code != exitUsage || !strings.Contains(log, "enrolled") {
		t.Errorf("%d: %s", code, log)
	}
	if code, _, log = weir(t, "", "fleet", "explain", "--socket", socket, "192.0.2.300"); code != exitUsage || !strings.Contains(log, "192.0.2.300") {
		t.Errorf("%d: %s", code, log)
	}
}

func TestFleetTop(t *testing.T) {
	n := &nodesOf{top: api.FleetTop{Key: "src", Unit: "packets", Share: 0.001, Rate: 1e6, Rest: 500,
		Nodes: []api.NodeRate{{Node: "edge-1", Interval: 1, Rate: 1e6}, {Node: "edge-2", Problem: "no tracker counts packets by src: set trackers in weir.yaml"}},
		Flows: []api.FlowRate{{Key: "192.0.2.1", Rate: 20_000, Least: 19_990, Share: 0.02, Nodes: 1}, {Key: "192.0.2.2", Rate: 2000, Least: 2000, Share: 0.002, Nodes: 1}},
	}}
	socket := serveHub(t, &hubOf{Asker: n})
	code, out, log := weir(t, "", "fleet", "top", "--socket", socket, "--count", "1")
	if code != exitFailure || !strings.Contains(log, "edge-2 (no tracker") || !strings.Contains(out, "1 node has counted 1 M packets/s") ||
		!strings.Contains(out, "20 k    19.99 k   2.00 %      1  192.0.2.1\nand 1 more\nno other has more than 500 packets/s (0.05 %)\n") {
		t.Errorf("%d: %s%s", code, out, log)
	}
	if want := (api.FleetTopQuestion{Key: "src", Unit: "packets", Share: 0.001}); n.asked != want {
		t.Errorf("asked for %+v", n.asked)
	}
	_, _, _ = weir(t, "", "fleet", "top", "--socket", socket, "--key", "dst/24", "--unit", "bytes", "--share", "1%")
	if got := fmt.Sprint(n.asked); got != "{dst/24 bytes 0.01}" {
		t.Errorf("asked for %s", got)
	}
	for _, args := range [][]string{{"--count", "-1"}, {"--unit", "pounds"}, {"--share", "200%"}} {
		if code, _, _ := weir(t, "", append([]string{"fleet", "top", "--socket", socket}, args...)...); code != exitUsage {
			t.Errorf("%q: %d", args, code)
		}
	}
}

func TestFleetTrace(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	traced := func(slices ...api.TracedSlice) *api.Traced {
		return &api.Traced{Version: 3, Interfaces: []api.TracedInterface{{Name: "eth0", Since: new(time.Unix(0, 0)), Packets: []api.TracedPacket{{Slices: slices, Chance: 0.01}}}}}
	}
	n := &nodesOf{traced: api.FleetTraced{Nodes: []api.NodeTraced{
		{Node: "core", Traced: traced(api.TracedSlice{Start: at, Length: 1})}, {Node: "edge", Traced: traced(api.TracedSlice{Start: at, Length: 1})},
		{Node: "gone", Problem: "not connected"}, {Node: "west", Traced: traced()},
	}}}
	socket := serveHub(t, &hubOf{Asker: n})
	code, out, log := weir(t, "", "fleet", "trace", "--socket", socket, "--count", "1", "--link", "edge-core", "--link", "edge-west", "--from", "edge", datagrams(t, 60))
	if code != exitFailure || !strings.Contains(log, "from 1 of 4 nodes: gone (not connected)") || !strings.Contains(out, "  gone: unknown") ||
		!strings.Contains(out, "    edge (by chance 1 %)\n    └─ core (by chance 1 %)\n") || strings.Contains(out, "west") {
		t.Errorf("%d: %s%s", code, out, log)
	}
	if q, ok := n.asked.(api.TraceQuestion); !ok || len(q.Packets) != 1 {
		t.Errorf("asked for %+v", n.asked)
	}
	if code, _, log = weir(t, "", "fleet", "trace", "--socket", socket, "--link", "edge-nowhere", "--from", "edge", datagrams(t, 60)); code == exitOK || !strings.Contains(log, "unknown node nowhere") {
		t.Errorf("%d: %s", code, log)
	}
}

func TestFleetLists(t *testing.T) {
	now := time.Now()
	h := &hubOf{fleet: api.HubStatus{Lists: []api.FleetList{{
		Name: "drop", Action: api.Block, Direction: "src", Entries: 1_200_000, Manual: 2, Version: wire.Place{Epoch: 7, Version: 3}, Published: wire.Place{Epoch: 7, Version: 2},
		Feeds: []api.FeedSource{{Source: "https://feeds.example.net/drop", Outcome: api.Failed, Failure: "unreachable", Error: "no route", Failures: 3, Entries: 5, Read: &now, BadLines: 2, FirstBad: []string{"line 7: x"}}},
	}}}}
	socket := serveHub(t, h)
	if code, out, _ := weir(t, "", "fleet", "lists", "--versions", "drop", "--socket", socket); code != exitOK || !strings.Contains(out, "1,204") || !strings.Contains(out, "0123456789ab") {
		t.Errorf("%d: %s", code, out)
	}
	if code, out, _ := weir(t, "", "fleet", "lists", "--versions", "drop", "--json", "--socket", socket); code != exitOK || !strings.Contains(out, `"sources"`) || strings.Contains(out, `"lists"`) {
		t.Errorf("%d: %s", code, out)
	}
	for version, want := range map[string]string{"0123": "+ 0123\n", "": "+ \n"} {
		args := slices.DeleteFunc([]string{"fleet", "lists", "--versions", "drop", "--diff", version, "--socket", socket}, func(a string) bool { return a == "" })
		if code, out, _ := weir(t, "", args...); code != exitOK || !strings.Contains(out, "x: 0123456789ab against fedcba987654\n"+want) {
			t.Errorf("%q: %d: %s", args, code, out)
		}
	}
	for _, of := range [][]string{{"fleet", "lists", "--versions", "drop", "--diff", "none"}, {"fleet", "lists", "--diff"}, {"fleet", "lists", "--versions", "drop", "none"}} {
		if code, _, log := weir(t, "", append(of, "--socket", socket)...); code != exitUsage || log == "" {
			t.Errorf("%q: %d: %s", of, code, log)
		}
	}
	if code, _, log := weir(t, "", "fleet", "lists", "--versions", "none", "--socket", socket); code != exitFailure || !strings.Contains(log, "no such list") {
		t.Errorf("%d: %s", code, log)
	}
	code, out, _ := weir(t, "", "fleet", "lists", "--socket", socket)
	for _, want := range []string{"drop  block   src         1,200,000       2  7.3      7.2        FAILED", "FAILED 3 times (unreachable): no route", "2 bad lines left out, the first: line 7: x"} {
		if code != exitOK || !strings.Contains(out, want) {
			t.Errorf("%d: no %q in %s", code, want, out)
		}
	}
}

// Ten nodes without an answer are named; of more, ten and how many others there are.
func TestNoAnswer(t *testing.T) {
	for n, end := range map[int]string{9: "n (x)", 10: "n (x)", 11: "n (x), and 1 more"} {
		err := noAnswer(make([]string, n), func(string) (name, problem string) { return "n", "x" })
		if err == nil || strings.Count(err.Error(), "n (x)") != min(n, 10) || !strings.HasSuffix(err.Error(), end) {
			t.Errorf("%d: %v", n, err)
		}
	}
}

// The floods of all nodes are one report, with a line for what several of them see.
func TestFleetFlood(t *testing.T) {
	begin := time.Now().Add(-41 * time.Second)
	rule := api.FloodRule{Pattern: "udp length 468 sport 123", Name: "NTP answers", Rate: 90_000}
	node := func(name string, x *api.Flood) api.NodeFloods {
		f := &api.Floods{Sampled: true, Quiet: 24, Rate: 100_000, Usual: 10_000, Now: x, Past: []api.Flood{}}
		return api.NodeFloods{Node: name, Floods: f}
	}
	ruled := func(dropped float64) *api.Flood {
		return &api.Flood{Begin: begin, Kind: api.FloodRuled, Rate: 100_000, Dropped: dropped, Rules: []api.FloodRule{rule}}
	}
	n := &nodesOf{floods: api.FleetFloods{
		Nodes: []api.NodeFloods{
			node("edge-1", ruled(1)), node("edge-2", ruled(0)), {Node: "edge-3", Floods: node("", nil).Floods, Unmeasured: "update it"},
			node("edge-4", &api.Flood{Begin: begin, Kind: api.FloodUsers, Of: "packets", Conversing: 0.99}),
		},
		Rules: []api.FleetFloodRule{{FloodRule: rule, Nodes: []string{"edge-1", "edge-2"}, Also: []string{"udp sport 123 ttl 60"}, Measured: 3}},
	}}
	n.floods.Rules[0].Conversations, n.floods.Rules[0].Packets = api.FloodShare{Hits: 2, Of: 612, Node: "edge-4"}, api.FloodShare{Of: 9600, Node: "edge-1"}
	socket := serveHub(t, &hubOf{Asker: n})
	code, out, log := weir(t, "", "fleet", "flood", "--socket", socket, "--node", "edge-1,edge-2")
	for _, want := range []string{
		"FLOOD at 3 of 4 nodes since " + begin.Local().Format(time.TimeOnly) + " (41s)   400 kpps, usual 40 kpps\n",
		"it is       1  udp length 468 sport 123: NTP answers\n               2 of 4 nodes see it: edge-1, edge-2; 90 kpps\n" +
			"               found as well, for the same packets: udp sport 123 ttl 60\n",
		"would hit   1: 2 of 612 usual conversations, 0 of 9600 usual packets, at the worst of 3 nodes: edge-4, edge-1\n" +
			"            not measured: no answer, or only a part, from 1 of 4 nodes: edge-3 (update it)\n",
		"               at edge-4 MORE THAN USUAL: packets, 99 % of them in conversations\n",
		"dropped     50 % of it now\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("want %q in:\n%s", want, out)
		}
	}
	if code != exitOK || !slices.Equal(n.nodes, []string{"edge-1", "edge-2"}) {
		t.Errorf("%d, asked %v: %s", code, n.nodes, log)
	}
	var asked api.FleetFloodsChange
	until := time.Now().Add(10*time.Minute + time.Second)
	h := &hubOf{Asker: n, floods: func(c api.FleetFloodsChange) (api.FleetFloodsChanged, error) {
		asked = c
		p := api.FleetPattern{Pattern: rule.Pattern, Until: until, Nodes: []api.NodePattern{
			{Node: "edge-1", State: api.PatternEnforced, Held: 90, Hits: &api.PatternPackets{Packets: 100, Conversing: 2}},
			{Node: "edge-2", State: api.PatternRefused, Why: "0pps would hold back the failsafe prefix"},
		}}
		n.floods.Patterns = []api.FleetPattern{p}
		return api.FleetFloodsChanged{Published: true, Patterns: n.floods.Patterns}, nil
	}}
	socket = serveHub(t, h)
	if !strings.Contains(out, "do          weir fleet flood --apply all\n") {
		t.Errorf("what to do: %s", out)
	}
	code, out, log = weir(t, "", "fleet", "flood", "--socket", socket, "--apply", "all", "--trial", "1s", "--label", "canary")
	const says = "udp length 468 sport 123: enforced on 1 of 2 nodes, ends in 10m; 100 packets matched, 2 of them in conversations; 90 dropped\n" +
		"  edge-2: refused, 0pps would hold back the failsafe prefix\n"
	if code != exitUnpublished || out != says || !slices.Equal(asked.Patterns, []string{rule.Pattern}) || asked.For != 600 || asked.Trial != 1 || !slices.Equal(asked.Labels, []string{"canary"}) {
		t.Errorf("%d, %+v: %s%s", code, asked, out, log)
	}
	if _, out, _ = weir(t, "", "fleet", "flood", "--socket", socket); !strings.HasSuffix(out, "do          weir flood says at edge-2: weir flood --apply all\n"+says) {
		t.Errorf("published, and refused by a node: %s", out)
	}
	if code, _, log = weir(t, "", "fleet", "flood", "--socket", socket, "--apply", "all"); code != exitFailure || !strings.Contains(log, "nothing to propose") {
		t.Errorf("again: %d, %s", code, log)
	}
	if code, _, log = weir(t, "", "fleet", "flood", "--socket", socket, "--ttl", "1h"); code != exitUsage {
		t.Errorf("%d, %s", code, log)
	}
	n.floods.Rules = append(n.floods.Rules, api.FleetFloodRule{FloodRule: api.FloodRule{Pattern: "tcp flags S", Addresses: []string{"192.0.2.1"}}, Nodes: []string{"edge-1"}})
	if code, _, log = weir(t, "", "fleet", "flood", "--socket", socket, "--apply", "2", "--label", "canary"); code != exitUsage || !strings.Contains(log, "of tcp flags S addresses are blocked, on all nodes") || h.asked.Entries != nil {
		t.Errorf("addresses of a part of the nodes: %d, %s", code, log)
	}
	if _, _, _ = weir(t, "", "fleet", "flood", "--socket", socket, "--end", "all"); !asked.Off || len(asked.Patterns) > 0 {
		t.Errorf("%+v", asked)
	}
	n.floods = api.FleetFloods{Nodes: []api.NodeFloods{node("edge-1", nil), {Node: "edge-2", Problem: "not connected"}}}
	if code, out, log = weir(t, "", "fleet", "flood", "--socket", socket); code != exitFailure || !strings.Contains(log, "from 1 of 2 nodes: edge-2 (not connected)") ||
		out != "no flood at 1 node that has answered: 100 kpps, usual 10 kpps\n" {
		t.Errorf("%d: %s%s", code, out, log)
	}
}
