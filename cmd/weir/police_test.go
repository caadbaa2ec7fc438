package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"weir/control/api"
)

func TestPolice(t *testing.T) {
	d := &fakeDaemon{}
	socket := serveDaemon(t, d)
	code, out, log := weir(t, "", "police", "eth0", "3kpps", "--for", "1h", "--netns", "blue", "--socket", socket)
	if code != exitOK || !strings.HasPrefix(out, "LIMITED: eth0 in namespace blue to 3kpps since 2026-01-02 03:04:05, by ada, until ") ||
		!strings.HasSuffix(out, "), or `weir police eth0 --off --netns blue`\n") || log != "weir: a restart will forget this: no space left\n" {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if c := d.changedPolice; c.Interface != "eth0" || c.Netns != "blue" || c.Rate != "3kpps" || c.For != 3600 || c.Off || c.Force {
		t.Errorf("asked for %+v", c)
	}
	for netns, want := range map[string]string{"": "eth0 is limited as configured\n", "blue": "eth0 is limited as configured, as it was before\n"} {
		code, out, log = weir(t, "", "police", "eth0", "--off", "--netns", netns, "--socket", socket)
		if code != exitOK || log != "" || out != want || !d.changedPolice.Off {
			t.Errorf("exit code %d\n%s%s", code, out, log)
		}
	}
	for _, args := range [][]string{{"limit", "192.0.2.1"}, {"limit", "192.0.2.1", "1kpps", "--off"}, {"limit", "--ttl", "1m"}, {"limit", "192.0.2.1", "--off", "--ttl", "1m"}, {"police"}, {"police", "eth0"}, {"police", "eth0", "1kpps", "--off"}, {"police", "eth0", "--off", "--for", "1m"}, {"police", "eth0", "1kpps", "2kpps"}} {
		if code, _, _ := weir(t, "", args...); code != exitUsage {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
}

func TestLimit(t *testing.T) {
	until := time.Now().Add(time.Hour - time.Millisecond)
	limits := []api.PoliceOverride{{Interface: "eth0", Rate: "3kpps"}, {Source: "2001:db8::/32", Rate: "1Mbit/s", Held: 1234, Since: time.Now(), By: "ada", Until: &until, Reason: "a flood"}}
	d := &fakeDaemon{status: api.Status{Policed: limits}}
	socket := serveDaemon(t, d)
	code, out, log := weir(t, "", "limit", "192.0.2.1", "100pps", "--ttl", "1h", "--reason", "asks too often", "--socket", socket)
	if code != exitOK || !strings.HasPrefix(out, "LIMITED: 192.0.2.1 to 100pps since 2026-01-02 03:04:05, by ada, until ") ||
		!strings.HasSuffix(out, "), or `weir limit 192.0.2.1 --off`: asks too often\n") || log != "weir: a restart will forget this: no space left\n" {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if c := d.changedPolice; c.Source != "192.0.2.1" || c.Interface != "" || c.Rate != "100pps" || c.For != 3600 || c.Reason != "asks too often" || c.Off || c.Force {
		t.Errorf("asked for %+v", c)
	}
	if code, out, log = weir(t, "", "limit", "192.0.2.1", "--off", "--socket", socket); code != exitOK || log != "" || out != "192.0.2.1 is not limited\n" || !d.changedPolice.Off {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	code, out, _ = weir(t, "", "limit", "--socket", socket)
	lines := strings.Split(out, "\n")
	if code != exitOK || len(lines) != 3 || strings.Join(strings.Fields(lines[0]), " ") != "source or pattern rate dropped ends set by reason" ||
		!strings.HasPrefix(strings.Join(strings.Fields(lines[1]), " "), "2001:db8::/32 1Mbit/s 1,234 in ") || !strings.HasSuffix(lines[1], "ada  a flood") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	code, out, _ = weir(t, "", "limit", "--json", "--socket", socket)
	var got struct{ Limits []api.PoliceOverride }
	if err := json.Unmarshal([]byte(out), &got); code != exitOK || err != nil || len(got.Limits) != 1 || got.Limits[0].Held != 1234 {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
	for range 2 * maxLimited {
		d.status.Policed = append(d.status.Policed, limits[1])
	}
	if _, out, _ = weir(t, "", "status", "--socket", socket); strings.Count(out, "LIMITED: 2001:db8::/32") != maxLimited || !strings.Contains(out, "LIMITED: 6 sources and patterns more, see `weir limit`\n") {
		t.Errorf("status prints\n%s", out)
	}
	d.status.Policed = nil
	if code, out, _ = weir(t, "", "limit", "--socket", socket); code != exitOK || out != "no source or pattern is limited\n" {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// A pattern is sent as one, with its trial, and shown with what it has matched.
func TestLimitPattern(t *testing.T) {
	d := new(fakeDaemon)
	socket := serveDaemon(t, d)
	const pattern = "udp length 468 sport 123"
	code, out, _ := weir(t, "", "limit", "--socket", socket, pattern, "0pps", "--ttl", "10m", "--trial", "2s", "--reason", "a flood")
	if c := d.changedPolice; code != exitOK || c.Pattern != pattern || c.Source != "" || c.Trial != 2 || c.For != 600 || c.Rate != "0pps" || !strings.HasPrefix(out, "DROPPED: "+pattern+" since ") {
		t.Errorf("exit code %d, %+v\n%s", code, c, out)
	}
	code, out, _ = weir(t, "", "limit", "--socket", socket, pattern, "--off")
	if code != exitOK || d.changedPolice.Pattern != pattern || !d.changedPolice.Off || out != pattern+" is not limited\n" {
		t.Errorf("exit code %d, %+v\n%s", code, d.changedPolice, out)
	}
	until, past := time.Now().Add(time.Hour), time.Now().Add(-time.Second)
	for want, o := range map[string]api.PoliceOverride{
		": on trial until it matches a packet, 0 packets matched\n": {Hits: &api.PatternPackets{}, Trial: &past},
		": not counted yet\n": {},
		": 8 packets matched, 2 of them in conversations of this host\n": {Hits: &api.PatternPackets{Packets: 8, Conversing: 2}},
		": 8 packets matched; whether in conversations is not known\n":   {Hits: &api.PatternPackets{Packets: 8, Unknown: 8}},
		", 1 packet matched, 0 of them in conversations":                 {Hits: &api.PatternPackets{Packets: 1}, Trial: &until},
	} {
		o.Pattern, o.Rate = pattern, "0pps"
		d.status.Policed = []api.PoliceOverride{o}
		if code, out, _ = weir(t, "", "limit", "--socket", socket); code != exitOK || !strings.Contains(out, pattern+": ") || !strings.Contains(out, want) {
			t.Errorf("exit code %d\n%s, want %s", code, out, want)
		}
		begins := "DROPPED: " + pattern
		switch o.Trial {
		case &past:
			begins = "ON TRIAL until it matches a packet: " + pattern + " at 0pps"
		case &until:
			begins = "ON TRIAL until " + until.Format(time.TimeOnly) + ": " + pattern + " at 0pps"
		}
		if _, out, _ = weir(t, "", "status", "--socket", socket); !strings.Contains(out, begins+" since ") || !strings.Contains(out, "`weir limit '"+pattern+"' --off`") {
			t.Errorf("status prints\n%s, want %s", out, begins)
		}
	}
}
