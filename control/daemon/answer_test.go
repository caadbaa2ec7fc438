package daemon

import (
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/wait"
)

// A hub asks daemons with real traffic: what they would drop, for their heavy hitters,
// and what has passed.
func TestFleetAsked(t *testing.T) {
	t.Parallel() // it waits a lot
	h := newFleetHub(t)
	feed := filepath.Join(h.dir, "feed")
	write(t, feed, "# scanners\n192.0.2.1\n")
	h.start(fmt.Sprintf("lists: {drop: {sources: [{file: %s}], interval: 24h}}", feed))
	var daemons []*Daemon
	var first *lab.Lab
	for _, name := range []string{"edge-1", "edge-2"} {
		l := lab.New(t)
		if first == nil {
			first = l
		}
		daemons = append(daemons, startLists(t, l, io.Discard,
			fmt.Sprintf("trackers: [{key: src, interval: 500ms}]\ndigest: {rate: 100kpps}\nfleet: {enroll: %s}", h.enroll(name))))
	}
	frame := func(src netip.Addr) []byte {
		f := append(make([]byte, 12), 8, 0,
			0x45, 0, 0, 28, 0, 1, 0, 0, 60, 17, 0, 0, 0, 0, 0, 0, 203, 0, 113, 1, // IPv4
			0, 5, 0, 9, 0, 8, 0, 0) // UDP
		copy(f[26:30], src.AsSlice())
		return f
	}
	flood := first.A.StartFlood(t, 0.25, frame)
	for _, d := range daemons {
		becomes(t, d, "192.0.2.1", verdict.Drop)
	}

	var e api.FleetExplanation
	var err error
	wait.For(t, "both nodes answer in time", func() bool {
		if e, err = h.Explain(t.Context(), nil, "192.0.2.1"); err != nil || len(e.Nodes) != 2 {
			t.Fatalf("%+v, %v", e, err)
		}
		return !slices.ContainsFunc(e.Nodes, func(n api.NodeExplanation) bool { return n.Explanation == nil })
	})
	for _, n := range e.Nodes {
		if !n.Explanation.Drops() {
			t.Fatalf("%s: %+v", n.Node, n.Explanation)
		}
		if m := n.Explanation.Answers[0].Matches; len(m) != 1 || m[0].List != "fleet.drop" || m[0].Source != feed || m[0].Line != 2 {
			t.Errorf("%s: %+v", n.Node, m)
		}
	}

	// One of them has traffic.
	var top api.FleetTop
	const least = 1. // packets a second, also where the machine does not keep up
	complete := func() bool {
		return len(top.Flows) >= len(flood.Sources) && !slices.ContainsFunc(top.Flows, func(f api.FlowRate) bool { return f.Rate < least })
	}
	for deadline := wait.Deadline(); !complete(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%+v", top)
		}
		if top, err = h.Top(t.Context(), nil, api.FleetTopQuestion{Key: "src", Unit: "packets", Share: 0.001}); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range top.Flows {
		if f.Least > f.Rate || f.Nodes != 1 || !strings.HasPrefix(f.Key, "198.51.100.") {
			t.Errorf("%+v", f)
		}
	}
	if top, err := h.Top(t.Context(), nil, api.FleetTopQuestion{Key: "dst", Unit: "packets", Share: 0.001}); err != nil || len(top.Flows) > 0 || !strings.Contains(top.Nodes[0].Problem, "no tracker counts packets by dst") {
		t.Errorf("%+v, %v", top, err)
	}

	now := time.Now()
	seen, err := h.Trace(t.Context(), nil, api.TraceQuestion{Packets: []api.TraceAbout{
		{Data: packet.IP(frame(flood.Sources[7])), From: now.Add(-time.Minute), To: now}, {Data: packet.IP(frame(netip.MustParseAddr("192.0.2.99"))), From: now.Add(-time.Minute), To: now},
	}})
	if err != nil || len(seen.Nodes) != 2 {
		t.Fatalf("%+v, %v", seen, err)
	}
	for i, n := range seen.Nodes {
		if n.Traced == nil || len(n.Traced.Interfaces) != 1 {
			t.Fatalf("%s: %s", n.Node, n.Problem)
		}
		p := n.Traced.Interfaces[0].Packets
		if len(p) != 2 || (len(p[0].Slices) > 0) != (i == 0) || len(p[1].Slices) > 0 && p[1].Chance < 1e-9 {
			t.Errorf("%s: %+v", n.Node, p)
		}
	}
	if _, err := h.Trace(t.Context(), nil, api.TraceQuestion{Packets: []api.TraceAbout{{Data: []byte{0x45}, From: now, To: now}}}); err == nil {
		t.Error("a packet that is cut off is traced")
	}
	if _, err := daemons[0].api.Explainer.Answer(t.Context(), "lottery", nil); err == nil || !strings.Contains(err.Error(), "update it") {
		t.Error(err)
	}
}
