package top

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/tests/long"
)

const longAddress = "2001:db8:85a3:1111:ac1f:8a2e:3700:7334" // nearly the longest

// sample returns the data of a daemon with all features.
func sample() *api.Top {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	until := now.Add(59 * time.Second)
	weighted := 8.8e-5
	return &api.Top{
		Time: now, Version: "1.2", Interfaces: []string{"eth0", "eth1"}, Uptime: 100 * 3600, Interval: 1,
		Packets: 1.24e6, Bytes: 426e6, Dropped: 312e3,
		Reasons: []api.ReasonRate{
			{Reason: "clean", Packets: 927e3, Bytes: 400e6, Total: 5e9},
			{Reason: "arp"},
			{Reason: "would-block"},
			{Reason: "blocked", Packets: 300e3, Bytes: 20e6, Total: 7e6, Drops: true},
			{Reason: "malformed", Packets: 12e3, Bytes: 1e6, Total: 99, Drops: true},
			{Reason: "unparsed", Drops: true},
		},
		Trackers: []api.Tracker{
			{Key: "src", Unit: "packets", Interval: 1, Threshold: "20 kpps", Action: "block 60s", Flows: []api.Flow{
				{Key: "192.0.2.9", Packets: 50, Bytes: 70e6, Share: 0.00004},
				{Key: longAddress, Packets: 400e3, Bytes: 30e6, Share: 0.3226, Heavy: true, State: api.Blocked, Until: &until},
				{Key: "192.0.2.7", Packets: 100e3, Bytes: 60e6, Share: 0.0806, Heavy: true, State: api.RateLimited},
				{Key: "192.0.2.8", Packets: 25e3, Bytes: 10e6, Share: 0.02, Heavy: true},
			}},
			{Key: "src/24", Unit: "bytes", Denied: 12345, Flows: []api.Flow{
				{Key: "192.0.2.0/24", Packets: 9, Bytes: 1e3, Share: 0.1},
				{Key: "198.51.100.0/24", Packets: 1, Bytes: 2e3, Share: 0.2},
			}},
			{Key: "dst", Unit: "packets", Flows: []api.Flow{{Key: "> 198.51.100.7", Packets: 5}}},
			{Key: "flow", Unit: "packets", Flows: []api.Flow{
				{Key: "tcp 192.0.2.1:12345 > 198.51.100.7:443", Packets: 9},
				{Key: "udp [" + longAddress + "]:54321 > [2001:db8::53]:53", Packets: 8},
			}},
		},
		Filter: api.Filter{
			Entries: 1204331, Mode: "approx", Generation: 7, KernelBytes: 13 << 20, Hot: 4096,
			Predicted: 1.2e-3, WeightedPredicted: &weighted, FalsePositives: api.FalsePositives{Rate: new(9.1e-5), Low: new(8.2e-5), High: new(1e-4), Packets: 1000},
			Lists: []api.ListRate{{Name: "ours", Total: 12}, {Name: "drop", Packets: 300e3, Total: 7e6}, {Name: "drop (manual)"}},
		},
	}
}

// text returns lines without styles.
func text(lines []line) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(strings.TrimRight(l.text(), " ") + "\n")
	}
	return b.String()
}

func TestPage(t *testing.T) {
	got, err := Page(sample(), "", "gw", 80)
	if err != nil {
		t.Fatal(err)
	}
	want := ` weir on gw  eth0, eth1  approx  1,204,331 entries  up 4d 4h
 packets   1.24 Mpps  3.41 Gbps
 dropped    312 kpps     25.2 %

 why dropped
   blocked    ━━━━━━━━━━━━━━━━━━━━━━━━━━━   300 kpps   160 Mbps  24.2 %   7.00M
   malformed  ━                            12.0 kpps  8.00 Mbps   1.0 %      99

 [src]  src/24   dst   flow   reason                   above 20 kpps: block 60s
   source                                                  packets  state
 ■ 2001:db8:85a3:1111:ac1f:8a2e:3700:7334  ━━━━━━━━━━━━   400 kpps  blocked 59s
 ▲ 192.0.2.7                               ━━━            100 kpps  limited
 • 192.0.2.8                               ━             25.0 kpps
   192.0.2.9                               ╸                50 pps

 lists
   drop  ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━   300 kpps   7.00M
   ours                                                0 pps      12

 filter       1,204,331 entries · 13 MiB · 4,096 hot elements
 false drops  9.1e-05 counted · 8.2e-05 to 1.0e-04 · 1.2e-03 predicted
              8.8e-05 weighted
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A screen is exactly filled at any size.
func TestScreenFitsEverySize(t *testing.T) {
	long.Unraced(t)
	crowded := sample()
	crowded.Interfaces = []string{strings.Repeat("eth0", 30), "網卡0"}
	crowded.Filter.Lists = append(crowded.Filter.Lists, api.ListRate{Name: strings.Repeat("feed-", 40), Packets: math.Inf(1)})
	for i := range 100 {
		crowded.Filter.Lists = append(crowded.Filter.Lists, api.ListRate{Name: "名單", Packets: float64(i)})
		crowded.Trackers[0].Flows = append(crowded.Trackers[0].Flows, api.Flow{
			Key: fmt.Sprintf("192.0.2.%d", i), Packets: 1e20, Bytes: -1, Share: math.NaN(), State: "an unknown state", Until: &time.Time{},
		})
	}
	for name, top := range map[string]*api.Top{"empty": {}, "sample": sample(), "crowded": crowded} {
		for _, by := range append(tabs(top), "gone") {
			for _, v := range []view{
				{by: by, live: true, every: time.Second}, {by: by, help: true}, {by: by, paused: true, live: true},
				{by: by, host: "a-host-with-a-long-name", trouble: strings.Repeat("it is a long story ", 20)},
			} {
				for range 2 * maxHistory {
					v.packets, v.dropped = remember(v.packets, 1e6), remember(v.dropped, 2e5)
				}
				for _, to := range []int{0, 1, 10, 20, 40, 80, wide - 1, wide, 200} {
					for _, high := range []int{0, 1, 5, 12, 24, 50} {
						lines := v.screen(top, to, high)
						if len(lines) != high {
							t.Fatalf("%s by %s, %d×%d: %d lines", name, by, to, high, len(lines))
						}
						for _, l := range lines {
							if l.width() != to {
								t.Fatalf("%s by %s, %d×%d: a line of %d\n%s", name, by, to, high, l.width(), text(lines))
							}
						}
					}
					page, err := Page(top, "", "gw", to)
					for l := range strings.Lines(page) {
						if err != nil || width(strings.TrimSuffix(l, "\n")) > to {
							t.Fatalf("%s: page of %d: %v\n%s", name, to, err, page)
						}
					}
				}
			}
		}
	}
}

func TestScreenShowsWhatMatters(t *testing.T) {
	for _, c := range []struct {
		to, high int
		by       string
		want     []string
	}{
		{80, 24, "", []string{
			"weir on gw  eth0, eth1  approx  1,204,331 entries  up 4d 4h", "every 1s",
			"1.24 Mpps", "3.41 Gbps", "312 kpps", "25.2 %",
			"blocked    ━", "[src]", "above 20 kpps: block 60s",
			"■ " + longAddress + "  ━", "blocked 59s", "▲ 192.0.2.7", "limited",
			"1,204,331 entries · 13 MiB · 4,096 hot elements",
			"9.1e-05 counted · 8.2e-05 to 1.0e-04 · 1.2e-03 predicted", "drop 300 kpps", "? help", "interval",
		}},
		{200, 50, "", []string{
			"■ " + longAddress + "  ━", "400 kpps", "240 Mbps", "32.3 %", "blocked 59s",
			"why dropped", "lists", "ours", "counted", "u lift\n",
		}},
		{40, 24, "", []string{
			"weir on gw  eth0, eth1", "1.24 Mpps", "25.2 %", "blocked    ━", "[src]",
			"■ 2001:db8:85a…2e:3700:7334   400 kpps", "▲ 192.0.2.7", "9.1e-05 counted", "? help",
		}},
		{40, 8, "", []string{"1.24 Mpps", "■ 2001:", "400 kpps"}},
		{80, 24, "src/24", []string{"[src/24]", "source/24", "the flow memory is full: 12.3k packets", "198.51.100.0/24"}},
		{80, 24, "dst", []string{"[dst]", "destination", "   198.51.100.7"}},
		{80, 24, "flow", []string{"tcp 192.0.2.1:12345 > 198.51.100.7:443", "]:54321 > [2001:db8::53]:53"}},
		{80, 24, ByReason, []string{"[reason]", "clean", "927 kpps", "5.00G", "blocked", "99"}},
		{80, 24, "gone", []string{"[src]"}},
	} {
		v := view{host: "gw", by: c.by, every: time.Second, live: true}
		got := text(v.screen(sample(), c.to, c.high))
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%d×%d by %q: no %q in\n%s", c.to, c.high, c.by, want, got)
			}
		}
	}
}

func TestFlowsAreInTheOrderOfTheUnit(t *testing.T) {
	v := view{by: "src/24"}
	got := text(v.screen(sample(), 80, 24))
	if strings.Index(got, "198.51.100.0/24") > strings.Index(got, "192.0.2.0/24") {
		t.Errorf("by bytes:\n%s", got)
	}
}

// Room left by dropped wide columns is used for a narrow one.
func TestNarrowTableUsesItsRoom(t *testing.T) {
	top := sample()
	for i, f := range top.Trackers[0].Flows {
		top.Trackers[0].Flows[i].Key = strings.ReplaceAll(f.Key, longAddress, "192.0.200.100")
	}
	v := view{}
	if got := text(v.screen(top, 40, 24)); !strings.Contains(got, "■ 192.0.200.100  ━") {
		t.Error(got)
	}
}

func TestNothingYet(t *testing.T) {
	v := view{live: true, every: time.Second}
	got := text(v.screen(&api.Top{Version: "1.2", Interfaces: []string{"eth0"}, Filter: api.Filter{Mode: "exact"}}, 80, 24))
	for _, want := range []string{"weir 1.2  eth0  exact  0 entries", "0 pps", "[reason]", "no flows are tracked", "0 B"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	got = text(v.screen(&api.Top{Trackers: []api.Tracker{{Key: "src"}}}, 80, 24))
	for _, want := range []string{"nothing has been dropped", "no flows yet"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

// Outgoing packets have a line of their own, and are not among the reasons.
func TestNothingIncomingDropped(t *testing.T) {
	v := view{}
	got := text(v.screen(&api.Top{Trackers: []api.Tracker{{Key: "src"}}, Out: &api.Sent{Packets: 1, Dropped: 1}}, 80, 24))
	if !strings.Contains(got, "no incoming packet has been dropped") || strings.Contains(got, "nothing has been dropped") {
		t.Error(got)
	}
}

// In monitor mode, packets that would be dropped matter.
func TestMonitoredIsShown(t *testing.T) {
	top := sample()
	top.Reasons = []api.ReasonRate{{Reason: "would-block", Packets: 5, Total: 5}}
	v := view{}
	if got := text(v.screen(top, 80, 24)); !strings.Contains(got, "would-block") || !strings.Contains(got, "would be dropped") || strings.Contains(got, "why dropped") {
		t.Error(got)
	}
}

// In monitor mode, a line and a page say so, and for how long where it ends by itself.
func TestMonitorModeIsShown(t *testing.T) {
	until := time.Now().Add(90 * time.Second)
	for want, o := range map[string]*api.MonitorOverride{"MONITOR MODE:": {}, "MONITOR MODE for ": {Until: &until}} {
		top := &api.Top{Time: until.Add(-90 * time.Second), Monitor: true, MonitorOverride: o}
		v := view{}
		if line, page := text([]line{v.health(top)}), text(v.healthLines(top)); !strings.Contains(line, want) || !strings.Contains(page, want) {
			t.Errorf("%q: %q, %q", want, line, page)
		}
	}
}

// Names come from files and interfaces: their control characters must not reach
// the terminal.
func TestNamesCannotDriveTheTerminal(t *testing.T) {
	top := sample()
	evil := "\x1b]0;owned\a\x1b[2J\r\n\u202e\u009b31m"
	top.Interfaces = []string{evil}
	top.Filter.Mode = evil
	top.Filter.Lists[0].Name = evil
	top.Trackers[0].Key += evil
	top.Trackers[0].Action = evil
	top.Trackers[0].Flows[0].Key = evil
	top.Reasons[3].Reason = evil
	for _, to := range []int{80, 200} {
		v := view{host: evil, trouble: evil, live: true}
		for _, l := range v.screen(top, to, 50) {
			for _, s := range l {
				if strings.ContainsAny(s.text, "\x1b\a\r\n\u202e\u009b") {
					t.Errorf("%q", s.text)
				}
			}
		}
	}
}

func TestTheSameRatesAreSeenOnce(t *testing.T) {
	v, top := view{}, sample()
	v.see(top)
	v.see(top)
	top.Time = top.Time.Add(time.Second)
	v.see(top)
	if len(v.packets) != 2 {
		t.Errorf("seen %d times", len(v.packets))
	}
}

func TestPageBySomethingElse(t *testing.T) {
	if _, err := Page(sample(), "src/16", "", 80); err == nil || !strings.Contains(err.Error(), "no tracker by src/16, only src, src/24, dst") {
		t.Errorf("got %v", err)
	}
	for _, by := range []string{"", "src", "src/24", "flow", ByReason} {
		if _, err := Page(sample(), by, "", 80); err != nil {
			t.Errorf("by %q: %v", by, err)
		}
	}
}
