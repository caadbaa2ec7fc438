package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/user"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/explain"
	"weir/tests/lab"
	"weir/tests/wait"
)

// control is a daemon with fixed answers that records its requests.
type control struct {
	lists     []api.List
	at        time.Time // when they were so
	outcomes  []api.FetchOutcome
	reloaded  api.Reloaded
	answers   []api.Answer
	multicast api.Multicast
	entries   api.Entries
	export    api.Export
	audit     []api.AuditRecord
	err       error

	mu    sync.Mutex
	asked []any
}

func (c *control) ask(what any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, what)
	return c.err
}

func (c *control) Change(_ context.Context, change api.Change) (api.Changed, error) {
	err := c.ask(change)
	if change.Remove {
		return api.Changed{List: "manual", Removed: len(change.Entries)}, err
	}
	return api.Changed{List: "manual", Added: len(change.Entries)}, err
}

func (c *control) Lists() api.Lists { return api.Lists{Lists: c.lists, At: c.at} }

func (c *control) Drops(_ context.Context, asked api.DropsQuestion) (api.Drops, error) {
	return api.Drops{By: asked.By, Packets: 7, Drops: []api.Drop{{Key: "192.0.2.1", Direction: "in", Packets: 7}}}, c.ask(asked)
}

func (c *control) History(_ context.Context, asked api.HistoryQuestion) (api.History, error) {
	point := api.HistoryPoint{Dropped: 7, Reasons: []api.HistoryReason{{Reason: "blocked", Drops: true, Packets: 7}}, Lists: []api.HistoryList{{List: "drop", Packets: 7}}}
	return api.History{Step: asked.Step.Seconds(), Points: []api.HistoryPoint{point, {}}, Total: point}, c.ask(asked)
}

func (c *control) Entries(_ context.Context, asked api.EntriesQuestion) (api.Entries, error) {
	return c.entries, c.ask(asked)
}

func (c *control) Flush(ctx context.Context, list string, change api.FlushChange) (api.Changed, error) {
	caller, _ := api.CallerOf(ctx)
	return api.Changed{List: list, Removed: 3}, c.ask([]any{"flush", list, change, caller})
}

func (c *control) Export(_ context.Context, list, format string) (api.Export, error) {
	return c.export, c.ask([]string{"export", list, format})
}

func (c *control) Refresh(ctx context.Context, list string, accept bool) ([]api.FetchOutcome, error) {
	if accept {
		caller, _ := api.CallerOf(ctx)
		return c.outcomes, c.ask([]any{"accept", list, caller})
	}
	return c.outcomes, c.ask("refresh " + list)
}

func (c *control) Collateral(_ context.Context, list string) (api.Collateral, error) {
	return api.Collateral{Recorded: true, Room: 5, Lists: []api.ListCollateral{{List: "x", Addresses: 1}}}, c.ask("collateral " + list)
}

func (c *control) Worth(context.Context) (api.ListsWorth, error) {
	return api.ListsWorth{Tracked: true, Lists: []api.ListWorth{{Name: "x", Action: api.Block, Seen: 3}}}, c.ask("worth")
}

func (c *control) Versions(_ context.Context, list string, _ ...string) (api.ListVersions, error) {
	sources := []api.SourceVersions{{Source: "x", Versions: []api.FeedVersion{{Entries: 2, Added: 1, Removed: 1}}}}
	return api.ListVersions{List: list, Sources: sources}, c.ask("versions " + list)
}

func (c *control) Rollback(ctx context.Context, list string) (api.FetchOutcome, error) {
	caller, _ := api.CallerOf(ctx)
	var first api.FetchOutcome
	if len(c.outcomes) > 0 {
		first = c.outcomes[0]
	}
	return first, c.ask([]any{"rollback", list, caller})
}

func (c *control) Reload(context.Context) (api.Reloaded, error) { return c.reloaded, c.ask("reload") }

func (c *control) Explain(_ context.Context, question string, places bool) (api.Explanation, error) {
	if _, err := explain.ParseQuestion(question); err != nil {
		return api.Explanation{}, &api.BadRequest{Err: err}
	}
	return api.NewExplanation(question, c.answers...), c.ask(fmt.Sprintf("explain %s, places %v", question, places))
}

func (c *control) ExplainFrames(_ context.Context, frames [][]byte) ([]api.Explanation, error) {
	return []api.Explanation{api.NewExplanation("a frame", c.answers...)}, c.ask(fmt.Sprintf("explain %x", frames))
}

func (c *control) ReloadUnconfirmed(_ context.Context, within time.Duration) (api.Reloaded, error) {
	return c.reloaded, c.ask("reload within " + within.String())
}

func (c *control) Confirm(context.Context) error { return c.ask("confirm") }

func (c *control) SetMonitor(_ context.Context, change api.MonitorChange) (api.Monitored, error) {
	return api.Monitored{Monitor: *change.On, Override: &api.MonitorOverride{UID: &change.UID}}, c.ask(fmt.Sprint("monitor ", *change.On, " ", change.For))
}

func (c *control) SetPolice(_ context.Context, change api.PoliceChange) (api.Policed, error) {
	at := time.Unix(100, 0).UTC()
	return api.Policed{Interface: change.Interface, Changed: true, Override: &api.PoliceOverride{Interface: "eth0", Netns: "blue", Rate: change.Rate, Since: at, Until: &at, By: fmt.Sprint(change)}}, c.ask(change)
}

func (c *control) Enforce(_ context.Context, list string, change api.EnforceChange) (api.Enforced, error) {
	at := time.Unix(100, 0).UTC()
	return api.Enforced{List: list, Changed: true, Trial: &api.Trial{Enforced: !change.Off, Configured: true, EnforcedAt: &at, By: fmt.Sprint(change)}}, c.ask([]any{list, change})
}

func (c *control) TestNotify(_ context.Context, target string) ([]api.NotifyTested, error) {
	return []api.NotifyTested{{Target: "pager", To: "https://example.com/…", Answer: "500", Error: "500", Seconds: 0.5, Waiting: 2}}, c.ask("notify " + target)
}

func (c *control) Audit(limit int) []api.AuditRecord {
	_ = c.ask(fmt.Sprint("audit ", limit))
	return c.audit
}

func (c *control) OpenConsole(_ context.Context, r api.ConsoleRequest) (api.ConsoleOpened, error) {
	return api.ConsoleOpened{URL: "http://127.0.0.1:9479/open/x", ReadOnly: r.ReadOnly}, c.ask(r)
}

func (c *control) EndConsole(context.Context) (api.ConsoleEnded, error) {
	return api.ConsoleEnded{Sessions: 2}, c.ask("end console")
}

func (c *control) Multicast(context.Context) (api.Multicast, error) { return c.multicast, c.err }

func (c *control) ChangeMulticast(_ context.Context, change api.MulticastChange) (api.MulticastChanged, error) {
	err := c.ask(change)
	if change.Remove {
		return api.MulticastChanged{Interface: change.Interface, Removed: len(change.Groups)}, err
	}
	return api.MulticastChanged{Interface: change.Interface, Added: len(change.Groups)}, err
}

// dialControl serves a control until the test ends, and returns a client of it.
func dialControl(t *testing.T, c controls) *client.Client {
	t.Helper()
	path := socket(t)
	serveHandler(t, path, Handler(daemon{source{}, c}))
	return client.Dial(path)
}

func TestWhatIsToldArrives(t *testing.T) {
	now, uid := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), uint32(1000)
	c := &control{
		lists: []api.List{{
			Name: "drop", Action: api.Block, Direction: "src", Priority: 1, Entries: 9, Manual: 2, Packets: new(uint64(7)),
			Feeds: []api.FeedSource{{
				Source: "https://example.com/feed", Outcome: api.Failed, Failure: "stalled", Error: "no data for 30s",
				Entries: 7, Read: &now, Next: &now, Failures: 3, Unsaved: true, BadLines: 2, FirstBad: []string{"feed:7: no address"}, Wide: []string{"feed:8: 64.0.0.0/3 (12.5 %)"},
			}},
			LeftOut: []api.LeftOut{{Entry: "10.0.0.0/8", CutOff: "the gateway 10.0.0.1"}}, Private: 3,
			Spare: []api.SpareShape{{Shape: "src/24+dport", Entries: 2, First: "any 192.0.2.0/24:* > *:53"}},
		}},
		outcomes: []api.FetchOutcome{{
			List: "drop", Source: "https://example.com/feed", Outcome: api.Failed, Failure: "empty", Error: "no entry",
			Entries: 7, Changed: true, Unsaved: true,
		}},
		reloaded: api.Reloaded{Changes: []string{"mode: exact → approx"}, Unfiltered: []string{"eth1 is not filtered: no native XDP"}},
		answers: []api.Answer{{
			Packet: "from 192.0.2.1", Verdict: api.VerdictDrop, Reason: "blocked", List: "drop",
			Stages: []api.Stage{{Stage: "exempt"}, {Stage: "block", Met: true, By: "list drop", Until: &now}},
			Matches: []api.Match{
				{List: "drop", Action: api.Block, Entry: "192.0.2.0/24", Source: "https://example.com/feed", Line: 17, Packets: new(uint64(7))},
				{List: "manual", Action: api.Block, Entry: "192.0.2.1", Added: &now, Expires: &now, Reason: "scans", UID: &uid},
			},
			Depends: []api.Dependency{{
				Stage: "allow", Packets: "udp 192.0.2.1:* > *:53", Verdict: api.VerdictPass, Reason: "allowed", Until: &now,
				Match: &api.Match{List: "ours", Action: api.Allow, Entry: "udp 192.0.2.1:* > *:53"},
			}},
			DependsMore: 3, Inside: &api.Inside{Entries: 1, First: []api.Match{{List: "drop", Action: api.Block}}}, FalsePositive: true,
		}},
		multicast: api.Multicast{
			Groups: 2, MaxGroups: 1024, Planned: 1e-6, Copied: 1, CopiedBytes: 2, Left: 3, LeftBytes: 4,
			Interfaces: []api.MulticastInterface{{
				Name: "eth1", Configured: true, Present: true, FalsePositiveRate: 1e-9, Sent: 5, SentBytes: 6, Dropped: 7, DroppedBytes: 8,
				Groups: []api.MulticastGroup{{Group: "239.1.2.3", Configured: true}, {Group: "ff0e::1", Added: &now, UID: &uid}},
			}},
		},
	}
	client := dialControl(t, c)
	add := api.Change{Action: api.Block, List: "manual", Entries: []string{"192.0.2.1", "tcp *:* > 198.51.100.7:443"}, TTL: 0.5, Reason: "scans ssh – é"}
	remove := api.Change{Remove: true, Action: api.Allow, Entries: []string{"2001:db8::/32"}}
	join := api.MulticastChange{Interface: "eth1", Groups: []string{"239.1.2.3", "ff0e::1"}}
	leave := api.MulticastChange{Remove: true, Interface: "eth1", Groups: []string{"239.1.2.3"}}
	for _, ask := range []struct {
		name string
		do   func() (any, error)
		want any
	}{
		{"add", func() (any, error) { return client.Change(t.Context(), add) }, &api.Changed{List: "manual", Added: 2}},
		{"remove", func() (any, error) { return client.Change(t.Context(), remove) }, &api.Changed{List: "manual", Removed: 1}},
		{"lists", func() (any, error) { return client.Lists(t.Context()) }, &api.Lists{Lists: c.lists, At: c.at}},
		{"refresh", func() (any, error) { return client.Refresh(t.Context(), "") }, &api.Refreshed{Sources: c.outcomes}},
		{"refresh one", func() (any, error) { return client.Refresh(t.Context(), "a/b ü") }, &api.Refreshed{Sources: c.outcomes}},
		{"rollback", func() (any, error) { return client.Rollback(t.Context(), "a/b ü") }, &api.Refreshed{Sources: c.outcomes[:1]}},
		{"collateral", func() (any, error) { return client.Collateral(t.Context(), "a/b ü") }, &api.Collateral{
			Recorded: true, Room: 5, Lists: []api.ListCollateral{{List: "x", Addresses: 1, Latest: []api.Partner{}}},
		}},
		{"worth", func() (any, error) { return client.Worth(t.Context()) }, &api.ListsWorth{
			Tracked: true, Lists: []api.ListWorth{{Name: "x", Action: api.Block, Seen: 3, Months: []api.MonthPackets{}, Overlaps: []api.Overlap{}}},
		}},
		{"versions", func() (any, error) { return client.Versions(t.Context(), "a/b ü") }, &api.ListVersions{
			List: "a/b ü", Sources: []api.SourceVersions{{Source: "x", Versions: []api.FeedVersion{{Entries: 2, Added: 1, Removed: 1}}}},
		}},
		{"accept", func() (any, error) { return client.Accept(t.Context(), "a/b ü") }, &api.Refreshed{Sources: c.outcomes}},
		{"reload", func() (any, error) { return client.Reload(t.Context()) }, &c.reloaded},
		{"explain", func() (any, error) { return client.Explain(t.Context(), "tcp 192.0.2.1:1 > *:2") },
			&api.Explanation{Question: "tcp 192.0.2.1:1 > *:2", Verdict: api.VerdictDrop, Answers: c.answers}},
		{"explain soon", func() (any, error) { return client.ExplainSoon(t.Context(), "> 192.0.2.1") },
			&api.Explanation{Question: "> 192.0.2.1", Verdict: api.VerdictDrop, Answers: c.answers}},
		{"explain frames", func() (any, error) { return client.ExplainFrames(t.Context(), [][]byte{make([]byte, 14)}) },
			[]api.Explanation{{Question: "a frame", Verdict: api.VerdictDrop, Answers: c.answers}}},
		{"multicast", func() (any, error) { return client.Multicast(t.Context()) }, &c.multicast},
		{"join", func() (any, error) { return client.ChangeMulticast(t.Context(), join) }, &api.MulticastChanged{Interface: "eth1", Added: 2}},
		{"leave", func() (any, error) { return client.ChangeMulticast(t.Context(), leave) }, &api.MulticastChanged{Interface: "eth1", Removed: 1}},
	} {
		got, err := ask.do()
		if err != nil {
			t.Fatalf("%s: %v", ask.name, err)
		}
		if !reflect.DeepEqual(got, ask.want) {
			t.Errorf("%s: got %+v, want %+v", ask.name, got, ask.want)
		}
	}
	add.UID, remove.UID = uint32(os.Getuid()), uint32(os.Getuid()) // as the kernel says
	join.UID, leave.UID = add.UID, add.UID
	if want := []any{add, remove, "refresh ", "refresh a/b ü", []any{"rollback", "a/b ü", api.Caller{UID: add.UID, Process: api.OwnProcess()}}, "collateral a/b ü", "worth", "versions a/b ü", []any{"accept", "a/b ü", api.Caller{UID: add.UID, Process: api.OwnProcess()}}, "reload", "explain tcp 192.0.2.1:1 > *:2, places true", "explain > 192.0.2.1, places false", "explain [" + strings.Repeat("00", 14) + "]", join, leave}; !reflect.DeepEqual(c.asked, want) {
		t.Errorf("asked %+v, want %+v", c.asked, want)
	}
}

func TestListsOfControlAreNeverNull(t *testing.T) {
	c := &control{lists: []api.List{{}}}
	for _, ask := range [][2]string{
		{"GET", api.ListsPath}, {"POST", api.RefreshPath}, {"POST", api.ReloadPath}, {"GET", api.ExplainPath + "?q=192.0.2.1"},
	} {
		r := httptest.NewRecorder()
		Handler(daemon{source{}, c}).ServeHTTP(r, httptest.NewRequest(ask[0], ask[1], nil))
		if body := r.Body.String(); r.Code != http.StatusOK || strings.Contains(body, "null") {
			t.Errorf("%s: %d %s", ask[1], r.Code, body)
		}
	}
	if c.lists[0].Feeds != nil {
		t.Error("the control's own value was changed")
	}
}

func TestRefusedChanges(t *testing.T) {
	const good = `{"action": "block", "entries": ["192.0.2.1"]}`
	refused := 1
	for _, c := range []struct {
		name, method, body string
		err                error // of the control, if it is to be asked
		status             int
		want               string
		entry              int // -1: none
	}{
		{"empty", "POST", ``, nil, 400, "the request's body: empty", -1},
		{"cut short", "POST", good[:20], nil, 400, "unexpected EOF", -1},
		{"no JSON", "POST", `192.0.2.1`, nil, 400, "the request's body: ", -1},
		{"stray bracket", "POST", `{]`, nil, 400, "byte 2: invalid character ']'", -1},
		{"null", "POST", `null`, nil, 400, `action "": want "block" or "allow"`, -1},
		{"an array", "POST", `["192.0.2.1"]`, nil, 400, "array, where an object should be", -1},
		{"two values", "POST", good + good, nil, 400, "more than one JSON value", -1},
		{"unknown field", "POST", `{"action": "block", "entry": ["192.0.2.1"]}`, nil, 400, `unknown field "entry"`, -1},
		{"a field twice", "POST", `{"action": "block", "entries": ["192.0.2.1"], "action": "allow"}`, nil, 400, `byte 54: "action" is there twice`, -1},
		{"a field in two cases", "POST", `{"action": "block", "entries": ["192.0.2.1"], "acTion": "allow"}`, nil, 400, `"acTion" is there twice`, -1},
		{"a field in another alphabet", "POST", `{"reason": "x", "action": "block", "entries": ["192.0.2.1"], "rea\u017fon": "y"}`, nil, 400, `"reaſon" is there twice`, -1},
		{"an array with its name", "POST", `{"action": "block", "entries": ["entries", "action", "action"], "entries": []}`, nil, 400, `"entries" is there twice`, -1},
		{"who asks", "POST", `{"action": "block", "entries": ["192.0.2.1"], "uid": 0}`, nil, 400, `unknown field "uid"`, -1},
		{"a string of entries", "POST", `{"action": "block", "entries": "192.0.2.1"}`, nil, 400, "entries: string, where an array should be", -1},
		{"a number of an entry", "POST", `{"action": "block", "entries": [192]}`, nil, 400, "entries: number, where a string should be", -1},
		{"TTL with unit", "POST", `{"action": "block", "entries": ["192.0.2.1"], "ttl_seconds": "1h"}`, nil, 400, "ttl_seconds: string, where a number should be", -1},
		{"unknown action", "POST", `{"action": "drop", "entries": ["192.0.2.1"]}`, nil, 400, `action "drop"`, -1},
		{"no entries", "POST", `{"action": "block", "entries": []}`, nil, 400, "no entries", -1},
		{"negative TTL", "POST", `{"action": "block", "entries": ["192.0.2.1"], "ttl_seconds": -1}`, nil, 400, "ttl_seconds -1", -1},
		{"TTL of no time", "POST", `{"action": "block", "entries": ["192.0.2.1"], "ttl_seconds": 1e-10}`, nil, 400, "ttl_seconds 1e-10: want 0.001 up to", -1},
		{"endless TTL", "POST", `{"action": "block", "entries": ["192.0.2.1"], "ttl_seconds": 1e300}`, nil, 400, "ttl_seconds 1e+300", -1},
		{"long reason", "POST", `{"action": "block", "entries": ["192.0.2.1"], "reason": "` + strings.Repeat("x", 513) + `"}`, nil, 400, "reason of 513 bytes", -1},
		{"reason that draws", "POST", `{"action": "block", "entries": ["192.0.2.1"], "reason": "\u001b[2J"}`, nil, 400, "printable", -1},
		{"TTL of a removal", "DELETE", `{"action": "block", "entries": ["192.0.2.1"], "ttl_seconds": 1}`, nil, 400, "to be added", -1},
		{"reason of a removal", "DELETE", `{"action": "block", "entries": ["192.0.2.1"], "reason": "x"}`, nil, 400, "to be added", -1},
		{"import of a removal", "DELETE", `{"action": "block", "entries": ["192.0.2.1"], "import": true}`, nil, 400, "to be added", -1},
		{"blank entry", "POST", `{"action": "block", "entries": ["192.0.2.1", " "]}`, nil, 400, `entry " ": want one line`, 1},
		{"entry of two lines", "POST", `{"action": "block", "entries": ["192.0.2.1 x\n192.0.2.2"]}`, nil, 400, "want one line", 0},
		{"a large entry", "POST", `{"action": "block", "entries": ["192.0.2.1", "` + strings.Repeat("1", 1<<20) + `"]}`, nil, 400, `entry "` + strings.Repeat("1", 40) + `"… of 1048576 bytes: the most is 256`, 1},
		{"too large", "POST", `{"action": "block", "reason": "` + strings.Repeat("x", api.MaxBody), nil, 413, "more than 16 MiB: put that many entries into a file", -1},

		{"what the control refuses", "POST", good, &api.BadRequest{Entry: &refused, Text: "10.0.0.0/33", Err: errors.New("not a prefix length")}, 400, `"10.0.0.0/33": not a prefix length`, 1},
		{"unknown list", "POST", good, api.NoList("x", []string{"drop", "manual"}), 404, `no such list: "x": there are drop, manual`, -1},
		{"unknown list of many", "POST", good, api.NoList("x", strings.Split(strings.Repeat("drop ", 180), " ")), 404, `there are 181, such as drop, `, -1},
		{"full disk", "DELETE", good, syscall.ENOSPC, 500, "no space left", -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := &control{err: c.err}
			r := httptest.NewRecorder()
			Handler(daemon{source{}, asked}).ServeHTTP(r, httptest.NewRequest(c.method, api.EntriesPath, strings.NewReader(c.body)))
			var f api.Failure
			if err := json.Unmarshal(r.Body.Bytes(), &f); err != nil {
				t.Fatalf("%q: %v", r.Body, err)
			}
			entry := -1
			if f.Entry != nil {
				entry = *f.Entry
			}
			if r.Code != c.status || !strings.Contains(f.Error, c.want) || entry != c.entry {
				t.Errorf("got %d %s, want %d %q, entry %d", r.Code, r.Body, c.status, c.want, c.entry)
			}
			if len(asked.asked) > 0 != (c.err != nil) {
				t.Errorf("asked for %+v", asked.asked)
			}
		})
	}
}

func TestOtherRefusals(t *testing.T) {
	for _, c := range []struct {
		name, method, path string
		control            controls
		status             int
		want, allow        string
	}{
		{"wrong method", "PUT", api.EntriesPath, &control{}, 405, "use POST, DELETE, GET", "POST, DELETE, GET"},
		{"wrong method, with a name", "GET", "/v1/lists/drop/refresh", &control{}, 405, "use POST", "POST"},
		{"no name", "POST", "/v1/lists/x", &control{}, 404, "this is a daemon, which has no /v1/lists/x", ""},
		{"no question", "GET", api.ExplainPath, &control{}, 400, "?q=192.0.2.1", ""},
		{"no such list", "POST", "/v1/lists/x/refresh", &control{err: api.ErrNoList}, 404, "no such list", ""},
		{"refused configuration", "POST", api.ReloadPath, &control{err: errors.New("weir.yaml:3:1: no value")}, 500, "weir.yaml:3:1", ""},
		{"strange question", "GET", api.ExplainPath + "?q=what", &control{}, 400, "want an address", ""},
		{"strange places", "GET", api.ExplainPath + "?q=192.0.2.1&places=here", &control{}, 400, "want true or false", ""},
		{"two questions", "GET", api.ExplainPath + "?q=192.0.2.1&q=192.0.2.2", &control{}, 400, `"q" is there 2 times`, ""},
		{"two times", "POST", api.ReloadPath + "?confirm_seconds=60&confirm_seconds=0", &control{}, 400, `"confirm_seconds" is there 2 times`, ""},
		{"half a query", "GET", api.AuditPath + "?limit=1;limit=2", &control{}, 400, "the query: invalid semicolon", ""},
		{"no frames", "POST", api.ExplainPath, &control{}, 400, "empty", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRecorder()
			Handler(daemon{source{}, c.control}).ServeHTTP(r, httptest.NewRequest(c.method, c.path, nil))
			var f api.Failure
			if err := json.Unmarshal(r.Body.Bytes(), &f); err != nil {
				t.Fatalf("%q: %v", r.Body, err)
			}
			if r.Code != c.status || !strings.Contains(f.Error, c.want) || r.Header().Get("Allow") != c.allow {
				t.Errorf("got %d %v %q, want %d %q", r.Code, r.Header(), f.Error, c.status, c.want)
			}
		})
	}
}

// Another site may make a browser ask that has a client's certificate.
func TestWebSitesChangeNothing(t *testing.T) {
	c := &control{}
	q := httptest.NewRequest("POST", api.ReloadPath, nil)
	q.Header.Set("Sec-Fetch-Site", "cross-site")
	r := httptest.NewRecorder()
	Handler(daemon{source{}, c}).ServeHTTP(r, q)
	if r.Code != http.StatusForbidden || len(c.asked) > 0 || !strings.Contains(r.Body.String(), `"error"`) {
		t.Errorf("%d %s", r.Code, r.Body)
	}
}

func TestClientTellsErrorsApart(t *testing.T) {
	refused := 2
	c := dialControl(t, &control{err: &api.BadRequest{Entry: &refused, Text: "10.0.0.0/8", Err: errors.New("covers the failsafe prefix 10.1.0.0/16")}})
	_, err := c.Change(t.Context(), api.Change{Action: api.Block, Entries: []string{"10.0.0.0/8"}})
	var bad *api.BadRequest
	if !errors.As(err, &bad) || bad.Entry == nil || *bad.Entry != refused || err.Error() != `"10.0.0.0/8": covers the failsafe prefix 10.1.0.0/16` {
		t.Errorf("got %v", err)
	}
	if _, err := c.Change(t.Context(), api.Change{Action: api.Block, Entries: []string{strings.Repeat("x", api.MaxBody)}}); !errors.Is(err, api.ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	if _, err := client.Dial(socket(t)).Explain(t.Context(), "192.0.2.1"); !errors.Is(err, client.ErrNotRunning) {
		t.Errorf("got %v", err)
	}
}

// Many entries go in one request, from many clients at once.
func TestBulk(t *testing.T) {
	var entries []string
	for i := range 100_000 {
		entries = append(entries, fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255))
	}
	c := &control{}
	client := dialControl(t, c)
	var all sync.WaitGroup
	const clients = 4
	for range clients {
		all.Go(func() {
			changed, err := client.Change(t.Context(), api.Change{Action: api.Block, Entries: entries})
			if err != nil || changed.Added != len(entries) {
				t.Errorf("got %+v, %v", changed, err)
			}
		})
		all.Go(func() {
			if _, err := client.Lists(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, asked := range c.asked {
		if got := asked.(api.Change).Entries; !reflect.DeepEqual(got, entries) {
			t.Errorf("%d entries have arrived otherwise", len(got))
		}
	}
	if len(c.asked) != clients {
		t.Errorf("%d changes", len(c.asked))
	}
}

// slow is a control whose refreshes take some time.
type slow struct {
	control
	began chan struct{}
	ended chan error
}

func (s *slow) Refresh(ctx context.Context, _ string, _ bool) ([]api.FetchOutcome, error) {
	s.began <- struct{}{}
	<-ctx.Done()
	s.ended <- ctx.Err()
	return nil, ctx.Err()
}

// A request ends when its client disconnects.
func TestDisconnectCancels(t *testing.T) {
	s := &slow{began: make(chan struct{}), ended: make(chan error, 1)}
	client := dialControl(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		_, err := client.Refresh(ctx, "")
		gone <- err
	}()
	<-s.began
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("the client: %v", err)
	}
	select {
	case <-s.ended:
	case <-time.After(wait.Patience):
		t.Error("it goes on")
	}
}

func TestSocketOfAGroup(t *testing.T) {
	path := socket(t)
	if _, err := ListenGroup(path, "no-such-group"); err == nil || !strings.Contains(err.Error(), `group "no-such-group"`) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a socket was made: %v", err)
	}
	lab.Root(t) // to give the socket to another group
	const name = "nogroup"
	g, err := user.LookupGroup(name)
	if err != nil {
		t.Skipf("there is no group %s here", name)
	}
	l, err := ListenGroup(path, name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if gid := fmt.Sprint(info.Sys().(*syscall.Stat_t).Gid); gid != g.Gid || info.Mode().Perm() != socketMode {
		t.Errorf("group %s, mode %o", gid, info.Mode().Perm())
	}
}
