package main

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"weir/control/api"
)

// somePages are two pages of entries, with the cursor between them.
func somePages(t *testing.T) []api.Entries {
	t.Helper()
	now := time.Now()
	soon, root, gone := now.Add(59*time.Minute+30*time.Second), uint32(0), uint32(4242424242)
	return []api.Entries{
		{Next: "next", Entries: []api.Entry{
			{List: "drop", Action: api.Block, Entry: "198.51.100.0/24", Added: now.Add(-48 * time.Hour), Expires: &soon, Reason: "left the feed"},
			{List: "manual", Action: api.Block, Entry: "192.0.2.1", Manual: true, Added: now.Add(-3 * time.Minute), Expires: &soon, Reason: "scans ssh", UID: &root, User: "root"},
		}},
		{Entries: []api.Entry{
			{List: "manual", Action: api.Block, Entry: "192.0.2.2", Manual: true, Added: now.Add(-3 * time.Minute), UID: &gone},
			{List: "manual-allow", Action: api.Allow, Entry: "192.0.2.3", Manual: true, Added: now.Add(-3 * time.Minute)},
		}},
	}
}

func TestEntries(t *testing.T) {
	d := &fakeDaemon{pages: somePages(t)}
	socket := serveDaemon(t, d)
	code, out, log := weir(t, "", "entries", "--socket", socket)
	const want = `list    entry            expires  added   by        reason
drop    198.51.100.0/24  in 59m   2d ago  feed      left the feed
manual  192.0.2.1        in 59m   3m ago  root (0)  scans ssh
manual        192.0.2.2  never  3m ago  uid 4242424242  
manual-allow  192.0.2.3  never  3m ago  remote          
`
	if code != exitOK || log != "" || out != want {
		t.Errorf("exit code %d\n%s%s\nwant\n%s", code, log, out, want)
	}
	if asked := []api.EntriesQuestion{{Limit: api.MaxPage}, {Limit: api.MaxPage, After: "next"}}; !reflect.DeepEqual(d.askedEntries, asked) {
		t.Errorf("asked for %+v", d.askedEntries)
	}

	d.askedEntries = nil
	code, out, _ = weir(t, "", "entries", "manual", "--expiring", "1h", "--manual", "--json", "--socket", socket)
	var got api.Entries
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitOK || len(got.Entries) != 4 || got.Entries[3].Entry != "192.0.2.3" {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
	if asked := (api.EntriesQuestion{List: "manual", Expiring: time.Hour, Manual: true, Limit: api.MaxPage}); d.askedEntries[0] != asked {
		t.Errorf("asked for %+v", d.askedEntries[0])
	}

	since := time.Now().Add(-3 * time.Minute)
	limited := []api.PoliceOverride{{Source: "192.0.2.9", Rate: "20pps", Since: since, By: "root (0)", Reason: "asks too often", Held: 4321}}
	d.pages, d.askedEntries = somePages(t), nil
	d.pages[0].Limits = limited
	if _, out, _ = weir(t, "", "entries", "--socket", socket); out != want+`
source or pattern  rate   dropped  ends   set     by        reason
192.0.2.9          20pps  4,321    never  3m ago  root (0)  asks too often
` {
		t.Errorf("with a limit:\n%s", out)
	}
	d.pages, d.askedEntries = somePages(t), nil
	d.pages[0].Limits = limited
	_, out, _ = weir(t, "", "entries", "--json", "--socket", socket)
	if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Entries) != 4 || len(got.Limits) != 1 || got.Limits[0].Held != 4321 {
		t.Errorf("with a limit: %v\n%s", err, out)
	}

	got = api.Entries{}
	d.pages, d.askedEntries = []api.Entries{{}}, nil
	if _, out, _ = weir(t, "", "entries", "--json", "--socket", socket); json.Unmarshal([]byte(out), &got) != nil || len(got.Entries) > 0 {
		t.Errorf("no entries are %s", out)
	}
	if _, out, _ = weir(t, "", "entries", "--socket", socket); out != "list  entry  expires  added  by  reason\n" {
		t.Errorf("no entries are %q", out)
	}
}

func TestEntriesUsage(t *testing.T) {
	for _, args := range [][]string{
		{"entries", "a", "b"}, {"entries", "--expiring", "0"}, {"flush"}, {"flush", "a", "b"}, {"export"}, {"export", "a", "--format", "xml"},
		{"import", "a"}, {"import", "a", "-", "--format", "csv"}, {"import", "a", "-", "--set", "x"},
	} {
		if code, _, log := weir(t, "", args...); code != exitUsage {
			t.Errorf("%q: exit code %d, %s", args, code, log)
		}
	}
}

func TestFlush(t *testing.T) {
	const connection = "203.0.113.9 50000 192.0.2.1 22"
	t.Setenv("SSH_CONNECTION", connection)
	d := &fakeDaemon{}
	socket := serveDaemon(t, d)
	if code, out, log := weir(t, "", "flush", "manual", "--socket", socket); code != exitOK || out != "removed from list manual: 1,234\n" {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	var got api.Changed
	if code, out, _ := weir(t, "", "flush", "manual", "--json", "--socket", socket); code != exitOK || json.Unmarshal([]byte(out), &got) != nil || got.Removed != 1234 {
		t.Errorf("exit code %d\n%s", code, out)
	}
	if want := (api.FlushChange{SSH: connection}); d.flushed != want {
		t.Errorf("asked for %+v, want %+v", d.flushed, want)
	}
	if code, _, log := weir(t, "", "flush", "manual", "--force", "--socket", socket); code != exitOK || !d.flushed.Force {
		t.Errorf("exit code %d, %+v\n%s", code, d.flushed, log)
	}
	d.err = errors.New("disk full")
	if code, _, log := weir(t, "", "flush", "manual", "--socket", socket); code != exitFailure || !strings.Contains(log, "disk full") {
		t.Errorf("exit code %d\n%s", code, log)
	}
}

func TestExport(t *testing.T) {
	d := &fakeDaemon{}
	socket := serveDaemon(t, d)
	if code, out, log := weir(t, "", "export", "drop", "--format", "nft", "--socket", socket); code != exitOK || out != "drop as nft\n" || log != "" {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	d.leftOut = 1200
	code, out, log := weir(t, "", "export", "drop", "--format", "ipset", "--socket", socket)
	if code != exitFailure || out != "drop as ipset\n" || !strings.Contains(log, "were left out: 1,200; --format plain") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
}

func TestImport(t *testing.T) {
	lists := []api.List{{Name: "manual", Action: api.Block}, {Name: "ours", Action: api.Allow}}
	const ipset = "create a hash:net family inet\nadd a 192.0.2.0/24 timeout 30\nadd a 192.0.2.1\n"
	const nft = "table inet t {\n\tset a {\n\t\ttype ipv4_addr\n\t\telements = { 192.0.2.1, 198.51.100.1-198.51.100.2 }\n\t}\n\tset b {\n\t\ttype ipv6_addr\n\t\telements = { 2001:db8::/32 }\n\t}\n}\n"
	for _, c := range []struct {
		name, stdin string
		args        []string
		want        api.Change
	}{
		{
			"plain", "192.0.2.1 # x\n> 192.0.2.2\n2001:db8::1\n", []string{"manual", "-", "--ttl", "1d", "--reason", "incident"},
			api.Change{Action: api.Block, List: "manual", Entries: []string{"192.0.2.1", "2001:db8::1", "> 192.0.2.2"}, TTL: 86400, Reason: "incident", Import: true},
		},
		{
			"ipset", ipset, []string{"ours", "-", "--format", "ipset"},
			api.Change{Action: api.Allow, List: "ours", Entries: []string{"192.0.2.0/24", "192.0.2.1"}, Import: true},
		},
		{
			"nft", nft, []string{"manual", "-", "--format", "nft", "--set", "a,b"},
			api.Change{Action: api.Block, List: "manual", Entries: []string{"192.0.2.1", "198.51.100.1", "198.51.100.2", "2001:db8::/32"}, Import: true},
		},
		{
			"csv with ports", "id,ioc\n1,192.0.2.1:443\n", []string{"manual", "-", "--format", "csv,column=ioc", "--ignore-ports"},
			api.Change{Action: api.Block, List: "manual", Entries: []string{"192.0.2.1"}, Import: true},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &fakeDaemon{lists: lists}
			socket := serveDaemon(t, d)
			code, out, log := weir(t, c.stdin, append([]string{"import", "--socket", socket}, c.args...)...)
			d.changed.UID = 0
			if code != exitOK || log != "" || !reflect.DeepEqual(d.changed, c.want) {
				t.Errorf("exit code %d\n%s%s%+v\nwant %+v", code, out, log, d.changed, c.want)
			}
		})
	}
	for _, c := range []struct{ name, stdin, format, list, want string }{
		{"a bad line", "192.0.2.1\nx\n", "plain", "manual", "bad lines: 1; nothing was changed"},
		{"a bad line of ipset", "create a hash:net\nadd a 192.0.2.1\nadd a x\n", "ipset", "manual", "bad lines: 1; nothing was changed"},
		{"no such list", "192.0.2.1\n", "plain", "other", `no such list: "other"`},
		{"nothing", "# x\n", "plain", "manual", "no entries"},
		{"several sets", nft, "nft", "manual", "several sets (a and b)"},
		{"cut off", nft[:60], "nft", "manual", "a block is not closed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &fakeDaemon{lists: lists}
			socket := serveDaemon(t, d)
			code, out, log := weir(t, c.stdin, "import", c.list, "-", "--format", c.format, "--socket", socket)
			if code != exitFailure || out != "" || !strings.Contains(log, c.want) || d.changed.List != "" {
				t.Errorf("exit code %d\n%s%s%+v", code, out, log, d.changed)
			}
		})
	}
	d := &fakeDaemon{lists: lists}
	socket := serveDaemon(t, d)
	path := file(t, "blocked.txt", "192.0.2.1\n")
	if code, out, log := weir(t, "", "import", "manual", path, "--socket", socket); code != exitOK || !reflect.DeepEqual(d.changed.Entries, []string{"192.0.2.1"}) {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if code, _, log := weir(t, "", "import", "manual", filepath.Join(t.TempDir(), "none"), "--socket", socket); code != exitFailure || !strings.Contains(log, "no such file") {
		t.Errorf("exit code %d\n%s", code, log)
	}
}

// A shell completes the names of lists.
func TestCompleteLists(t *testing.T) {
	socket := serveDaemon(t, &fakeDaemon{lists: []api.List{{Name: "manual", Action: api.Block}, {Name: "manual-allow", Action: api.Allow}, {Name: "drop", Action: api.Block}}})
	for _, args := range [][]string{
		{"flush", "man"}, {"entries", "man"}, {"export", "man"}, {"import", "man"}, {"refresh", "drop", "man"}, {"block", "192.0.2.1", "--list", "man"},
	} {
		line := append([]string{"__complete", args[0], "--socket", socket}, args[1:]...)
		if code, out, log := weir(t, "", line...); code != exitOK || out != "manual\tblock\nmanual-allow\tallow\n:4\n" {
			t.Errorf("%q: exit code %d\n%q%s", args, code, out, log)
		}
	}
}
