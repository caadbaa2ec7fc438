package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/attach"
	"weir/control/stage/first"
	"weir/control/stage/police"
	"weir/control/stages"
)

// Without access to its pins, the daemon's answer is shown.
func TestStatusOfDaemon(t *testing.T) {
	d := &fakeDaemon{status: api.Status{
		Version: "1", PID: 7, Pins: "/sys/fs/bpf/weir-test-none", Interfaces: []api.InterfaceStatus{
			{Interface: "eth0", State: api.Filtered, XDP: "native", Packets: 1200, Dropped: 3},
			{Interface: "eth1", State: api.Gone, XDP: "native"},
			{Interface: "eth2", Netns: "lab", State: api.Unfiltered, XDP: "native", Problem: "no native XDP\n"},
			{Interface: "eth3", State: api.Detached, XDP: "native"},
			{Interface: "eth4", State: api.Absent, XDP: "native"},
			{Interface: "eth5", State: api.Unpinned, XDP: "native", Packets: 7, Problem: "read-only file system"},
		},
	}}
	socket := serveDaemon(t, d)
	want := strings.Join([]string{
		"PROBLEM: interface eth2 in namespace lab: no such network namespace: open /run/netns/lab: no such file or directory; " +
			"the daemon waits for it; see which there are: `ip netns list`", "",
		"eth0 filtered, native XDP, by weir (PID 7)",
		"  1,200 packets since weir started, 3 dropped",
		"",
		"eth1 GONE, weir (PID 7) waits for it",
		"",
		"eth2 in namespace lab NOT FILTERED, weir (PID 7) retries: no native XDP",
		"",
		"eth3 DETACHED, weir (PID 7) leaves it alone until `weir reload`",
		"",
		"eth4 NOT THERE YET, weir (PID 7) waits for it",
		"",
		"eth5 NOT PINNED: filtered, native XDP, until weir (PID 7) ends, which retries: read-only file system",
		"  7 packets since weir started, 0 dropped",
		"",
	}, "\n")
	code, out, log := weir(t, "", "status", "--socket", socket)
	if strings.Contains(log, "no BPF file system") {
		t.Skip(log)
	}
	if code != exitUnfiltered || out != want {
		t.Errorf("exit code %d, want %d\n%s%s, want\n%s", code, exitUnfiltered, out, log, want)
	}
	// Its pins cannot be read, as it says.
	d.status.Interfaces, d.status.Pins = d.status.Interfaces[5:], t.TempDir()
	if code, out, log := weir(t, "", "status", "--socket", socket); code != exitUnfiltered || !strings.HasPrefix(out, "eth5 NOT PINNED") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	d.status.Interfaces, d.status.Pins = []api.InterfaceStatus{{Interface: "eth0", State: api.Filtered, XDP: "native"}}, "/sys/fs/bpf/weir-test-none"
	code, out, log = weir(t, "", "status", "--json", "--socket", socket)
	var s status
	if err := json.Unmarshal([]byte(out), &s); err != nil || code != exitOK || !s.Filtered || s.Daemon == nil || len(s.Daemon.Interfaces) != 1 {
		t.Errorf("exit code %d, %v\n%s%s", code, err, out, log)
	}
	d.status.Busy = &api.Busy{What: "what was read of a list is activated", List: "big", Since: time.Now()}
	if code, out, _ := weir(t, "", "status", "--socket", socket); code != exitOK || !strings.HasPrefix(out, "BUSY since ") ||
		!strings.Contains(out, ", commands wait: what was read of a list is activated (list big)\n") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	d.status.Busy, d.status.NotReady = nil, []api.NotReady{{List: "drop", Source: "https://192.0.2.1/drop", Problem: "not read yet"}}
	if code, out, _ := weir(t, "", "status", "--socket", socket); code != exitUnfiltered ||
		!strings.HasPrefix(out, "NOT READY: list drop has nothing of https://192.0.2.1/drop: not read yet\n") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	d.status.NotReady, d.status.Unavailable = nil, []string{"metrics listener: listen tcp 127.0.0.1:9477: bind: address already in use"}
	if code, out, _ := weir(t, "", "status", "--socket", socket); code != exitOK ||
		!strings.HasPrefix(out, "UNAVAILABLE: metrics listener: listen tcp 127.0.0.1:9477: bind: address already in use\n") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	d.status.Unavailable = nil
	for in, want := range map[time.Duration]string{
		time.Hour:    "UNCONFIRMED: the previous configuration is active again in 60m, unless you `weir confirm`\n",
		-time.Second: "UNCONFIRMED: not confirmed in time, rolling back now to the previous configuration\n",
	} {
		until := time.Now().Add(in)
		d.status.ConfirmUntil = &until
		if _, out, _ := weir(t, "", "status", "--socket", socket); !strings.HasPrefix(out, want) {
			t.Errorf("%v: %s", in, out)
		}
	}
	d.status.ConfirmUntil = nil
	d.status.Spared, d.status.SparedMore = []api.Spared{{Flow: "192.0.2.1", Tracker: "src", Action: "block", CutsOff: "the gateway 192.0.2.1"}}, 3
	if code, out, _ := weir(t, "", "status", "--socket", socket); code != exitOK ||
		!strings.HasPrefix(out, "SPARED: 192.0.2.1 would be blocked (tracker src), but that would cut off the gateway 192.0.2.1\nSPARED: 3 more\n") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	d.status.Spared, d.status.SparedMore = nil, 0
	// What is asked about other pins is not about this daemon.
	if code, out, _ := weir(t, "", "status", "--socket", socket, "--pins", "/sys/fs/bpf/weir-test-others"); code != exitUnfiltered || strings.Contains(out, "eth0") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	for want, f := range map[string]api.Fleet{
		"FLEET: node edge-1 is not connected to its hub, retrying":        {Node: "edge-1"},
		"FLEET: node edge-1 is stale: why; its lists stay active":         {Node: "edge-1", Stale: true, Problem: "stale: why"},
		"FLEET: node edge-1 has refused 2 messages":                       {Node: "edge-1", Connected: true, Refused: 2},
		"FLEET: the certificate of node edge-1 is valid until 2031-02-03": {Node: "edge-1", Connected: true, Expires: new(time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC))},
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
	i.Inner, i.Tunnels = true, stages.Tunnels{"gre": {Headers: 3000, Listed: 4}, "vxlan": {}}
	penalties := penaltiesOf(&api.Status{PenaltiesRefused: 4069, PenaltiesReplaced: 40}, api.InterfaceStatus{Penalties: new(7996), MaxPenalties: 8192})
	of := api.Status{FalsePositives: api.FalsePositives{Rate: new(0.01), Low: new(0.008), High: new(0.0125), Packets: 5000}}
	for _, verbose := range []bool{false, true} {
		var out strings.Builder
		i.BitsPerEntry, i.Predicted = 10, 0.0087
		printInterface(&out, i, penalties, countedOf(&of), verbose)
		if !strings.Contains(out.String(), "  penalties    7,996 of 8,192, 4,069 refused, 40 replaced by stronger ones\n") {
			t.Errorf("penalties:\n%s", out.String())
		}
		if !strings.Contains(out.String(), "false drops  1 in 100 counted (1 in 125 to 1 in 80), about 1 in 115 unlisted packets predicted\n") {
			t.Errorf("false drops:\n%s", out.String())
		}
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
	printInterface(&out, i, "", "", true)
	if !strings.Contains(out.String(), "lean for plain IPv4 packets") {
		t.Error(out.String())
	}
}

// How many flows are new is shown, and when the memory does not suffice.
func TestStatusNewFlows(t *testing.T) {
	var i attach.Status
	i.FirstSeen = &first.About{Key: "flow", Window: 10, Lines: 2048, Events: 100}
	i.NewFlows = &first.State{
		Flows: 56789, WindowFlows: 1234, Window: 10.04, ByImportance: []first.ByImportance{{Importance: 1, Flows: 56000, Events: 12, Suppressed: 3456}, {Importance: 7, Flows: 789, Events: 5}},
	}
	for _, full := range []bool{false, true} {
		if full {
			i.NewFlows.FullWindows, i.NewFlows.MissedShare = 2, 0.12
		}
		var out strings.Builder
		printInterface(&out, i, "", "", false)
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
	i.FirstSeen = &first.About{Key: "flow", Window: 10, Lines: 2048}
	if err := i.FirstSeen.Filter.UnmarshalText([]byte("ibf-mc")); err != nil {
		t.Fatal(err)
	}
	i.NewFlows = &first.State{Flows: 5, Window: 10, FullWindows: 3, ForgottenShare: []float64{0.83, 0.7, 0.6, 0.5, 0.4, 0.3, 0.17}}
	var out strings.Builder
	printInterface(&out, i, "", "", false)
	for _, text := range []string{"about 83% of the flows of importance 1 that return a window later, 17% of importance 7", "the memory was full 3 times"} {
		if !strings.Contains(out.String(), text) {
			t.Errorf("no %q:\n%s", text, out.String())
		}
	}
}

// What policing does is shown, and when it has given up penalising.
func TestStatusPoliced(t *testing.T) {
	var i attach.Status
	i.Police = &police.About{Limit: "100Mbit/s by flow", Controller: "fair"}
	i.Policed = &police.State{
		Outcomes: map[string]attach.Count{"passed": {Packets: 100}, "boxed": {Packets: 1234, Bytes: 5}}, FairRate: 1.25e6, BoxedShare: 0.004,
	}
	for _, suspended := range []bool{false, true} {
		i.Policed.Suspended = suspended
		var out strings.Builder
		printInterface(&out, i, "", "", false)
		for text, want := range map[string]bool{
			"100Mbit/s by flow, fair; a flow may have 10 Mbit/s\n": true, "1,234 packets": true, "early": false, "0.4% of the counters": !suspended, "SUSPENDED": suspended,
		} {
			if strings.Contains(out.String(), text) != want {
				t.Errorf("%q: want %t\n%s", text, want, out.String())
			}
		}
	}
}

// A daemon that has failed and that systemd starts again is named, others that have ended are not.
func TestDetachedBeforeRestart(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	in := attach.Interface{Iface: "eth0"}
	before := []attach.Status{{Name: "eth0", Direction: "in", Metadata: attach.Metadata{PID: 1 << 30, Service: "weir.service"}}}
	for state, want := range map[string]string{
		"activating": "weir (PID 1073741824) had ended, but systemd starts weir.service again, which then filters: " +
			"`systemctl stop weir.service` stops it; it starts again at boot, unless you `systemctl disable weir.service`",
		"active": "weir (PID 1073741824) had ended, but systemd starts weir.service again, which then filters: " +
			"`systemctl stop weir.service` stops it; it starts again at boot, unless you `systemctl disable weir.service`",
		"inactive": "",
		"failed":   "",
	} {
		script := fmt.Sprintf("#!/bin/sh\n[ \"$4\" = weir.service ] && echo %s\n", state)
		if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, d := range daemonsOf(before, []attach.Interface{in}) {
			got += d.String()
		}
		if got != want {
			t.Errorf("%s: %q", state, got)
		}
	}
	if err := os.Remove(filepath.Join(dir, "systemctl")); err != nil {
		t.Fatal(err)
	}
	if all := daemonsOf(before, []attach.Interface{in}); len(all) != 0 {
		t.Errorf("without systemd: %v", all)
	}
}

// A daemon that does not answer is not excused by pins that were named, unless nothing runs that
// has attached there.
func TestStatusMissed(t *testing.T) {
	late := fmt.Errorf("%w within 5s", client.ErrUnanswered)
	starting := &api.StartingError{Starting: api.Starting{PID: 7}}
	for _, c := range []struct {
		name            string
		err             error
		chosen, running bool
		unanswered      bool
		starting        bool
	}{
		{"answers", nil, true, true, false, false},
		{"none runs", client.ErrNotRunning, false, true, false, false},
		{"late", late, false, false, true, false},
		{"late, with its pins", late, true, true, true, false},
		{"late, with other pins", late, true, false, false, false},
		{"starts", starting, false, true, false, true},
		{"starts, with pins", starting, true, true, false, false},
	} {
		s := status{Attachments: []attach.Status{{Running: c.running}}}
		s.missed(c.err, c.chosen)
		if (s.unanswered != nil) != c.unanswered || (s.Starting != nil) != c.starting {
			t.Errorf("%s: %v, %+v", c.name, s.unanswered, s.Starting)
		}
	}
}

// Where the clock was ahead when weir attached, the age of the program is unknown.
func TestStatusAge(t *testing.T) {
	for _, c := range []struct {
		since time.Duration // before now
		want  string
	}{
		{time.Minute, "(1m0s)"},
		{-24 * time.Hour, "(the clock was ahead then)"},
	} {
		var b strings.Builder
		printInterface(&b, attach.Status{Metadata: attach.Metadata{PID: 1, Since: time.Now().Add(-c.since)}}, "", "", false)
		if !strings.Contains(b.String(), c.want) {
			t.Errorf("without %q:\n%s", c.want, b.String())
		}
	}
}

// The status of one interface is in full, and its exit code that interface's; a line has what is
// wrong first.
func TestStatusOfInterface(t *testing.T) {
	d := &fakeDaemon{status: api.Status{
		Version: "1", PID: 7, Entries: 1200, Pins: "/sys/fs/bpf/weir-test-none", Interfaces: []api.InterfaceStatus{
			{Interface: "eth0", State: api.Filtered, XDP: "native", Packets: 1200, Dropped: 3},
			{Interface: "eth0", State: api.Filtered, Direction: "out", XDP: "tc"},
			{Interface: "eth1", State: api.Gone, XDP: "native"},
		},
		Policed: []api.PoliceOverride{{Interface: "eth*", Rate: "3kpps", By: "ada"}, {Interface: "eth1", Rate: "4kpps", By: "ada"}},
	}}
	socket := serveDaemon(t, d)
	for _, c := range []struct {
		name  string
		args  []string
		code  int
		want  []string
		lacks string
	}{
		{"filtered", []string{"eth0"}, exitOK, []string{"LIMITED: eth* to 3kpps", "eth0 filtered, native XDP", "  1,200 packets since weir started, 3 dropped", "eth0 (out) filtered, TC"}, "eth1"},
		{"gone", []string{"eth1"}, exitUnfiltered, []string{"LIMITED: eth1 to 4kpps", "eth1 GONE"}, "eth0"},
		{"unknown", []string{"eth9"}, exitFailure, []string{"weir: weir does not filter eth9: it has eth0, eth1\n"}, "GONE"},
		{"a line", []string{"--short"}, exitUnfiltered, []string{"weir: LIMITED, eth1 GONE, filters 2 interfaces by 1,200 entries\n"}, "\n\n"},
		{"a line of one", []string{"--short", "eth0"}, exitOK, []string{"weir: LIMITED, filters 2 interfaces by 1,200 entries\n"}, "eth1"},
		{"a line in JSON", []string{"--short", "--json"}, exitUsage, []string{"--short goes with neither"}, "eth1"},
		{"two", []string{"eth0", "eth1"}, exitUsage, []string{"nothing more"}, "GONE"},
	} {
		code, out, log := weir(t, "", append([]string{"status", "--socket", socket}, c.args...)...)
		if code != c.code || strings.Contains(out, c.lacks) {
			t.Errorf("%s: exit code %d, want %d\n%s%s", c.name, code, c.code, out, log)
		}
		for _, want := range c.want {
			if !strings.Contains(out+log, want) {
				t.Errorf("%s: no %q in\n%s%s", c.name, want, out, log)
			}
		}
	}
	code, out, _ := weir(t, "", "status", "eth1", "--json", "--socket", socket)
	var s status
	if err := json.Unmarshal([]byte(out), &s); err != nil || code != exitUnfiltered || s.Filtered || len(s.Daemon.Interfaces) != 1 {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}

	// Without a daemon, the kernel alone says what it filters.
	s = status{Daemonless: "process 7 has ended", Attachments: []attach.Status{{Name: "eth0", Total: attach.Count{Packets: 250}, Dropped: attach.Count{Packets: 17}}, {Name: "eth1", Severed: true}}}
	s.Attachments[0].Entries, s.Attachments[0].Monitor = 3, true
	if got, want := s.line(), "weir: NO DAEMON, MONITOR ONLY, eth1 DETACHED, filters 1 interface by 3 entries, 17 of 250 packets dropped"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// The memory of the lists is shown by what they do.
func TestStructureRows(t *testing.T) {
	var i attach.Status
	if err := json.Unmarshal([]byte(`{"block_structures": [{"name": "a cascade", "bytes": 1024}, {"name": "a table", "bytes": 2048}],
		"allow_structures": [{"name": "another", "bytes": 3072}]}`), &i.Metadata); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	structureRows(i, func(name, format string, args ...any) { fmt.Fprintf(&got, name+": "+format+"\n", args...) })
	if want := "  block: 1.0 KiB, a cascade\n  block: 2.0 KiB, a table\n  allow: 3.0 KiB, another\n"; got.String() != want {
		t.Errorf("%s", &got)
	}
}
