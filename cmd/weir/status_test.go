package main

import (
	"encoding/json"
	"strings"
	"testing"

	"weir/control/api"
	"weir/control/attach"
)

// Without access to its pins, the daemon's answer is shown.
func TestStatusOfDaemon(t *testing.T) {
	d := &fakeDaemon{status: api.Status{
		Version: "1", PID: 7, Pins: "/sys/fs/bpf/weir-test-none", Interfaces: []api.InterfaceStatus{
			{Interface: "eth0", State: api.Filtered, XDP: "native", Packets: 1200, Dropped: 3},
			{Interface: "eth1", State: api.Gone, XDP: "native"},
			{Interface: "eth2", Netns: "lab", State: api.Unfiltered, XDP: "native", Problem: "no native XDP\n"},
			{Interface: "eth3", State: api.Detached, XDP: "native"},
		},
	}}
	socket := serveDaemon(t, d)
	want := strings.Join([]string{
		"eth0 filtered, native XDP, by weir (PID 7)",
		"  1,200 packets since weir started, 3 dropped",
		"",
		"eth1 GONE, weir (PID 7) waits for it",
		"",
		"eth2 in namespace lab NOT FILTERED, weir (PID 7) retries: no native XDP",
		"",
		"eth3 DETACHED, weir (PID 7) leaves it alone until `weir reload`",
		"",
	}, "\n")
	code, out, log := weir(t, "", "status", "--socket", socket)
	if strings.Contains(log, "no BPF file system") {
		t.Skip(log)
	}
	if code != exitUnfiltered || out != want {
		t.Errorf("exit code %d, want %d\n%s%s, want\n%s", code, exitUnfiltered, out, log, want)
	}
	d.status.Interfaces = d.status.Interfaces[:1]
	code, out, log = weir(t, "", "status", "--json", "--socket", socket)
	var s status
	if err := json.Unmarshal([]byte(out), &s); err != nil || code != exitOK || !s.Filtered || s.Daemon == nil || len(s.Daemon.Interfaces) != 1 {
		t.Errorf("exit code %d, %v\n%s%s", code, err, out, log)
	}
	// What is asked about other pins is not about this daemon.
	if code, out, _ := weir(t, "", "status", "--socket", socket, "--pins", "/sys/fs/bpf/weir-test-others"); code != exitUnfiltered || strings.Contains(out, "eth0") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	for want, f := range map[string]api.Fleet{
		"FLEET: node edge-1 is not connected to its hub, retrying": {Node: "edge-1"},
		"FLEET: node edge-1 is stale: why; its lists stay active":  {Node: "edge-1", Stale: true, Problem: "stale: why"},
		"FLEET: node edge-1 has refused 2 messages":                {Node: "edge-1", Connected: true, Refused: 2},
		"eth0 filtered": {Node: "edge-1", Connected: true},
	} {
		d.status.Fleet = &f
		if _, out, _ := weir(t, "", "status", "--socket", socket); !strings.HasPrefix(out, want) {
			t.Errorf("no %q:\n%s", want, out)
		}
	}
	d.status.Fleet, d.status.Interfaces = nil, nil
	if code, out, _ := weir(t, "", "status", "--socket", socket); code != exitUnfiltered || !strings.Contains(out, "weir (PID 7) waits") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// What the lists consist of is shown where it is asked for.
func TestStatusVerbose(t *testing.T) {
	var i attach.Status
	i.PID = 7
	if err := json.Unmarshal([]byte(`[{"name": "quotient table", "bytes": 4096}]`), &i.BlockStructures); err != nil {
		t.Fatal(err)
	}
	i.GeneralPath = []string{"loops are detected", "multicast is forwarded"}
	i.NotIP = []attach.EtherTypeCount{{EtherType: "0x88e7", Name: "provider backbone bridge", Count: attach.Count{Packets: 3, Bytes: 300}}, {EtherType: "other"}}
	if err := json.Unmarshal([]byte(`[{"id": 5, "name": "before"}, {"id": 6, "weir": true}, {"id": 7}]`), &i.Order); err != nil {
		t.Fatal(err)
	}
	i.Inner, i.Tunnels = true, map[string]attach.InnerCount{"gre": {Headers: 3000, Listed: 4}, "vxlan": {}}
	for _, verbose := range []bool{false, true} {
		var out strings.Builder
		printInterface(&out, i, verbose)
		if strings.Contains(out.String(), "4.0 KiB, quotient table") != verbose {
			t.Errorf("verbose %t:\n%s", verbose, out.String())
		}
		if strings.Contains(out.String(), "general for all packets: loops are detected; multicast is forwarded\n") != verbose {
			t.Errorf("verbose %t:\n%s", verbose, out.String())
		}
		if !strings.Contains(out.String(), "before (id 5), then weir, then id 7\n") {
			t.Errorf("order of programs:\n%s", out.String())
		}
		if !strings.Contains(out.String(), "3,000 headers, 4 listed\n") || strings.Contains(out.String(), "in vxlan") {
			t.Errorf("headers in tunnels:\n%s", out.String())
		}
		if strings.Contains(out.String(), "3 packets, 300 B, 0x88e7, provider backbone bridge\n") != verbose {
			t.Errorf("verbose %t:\n%s", verbose, out.String())
		}
	}
	var out strings.Builder
	i.GeneralPath = nil
	printInterface(&out, i, true)
	if !strings.Contains(out.String(), "lean for plain IPv4 packets") {
		t.Error(out.String())
	}
}

// How many flows are new is shown, and when the memory does not suffice.
func TestStatusNewFlows(t *testing.T) {
	var i attach.Status
	i.FirstSeen = &attach.FirstSeen{Key: "flow", Window: 10, Lines: 2048, Events: 100}
	i.NewFlows = &attach.NewFlows{
		Flows: 56789, WindowFlows: 1234, Window: 10.04, ByImportance: []attach.ByImportance{{Importance: 1, Flows: 56000, Events: 12, Suppressed: 3456}, {Importance: 7, Flows: 789, Events: 5}},
	}
	for _, full := range []bool{false, true} {
		if full {
			i.NewFlows.FullWindows, i.NewFlows.MissedShare = 2, 0.12
		}
		var out strings.Builder
		printInterface(&out, i, false)
		for text, want := range map[string]bool{
			"1,234 in the last 10s, by flow; 56,789 in all\n": true, "17; 3,456 were suppressed, above 100 a second and CPU": true,
			"2 windows ended early": full, "12% of new flows are taken for known ones": full,
		} {
			if strings.Contains(out.String(), text) != want {
				t.Errorf("%q: want %t\n%s", text, want, out.String())
			}
		}
	}
}

// How many flows a filter forgets that has false negatives is said plainly.
func TestStatusForgottenFlows(t *testing.T) {
	var i attach.Status
	i.FirstSeen = &attach.FirstSeen{Key: "flow", Window: 10, Lines: 2048}
	if err := i.FirstSeen.Filter.UnmarshalText([]byte("ibf-mc")); err != nil {
		t.Fatal(err)
	}
	i.NewFlows = &attach.NewFlows{Flows: 5, Window: 10, FullWindows: 3, ForgottenShare: []float64{0.83, 0.7, 0.6, 0.5, 0.4, 0.3, 0.17}}
	var out strings.Builder
	printInterface(&out, i, false)
	for _, text := range []string{"about 83% of the flows of importance 1 that return a window later, 17% of importance 7", "the memory was full 3 times"} {
		if !strings.Contains(out.String(), text) {
			t.Errorf("no %q:\n%s", text, out.String())
		}
	}
}

// What policing does is shown, and when it has given up penalising.
func TestStatusPoliced(t *testing.T) {
	var i attach.Status
	i.Police = &attach.Police{Limit: "100Mbit/s by flow", Controller: "fair"}
	i.Policed = &attach.Policed{
		Outcomes: map[string]attach.Count{"passed": {Packets: 100}, "boxed": {Packets: 1234, Bytes: 5}}, FairRate: 1.25e6, BoxedShare: 0.004,
	}
	for _, guarded := range []bool{false, true} {
		i.Policed.Guarded = guarded
		var out strings.Builder
		printInterface(&out, i, false)
		for text, want := range map[string]bool{
			"100Mbit/s by flow, fair; a flow may have 10 Mbit/s\n": true, "1,234 packets": true, "early": false, "0.4% of the counters": !guarded, "GUARD": guarded,
		} {
			if strings.Contains(out.String(), text) != want {
				t.Errorf("%q: want %t\n%s", text, want, out.String())
			}
		}
	}
}
