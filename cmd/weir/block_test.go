package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/api/server"
	"weir/control/explain"
	forwarding "weir/control/stage/multicast"
)

// fakeDaemon is a daemon that takes commands, and keeps the last change.
type fakeDaemon struct {
	versions   *api.ListVersions
	worth      api.ListsWorth
	floods     api.Floods
	collateral api.Collateral
	asked      string // of which list Collateral was asked
	served
	lists     []api.List
	old       time.Duration                 // since they were so
	outcomes  map[string][]api.FetchOutcome // by list
	reloaded  api.Reloaded
	status    api.Status
	answers   []api.Answer
	frames    [][]byte // that were to be explained
	multicast api.Multicast
	notified  []api.NotifyTested
	err       error

	pages        []api.Entries
	askedEntries []api.EntriesQuestion
	leftOut      int

	history      api.History
	historyAsked api.HistoryQuestion

	drops      api.Drops
	dropsAsked api.DropsQuestion

	changed          api.Change
	queues           bool // changes wait
	flushed          api.FlushChange
	changedMulticast api.MulticastChange
	changedPolice    api.PoliceChange
	changedMonitor   api.MonitorChange
	enforced         map[string]api.EnforceChange
	opened           []api.ConsoleRequest

	audit      []api.AuditRecord
	auditAsked int
}

func (d *fakeDaemon) Change(_ context.Context, c api.Change) (api.Changed, error) {
	if d.err != nil {
		return api.Changed{}, d.err
	}
	d.changed = c
	changed := api.Changed{List: c.List, Unchanged: 1, Monitor: d.status.Monitor && c.Action == api.Block && !c.Remove}
	if changed.List == "" {
		changed.List = "manual"
	}
	if d.queues {
		return api.Changed{List: changed.List, Queued: true}, nil
	}
	if c.Remove {
		changed.Removed = len(c.Entries) - 1
	} else {
		changed.Added = len(c.Entries) - 1
	}
	return changed, nil
}

func (d *fakeDaemon) Lists() api.Lists {
	return api.Lists{Lists: d.lists, At: time.Now().Add(-d.old)}
}

func (d *fakeDaemon) Drops(_ context.Context, asked api.DropsQuestion) (api.Drops, error) {
	d.dropsAsked = asked
	return d.drops, nil
}

func (d *fakeDaemon) History(_ context.Context, asked api.HistoryQuestion) (api.History, error) {
	d.historyAsked = asked
	return d.history, nil
}

func (d *fakeDaemon) Entries(_ context.Context, asked api.EntriesQuestion) (api.Entries, error) {
	d.askedEntries = append(d.askedEntries, asked)
	return d.pages[min(len(d.askedEntries), len(d.pages))-1], d.err
}

func (d *fakeDaemon) ReloadUnconfirmed(_ context.Context, within time.Duration) (api.Reloaded, error) {
	return api.Reloaded{Changes: []string{"within " + within.String()}}, d.err
}

func (d *fakeDaemon) Confirm(context.Context) error { return d.err }

func (d *fakeDaemon) SetMonitor(_ context.Context, c api.MonitorChange) (api.Monitored, error) {
	d.changedMonitor = c
	if d.err != nil || !*c.On {
		return api.Monitored{}, d.err
	}
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	return api.Monitored{Monitor: true, Override: &api.MonitorOverride{Since: since, User: "ada"}, Unsaved: "no space left"}, nil
}

func (d *fakeDaemon) SetPolice(_ context.Context, c api.PoliceChange) (api.Policed, error) {
	d.changedPolice = c
	if d.err != nil || c.Off {
		return api.Policed{Interface: c.Interface, Source: c.Source, Pattern: c.Pattern, Changed: c.Netns == ""}, d.err
	}
	until := time.Now().Add(time.Hour - time.Millisecond)
	return api.Policed{Interface: c.Interface, Source: c.Source, Pattern: c.Pattern, Changed: true, Unsaved: "no space left", Override: &api.PoliceOverride{
		Interface: c.Interface, Netns: c.Netns, Source: c.Source, Pattern: c.Pattern, Rate: c.Rate, Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local), Until: &until, By: "ada", Reason: c.Reason,
	}}, nil
}

func (d *fakeDaemon) Enforce(_ context.Context, list string, c api.EnforceChange) (api.Enforced, error) {
	if list != "drop" {
		return api.Enforced{}, api.NoList(list, []string{"drop"})
	}
	d.enforced = map[string]api.EnforceChange{list: c}
	e := api.Enforced{List: list, Changed: d.err == nil}
	if c.Off {
		since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
		e.Trial = &api.Trial{Since: &since, By: "ada"}
	}
	return e, nil
}

func (d *fakeDaemon) Flush(_ context.Context, list string, c api.FlushChange) (api.Changed, error) {
	d.flushed = c
	return api.Changed{List: list, Removed: 1234}, d.err
}

func (d *fakeDaemon) Export(_ context.Context, list, format string) (api.Export, error) {
	return api.Export{Text: strings.NewReader(list + " as " + format + "\n"), LeftOut: d.leftOut}, d.err
}

func (d *fakeDaemon) Refresh(_ context.Context, list string, accept bool) ([]api.FetchOutcome, error) {
	o, ok := d.outcomes[list]
	if !ok {
		return nil, fmt.Errorf("%w: %q", api.ErrNoList, list)
	}
	return o, d.err
}

func (d *fakeDaemon) Collateral(_ context.Context, list string) (api.Collateral, error) {
	d.asked = list
	return d.collateral, d.err
}

func (d *fakeDaemon) Worth(context.Context) (api.ListsWorth, error) { return d.worth, d.err }

func (d *fakeDaemon) Versions(_ context.Context, list string, diff ...string) (api.ListVersions, error) {
	d.asked = strings.Join(diff, " ")
	if d.versions == nil {
		return api.ListVersions{}, fmt.Errorf("%w: %q", api.ErrNoList, list)
	}
	return *d.versions, d.err
}

func (d *fakeDaemon) Rollback(_ context.Context, list string) (api.FetchOutcome, error) {
	o, ok := d.outcomes[list]
	if !ok || len(o) == 0 {
		return api.FetchOutcome{}, &api.BadRequest{Err: fmt.Errorf("list %s: no version before the active one is known", list)}
	}
	return o[0], d.err
}

func (d *fakeDaemon) Reload(context.Context) (api.Reloaded, error) { return d.reloaded, d.err }

func (d *fakeDaemon) Status() api.Status { return d.status }

func (d *fakeDaemon) Explain(_ context.Context, question string, _ bool) (api.Explanation, error) {
	if _, err := explain.ParseQuestion(question); err != nil {
		return api.Explanation{}, &api.BadRequest{Err: err}
	}
	return api.NewExplanation(question, d.answers...), d.err
}

func (d *fakeDaemon) ExplainFrames(_ context.Context, frames [][]byte) (all []api.Explanation, err error) {
	d.frames = frames
	for range frames {
		all = append(all, api.NewExplanation("a frame", d.answers...))
	}
	return all, d.err
}

func (d *fakeDaemon) Audit(limit int) []api.AuditRecord {
	d.auditAsked = limit
	return d.audit
}

func (d *fakeDaemon) OpenConsole(_ context.Context, r api.ConsoleRequest) (api.ConsoleOpened, error) {
	d.opened = append(d.opened, r)
	return api.ConsoleOpened{URL: "http://127.0.0.1:9479/open/x", Expires: time.Now().Add(5 * time.Minute), ReadOnly: r.ReadOnly}, d.err
}

func (d *fakeDaemon) EndConsole(context.Context) (api.ConsoleEnded, error) {
	return api.ConsoleEnded{Sessions: 2}, d.err
}

func (d *fakeDaemon) Routes() []api.Route { return forwarding.Routes(d) }

func (d *fakeDaemon) Multicast(context.Context) (api.Multicast, error) {
	return d.multicast, d.err
}

func (d *fakeDaemon) TestNotify(_ context.Context, target string) ([]api.NotifyTested, error) {
	var tested []api.NotifyTested
	for _, t := range d.notified {
		if target == "" || target == t.Target {
			tested = append(tested, t)
		}
	}
	return tested, d.err
}

func (d *fakeDaemon) ChangeMulticast(_ context.Context, c api.MulticastChange) (api.MulticastChanged, error) {
	d.changedMulticast = c
	changed := api.MulticastChanged{Interface: c.Interface, Unchanged: len(c.Groups) - 1}
	if c.Remove {
		changed.Removed = 1
	} else {
		changed.Added = 1
	}
	return changed, d.err
}

func (d *fakeDaemon) Floods() api.Floods { return d.floods }

// serveDaemon serves it until the test ends, and returns the socket's path.
func serveDaemon(t *testing.T, d *fakeDaemon) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weir.sock")
	l, err := server.ListenGroup(path, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l, server.Handler(d), slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return path
}

func TestChanges(t *testing.T) {
	d := &fakeDaemon{}
	socket := serveDaemon(t, d)
	const flow = "tcp *:* > 198.51.100.7:443"
	for _, c := range []struct {
		args  []string
		stdin string
		want  api.Change
		out   string
	}{
		{
			[]string{"block", "--ttl", "1m30s", "--reason", "scans", "192.0.2.1", flow}, "",
			api.Change{Action: api.Block, Entries: []string{"192.0.2.1", flow}, TTL: 90, Reason: "scans"},
			"blocked in list manual: 1; there already: 1\n",
		},
		{
			[]string{"allow", "--list", "ours", "-"}, "# ours\n2001:db8::/32 ; the lab\r\n\n 192.0.2.5-192.0.2.9\n",
			api.Change{Action: api.Allow, List: "ours", Entries: []string{"2001:db8::/32", "192.0.2.5-192.0.2.9"}},
			"allowed in list ours: 1; there already: 1\n",
		},
		{
			[]string{"unblock"}, "\ufeff192.0.2.1\n192.0.2.2",
			api.Change{Remove: true, Action: api.Block, Entries: []string{"192.0.2.1", "192.0.2.2"}},
			"removed from list manual: 1; not there: 1\nIf they are blocked still, weir explain shows why, and weir allow lets them pass.\n",
		},
		{
			[]string{"unallow", "192.0.2.1", "192.0.2.2"}, "",
			api.Change{Remove: true, Action: api.Allow, Entries: []string{"192.0.2.1", "192.0.2.2"}},
			"removed from list manual: 1; not there: 1\nIf they pass still, weir explain shows why.\n",
		},
	} {
		code, out, log := weir(t, c.stdin, append(c.args, "--socket", socket)...)
		if code != exitOK || log != "" || out != c.out {
			t.Errorf("%v: exit code %d\n%s%s", c.args, code, out, log)
		}
		c.want.UID = uint32(os.Getuid())
		if !reflect.DeepEqual(d.changed, c.want) {
			t.Errorf("%v: got %+v, want %+v", c.args, d.changed, c.want)
		}
	}
	code, out, _ := weir(t, "", "block", "--json", "--socket", socket, "192.0.2.1", "192.0.2.2")
	var got api.Changed
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitOK || got != (api.Changed{List: "manual", Added: 1, Unchanged: 1}) {
		t.Errorf("exit code %d, %v: %s", code, err, out)
	}
}

func TestBulk(t *testing.T) {
	d := &fakeDaemon{}
	socket := serveDaemon(t, d)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	const many = 50_000
	for i := range many {
		fmt.Fprintf(z, "10.%d.%d.%d\n", i>>16, i>>8&255, i&255)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	code, out, log := weir(t, packed.String(), "block", "--socket", socket, "-")
	if code != exitOK || out != "blocked in list manual: 49,999; there already: 1\n" || len(d.changed.Entries) != many {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}

	// What the daemon refuses is named by its line.
	refused := 1
	d.err = &api.BadRequest{Entry: &refused, Text: "10.0.0.0/8", Err: errors.New("covers the failsafe prefix 10.1.0.0/16")}
	code, out, log = weir(t, "# a\n192.0.2.1\n\n10.0.0.0/8\n", "block", "--socket", socket, "-")
	const want = `weir: standard input:4: "10.0.0.0/8": covers the failsafe prefix 10.1.0.0/16; nothing was changed` + "\n"
	if code != exitFailure || out != "" || log != want {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	code, _, log = weir(t, "", "block", "--socket", socket, "192.0.2.1", "10.0.0.0/8")
	if code != exitFailure || log != `weir: "10.0.0.0/8": covers the failsafe prefix 10.1.0.0/16`+"\n" {
		t.Errorf("exit code %d\n%s", code, log)
	}
	// Nothing to do is done, where that was said explicitly.
	if code, out, log := weir(t, "# nothing\n", "block", "--socket", socket, "-"); code != exitOK || out+log != "" {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if code, out, _ := weir(t, "", "block", "--json", "--socket", socket, "-"); code != exitOK || !strings.Contains(out, `"list": "manual"`) {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

func TestBadBulk(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.sock")
	code, out, log := weir(t, "192.0.2.1\nwhat # is this\n10.0.0.1/8\n", "block", "--socket", missing, "-")
	if want := []string{
		`standard input:2: "what": `, `standard input:3: "10.0.0.1/8": host bits set`,
		"weir: standard input: bad lines: 2 of 3; nothing was changed",
	}; code != exitFailure || out != "" || !containsAll(log, want) {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	code, _, log = weir(t, strings.Repeat("x\n", 50), "block", "--socket", missing)
	if code != exitFailure || strings.Count(log, "\n") != 21 {
		t.Errorf("exit code %d\n%s", code, log)
	}
	code, _, log = weir(t, "192.0.2.1\n"+strings.Repeat("1", 1<<20), "block", "--socket", missing, "-")
	if code != exitFailure || log != "weir: standard input:2: line longer than 4096 bytes; nothing was changed\n" {
		t.Errorf("exit code %d\n%s", code, log)
	}
	if _, err := readEntries(strings.NewReader("192.0.2.1 # "+strings.Repeat("x", maxLine-12)+"\n192.0.2.2\n"), io.Discard); err != nil {
		t.Errorf("the longest line: %v", err)
	}
}

// endless repeats a line, up to a size at which all of it would be too much for memory.
type endless struct {
	line string
	size int
}

func (e *endless) Read(b []byte) (n int, err error) {
	if e.size += len(b); e.size > 64<<20 {
		return 0, errors.New("it is read on and on")
	}
	for n < len(b) {
		n += copy(b[n:], e.line)
	}
	return n, nil
}

// Standard input is not read into memory without end.
func TestEndlessBulk(t *testing.T) {
	if _, err := readEntries(&endless{line: "1.2.3.4\n"}, io.Discard); !errors.Is(err, client.ErrTooLarge) {
		t.Error(err)
	}
}

func containsAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

func TestEntriesWithoutDaemon(t *testing.T) {
	code, out, log := weir(t, "", "entries", "--socket", filepath.Join(t.TempDir(), "none.sock"))
	if code != exitFailure || out != "" || !strings.Contains(log, "the daemon is not running") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
}

// What is blocked in monitor mode passes, which the command says.
func TestBlockInMonitorMode(t *testing.T) {
	const warning = "weir: monitor mode is on: nothing is dropped\n"
	for _, monitor := range []bool{false, true} {
		socket := serveDaemon(t, &fakeDaemon{status: api.Status{Monitor: monitor}})
		for command, warns := range map[string]bool{"block": true, "unblock": false, "allow": false} {
			code, out, log := weir(t, "", command, "--socket", socket, "192.0.2.1")
			want := ""
			if monitor && warns {
				want = warning
			}
			if code != exitOK || out == "" || log != want {
				t.Errorf("weir %s, monitor %t: exit code %d\n%s%s", command, monitor, code, out, log)
			}
		}
	}
}

func TestDaemonCommandFailures(t *testing.T) {
	full := serveDaemon(t, &fakeDaemon{err: errors.New("no space left on device")})
	missing := filepath.Join(t.TempDir(), "none.sock")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"block", "--socket", missing, "192.0.2.1"}, exitFailure, "the daemon is not running"},
		{[]string{"block", "--socket", full, "192.0.2.1"}, exitFailure, "no space left"},
		{[]string{"reload", "--socket", full}, exitFailure, "no space left"},
		{[]string{"refresh", "--socket", full, "nosuch"}, exitFailure, `no such list: "nosuch"`},
		{[]string{"explain", "--socket", full, "192.0.2.1"}, exitFailure, "no space left"},
		{[]string{"block"}, exitUsage, "entries are missing"},
		{[]string{"block", "what"}, exitUsage, `weir: "what" is neither an address nor a protocol`},
		{[]string{"block", "192.0.2.1", "-"}, exitUsage, `weir: "-" is neither`},
		{[]string{"block", "# a comment"}, exitUsage, "no entry"},
		{[]string{"block", "--ttl", "-1s", "192.0.2.1"}, exitUsage, `invalid duration "-1s"`},
		{[]string{"unblock", "--ttl", "1s", "192.0.2.1"}, exitUsage, "--ttl"},
		{[]string{"lists", "stray"}, exitUsage, "stray"},
		{[]string{"reload", "stray"}, exitUsage, "stray"},
	} {
		code, out, log := weir(t, "", c.args...)
		if code != c.code || out != "" || !strings.HasPrefix(log, "weir: ") || !strings.Contains(log, c.want) {
			t.Errorf("weir %s: exit code %d\n%s%s", strings.Join(c.args, " "), code, out, log)
		}
	}
}

// An answer names the command that lets the packets pass, where there is one.
func TestUndo(t *testing.T) {
	manual := api.Match{List: "manual", Action: api.Block, Entry: "192.0.2.0/24"}
	feed := api.Match{List: "drop", Action: api.Block, Entry: "192.0.2.1", Source: "feed.txt", Line: 3}
	other := api.Match{List: "ours (manual)", Action: api.Block, Entry: "192.0.2.1 > *"}
	derived := api.Match{List: "ours (manual)", Action: api.Block, Entry: "192.0.2.0/24", Derived: &api.Derived{By: api.ByPrefix6}} // no entry that could be removed
	trial := api.Match{List: "new", Action: api.Block, Entry: "192.0.2.1", Source: "new.txt", Trial: true}
	for _, c := range []struct {
		question, direction, reason string
		matches                     []api.Match
		want                        string
	}{
		{"192.0.2.1", "", "blocked", []api.Match{manual}, "weir unblock 192.0.2.0/24"},
		{"192.0.2.1", "", "blocked", []api.Match{manual, trial}, "weir unblock 192.0.2.0/24"},
		{"192.0.2.1", "", "blocked", []api.Match{other}, "weir unblock --list ours '192.0.2.1 > *'"},
		{"192.0.2.1", "", "blocked", []api.Match{feed}, "weir allow --ttl 1h 192.0.2.1, or for the whole list weir enforce drop --off"},
		{"192.0.2.1", "", "blocked", []api.Match{derived}, "weir allow --ttl 1h 192.0.2.1, or for the whole list weir enforce ours --off"},
		{"192.0.2.1", "", "blocked", []api.Match{manual, feed}, "weir allow --ttl 1h 192.0.2.1"}, // either alone drops
		{"> 192.0.2.1", "out", "blocked", []api.Match{feed}, "weir enforce drop --off, for the whole list"},
		{"tcp 192.0.2.1:1 > *", "", "heavy", nil, "weir allow --ttl 1h 'tcp 192.0.2.1:1 > *'"},
		{"192.0.2.1", "", "malformed", nil, ""},
	} {
		a := api.Answer{Verdict: api.VerdictDrop, Reason: c.reason, Direction: c.direction, Matches: c.matches}
		if got := undo(c.question, a); got != c.want {
			t.Errorf("%s (%s): %q, want %q", c.question, c.reason, got, c.want)
		}
		if a.Verdict = api.VerdictPass; undo(c.question, a) != "" {
			t.Errorf("%s: a packet that passes", c.question)
		}
	}
	// What concerns strangers is summed up, unless it is asked for.
	e := api.NewExplanation("192.0.2.1", api.Answer{Packet: "from 192.0.2.1", Verdict: api.VerdictPass, Reason: "clean"}, api.Answer{
		Packet: "to 192.0.2.1", Verdict: api.VerdictPass, Reason: "clean", PenaltiesMore: 5, Stages: []api.Stage{{Stage: "penalty"}},
		Depends: []api.Dependency{{Stage: "penalty", Packets: "9.1.2.1 above its rate", Verdict: api.VerdictDrop}, {Stage: "penalty", Packets: "9.1.2.2 above its rate", Verdict: api.VerdictDrop}},
	})
	for verbose, want := range map[bool]string{
		false: "to 192.0.2.1: pass (clean), but for 7 conditions: -v shows them\n",
		true:  "  stages: penalty no\n  depends on the rest of the packet:\n    drop  penalty  9.1.2.1 above its rate\n    drop  penalty  9.1.2.2 above its rate\n    5 penalties more, of flows above their rates\n",
	} {
		var b strings.Builder
		if printExplanation(&b, e, verbose, true, time.Now()); !strings.HasSuffix(b.String(), want) {
			t.Errorf("verbose %t:\n%s\nwant at the end\n%s", verbose, b.String(), want)
		}
	}
}

func TestExplainAsksTheDaemon(t *testing.T) {
	now, uid := time.Now(), uint32(4_000_000_000)
	added, expires := now.Add(-2*time.Hour-time.Second), now.Add(time.Hour+time.Minute)
	d := &fakeDaemon{answers: []api.Answer{{
		Packet: "from 192.0.2.1", List: "manual",
		Matches: []api.Match{
			{List: "manual", Action: api.Block, Entry: "192.0.2.1", Added: &added, Expires: &expires, Reason: "scans", UID: &uid, Packets: new(uint64(1234))},
			{List: "drop", Action: api.Block, Entry: "192.0.2.0/24", Source: "https://example.com/feed.txt", Line: 17},
		},
	}}}
	if err := json.Unmarshal([]byte(`{
		"verdict": "drop", "reason": "blocked", "stages": [{"stage": "exempt"}, {"stage": "block", "met": true, "by": "list manual"}],
		"depends": [{"stage": "failsafe", "packets": "tcp/22", "verdict": "pass", "reason": "failsafe"}]
	}`), &d.answers[0]); err != nil {
		t.Fatal(err)
	}
	socket := serveDaemon(t, d)
	code, out, log := weir(t, "", "explain", "--exit-code", "--socket", socket, "192.0.2.1")
	const want = `from 192.0.2.1: drop (blocked, list manual)
  block  list manual  192.0.2.1     manual of user 4000000000, 2h ago, expires in 61m: scans, 1,234 packets on this list
  block  list drop    192.0.2.0/24  https://example.com/feed.txt:17
  undo: weir allow --ttl 1h 192.0.2.1
  depends on the rest of the packet:
    pass  failsafe  tcp/22
`
	if code != exitDropped || log != "" || out != want {
		t.Errorf("exit code %d\n%s%s\nwant\n%s", code, out, log, want)
	}
	code, out, _ = weir(t, "", "explain", "--json", "--socket", socket, "tcp", "192.0.2.1:1", ">", "192.0.2.2:2")
	var got api.Explanation
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitOK || got.Question != "tcp 192.0.2.1:1 > 192.0.2.2:2" || len(got.Answers[0].Matches) != 2 {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
	// A limit is the headline, and no pass for scripts.
	d.answers = []api.Answer{{
		Packet: "from 192.0.2.1", Verdict: api.VerdictLimited, PenaltiesMore: 7990, Spared: []string{"192.0.2.0/24 would be blocked"},
		Limit: &api.Limit{Flow: "192.0.2.1", Rate: 100, Tracker: "src", Unit: "packets", Offered: new(1140.0)},
	}}
	rest := fmt.Sprintf(`{"last_drop": {"time": %q, "reason": "blocked", "list": "drop", "packets": 1234},
		"depends": [{"stage": "penalty", "packets": "192.0.2.1 above its rate", "verdict": "drop"}]}`, now.Add(-20*time.Minute).Format(time.RFC3339))
	if err := json.Unmarshal([]byte(rest), &d.answers[0]); err != nil {
		t.Fatal(err)
	}
	const limited = `from 192.0.2.1: rate-limited to 100 pps: 1.04 kpps of it are dropped now, 91% (tracker src)
  no entry matches all of these packets
  last dropped about 20m ago (blocked, list drop), 1,234 packets in the last hour
  spared: 192.0.2.0/24 would be blocked
  undo: weir allow --ttl 1h 192.0.2.1
  depends on the rest of the packet:
    drop  penalty  192.0.2.1 above its rate
    7,990 penalties more, of flows above their rates
`
	if code, out, _ := weir(t, "", "explain", "--exit-code", "--socket", socket, "192.0.2.1"); code != exitDropped || out != limited {
		t.Errorf("exit code %d\n%s\nwant\n%s", code, out, limited)
	}
	code, out, _ = weir(t, "", "explain", "--json", "--socket", socket, "192.0.2.1")
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitOK || got.Verdict != api.VerdictLimited || *got.Answers[0].Limit.Offered != 1140 {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
	for fields, want := range map[string]string{
		`"packets": 9, "monitor_packets": 5`:                  "\n  last dropped about 20m ago (blocked), 9 packets in the last hour, of which 5 passed in monitor mode\n",
		`"packets": 9, "monitor_packets": 5, "monitor": true`: "\n  would last have been dropped, if not for monitor mode, about 20m ago (blocked), 9 packets in the last hour, of which 5 passed in monitor mode\n",
		`"packets": 9, "monitor_packets": 9, "monitor": true`: "\n  would last have been dropped, if not for monitor mode, about 20m ago (blocked), 9 packets in the last hour\n",
	} {
		rest := fmt.Sprintf(`{"last_drop": {"time": %q, "reason": "blocked", %s}}`, now.Add(-20*time.Minute).Format(time.RFC3339), fields)
		d.answers = []api.Answer{{Packet: "from 192.0.2.1"}}
		if err := json.Unmarshal([]byte(rest), &d.answers[0]); err != nil {
			t.Fatal(err)
		}
		if _, out, _ := weir(t, "", "explain", "--socket", socket, "192.0.2.1"); !strings.Contains(out, want) {
			t.Errorf("%s:\n%s", fields, out)
		}
	}
	// Several questions, and those of standard input.
	d.answers = []api.Answer{{Packet: "from 192.0.2.1"}}
	code, out, _ = weir(t, "192.0.2.2\n\n# nothing\n192.0.2.3 # here\n", "explain", "--json", "--socket", socket, "192.0.2.1", "-")
	var asked []string
	for answers := json.NewDecoder(strings.NewReader(out)); ; {
		var e api.Explanation
		if answers.Decode(&e) != nil {
			break
		}
		asked = append(asked, e.Question)
	}
	if code != exitOK || !slices.Equal(asked, []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}) {
		t.Errorf("exit code %d, asked %q\n%s", code, asked, out)
	}
	// What is no question does not end the others.
	code, out, log = weir(t, "192.0.2.2\nnonsense\n192.0.2.3\n", "explain", "--json", "--socket", socket, "-")
	if code != exitFailure || strings.Count(out, `"question"`) != 2 || !strings.HasPrefix(log, `standard input:2: "nonsense": `) ||
		!strings.HasSuffix(log, "\nweir: standard input: bad lines: 1 of 3\n") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	code, _, log = weir(t, "192.0.2.2\n"+strings.Repeat("1", maxLine+1), "explain", "--socket", socket, "-")
	if code != exitFailure || log != "weir: standard input:2: line longer than 4096 bytes\n" {
		t.Errorf("exit code %d\n%s", code, log)
	}
	// The packets of a capture, as many as were asked for.
	var capture strings.Builder
	capture.Write([]byte("\xd4\xc3\xb2\xa1\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x00\x00\x01\x00\x00\x00"))
	for i := range byte(3) {
		capture.Write([]byte{0, 0, 0, 0, 0, 0, 0, 0, 14, 0, 0, 0, 14, 0, 0, 0})
		capture.Write(append(make([]byte, 13), i))
	}
	code, _, log = weir(t, capture.String(), "explain", "--socket", socket, "--capture", "-", "--count", "2")
	if code != exitOK || len(d.frames) != 2 || len(d.frames[1]) != 14 || d.frames[1][13] != 1 {
		t.Errorf("exit code %d, asked %x\n%s", code, d.frames, log)
	}
	// Where no daemon answers, the error says how to ask without one.
	_, _, log = weir(t, "", "explain", "--socket", socket+"x", "192.0.2.1")
	if !strings.Contains(log, "weir run") || !strings.Contains(log, "--block") {
		t.Errorf("%s", log)
	}
	// Named lists are asked, and no daemon.
	block := file(t, "feed.txt", "203.0.113.1\n")
	if code, out, _ := weir(t, "", "explain", "--exit-code", "--socket", socket, "--block", block, "192.0.2.1"); code != exitOK || strings.Contains(out, "manual") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}
