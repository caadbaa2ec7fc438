package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
)

func TestHistory(t *testing.T) {
	until := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	point := api.HistoryPoint{
		Time: until.Add(-time.Hour), Seconds: 60, Passed: 600_000, PassedBytes: 60 << 20, Dropped: 200_000, DroppedBytes: 20 << 20,
		Reasons: []api.HistoryReason{{Reason: "blocked", Drops: true, Packets: 199_000}, {Reason: "clean", Packets: 600_000}, {Reason: "heavy", Drops: true, Packets: 1000}},
		Lists:   []api.HistoryList{{List: "feed", Packets: 198_000}, {List: "", Packets: 1000}}, Other: 17,
	}
	d := &fakeDaemon{history: api.History{Since: until.Add(-time.Hour), Until: until, Step: 120, Points: []api.HistoryPoint{point, {Time: until, Seconds: 1}}, Total: point}}
	socket := serveDaemon(t, d)
	code, out, log := weir(t, "", "history", "--since", "1h", "--socket", socket)
	if want := (api.HistoryQuestion{Since: time.Hour, Step: 2 * time.Minute}); d.historyAsked != want || code != exitOK || log != "" {
		t.Errorf("asked %+v, want %+v; exit code %d\n%s", d.historyAsked, want, code, log)
	}
	for _, want := range []string{"02:04", "10 kpps", "3.3 kpps", "25.0 %", "blocked, feed", "600,000 packets of 63 MB passed, 200,000 of 21 MB dropped in 1m", "list feed", "198,000", "list -", "other lists", "17"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	for line := range strings.Lines(out) {
		if len([]rune(line)) > 81 {
			t.Errorf("a line of %d characters: %s", len([]rune(line)), line)
		}
	}
	if code, out, _ := weir(t, "", "history", "--json", "--socket", socket); code != exitOK || !strings.Contains(out, `"dropped_packets": 200000`) {
		t.Errorf("--json: %d\n%s", code, out)
	}
	if want := (api.HistoryQuestion{Since: 24 * time.Hour, Step: 5 * time.Minute}); d.historyAsked != want {
		t.Errorf("asked %+v, want %+v", d.historyAsked, want)
	}
	// A limit on heavy hitters has nothing to do with a list.
	point.Reasons = []api.HistoryReason{{Reason: "blocked", Drops: true, Packets: 85}, {Reason: "rate-limited", Drops: true, Packets: 50_377}}
	d.history.Points = []api.HistoryPoint{point}
	if _, out, _ := weir(t, "", "history", "--socket", socket); !strings.Contains(out, "  rate-limited\n") || strings.Contains(out, "rate-limited, feed") {
		t.Errorf("mostly limited:\n%s", out)
	}
	// A list on trial has matched the most, and dropped none of it.
	for _, c := range []struct {
		would uint64 // that passed
		want  string
	}{{0, "blocked, trial"}, {900, "blocked"}, {500, "blocked, trial"}, {950, "blocked"}} {
		point.Reasons = []api.HistoryReason{{Reason: "blocked", Drops: true, Packets: 100}, {Reason: "would-block", Packets: c.would}}
		point.Lists = []api.HistoryList{{List: "trial", Packets: 900}, {List: "feed", Packets: 100}}
		if got := mostly(point); got != c.want {
			t.Errorf("%d would be dropped: mostly %q, want %q", c.would, got, c.want)
		}
	}
	// Of a list: by step, and in all.
	point.Lists = []api.HistoryList{{List: "feed", Packets: 4321}, {List: "drop", Packets: 0, Alone: 22, Conversed: 3}}
	d.history.Points, d.history.Total = []api.HistoryPoint{point, {Time: until}}, point
	if code, out, log := weir(t, "", "history", "--list", "drop", "--socket", socket); code != exitOK || log != "" ||
		!slices.ContainsFunc(strings.Split(out, "\n"), func(line string) bool {
			return strings.Join(strings.Fields(line), " ") == "02:04 0 22 3"
		}) || strings.Contains(out, "4,321") || strings.Count(out, "22") != 2 {
		t.Errorf("--list: exit code %d\n%s%s", code, out, log)
	}
	if _, out, _ := weir(t, "", "history", "--list", "drop", "--json", "--socket", socket); strings.Contains(out, `"feed"`) || !strings.Contains(out, `"addresses_day": 3`) {
		t.Errorf("--list --json:\n%s", out)
	}
	if _, out, _ := weir(t, "", "history", "--socket", socket); !strings.Contains(out, "conversed                3  addresses") || strings.Contains(out, "list drop  matched") {
		t.Errorf("with a list that nothing has matched:\n%s", out)
	}
	d.lists = []api.List{{Name: "new"}}
	if code, out, _ := weir(t, "", "history", "--list", "new", "--socket", socket); code != exitOK || out != "nothing was recorded of list new\n" {
		t.Errorf("--list new: exit code %d\n%s", code, out)
	}
	if code, out, log := weir(t, "", "history", "--list", "nope", "--socket", socket); code != exitFailure || out != "" || log != `weir: no such list: "nope": there are new`+"\n" {
		t.Errorf("--list nope: exit code %d\n%s%s", code, out, log)
	}
	point.Reasons, point.Lists = []api.HistoryReason{{Reason: "clean", Packets: 9}}, []api.HistoryList{{List: "quiet", Conversed: 3}}
	if got := mostly(point); got != "" {
		t.Errorf("without drops: mostly %q", got)
	}
	d.history = api.History{}
	if code, out, _ := weir(t, "", "history", "--socket", socket); code != exitOK || !strings.Contains(out, "nothing was recorded") {
		t.Errorf("without records: %d\n%s", code, out)
	}
	for _, wrong := range [][]string{{"--since", "31d"}, {"--since", "0s"}, {"--step", "1s"}, {"--since", "30d", "--step", "10s"}} {
		if code, _, log := weir(t, "", append([]string{"history", "--socket", socket}, wrong...)...); code != exitUsage || !strings.Contains(log, "want") {
			t.Errorf("%v: exit code %d\n%s", wrong, code, log)
		}
	}
}
