package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"weir/control/api"
)

func someLists() []api.List {
	now := time.Now()
	at := func(d time.Duration) *time.Time { t := now.Add(d); return &t }
	return []api.List{
		{Name: "drop", Action: api.Block, Direction: "src", Entries: 1204, Manual: 3, Packets: new(uint64(12345)), Feeds: []api.FeedSource{
			{Source: "https://example.com/4.json", Outcome: "unchanged", Entries: 1000, Read: at(-12*time.Minute - time.Second), Next: at(48*time.Minute + time.Second)},
			{Source: "https://example.com/6.json", Outcome: "new", Entries: 201, BadLines: 2, FirstBad: []string{"https://example.com/6.json:7: no address"}, Wide: []string{"6.json:9: 2400::/12 (0.2 %)"}, Read: at(-3 * time.Minute), Next: at(58 * time.Minute)},
		}},
		{Name: "scanners", Action: api.Block, Direction: "both", Entries: 17, Packets: new(uint64), Feeds: []api.FeedSource{
			{Source: "/etc/scanners.csv", Outcome: "new", Entries: 10, Read: at(-time.Minute - time.Second), Next: at(time.Hour + time.Minute), Unsaved: true},
			{Source: "https://example.com/s", Outcome: api.Failed, Failure: "stalled", Error: "no data for 30s", Entries: 7,
				Read: at(-49 * time.Hour), Next: at(30*time.Second + 300*time.Millisecond), Failures: 3},
		}},
		{Name: "never", Action: api.Block, Direction: "src", Packets: new(uint64), Feeds: []api.FeedSource{
			{Source: "https://example.com/n", Outcome: api.Failed, Failure: "unreachable", Error: "no route to host", Failures: 1, Next: at(14*time.Second + 300*time.Millisecond)},
		}},
		{Name: "new", Action: api.Block, Direction: "dst", Entries: 5, Packets: new(uint64), Feeds: []api.FeedSource{
			{Source: "/etc/a.txt", Outcome: "new", Entries: 5, Read: at(-time.Minute)},
			{Source: "/etc/b.txt", Outcome: "none"},
		}},
		{Name: "slow", Action: api.Block, Direction: "src", Packets: new(uint64), Feeds: []api.FeedSource{
			{Source: "https://example.com/slow", Outcome: "none", Next: at(-time.Second)},
		}},
		{Name: "ours", Action: api.Allow, Direction: "src", Entries: 2, Manual: 2, Spare: []api.SpareShape{{Shape: "src/24+dport", Entries: 2, First: "any 192.0.2.0/24:* > *:53"}}},
	}
}

func TestNearly(t *testing.T) {
	for d, want := range map[time.Duration]string{
		2*time.Hour - time.Millisecond: "2h", 10*time.Minute - time.Second: "10m", 99600 * time.Millisecond: "2m",
		100*time.Minute - time.Second: "2h", 48*time.Hour - time.Second: "2d", 30 * 24 * time.Hour: "30d", 59 * time.Second: "59s", 0: "0s",
	} {
		if got := nearly(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestLists(t *testing.T) {
	busy := &fakeDaemon{lists: someLists(), old: 12 * time.Second}
	if code, out, log := weir(t, "", "lists", "--socket", serveDaemon(t, busy)); code != exitOK || !strings.HasPrefix(out, "as of 12s ago: the daemon is busy\n\nlist ") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	socket := serveDaemon(t, &fakeDaemon{lists: someLists()})
	code, out, log := weir(t, "", "lists", "--socket", socket)
	const want = `list      action  direction     entries  manual        packets  feeds                read     next
drop      block   src             1,204       3         12,345  ok                   12m ago  in 48m
scanners  block   both               17       0              0  1 of 2 FAILED        2d ago   in 30s
never     block   src                 0       0              0  FAILED               -        in 14s
new       block   dst                 5       0              0  1 of 2 not read yet  -        -
slow      block   src                 0       0              0  not read yet         -        now
ours      allow   src                 2       2              -  -                    -        -

drop: https://example.com/6.json: 2 bad lines left out, the first: https://example.com/6.json:7: no address
drop: https://example.com/6.json: COVER MUCH, probably a mistake: 6.json:9: 2400::/12 (0.2 %)
scanners: /etc/scanners.csv: NOT SAVED: a restart would not find these entries
scanners: https://example.com/s: FAILED 3 times (stalled): no data for 30s; keeping its 7 entries, read 2d ago
never: https://example.com/n: FAILED 1 time (unreachable): no route to host; it has never been read
ours: LEFT OUT 2 × src/24+dport, as in "any 192.0.2.0/24:* > *:53": too many combinations of fields and prefix lengths
`
	if code != exitOK || log != "" || out != want {
		t.Errorf("exit code %d\n%s%s\nwant\n%s", code, out, log, want)
	}
	var got api.Lists
	code, out, _ = weir(t, "", "lists", "--json", "--socket", socket)
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitOK || len(got.Lists) != 6 || got.Lists[1].Feeds[1].Failure != "stalled" {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
}

// A source that was not read since its list's settings changed has entries of before.
func TestTroublesOfFormerEntries(t *testing.T) {
	for _, c := range []struct {
		source api.FeedSource
		want   string
	}{
		{api.FeedSource{Outcome: api.None, Entries: 7}, "[NOT READ YET: keeping its 7 entries of before its settings changed]"},
		{api.FeedSource{Outcome: api.Failed, Entries: 1, Failures: 1, Failure: "status", Error: "503"}, "[FAILED 1 time (status): 503; keeping its 1 entry of before its settings changed]"},
	} {
		if got := fmt.Sprint(troubles(c.source, time.Now())); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}

func TestRefresh(t *testing.T) {
	good := api.FetchOutcome{List: "drop", Source: "https://example.com/4.json", Outcome: "new", Entries: 1204, Changed: true}
	bad := api.FetchOutcome{List: "scanners", Source: "/etc/scanners.csv", Outcome: api.Failed, Failure: "empty", Error: "no entry in it", Entries: 7}
	socket := serveDaemon(t, &fakeDaemon{outcomes: map[string][]api.FetchOutcome{
		"": {good, bad}, "drop": {good}, "scanners": {bad}, "ours": nil,
		"some": {{List: "some", Source: "/etc/some", Outcome: "new", Entries: 90, BadLines: 2, FirstBad: []string{"/etc/some:7: no address"}}},
		"back": {{List: "back", Source: "/etc/back", Outcome: "unchanged", Entries: 3, Rejected: true}},
	}})
	const goodLine = "drop: https://example.com/4.json: new; entries: 1,204\n"
	const badLine = "scanners: /etc/scanners.csv: FAILED (empty): no entry in it; entries: 7\n"
	for _, c := range []struct {
		args     []string
		code     int
		out, log string
	}{
		{nil, exitFailure, goodLine + badLine, "weir: failed sources: 1 of 2; their old contents stay active\n"},
		{[]string{"drop"}, exitOK, goodLine, ""},
		{[]string{"ours", "drop"}, exitOK, goodLine, ""},
		{[]string{"back"}, exitOK, "back: /etc/back: unchanged (the source is still like what was rolled back; --accept takes it); entries: 3\n", ""},
		{[]string{"some"}, exitOK, "some: /etc/some: new; entries: 90; 2 bad lines left out, the first: /etc/some:7: no address\n", ""},
		{[]string{"--rollback", "drop"}, exitOK, goodLine, ""},
		{[]string{"--rollback", "ours"}, exitFailure, "", "weir: list ours: no version before the active one is known\n"},
		{[]string{"--rollback"}, exitUsage, "", "weir: --accept, --rollback: name the lists\nTry `weir refresh --help`.\n"},
		{[]string{"drop", "nosuch", "scanners"}, exitFailure, goodLine, "weir: no such list: \"nosuch\"\n"},
	} {
		code, out, log := weir(t, "", append([]string{"refresh", "--socket", socket}, c.args...)...)
		if code != c.code || out != c.out || log != c.log {
			t.Errorf("%v: exit code %d\n%s%s", c.args, code, out, log)
		}
	}
	code, out, _ := weir(t, "", "refresh", "--json", "--socket", socket, "scanners")
	var got api.Refreshed
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitFailure || !reflect.DeepEqual(got.Sources, []api.FetchOutcome{bad}) {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
}

func TestVersions(t *testing.T) {
	now := time.Now()
	socket := serveDaemon(t, &fakeDaemon{versions: &api.ListVersions{List: "drop", Sources: []api.SourceVersions{
		{Source: "https://example.com/4.json", Versions: []api.FeedVersion{
			{Since: now.Add(-time.Minute), Entries: 120340, Added: 119136, Removed: 0, SHA256: "0123456789abcdef"},
			{Since: now.Add(-49 * time.Hour), Entries: 1204, SHA256: "fedcba9876543210"},
		}},
		{Source: "/etc/own.txt", Versions: []api.FeedVersion{{Since: now.Add(-time.Hour * 24 * 30), Entries: 7, SHA256: "00"}}},
	}}})
	code, out, log := weir(t, "", "lists", "--versions", "drop", "--socket", socket)
	const want = `source                      since       entries      added    removed  sha256
https://example.com/4.json  60s ago     120,340    119,136          0  0123456789ab
                            2d ago        1,204          -          -  fedcba987654
/etc/own.txt                30d ago           7          -          -  00
`
	if code != exitOK || log != "" || out != want {
		t.Errorf("exit code %d\n%s%s\nwant\n%s", code, out, log, want)
	}
	if code, out, _ := weir(t, "", "lists", "--versions", "drop", "--json", "--socket", socket); code != exitOK || !strings.Contains(out, `"added": 119136`) || strings.Contains(out, `"lists"`) {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// The entries of versions are shown, with those that were refused.
func TestVersionsDiff(t *testing.T) {
	d := &fakeDaemon{versions: &api.ListVersions{List: "drop", Sources: []api.SourceVersions{{
		Source:   "feed.txt",
		Versions: []api.FeedVersion{{Since: time.Now(), Entries: 3, SHA256: "0123456789abcdef"}},
		Refused: []api.FeedVersion{{
			Since: time.Now(), Entries: 20_003, Added: 10_002, Removed: 1, SHA256: "fedcba9876543210", Refusal: "rolled back",
			Diff: &api.VersionDiff{From: "0123456789abcdef", Added: []string{"192.0.2.1"}, Removed: []string{"192.0.2.9"}, MoreAdded: 10_001},
		}},
	}}}}
	socket := serveDaemon(t, d)
	code, out, log := weir(t, "", "lists", "--versions", "drop", "--diff", "fedc", "--socket", socket)
	const want = `source    since      entries      added    removed  sha256
feed.txt  0s ago      20,003     10,002          1  fedcba987654  REFUSED: rolled back
          0s ago           3          -          -  0123456789ab

feed.txt: fedcba987654 against 0123456789ab
+ 192.0.2.1
+ and 10,001 more
- 192.0.2.9
`
	if code != exitOK || log != "" || out != want || d.asked != "fedc" {
		t.Errorf("exit code %d, asked %q\n%s%s\nwant\n%s", code, d.asked, out, log, want)
	}
	for _, args := range [][]string{{"--diff"}, {"--versions", "drop", "a"}, {"--versions", "drop", "--diff", "a", "b", "c"}} {
		if code, _, _ := weir(t, "", append([]string{"lists", "--socket", socket}, args...)...); code != exitUsage {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
}

func TestReloadToBeConfirmed(t *testing.T) {
	d := &fakeDaemon{}
	socket := serveDaemon(t, d)
	code, out, log := weir(t, "", "reload", "--confirm", "90s", "--socket", socket)
	if code != exitOK || out != "within 1m30s\nactive for 1m30s: then the previous configuration is active again, unless `weir confirm` comes first\n" || log != "" {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if code, out, _ := weir(t, "", "confirm", "--socket", socket); code != exitOK || out != "confirmed: the configuration stays\n" {
		t.Errorf("exit code %d\n%s", code, out)
	}
	if code, out, log := weir(t, "", "reload", "--confirm", "0s", "--socket", socket); code != exitUsage || out != "" || !strings.Contains(log, "--confirm 0s") {
		t.Errorf("no way back was asked for: exit code %d\n%s%s", code, out, log)
	}
	if code, _, log := weir(t, "", "reload", "--confirm", "2d", "--socket", socket); code != exitFailure || !strings.Contains(log, "want 1 to 86400") {
		t.Errorf("exit code %d\n%s", code, log)
	}
	d.err = &api.BadRequest{Err: errors.New("too late")}
	if code, _, log := weir(t, "", "confirm", "--socket", socket); code != exitFailure || log != "weir: too late\n" {
		t.Errorf("exit code %d\n%s", code, log)
	}
}

func TestReload(t *testing.T) {
	d := &fakeDaemon{reloaded: api.Reloaded{Changes: []string{"lists.drop: added", "mode: exact → approx"}}}
	socket := serveDaemon(t, d)
	if code, out, log := weir(t, "", "reload", "--socket", socket); code != exitOK || out != "lists.drop: added\nmode: exact → approx\n" {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if code, out, _ := weir(t, "", "reload", "--json", "--socket", socket); code != exitOK || !strings.Contains(out, `"changes": [`) {
		t.Errorf("exit code %d\n%s", code, out)
	}
	d.reloaded = api.Reloaded{}
	if code, out, _ := weir(t, "", "reload", "--socket", socket); code != exitOK || out != "nothing has changed since the files were read last\n" {
		t.Errorf("exit code %d\n%s", code, out)
	}
	d.reloaded.Unfiltered = []string{"eth1 is not filtered: no native XDP"}
	if code, out, log := weir(t, "", "reload", "--socket", socket); code != exitUnfiltered || !strings.Contains(log, "active, but eth1 is not filtered: no native XDP") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if code, out, _ := weir(t, "", "reload", "--json", "--socket", socket); code != exitUnfiltered || !strings.Contains(out, `"unfiltered": [`) {
		t.Errorf("exit code %d\n%s", code, out)
	}
	d.err = errors.New("weir.yaml:3:1: lists.drop: no value")
	if code, out, log := weir(t, "", "reload", "--socket", socket); code != exitFailure || out != "" || !strings.Contains(log, "weir.yaml:3:1") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
}

// A table without a line would leave open whether something went wrong.
func TestNoVersions(t *testing.T) {
	var b strings.Builder
	printVersions(&b, &api.ListVersions{List: "feed", Sources: []api.SourceVersions{{Source: "feed.txt"}}}, time.Now())
	if got := b.String(); !strings.HasPrefix(got, "no versions are known: ") {
		t.Error(got)
	}
}
