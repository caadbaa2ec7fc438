package main

import (
	"strings"
	"testing"
	"time"

	"weir/control/api"
)

func TestDrops(t *testing.T) {
	until := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	d := &fakeDaemon{drops: api.Drops{
		By: api.ByEntry, Since: until.Add(-time.Minute), Until: until, Packets: 1_000_000, Bytes: 64 << 20, More: 3, Other: 17,
		Drops: []api.Drop{
			{Key: "192.0.2.0/24", Lists: []string{"feed"}, Reasons: []string{"blocked"}, Sources: 9, Packets: 900_000, Least: 900_000, Rate: 15_000, Share: 0.9},
			{Lists: []string{"old"}, Reasons: []string{"blocked"}, Sources: 2, Packets: 99_983, Least: 99_000, Rate: 1666, Share: 0.1},
		},
	}}
	socket := serveDaemon(t, d)
	code, out, log := weir(t, "", "drops", "--by", "entry", "--last", "1m", "-n", "2", "--socket", socket)
	if want := (api.DropsQuestion{By: api.ByEntry, Last: time.Minute, Limit: 2}); d.dropsAsked != want || code != exitOK || log != "" {
		t.Errorf("asked %+v, want %+v; exit code %d\n%s", d.dropsAsked, want, code, log)
	}
	for _, want := range []string{
		"1,000,000 packets of 67 MB dropped in 1m", "192.0.2.0/24", "900,000", "15 kpps", "90.0 %", "blocked, feed", "99,000–99,983", "-n 5 shows them", "little at the time: 17 packets",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	for line := range strings.Lines(out) {
		if len([]rune(line)) > 81 {
			t.Errorf("a line of %d characters: %s", len([]rune(line)), line)
		}
	}
	d.drops.TrialPackets, d.drops.TrialBytes = 250_000, 32<<20
	if _, out, _ := weir(t, "", "drops", "--socket", socket); !strings.Contains(out, "750,000 packets of 34 MB dropped in 1m; 250,000 of 34 MB passed, by lists on trial\n") {
		t.Errorf("of lists on trial:\n%s", out)
	}
	d.drops.Monitor = true // now, but not when these were dropped
	if _, out, _ := weir(t, "", "drops", "--socket", socket); strings.Contains(out, "would have been dropped") || strings.Contains(out, "monitored") {
		t.Errorf("before monitor mode:\n%s", out)
	}
	d.drops.Monitor, d.drops.MonitorPackets, d.drops.MonitorBytes, d.drops.Drops[0].MonitorPackets = false, 600_000, 20<<20, 543_210
	if _, out, _ := weir(t, "", "drops", "--socket", socket); !strings.Contains(out, "150,000 packets of 13 MB dropped in 1m; 600,000 of 21 MB would have been dropped, if not for monitor mode; 250,000 of 34 MB passed, by lists on trial\n") ||
		!strings.Contains(out, "monitored") || !strings.Contains(out, "543,210") {
		t.Errorf("after monitor mode:\n%s", out)
	}
	d.drops.MonitorPackets, d.drops.MonitorBytes = 750_000, 32<<20
	if _, out, _ := weir(t, "", "drops", "--socket", socket); !strings.HasPrefix(out, "750,000 packets of 34 MB would have been dropped, if not for monitor mode in 1m; 250,000 of") || strings.Contains(out, "monitored") {
		t.Errorf("in monitor mode:\n%s", out)
	}
	d.drops = api.Drops{By: api.BySource}
	if code, out, _ := weir(t, "", "drops", "--socket", socket); code != exitOK || !strings.Contains(out, "nothing was dropped") {
		t.Errorf("without drops: %d\n%s", code, out)
	}
	for _, wrong := range [][]string{{"--by", "colour"}, {"--last", "2h"}, {"--last", "0s"}, {"-n", "0"}} {
		if code, _, log := weir(t, "", append([]string{"drops", "--socket", socket}, wrong...)...); code != exitUsage || !strings.Contains(log, "want") {
			t.Errorf("%v: exit code %d\n%s", wrong, code, log)
		}
	}
}
