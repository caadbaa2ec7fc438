package console

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/clock"
	"weir/control/explain"
	"weir/control/observe/events"
	"weir/filter/verdict"
	machines "weir/tests/clock"
	"weir/tests/must"
)

// daemon is one with fixed answers, which records changes.
type daemon struct {
	Daemon // what the console does not use

	mu      sync.Mutex
	changes []api.Change
	changed api.Changed
	err     error
	answers []api.Answer
	hostile string // in every text that others choose
	wanted  events.Want
	happens []events.Event // instead of a hundred; then events end
	more    []api.List
	rate    float64             // of packets, if it is larger
	audit   []api.AuditRecord   // instead of one
	did     string              // beside changes
	from    string              // the last connection that ended or began a trial
	unsaved string              // why a restart forgets monitor mode
	past    api.HistoryQuestion // the last
	worthy  []api.ListWorth     // instead of two
	counted int                 // how often it was counted what lists are worth
	heavy   []api.Tracker       // instead of one
	began   time.Time
	sources []api.SourceVersions // instead of two
	console *Console
	opened  []api.ConsoleRequest
}

func (d *daemon) OpenConsole(_ context.Context, asked api.ConsoleRequest) (api.ConsoleOpened, error) {
	d.opened = append(d.opened, asked)
	return d.console.Open(asked), nil
}

func (d *daemon) EndConsole(context.Context) (api.ConsoleEnded, error) {
	return api.ConsoleEnded{Sessions: d.console.End()}, nil
}

func (d *daemon) Status() api.Status {
	limited := []api.PoliceOverride{{Interface: "eth0" + d.hostile, Netns: "blue", Rate: "3kpps", Since: d.began, Until: new(d.began.Add(time.Hour)), By: "ada" + d.hostile}}
	return api.Status{Version: d.hostile, Mode: "exact", Policed: limited, Interfaces: []api.InterfaceStatus{
		{Interface: "eth0" + d.hostile, State: api.Filtered, XDP: "native", Packets: 12345, Dropped: 678},
		{Interface: "eth0", Direction: "out", State: api.Filtered, XDP: "tc"},
		{Interface: "eth1", State: api.Unfiltered, Problem: "busy" + d.hostile},
	}}
}

func (d *daemon) Top() *api.Top {
	dropped := 40.0
	trackers := d.heavy
	if trackers == nil {
		trackers = []api.Tracker{{Key: "src", Unit: "packets", Threshold: "1%" + d.hostile, Action: "report", Heavy: 1, Flows: []api.Flow{
			{Key: "198.51.100.49" + d.hostile, Packets: 90, Share: 0.9, Heavy: true, Dropped: &dropped, Reasons: []string{"blocked"}, Lists: []string{"drop" + d.hostile}},
		}}}
	}
	return &api.Top{
		Time: time.Unix(1700000000, 0), Packets: max(100, d.rate), Dropped: 40, Bytes: 1e6, Uptime: 60, Problems: []string{"feed fails" + d.hostile},
		Reasons:  []api.ReasonRate{{Reason: "clean", Packets: 60, Total: 600}, {Reason: "blocked", Packets: 40, Total: 400, Drops: true}},
		Trackers: trackers,
		Sources:  &[]api.DropRate{{Source: "198.51.100.49" + d.hostile, Reason: "blocked", List: "drop" + d.hostile, Packets: 40}},
		Filter:   api.Filter{Mode: "exact", Generation: 3, KernelBytes: 1 << 20, Entries: 9, Lists: []api.ListRate{{Name: "drop", Packets: 30}, {Name: "drop" + api.ManualSuffix, Packets: 10}}},
	}
}

func (d *daemon) Lists() api.Lists {
	return api.Lists{Lists: append([]api.List{
		{Name: "drop", Action: api.Block, Entries: 9, Packets: new(uint64(400)), Feeds: []api.FeedSource{
			{Source: "https://example.com/feed" + d.hostile, Outcome: api.Failed, Failure: "stalled", Error: "no data" + d.hostile, Failures: 3, BadLines: 1, FirstBad: []string{"bad" + d.hostile}},
		}},
		{Name: "quiet", Action: api.Block, Entries: 7, Packets: new(uint64(0)), LeftOut: []api.LeftOut{{Entry: "192.0.2.1" + d.hostile, CutOff: "the gateway" + d.hostile}}},
	}, d.more...)}
}

func (d *daemon) Worth(context.Context) (api.ListsWorth, error) {
	d.counted++
	w := api.ListsWorth{Since: time.Unix(1700000000, 0), Tracked: true, Lists: d.worthy}
	if w.Lists == nil {
		w.Lists = []api.ListWorth{
			{Name: "drop" + d.hostile, Action: api.Block, Entries: 9, Overlaps: []api.Overlap{{List: "quiet" + d.hostile, Entries: 3}}, Months: []api.MonthPackets{{Month: "2026-11" + d.hostile}}},
			{Name: "quiet" + d.hostile, Action: api.Block, Entries: 7},
		}
	}
	return w, d.err
}

func (d *daemon) Collateral(_ context.Context, list string) (api.Collateral, error) {
	latest := []api.Partner{{Addr: netip.MustParseAddr("192.0.2.77"), How: []string{"accepted-tcp"}, First: time.Now().Add(-1815 * time.Minute), Last: time.Now().Add(-125 * time.Minute)}}
	return api.Collateral{Recorded: true, Lists: []api.ListCollateral{{List: list, Addresses: 1234, Day: 12, Latest: latest}}}, nil
}

func (d *daemon) SetMonitor(_ context.Context, c api.MonitorChange) (api.Monitored, error) {
	d.did = fmt.Sprintf("monitor %t %g by %d", *c.On, c.For, c.UID)
	return api.Monitored{Monitor: *c.On, Unsaved: d.unsaved}, nil
}

func (d *daemon) Enforce(_ context.Context, list string, c api.EnforceChange) (api.Enforced, error) {
	d.did, d.from = fmt.Sprintf("enforce %s %t by %d from %.11s", list, !c.Off, c.UID, c.SSH), c.Connection
	if c.Off {
		return api.Enforced{List: list, Changed: true, Trial: &api.Trial{By: "ada" + d.hostile}}, nil
	}
	return api.Enforced{List: list, Changed: true}, d.err
}

func (d *daemon) Confirm(context.Context) error { d.did = "confirm"; return nil }

func (d *daemon) Refresh(_ context.Context, list string, accept bool) ([]api.FetchOutcome, error) {
	d.did = fmt.Sprintf("refresh %s %t", list, accept)
	return []api.FetchOutcome{{List: list, Source: "feed", Outcome: "new", Entries: 60_000}}, nil
}

func (d *daemon) Versions(_ context.Context, list string, _ ...string) (api.ListVersions, error) {
	if list == "none" {
		return api.ListVersions{}, nil
	}
	if d.sources != nil {
		return api.ListVersions{List: list, Sources: d.sources}, nil
	}
	ago := func(h int) time.Time { return d.began.Add(-time.Duration(h) * time.Hour) }
	return api.ListVersions{List: list, Sources: []api.SourceVersions{
		{Source: "a" + d.hostile, Versions: []api.FeedVersion{{Since: ago(9), Entries: 7, SHA256: d.hostile}, {Since: ago(10), Entries: 8}}},
		{Source: "b", Versions: []api.FeedVersion{{Since: ago(1), Entries: 60_000, Added: 55_001, Removed: 2, SHA256: "0123456789abcdef"}, {Since: ago(9), Entries: 5001, SHA256: "fedcba9876543210"}}},
	}}, nil
}

func (d *daemon) Rollback(_ context.Context, list string) (api.FetchOutcome, error) {
	d.did = "rollback " + list
	return api.FetchOutcome{List: list, Entries: 5001}, nil
}

func (d *daemon) Entries(context.Context, api.EntriesQuestion) (api.Entries, error) {
	return api.Entries{Entries: []api.Entry{{List: "manual", Action: api.Block, Entry: "203.0.113.9" + d.hostile, Reason: "old" + d.hostile, User: "ada" + d.hostile}}}, nil
}

func (d *daemon) Audit(int) []api.AuditRecord {
	if d.audit != nil {
		return d.audit
	}
	return []api.AuditRecord{{Change: "block" + d.hostile, First: []string{"203.0.113.9" + d.hostile}, Reason: d.hostile, User: "ada" + d.hostile}}
}

func (d *daemon) History(_ context.Context, q api.HistoryQuestion) (api.History, error) {
	if d.past = q; q.Step == 0 || q.Since/q.Step > maxPoints {
		return api.History{}, fmt.Errorf("too many points: %+v", q)
	}
	at := func(minutes int) time.Time { return time.Unix(1700000000, 0).Add(time.Duration(minutes) * time.Minute) }
	return api.History{
		Step:   60,
		Points: []api.HistoryPoint{{Time: at(0), Seconds: 60, Passed: 600, Dropped: 120, Lists: []api.HistoryList{{List: "other", Packets: 5}, {List: "drop", Packets: 111, Alone: 22, Conversed: 3}}}, {Time: at(1), Seconds: 30, Passed: 300}, {Time: at(9), Seconds: 3600, Dropped: 3600}},
		Total:  api.HistoryPoint{Passed: 900, Dropped: 54321, Lists: []api.HistoryList{{List: "drop" + d.hostile, Packets: 180}, {List: "talked", Conversed: 3}}},
	}, nil
}

func (d *daemon) Explain(_ context.Context, question string, _ bool) (api.Explanation, error) {
	_, err := explain.ParseQuestion(question)
	return api.NewExplanation(question, d.answers...), err
}

func (d *daemon) Change(_ context.Context, c api.Change) (api.Changed, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return api.Changed{}, d.err
	}
	d.changes = append(d.changes, c)
	done := d.changed
	done.List = c.List
	if done.List == "" {
		done.List = "manual"
	}
	if c.Remove {
		done.Added, done.Removed = 0, max(1, done.Added)
	}
	return done, nil
}

func (d *daemon) Events(w events.Want) (<-chan events.Event, func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.wanted = w; d.happens != nil {
		all := make(chan events.Event, len(d.happens))
		for _, e := range d.happens {
			all <- e
		}
		close(all)
		return all, func() {}
	}
	all := make(chan events.Event, 100)
	for range 100 {
		all <- events.Event{Time: time.Now(), Reason: verdict.Blocked, List: "drop" + d.hostile, OneIn: 1, Dropped: true}
	}
	return all, func() {}
}

func (d *daemon) last(t *testing.T) api.Change {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.changes) == 0 {
		t.Fatal("nothing was changed")
	}
	return d.changes[len(d.changes)-1]
}

func (d *daemon) unchanged(t *testing.T, what string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.changes) > 0 {
		t.Errorf("%s: %+v was changed", what, d.changes)
	}
}

// browser is a client with cookies, and a session.
type browser struct {
	t      *testing.T
	client http.Client
	base   string // of the session
	form   string
}

type setup struct {
	t      *testing.T
	daemon *daemon
	*Console
	server *httptest.Server
	mu     sync.Mutex // guards clock
	clock  time.Time
}

func start(t *testing.T) *setup {
	t.Helper()
	d := &daemon{changed: api.Changed{Added: 1}}
	s := &setup{t: t, daemon: d, Console: New(d, "127.0.0.1:9479", false, "v1")}
	d.console, s.clock, d.began = s.Console, time.Now().Round(0), time.Now()
	s.sessions.now = func() time.Time { s.mu.Lock(); defer s.mu.Unlock(); return s.clock }
	s.server = httptest.NewServer(s.Console)
	s.Console.url = s.server.URL
	t.Cleanup(func() { s.End(); s.server.CloseClientConnections(); s.server.Close() })
	return s
}

// advance sets the clock forward.
func (s *setup) advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock = s.clock.Add(d)
}

// open opens a session.
func (s *setup) open(readOnly bool) *browser {
	s.t.Helper()
	jar, _ := cookiejar.New(nil)
	b := &browser{t: s.t, client: http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	opened := s.Open(api.ConsoleRequest{ReadOnly: readOnly, UID: 7, SSH: "192.0.2.9 50000 192.0.2.1 22"})
	status, text := b.get(opened.URL)
	m := regexp.MustCompile(`content="0;url=([^"]+)"`).FindStringSubmatch(text)
	if status != http.StatusOK || m == nil {
		s.t.Fatalf("status %d\n%s", status, text)
	}
	b.base = s.server.URL + m[1]
	if _, text = b.get(b.base); !readOnly {
		b.form = regexp.MustCompile(`name="form" value="([^"]+)"`).FindStringSubmatch(text)[1]
	}
	return b
}

func (b *browser) do(q *http.Request) (int, string, http.Header) {
	b.t.Helper()
	r, err := b.client.Do(q)
	if err != nil {
		b.t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return r.StatusCode, string(text), r.Header
}

func (b *browser) get(address string) (int, string) {
	b.t.Helper()
	q, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	status, text, _ := b.do(q)
	return status, text
}

// post sends a form, with headers "Name: value".
func (b *browser) post(path string, form url.Values, headers ...string) (int, string) {
	b.t.Helper()
	q, err := http.NewRequest(http.MethodPost, b.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		b.t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if q.Header.Set(name, value); name == "Host" {
			q.Host = value
		}
	}
	status, text, _ := b.do(q)
	return status, text
}

func (b *browser) change(fields ...string) url.Values {
	form := url.Values{"form": {b.form}}
	for i := 0; i < len(fields); i += 2 {
		form.Set(fields[i], fields[i+1])
	}
	return form
}

// The page has what an operator looks for.
func TestPage(t *testing.T) {
	s := start(t)
	b := s.open(false)
	s.daemon.audit = []api.AuditRecord{{Time: s.clock, Change: "console", User: "ada"}, {Time: s.clock, Change: "block", List: "drop", First: []string{"192.0.2.1"}, Entries: 1, User: "ada"}, {Time: s.clock.Add(-48 * time.Hour), Change: "reload"}}
	marks := fmt.Sprintf(`data-marks="[[%d,&#34;block drop 192.0.2.1, by ada&#34;]`, s.clock.Unix())
	if text := b.part("history?for=30d", true); !strings.Contains(text, marks+",") || s.daemon.past.Since != api.MaxHistory || s.daemon.past.Step != time.Hour {
		t.Errorf("asked for %+v\n%s", s.daemon.past, text)
	}
	status, text := b.get(b.base)
	if !strings.Contains(text, marks+"]") || strings.Contains(text, "&#34;reload") {
		t.Error("the chart lacks a change, or has an old one")
	}
	if status != http.StatusOK || strings.Contains(text, "Matched by talked") {
		t.Fatalf("status %d\n%s", status, text)
	}
	for _, want := range []string{
		"Not filtered: 1 of 3 interfaces.", "eth0 (out)", "feed fails", "60 pps", "40 pps", "40.0 %", "198.51.100.49", `class="heavy"`, "has never matched", "Failing: 1 of 1 sources.",
		"1 of 1 failing", "never matched, 1 left out", "203.0.113.9", "<strong>Heavy sources:</strong> 100 pps arrive, the usual is 10 pps. 198.51.100.49 is above its limit. 40.0 % is dropped, most by list drop.", "1.0 MiB", "none: the mode is exact", "ada",
		`data-points="[[1700000000,1700000060,1700000120,1700000540],[10.0,10.0,null,0.0],[2.0,0.0,null,1.0]]"`, "54,321", "Matched by drop",
		`<td class="n">40 pps</td><td class="n">400</td>`, // both rates of the list
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
	for list, want := range map[string]string{"drop": "stalled: no data (3 times)", "quiet": "left out: 192.0.2.1: it would cut off the gateway", "other": "There is no list other"} {
		for _, partly := range []bool{false, true} { // without scripts, and with them
			if text := b.part("lists?open="+list, partly); !strings.Contains(text, want) || strings.Contains(text, "<html") == partly {
				t.Errorf("list %s, of which part %t:\n%s", list, partly, text)
			}
		}
	}
}

// part returns an answer, as htmx asks for it or as a browser does.
func (b *browser) part(path string, part bool) string {
	b.t.Helper()
	q, _ := http.NewRequest(http.MethodGet, b.base+path, nil)
	if part {
		q.Header.Set("HX-Request", "true")
	}
	status, text, _ := b.do(q)
	if status != http.StatusOK {
		b.t.Errorf("%s: status %d", path, status)
	}
	return text
}

// A flood is a multiple of the usual rate that is worth the word.
func TestFlood(t *testing.T) {
	s := start(t)
	for rate, want := range map[float64]string{5000: "<strong>Flood:</strong> 5 kpps arrive, 500 times the usual 10 pps.", 999: "<strong>Heavy sources:</strong> 999 pps arrive, the usual is 10 pps."} {
		s.daemon.rate = rate
		b := s.open(true)
		if _, text := b.get(b.base); !strings.Contains(text, want) {
			t.Errorf("no %q in\n%.3000s", want, text)
		}
	}
}

// The first sentence adds up what the page's own tables say.
func TestHeadline(t *testing.T) {
	known := usual{rate: 10, known: true}
	reasons := func(all ...api.ReasonRate) (top api.Top) {
		for _, r := range all {
			top.Packets += r.Packets
			if r.Drops {
				top.Dropped += r.Packets
			}
		}
		top.Reasons = all
		return top
	}
	clean := func(pps float64) api.ReasonRate { return api.ReasonRate{Reason: "clean", Packets: pps} }
	drops := func(reason string, pps float64) api.ReasonRate {
		return api.ReasonRate{Reason: reason, Packets: pps, Drops: true}
	}
	flooded := func(top api.Top, kind api.FloodKind, dropped float64) api.Top {
		top.Flood = &api.Flood{Kind: kind, Dropped: dropped, Rules: []api.FloodRule{{
			Pattern: "udp sport 123", Name: "NTP answers", Share: 0.9,
		}}}
		return top
	}
	lists := []api.ListRate{{Name: "level1", Packets: 3}}
	heavy := []api.Tracker{{Key: "src", Unit: "packets", Heavy: 2, Flows: []api.Flow{{Key: "192.0.2.1", Heavy: true}, {Key: "192.0.2.2", Heavy: true}}}}
	forged := []api.Tracker{{Key: "src", Unit: "packets", Heavy: 1, Spread: 11234, Flows: []api.Flow{{Key: "192.0.2.1", Heavy: true, Share: 0.015}}}}
	for _, c := range []struct {
		name     string
		top      api.Top
		lists    []api.ListRate
		trackers []api.Tracker
		usual    usual
		want     string
	}{
		{"a named flood", flooded(reasons(clean(90)), api.FloodRuled, 0), nil, nil, known, "Flood: 90 pps arrive, the usual is 10 pps. It is udp sport 123, 90 %: NTP answers; everything else, 10 %. " +
			"Do: weir flood --apply all. Nothing is dropped."},
		{"a crowd", flooded(reasons(clean(90)), api.FloodUsers, 0), nil, nil, known, "More than usual: 90 pps arrive, the usual is 10 pps. It is udp sport 123, 90 %: NTP answers; everything else, 10 %. " +
			"Do: nothing here stops only attackers: these are users. A tracker can limit each source. Nothing is dropped."},
		{"a named flood that is dropped", flooded(reasons(clean(10), drops("blocked", 80)), api.FloodRuled, 1), lists, nil, known, "Flood held off: 90 pps arrive, the usual is 10 pps. It is udp sport 123, 90 %: NTP answers; everything else, 10 %. " +
			"Do: nothing: weir drops it. 88.9 % is dropped, most by list level1."},
		{"quiet", reasons(clean(12)), nil, nil, known, "No flood: 12 pps arrive, the usual is 10 pps. Nothing is dropped."},
		{"a host that has just started", reasons(clean(5000)), nil, nil, usual{}, "Traffic: 5 kpps arrive, the usual is not known yet. Nothing is dropped."},
		{"lists alone", reasons(clean(9), drops("blocked", 3)), lists, nil, known, "No flood: 12 pps arrive, the usual is 10 pps. 25.0 % is dropped, most by list level1."},
		{"limits and a list", reasons(clean(1289), drops("policed", 2239), drops("rate-limited", 562), drops("blocked", 8)), lists, heavy, usual{rate: 7200, known: true},
			"Flood held off: 4 kpps arrive, the usual is 7.2 kpps. 2 flows are above their limits, 192.0.2.1 first. 68.5 % is dropped: 54.6 % policed, 13.7 % rate-limited, 0.2 % by lists, most by level1."},
		{"other reasons alone", reasons(clean(90), drops("malformed", 10)), nil, nil, known, "No flood: 100 pps arrive, the usual is 10 pps. 10.0 % is dropped: 10.0 % malformed."},
		{"forged sources", reasons(clean(5000)), nil, forged, known, "Flood: 5 kpps arrive, 500 times the usual 10 pps. No source stands out among about 11000, the largest has 1.5 %. Nothing is dropped."},
		{"many clients", reasons(clean(12)), nil, forged, known, "No flood: 12 pps arrive, the usual is 10 pps. Nothing is dropped."},
	} {
		c.top.Trackers, c.top.Filter.Lists = c.trackers, c.lists
		v := &view{Top: &c.top, usual: c.usual}
		var m markup
		v.headline(&m)
		got := strings.NewReplacer("<strong>", "", "</strong>", "").Replace(m.String())
		_, got, _ = strings.Cut(got, ">")
		if got = strings.TrimSuffix(got, "</p>"); got != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.name, got, c.want)
		}
	}
}

// Lists are found, and put into an order, without making the page longer than asked for.
func TestLists(t *testing.T) {
	s := start(t)
	for i := range 1200 {
		l := api.List{Name: fmt.Sprintf("list-%04d", i), Action: api.Block, Entries: i, Packets: new(uint64((i * 7) % 1200))}
		if i == 600 {
			l.Feeds = []api.FeedSource{{Source: "x", Outcome: api.Failed}}
		}
		s.daemon.more = append(s.daemon.more, l)
	}
	b := s.open(true)
	row := regexp.MustCompile(`id="l-([^"]+)"`)
	for query, want := range map[string]string{
		"": "15 drop", "sort=rate&list=LIST": "15 list-0857", "sort=packets": "15 list-0857", "sort=trouble": "15 drop", "sort=trouble&list=list": "15 list-0600",
		"sort=entries": "15 list-1199", "sort=name&list=list-1": "15 list-1000", "list=list-0007": "1 list-0007", "all=1&sort=name": "1000 drop", "list=none": "0 ", "sort=nonsense": "15 drop",
	} {
		all := row.FindAllStringSubmatch(b.part("lists?"+query, true), -1)
		first := ""
		if len(all) > 0 {
			first = all[0][1]
		}
		if got := fmt.Sprint(len(all), " ", first); got != want {
			t.Errorf("%q: %s, want %s", query, got, want)
		}
		s.advance(time.Second)
	}
	page := b.part("", false)
	if n := len(row.FindAllString(page, -1)); n != maxRows || len(page) > 40_000 {
		t.Errorf("%d lists, %d bytes", n, len(page))
	}
}

// The page says with how many addresses of a list this host has conversed, and puts lists into that
// order, where it is recorded.
func TestConversed(t *testing.T) {
	s := start(t)
	of := func(n int, latest ...api.Partner) *api.ListCollateral {
		return &api.ListCollateral{Addresses: n, Day: 1, Latest: latest}
	}
	s.daemon.more = []api.List{
		{Name: "none", Action: api.Block, Collateral: of(0)},
		{Name: "most", Action: api.Block, Entries: 5000, Collateral: of(1234, api.Partner{Addr: netip.MustParseAddr("192.0.2.77"), Last: time.Now().Add(-time.Hour)})},
		{Name: "some", Action: api.Block, Collateral: of(3)},
	}
	b := s.open(true)
	text := b.part("lists?sort=conversed", true)
	cells := regexp.MustCompile(`id="l-([^"]+)".*?</a></th>(?:<td class="n">[^<]*</td>){3}<td class="n">([^<]*)</td>`).FindAllStringSubmatch(text, -1)
	var got []string
	for _, c := range cells {
		got = append(got, c[1]+":"+c[2])
	}
	if want := "most:1,234 some:3 none:0 drop: quiet:"; strings.Join(got, " ") != want {
		t.Errorf("%q, want %q:\n%s", got, want, text)
	}
	if text := b.part("lists?open=most", true); !strings.Contains(text, "conversed with 1,234 addresses that the list has, 1 of them in 24 hours: 192.0.2.77 (") || !strings.Contains(text, "1,233 more") {
		t.Error(text)
	}
	for _, list := range []string{"none", "drop"} {
		if text := b.part("lists?open="+list, true); strings.Contains(text, "This host has conversed") {
			t.Errorf("%s: %s", list, text)
		}
	}
}

// The page of lists says what each is worth, finds and sorts them, and opens one with its months, days,
// overlaps and those with whom this host has conversed. It is counted once a minute, for all pages.
func TestWorth(t *testing.T) {
	s := start(t)
	since := time.Unix(1700000000, 0)
	s.daemon.more = []api.List{{Name: "trial", Action: api.Block, Trial: &api.Trial{Configured: true, Since: &since}}}
	s.daemon.worthy = []api.ListWorth{
		{
			Name: "drop", Action: api.Block, Entries: 1000, Packets: new(uint64(9)), Addresses: 412, AddressPackets: 5000, Alone: 30, AlonePackets: 400, Seen: 250, Collateral: new(1234),
			Months: []api.MonthPackets{{Month: "2026-11", Packets: 70_000, Alone: 600, Conversed: 7}, {Month: "2026-10", Packets: 7000, Alone: 60, Conversed: 9}},
			Ages:   api.EntryAges{Day: 900, Older: 100}, Overlaps: []api.Overlap{{List: "trial", Entries: 500}, {List: "x", Entries: 20}, {List: "y", Entries: 10}},
		},
		{Name: "ours", Action: api.Allow, Entries: 2, Ages: api.EntryAges{Older: 2}},
		{Name: "trial", Action: api.Block, Entries: 4000, Packets: new(uint64(9)), Addresses: 88, AddressPackets: 300, AlonePackets: 300, Seen: 1, Collateral: new(2), Overlaps: []api.Overlap{{List: "drop", Entries: 1000}}},
	}
	b := s.open(true)
	for order, want := range map[string]string{
		"": "drop trial ours", "alone": "drop trial ours", "hour": "drop trial ours", "month": "drop ours trial", "entries": "trial drop ours", "unseen": "trial drop ours",
		"conversed": "drop trial ours", "age": "ours drop trial", "overlap": "drop trial ours", "name": "drop ours trial",
	} {
		var got []string
		for _, m := range regexp.MustCompile(`id="w-([^"]+)"`).FindAllStringSubmatch(b.part("worth?sort="+order, true), -1) {
			got = append(got, m[1])
		}
		if strings.Join(got, " ") != want {
			t.Errorf("by %q: %q, want %q", order, got, want)
		}
	}
	page := b.part("worth", false)
	tags := regexp.MustCompile(`<[^>]+>`)
	cells := func(text, id string) string {
		_, row, _ := strings.Cut(text, id)
		_, row, _ = strings.Cut(row, ">")
		row, _, _ = strings.Cut(row, "</tr>")
		return strings.Join(strings.Fields(tags.ReplaceAllString(strings.ReplaceAll(row, "</t", " |</t"), " ")), " ")
	}
	for list, want := range map[string]string{
		"drop":  "drop | 77,000 | 5,000 | 400 | 1,000 | 750 | 1,234 | 1d or less | trial 50%, x 2%, 1 more |",
		"ours":  "ours allow | – | – | – | 2 | – | | over 30d | - |",
		"trial": "trial on trial | 0 | 300 | 300 | 4,000 | 3,999 | 2 | - | drop 25% |",
	} {
		if got := cells(page, `id="w-`+list); got != want {
			t.Errorf("%s: %q, want %q", list, got, want)
		}
	}
	if text := b.part("worth?list=TRI", true); strings.Contains(text, `id="w-drop"`) || !strings.Contains(text, `id="w-trial"`) {
		t.Error("lists are not found by their names")
	}
	text := b.part("worth?open=drop", true)
	for id, want := range map[string]string{
		`>2026-10`: "| 7,000 | 60 | 9 |", `>2023-11-14`: "| 111 | 22 | 3 |", `id="o-trial"`: "trial | 500 | 50.0 % | 25.0 % |", `q=192.0.2.77#explain"`: "192.0.2.77 | accepted-tcp | 30 h ago | 2 h ago |",
	} {
		if got := cells(text, id); got != strings.TrimPrefix(want, "| ") {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
	}
	for _, want := range []string{"It has dropped 412 sources of the last hour, 30 of them alone.", "conversed with 1,234 of its addresses, 12 of them in 24 hours.", "and 1,233 more: <code>weir collateral drop</code>", `href="` + strings.TrimPrefix(b.base, s.server.URL) + `lists?open=drop#lists"`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if s.daemon.past.Since != api.MaxHistory || s.daemon.past.Step != 24*time.Hour {
		t.Errorf("asked for %+v", s.daemon.past)
	}
	if text := b.part("worth?open=trial", true); !strings.Contains(text, "On trial, it would have dropped 88 sources") {
		t.Error(text)
	}
	if text := b.part("worth?open=gone", true); !strings.Contains(text, "There is no list gone") {
		t.Error(text)
	}
	if s.daemon.counted != 1 {
		t.Errorf("counted %d times", s.daemon.counted)
	}
	s.advance(time.Minute)
	s.daemon.err = errors.New("it stops")
	if text := b.part("worth", true); !strings.Contains(text, "it stops") || strings.Contains(text, "<table") {
		t.Error(text)
	}
	if s.daemon.err = nil; !strings.Contains(b.part("worth", true), `id="w-drop"`) || s.daemon.counted != 3 {
		t.Errorf("counted %d times", s.daemon.counted)
	}
}

// An opened list shows the versions of its sources, with a button that returns to the one before.
func TestVersions(t *testing.T) {
	s := start(t)
	b := s.open(false)
	text := b.part("lists?open=drop", true)
	for _, want := range []string{`Versions of b`, "60,000", "+55,001", "−2", "<td>active</td><td><code>0123456789ab</code>", "<code>fedcba987654</code>", "5,001", `value="rollback drop"`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if text := b.part("lists?open=quiet", true); strings.Contains(text, "Versions of") || strings.Contains(text, "No version") {
		t.Error("a list without sources has versions")
	}
}

// A list has a button that ends its trial, or begins one, where it may have one, and says what
// it is for.
func TestTrialButtons(t *testing.T) {
	s := start(t)
	since := time.Unix(1700000000, 0)
	s.daemon.more = []api.List{
		{Name: "trial", Action: api.Block, For: "tcp/22", Trial: &api.Trial{Configured: true, Since: &since, By: "ada"}},
		{Name: "over", Action: api.Block, Trial: &api.Trial{Configured: true, Enforced: true}},
		{Name: "ours", Action: api.Allow}, {Name: "shared", Action: api.Block, Feeds: []api.FeedSource{{Version: "1.2"}}},
	}
	b, reader := s.open(false), s.open(true)
	button := regexp.MustCompile(`name="do" value="((?:enforce|try) [^"]+)"`)
	for list, want := range map[string]string{"drop": "try drop", "trial": "enforce trial", "over": "try over", "ours": "", "shared": ""} {
		text := b.part("lists?open="+list, true)
		if m := append(button.FindStringSubmatch(text), "", ""); m[1] != want {
			t.Errorf("%s: the button does %q, want %q", list, m[1], want)
		}
		if text := reader.part("lists?open="+list, true); button.MatchString(text) {
			t.Errorf("%s: a session to read has a button", list)
		}
		if list == "trial" && (!strings.Contains(text, "on trial, and drops nothing, since") || !strings.Contains(text, "by ada") || !strings.Contains(text, "only for tcp/22")) {
			t.Error(text)
		}
	}
	if text := b.part("lists", true); strings.Count(text, "on trial") != 1 {
		t.Errorf("not one list is on trial:\n%s", text)
	}
}

// Buttons ask first, and do then what they say, as who has opened the session.
func TestControl(t *testing.T) {
	s := start(t)
	b := s.open(false)
	press := func(name, value string) string {
		t.Helper()
		s.advance(time.Second)
		_, text := b.post("change", b.change(name, value), "HX-Request: true")
		return text
	}
	for _, c := range []struct{ name, value, did, says string }{
		{"do", monitorOn, "", "In monitor mode nothing is dropped"},
		{"sure", monitorOn, "monitor true 3600 by 7", "nothing is dropped for an hour"},
		{"sure", monitorOff, "monitor false 0 by 7", "packets are dropped again"},
		{"do", confirm, "", "Keep it"},
		{"sure", confirm, "confirm", "is confirmed"},
		{"do", "rollback drop", "", "Source b of list drop returns from the 60,000 entries that it has had for 60 min to the 5,001 before"},
		{"do", "rollback none", "", "no version before"},
		{"sure", "rollback drop", "", "changed meanwhile"}, // of which version is not said
		{"do", "accept drop", "", "takes what its sources have now"},
		{"sure", "accept drop", "refresh drop true", "feed: new, 60,000 entries"},
		{"sure", "refresh drop", "refresh drop false", "feed: new, 60,000 entries"},
		{"do", "enforce drop", "", "is dropped from now on"},
		{"sure", "enforce drop", "enforce drop true by 7 from 192.0.2.9 5", "From now on list drop is enforced"},
		{"do", "try drop", "", "comes through, and is counted"},
		{"sure", "try drop", "enforce drop false by 7 from 192.0.2.9 5", "From now on list drop is on trial, and drops nothing"},
		{"leave", "1", "", "Left as it was"},
		{"do", "format disk", "", "unknown"},
		{"sure", "format disk", "", "unknown"},
	} {
		s.daemon.did = ""
		if text := press(c.name, c.value); !strings.Contains(text, c.says) || s.daemon.did != c.did {
			t.Errorf("%s=%s: did %q\n%.300s", c.name, c.value, s.daemon.did, text)
		}
	}
	s.daemon.unsaved = "no space left"
	for _, do := range []string{monitorOn, monitorOff} {
		if text := press("sure", do); !strings.Contains(text, "; a restart will forget this: no space left") {
			t.Errorf("%s: unsaved\n%.300s", do, text)
		}
	}
	s.daemon.did = ""
	reader := s.open(true)
	reader.form = s.sessions.all[path.Base(reader.base)].form
	if status, _ := reader.post("change", reader.change("sure", monitorOn)); status != http.StatusForbidden || s.daemon.did != "" {
		t.Errorf("a session to read: status %d, did %q", status, s.daemon.did)
	}
}

// An answer blocks the flows that the question was about, of one tracker alone, whatever is above
// its limit by then.
func TestBlockHeavy(t *testing.T) {
	s := start(t)
	b := s.open(false)
	heavy := func(unit string, addresses ...string) api.Tracker {
		tracker := api.Tracker{Key: "src", Unit: unit, Heavy: len(addresses)}
		for _, a := range addresses {
			tracker.Flows = append(tracker.Flows, api.Flow{Key: a, Heavy: true})
		}
		return tracker
	}
	ask := func(tracker, says string) (sure string) {
		t.Helper()
		s.advance(time.Second)
		_, text := b.post("change", b.change("do", "heavy "+tracker), "HX-Request: true")
		m := regexp.MustCompile(`name="sure" value="([^"]+)"`).FindStringSubmatch(text)
		if m == nil || !strings.Contains(text, says) {
			t.Fatalf("asked otherwise\n%.500s", text)
		}
		return m[1]
	}
	s.daemon.heavy = []api.Tracker{heavy("packets", "192.0.2.1", "192.0.2.2", "192.0.2.3"), heavy("bytes", "198.51.100.1", "198.51.100.2")}
	page := b.part("", false)
	for _, want := range []string{`value="heavy src packets" id="heavy-src-packets"`, `value="heavy src bytes" id="heavy-src-bytes"`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	former := ask("src packets", "192.0.2.1 and 2 more")
	sure := ask("src packets", "Block 3 for 1 h")
	s.daemon.heavy = []api.Tracker{heavy("packets", "203.0.113.1", "203.0.113.2"), heavy("bytes", "203.0.113.3")}
	for _, other := range []string{former, "heavy src packets", "heavy src", "heavy "} {
		if _, text := b.post("change", b.change("sure", other), "HX-Request: true"); !strings.Contains(text, "Nothing was changed.</strong> this question is no longer open") {
			t.Errorf("%s\n%.500s", other, text)
		}
		s.daemon.unchanged(t, other)
		s.daemon.heavy[0] = heavy("packets", "192.0.2.1", "192.0.2.2", "192.0.2.3")
		sure = ask("src packets", "Block 3 for 1 h")
		s.daemon.heavy[0] = heavy("packets", "203.0.113.1", "203.0.113.2")
	}
	_, text := b.post("change", b.change("sure", sure), "HX-Request: true")
	if c := s.daemon.last(t); strings.Join(c.Entries, " ") != "192.0.2.1 192.0.2.2 192.0.2.3" || c.Action != api.Block || c.TTL != 3600 || c.UID != 7 || !strings.Contains(text, "192.0.2.1 and 2 more are blocked for 60 min") {
		t.Errorf("%+v\n%.500s", c, text)
	}
	if _, text := b.post("change", b.change("sure", sure), "HX-Request: true"); len(s.daemon.changes) != 1 || !strings.Contains(text, "192.0.2.1 and 2 more are blocked for 60 min") {
		t.Errorf("the button is pressed twice: %d changes\n%.500s", len(s.daemon.changes), text)
	}
	sure = ask("src packets", "Block 2 for 1 h")
	b.post("change", b.change("leave", "1"))
	b.post("change", b.change("sure", sure))
	if len(s.daemon.changes) != 1 {
		t.Errorf("changed after Leave it: %+v", s.daemon.last(t))
	}
}

// The last change is undone, also if a command made it, unless there is another by then.
func TestRevert(t *testing.T) {
	s := start(t)
	b := s.open(false)
	at := s.daemon.began.UTC().Add(5)
	button := regexp.MustCompile(`name="revert" value="([^"]+)"`)
	for _, c := range []struct {
		last api.AuditRecord
		did  string // "": there is no button
	}{
		{api.AuditRecord{Change: "block", List: "manual", Entries: 2, Changed: 2, First: []string{"192.0.2.1", "192.0.2.2"}}, "change"},
		{api.AuditRecord{Change: "block", List: "manual", Entries: 2, Changed: 1, First: []string{"192.0.2.1", "192.0.2.2"}}, ""},
		{api.AuditRecord{Change: "allow", List: "office", Entries: 9, Changed: 9, First: []string{"192.0.2.1"}}, ""},
		{api.AuditRecord{Change: "unblock", List: "manual", Entries: 1, Changed: 1, First: []string{"192.0.2.1"}}, ""},
		{api.AuditRecord{Change: "monitor on"}, "monitor false 0 by 7"},
		{api.AuditRecord{Change: "accept", List: "drop", Changed: 1}, "rollback drop"},
		{api.AuditRecord{Change: "enforce", List: "drop", Changed: 1}, "enforce drop false by 7 from 192.0.2.9 5"},
		{api.AuditRecord{Change: "enforce", List: "drop", Changed: 1, TTL: 60}, ""},
		{api.AuditRecord{Change: "enforce", List: "drop"}, ""},
		{api.AuditRecord{Change: "enforce off", List: "drop", Changed: 1}, "enforce drop true by 7 from 192.0.2.9 5"},
		{api.AuditRecord{Change: "reload"}, ""},
	} {
		c.last.Time = at
		s.advance(time.Second)
		s.daemon.did, s.daemon.changes, s.daemon.audit = "", nil, []api.AuditRecord{{Change: "console"}, {Change: "block", Error: "refused"}, c.last}
		m := button.FindStringSubmatch(b.part("", false))
		if (m != nil) != (c.did != "") {
			t.Errorf("%s: the button is there: %t", c.last.Change, m != nil)
		}
		if m == nil {
			continue
		}
		later := c.last
		later.Time = at.Add(1)
		s.daemon.audit = append([]api.AuditRecord{later}, s.daemon.audit...)
		if _, text := b.post("change", b.change("revert", m[1]), "HX-Request: true"); !strings.Contains(text, "changed meanwhile") || s.daemon.did != "" || len(s.daemon.changes) > 0 {
			t.Errorf("%s: undone although there was another change\n%.300s", c.last.Change, text)
		}
		s.daemon.audit = s.daemon.audit[1:]
		_, text := b.post("change", b.change("revert", m[1]), "HX-Request: true")
		if c.did == "change" {
			if got := s.daemon.last(t); !got.Remove || got.List != "manual" || len(got.Entries) != 2 || got.UID != 7 || got.SSH != "192.0.2.9 50000 192.0.2.1 22" {
				t.Errorf("%+v", got)
			}
		} else if s.daemon.did != c.did {
			t.Errorf("%s: did %q\n%.300s", c.last.Change, s.daemon.did, text)
		}
	}
}

// A list returns from the version that was shown, and from no other.
func TestRollback(t *testing.T) {
	s := start(t)
	b := s.open(false)
	press := func(name, value string) string {
		t.Helper()
		s.advance(time.Second)
		_, text := b.post("change", b.change(name, value), "HX-Request: true")
		return text
	}
	version := func(hours, entries int, sum string) api.FeedVersion {
		return api.FeedVersion{Since: s.daemon.began.Add(time.Duration(hours) * time.Hour), Entries: entries, SHA256: sum}
	}
	shown := []api.SourceVersions{{Source: "a", Versions: []api.FeedVersion{version(-1, 9, "99"), version(-2, 5001, "50"), version(-3, 8, "88")}}}
	for name, c := range map[string]struct {
		now   []api.SourceVersions
		again string // "": it is another version
	}{
		"as it was":                   {shown, "List drop has the 5,001 entries again"},
		"a colleague was first":       {[]api.SourceVersions{{Source: "a", Versions: shown[0].Versions[1:]}}, ""},
		"the feed was read":           {[]api.SourceVersions{{Source: "a", Versions: append([]api.FeedVersion{version(0, 7, "77")}, shown[0].Versions...)}}, ""},
		"the same contents came back": {[]api.SourceVersions{{Source: "a", Versions: append([]api.FeedVersion{version(1, 9, "99"), version(0, 7, "77")}, shown[0].Versions...)}}, ""},
		"another source was read":     {append([]api.SourceVersions{{Source: "b", Versions: []api.FeedVersion{version(0, 9, "99"), version(-2, 5001, "50")}}}, shown...), ""},
		"nothing is known":            {[]api.SourceVersions{}, ""},
	} {
		s.daemon.did, s.daemon.sources = "", shown
		text := press("do", "rollback drop")
		sure := regexp.MustCompile(`name="sure" value="([^"]+)"`).FindStringSubmatch(text)
		if sure == nil || !strings.Contains(text, "List drop returns from the 9 entries") || !strings.Contains(text, "Return to 5,001 entries") {
			t.Fatalf("asked otherwise\n%.500s", text)
		}
		s.daemon.sources = c.now
		text = press("sure", sure[1])
		if c.again == "" && (s.daemon.did != "" || !strings.Contains(text, "Nothing was changed.</strong> something else was changed meanwhile")) ||
			c.again != "" && (s.daemon.did != "rollback drop" || !strings.Contains(text, c.again)) {
			t.Errorf("%s: did %q\n%.300s", name, s.daemon.did, text)
		}
	}

	// Undo takes back the accepted version, and no later one.
	accepted := api.AuditRecord{Time: s.daemon.began.UTC().Add(-time.Minute), Change: "accept", List: "drop", Changed: 1}
	s.daemon.audit, s.daemon.did = []api.AuditRecord{accepted}, ""
	s.daemon.sources = []api.SourceVersions{{Source: "a", Versions: append([]api.FeedVersion{version(0, 7, "77")}, shown[0].Versions...)}}
	if text := press("revert", accepted.Time.Format(time.RFC3339Nano)); s.daemon.did != "" || !strings.Contains(text, "changed meanwhile") {
		t.Errorf("did %q\n%.300s", s.daemon.did, text)
	}
	s.daemon.sources = shown
	if text := press("revert", accepted.Time.Format(time.RFC3339Nano)); s.daemon.did != "rollback drop" || !strings.Contains(text, "Undone: List drop has the 5,001 entries again") {
		t.Errorf("did %q\n%.300s", s.daemon.did, text)
	}

	// The source is named where there are several.
	s.daemon.sources = append([]api.SourceVersions{{Source: "b", Versions: shown[0].Versions[2:]}}, shown...)
	text := press("do", "rollback drop")
	if !strings.Contains(text, "Source a of list drop returns from the 9 entries") {
		t.Errorf("%.300s", text)
	}
	if text = press("sure", regexp.MustCompile(`name="sure" value="([^"]+)"`).FindStringSubmatch(text)[1]); !strings.Contains(text, "Source a of list drop has the 5,001 entries again") {
		t.Errorf("%.300s", text)
	}
}

// Changes name the connection of the browser, so that the protection against lock-out refuses to cut it off.
func TestConnection(t *testing.T) {
	s := start(t)
	b := s.open(false)
	_, port, _ := strings.Cut(s.server.Listener.Addr().String(), ":")
	want := regexp.MustCompile(`^127\.0\.0\.1 \d+ 127\.0\.0\.1 ` + port + `$`)
	at := time.Unix(1700000000, 0).UTC()
	s.daemon.audit = []api.AuditRecord{{Time: at, Change: "allow", List: "office", Entries: 1, Changed: 1, First: []string{"192.0.2.1"}}}
	for _, form := range []url.Values{b.change("block", "192.0.2.1"), b.change("revert", at.Format(time.RFC3339Nano))} {
		b.post("change", form)
		if c := s.daemon.last(t); !want.MatchString(c.Connection) {
			t.Errorf("%v: %+v", form, c)
		}
	}
	if b.post("change", b.change("sure", "enforce drop")); !want.MatchString(s.daemon.from) {
		t.Errorf("enforce: %q", s.daemon.from)
	}
	s.daemon.audit = []api.AuditRecord{{Time: at, Change: "enforce off", List: "drop", Changed: 1}}
	s.daemon.from = ""
	if b.post("change", b.change("revert", at.Format(time.RFC3339Nano))); !want.MatchString(s.daemon.from) {
		t.Errorf("enforced again: %q", s.daemon.from)
	}
}

// Block, see it in the result, and undo it.
func TestChange(t *testing.T) {
	s := start(t)
	b := s.open(false)
	status, text := b.post("change", b.change("entry", " 192.0.2.1 ", "action", "block", "ttl", "1d", "reason", "flood"), "HX-Request: true")
	c := s.daemon.last(t)
	if status != http.StatusOK || !strings.Contains(text, "192.0.2.1 is blocked for 24 h, in list manual") ||
		c.Action != api.Block || c.Entries[0] != "192.0.2.1" || c.TTL != 86400 || c.Reason != "flood" || c.UID != 7 || c.SSH != "192.0.2.9 50000 192.0.2.1 22" || c.Force {
		t.Errorf("status %d, %+v\n%s", status, c, text)
	}
	undo := regexp.MustCompile(`name="undo" value="(\d+)"`).FindStringSubmatch(text)
	if undo == nil {
		t.Fatalf("no way to undo it:\n%s", text)
	}
	for range 2 { // twice is once
		_, text = b.post("change", b.change("undo", undo[1]), "HX-Request: true")
	}
	if c = s.daemon.last(t); !c.Remove || c.Entries[0] != "192.0.2.1" || c.List != "manual" || len(s.daemon.changes) != 2 || !strings.Contains(text, "cannot be undone") {
		t.Errorf("%+v\n%s", s.daemon.changes, text)
	}

	// With one click, for an hour; without scripts, the page shows the result.
	if status, _ = b.post("change", b.change("block", "198.51.100.49")); status != http.StatusSeeOther {
		t.Errorf("status %d", status)
	}
	if c = s.daemon.last(t); c.TTL != 3600 || c.Entries[0] != "198.51.100.49" {
		t.Errorf("%+v", c)
	}
	if _, text = b.get(b.base); !strings.Contains(text, "198.51.100.49 is blocked for 60 min") {
		t.Error("the page does not show the result")
	}

	// What was there is restored with its time and reason.
	expires := s.clock.Add(30 * time.Minute)
	s.daemon.answers = []api.Answer{{Matches: []api.Match{{List: "manual", Action: api.Block, Entry: "203.0.113.9", Expires: &expires, Reason: "old"}}}}
	_, text = b.post("change", b.change("remove", "block manual 203.0.113.9"), "HX-Request: true")
	undo = regexp.MustCompile(`name="undo" value="(\d+)"`).FindStringSubmatch(text)
	b.post("change", b.change("undo", undo[1]))
	if c = s.daemon.last(t); c.Remove || c.Reason != "old" || c.TTL != 1800 {
		t.Errorf("restored as %+v", c)
	}

	// The daemon's refusal, in its words.
	before := len(s.daemon.changes)
	s.daemon.err = fmt.Errorf("it would cut off this host")
	if _, text = b.post("change", b.change("block", "192.0.2.1"), "HX-Request: true"); !strings.Contains(text, "Nothing was changed.</strong> it would cut off this host") || len(s.daemon.changes) != before {
		t.Error(text)
	}
	s.daemon.err = nil
	for _, form := range []url.Values{
		b.change("entry", ""), b.change("entry", "x", "action", "drop"), b.change("entry", "x", "action", "block", "ttl", "soon"),
		b.change("remove", "x"), b.change("undo", "x"), b.change("undo", "99"), b.change("entry", strings.Repeat("1", 300), "action", "block"),
		b.change("entry", "1\n2", "action", "block"), b.change("entry", "192.0.2.1", "action", "block", "reason", "a\x1b[2J"),
	} {
		if _, text := b.post("change", form, "HX-Request: true"); !strings.Contains(text, "Nothing was changed.") || len(s.daemon.changes) != before {
			t.Errorf("%v: %s", form, text)
		}
	}
}

// A session to read changes nothing, whatever is sent.
func TestReadOnly(t *testing.T) {
	s := start(t)
	b := s.open(true)
	_, text := b.get(b.base)
	for _, no := range []string{`id="quick"`, `id="change"`, "Block 1 h", "Remove<"} {
		if strings.Contains(text, no) {
			t.Errorf("the page has %q", no)
		}
	}
	one := s.sessions.all[path.Base(b.base)]
	b.form = one.form // as if it had been guessed
	for _, form := range []url.Values{b.change("block", "192.0.2.1"), b.change("entry", "192.0.2.1", "action", "allow"), b.change("remove", "block manual 192.0.2.1"), b.change("undo", "0")} {
		if status, text := b.post("change", form); status != http.StatusForbidden {
			t.Errorf("%v: status %d\n%s", form, status, text)
		}
	}
	s.daemon.unchanged(t, "a session to read")
}

// A URL opens a session once, before it expires, and not when a browser prefetches it.
func TestOpenOnce(t *testing.T) {
	s := start(t)
	jar, _ := cookiejar.New(nil)
	b := &browser{t: t, client: http.Client{Jar: jar}}
	opened := s.Open(api.ConsoleRequest{})
	for _, ahead := range []func(*http.Request){
		func(q *http.Request) { q.Method = http.MethodHead },
		func(q *http.Request) { q.Header.Set("Sec-Purpose", "prefetch;prerender") },
	} {
		q, _ := http.NewRequest(http.MethodGet, opened.URL, nil)
		ahead(q)
		if status, _, h := b.do(q); status == http.StatusOK || h.Get("Set-Cookie") != "" {
			t.Errorf("used up ahead: status %d", status)
		}
	}
	if status, _ := b.get(opened.URL + "x"); status != http.StatusForbidden {
		t.Errorf("another URL: status %d", status)
	}
	if status, _ := b.get(opened.URL); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
	if status, _ := b.get(opened.URL); status != http.StatusForbidden {
		t.Errorf("opened twice: status %d", status)
	}
	late := s.Open(api.ConsoleRequest{})
	s.advance(openWithin)
	if status, _ := b.get(late.URL); status != http.StatusForbidden {
		t.Errorf("opened late: status %d", status)
	}
	for range 3 * maxSessions {
		b.get(s.Open(api.ConsoleRequest{}).URL)
		s.Open(api.ConsoleRequest{})
	}
	if len(s.sessions.all) > maxSessions || len(s.sessions.grants) > maxSessions {
		t.Errorf("%d sessions, %d URLs", len(s.sessions.all), len(s.sessions.grants))
	}
}

// A session ends by its user, by all being ended, and by itself; so do its streams.
func TestSessionEnds(t *testing.T) {
	for name, end := range map[string]func(*setup, *browser){
		"its user": func(s *setup, b *browser) {
			if status, _ := b.post("end", b.change()); status != http.StatusOK {
				t.Errorf("status %d", status)
			}
		},
		"all": func(s *setup, b *browser) {
			if n := s.End(); n != 1 {
				t.Errorf("%d sessions have ended", n)
			}
		},
		"time": func(s *setup, b *browser) {
			s.advance(sessionTime)
			b.get(b.base) // anything looks at the time
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			b := s.open(false)
			r, err := b.client.Get(b.base + "live")
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			end(s, b)
			text, err := io.ReadAll(r.Body) // it ends
			if err != nil || !strings.Contains(string(text), "event: ended\n") {
				t.Errorf("the stream does not end: %v", err)
			}
			if status, _ := b.get(b.base); status != http.StatusForbidden {
				t.Errorf("status %d after the end", status)
			}
			if b.post("change", b.change("block", "192.0.2.1")); len(s.daemon.changes) > 0 {
				t.Error("changed after the end")
			}
		})
	}
}

// Sessions outlive a restart, unless they have ended, and streams do not hold one up.
func TestSessionsSurvive(t *testing.T) {
	s, dir := start(t), t.TempDir()
	if err := s.Keep(dir, nil); err != nil {
		t.Fatal(err)
	}
	b, ended, reader := s.open(false), s.open(false), s.open(true)
	ended.post("end", ended.change())
	r, err := b.client.Get(b.base + "live")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	s.Close()
	if text, err := io.ReadAll(r.Body); err != nil || strings.Contains(string(text), "event: ended") {
		t.Errorf("the stream says that the session has ended, or does not end: %v", err)
	}
	file := filepath.Join(dir, sessionsFile)
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	cookies, _ := url.Parse(b.base)
	if text, _ := os.ReadFile(file); strings.Contains(string(text), b.client.Jar.Cookies(cookies)[0].Value) {
		t.Error("the file has a cookie")
	}
	again := func() *setup {
		t.Helper()
		next := start(t)
		next.clock = s.clock
		if err := next.Keep(dir, nil); err != nil {
			t.Error(err)
		}
		for _, b := range []*browser{b, ended, reader} { // the cookies are of the address, which a restart keeps
			b.base = next.server.URL + sessionPath + path.Base(b.base) + "/"
		}
		return next
	}
	next := again()
	if n := len(next.sessions.all); n != 2 {
		t.Errorf("%d sessions, want the two that have not ended", n)
	}
	for name, c := range map[string]struct {
		*browser
		status int
	}{"open": {b, http.StatusOK}, "ended": {ended, http.StatusForbidden}, "reading": {reader, http.StatusOK}} {
		if status, _ := c.get(c.base); status != c.status {
			t.Errorf("%s: status %d", name, status)
		}
	}
	if b.post("change", b.change("block", "192.0.2.1")); next.daemon.last(t).UID != 7 || next.daemon.last(t).SSH == "" {
		t.Errorf("%+v", next.daemon.changes)
	}
	if status, _ := reader.post("change", url.Values{"form": {next.sessions.all[path.Base(reader.base)].form}, "block": {"192.0.2.1"}}); status != http.StatusForbidden {
		t.Errorf("a session to read changes something: status %d", status)
	}

	// What has ended or expired does not come back.
	next.End()
	if status, _ := b.get(again().url + sessionPath + path.Base(b.base) + "/"); status != http.StatusForbidden {
		t.Errorf("all have ended: status %d", status)
	}
	late := again()
	b = late.open(false)
	s.clock = late.clock.Add(-24 * time.Hour) // it was ahead when the session began
	for _, one := range again().sessions.all {
		if left := one.expires.Sub(s.clock); left != sessionTime {
			t.Errorf("a session has %v left, want %v", left, sessionTime)
		}
	}
	s.clock = late.clock.Add(sessionTime)
	if next := again(); len(next.sessions.all) != 0 {
		t.Errorf("%d sessions", len(next.sessions.all))
	}
	for _, text := range []string{"", "{", `[{"id":"x"}]`, `[{"id":"x","form":"y","cookie_sha256":"AAAA","expires":"2999-01-01T00:00:00Z"}]`} {
		must.Write(t, file, text)
		next := start(t)
		if err := next.Keep(dir, nil); (err == nil) != strings.HasPrefix(text, "[") || len(next.sessions.all) > 0 {
			t.Errorf("%q: %v, %d sessions", text, err, len(next.sessions.all))
		}
	}
}

// The page names a limit that a command has set, its end, and the command that ends it.
func TestPageShowsLimit(t *testing.T) {
	b := start(t).open(true)
	_, page := b.get(b.base)
	for _, want := range []string{"Limited: eth0 in namespace blue to 3kpps.", "By ada ", ", ends in ", "weir police eth0 --off --netns blue ends it."} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

// However the clock is set before a restart, a session lasts as long as it would have.
func TestSessionsWhereClockIsSet(t *testing.T) {
	m, dir, log := machines.NewMachine(t), t.TempDir(), slog.New(slog.DiscardHandler)
	again := func() *setup {
		t.Helper()
		by := clock.Open(m.Host(), dir, log)
		by.Save()
		s := start(t)
		s.sessions.now = m.Now
		if err := s.Keep(dir, by); err != nil {
			t.Fatal(err)
		}
		return s
	}
	again().open(false)
	for _, ahead := range []time.Duration{365 * 24 * time.Hour, -3650 * 24 * time.Hour, 13 * time.Hour} {
		m.Set(ahead, true)
		m.Pass(time.Hour)
		s := again()
		if n := len(s.sessions.all); n != 1 {
			t.Errorf("the clock is ahead by %v: %d sessions", ahead, n)
		}
		for _, one := range s.sessions.all {
			if s.sessions.save(); one.expires.Sub(m.Now()) > sessionTime {
				t.Errorf("the clock is ahead by %v: a session has %v left", ahead, one.expires.Sub(m.Now()))
			}
		}
	}
	for _, c := range []struct {
		passed time.Duration
		want   int
	}{{8*time.Hour + 59*time.Minute, 1}, {2 * time.Minute, 0}} {
		m.Pass(c.passed)
		if n := len(again().sessions.all); n != c.want {
			t.Errorf("%v later: %d sessions, want %d", c.passed, n, c.want)
		}
	}
}

// Neither the path nor the cookie is enough, nor those of two sessions.
func TestNoSession(t *testing.T) {
	s := start(t)
	a, other := s.open(false), s.open(true)
	nothing := &browser{t: t, base: a.base}
	cookieOf := func(b *browser) *http.Cookie {
		u, _ := url.Parse(b.base)
		return b.client.Jar.Cookies(u)[0]
	}
	crossed := func() (int, string, http.Header) {
		q, _ := http.NewRequest(http.MethodGet, a.base, nil)
		q.AddCookie(cookieOf(other))
		return nothing.do(q)
	}
	if status, text, _ := crossed(); status != http.StatusForbidden || strings.Contains(text, "eth0") {
		t.Errorf("another session's cookie: status %d", status)
	}
	for _, path := range []string{"", "live", "lists", "worth", "history", "explain?q=192.0.2.1", "plan", "events", "events/live", "events/capture?seconds=5"} {
		if status, text := nothing.get(a.base + path); status != http.StatusForbidden || strings.Contains(text, "eth0") {
			t.Errorf("%q without a cookie: status %d", path, status)
		}
	}
	for _, path := range []string{"/", "/s/x/", "/open/", "/static/", "/static/LICENSE", "/v1/top", "/metrics"} {
		if status, text := nothing.get(s.server.URL + path); status/100 != 4 || strings.Contains(text, "eth0") {
			t.Errorf("%s: status %d", path, status)
		}
	}
	// The cookie goes to this path alone, not to other ports of the host, which may be
	// another user's, and scripts do not see it.
	q, _ := http.NewRequest(http.MethodGet, s.Open(api.ConsoleRequest{}).URL, nil)
	_, _, h := nothing.do(q)
	if c := h.Get("Set-Cookie"); !regexp.MustCompile(`; Path=/s/[\w-]{43}/; .*HttpOnly; SameSite=Strict$`).MatchString(c) {
		t.Errorf("Set-Cookie: %s", c)
	}
}

// Other sites cannot change anything: without the form's secret, with an origin or a
// Sec-Fetch-Site of theirs.
func TestForgedRequests(t *testing.T) {
	s := start(t)
	b := s.open(false)
	block := b.change("block", "192.0.2.1")
	for name, attack := range map[string]func() (int, string){
		"no secret": func() (int, string) { return b.post("change", url.Values{"block": {"192.0.2.1"}}) },
		"wrong secret": func() (int, string) {
			return b.post("change", url.Values{"block": {"192.0.2.1"}, "form": {s.open(false).form}})
		},
		"in the URL": func() (int, string) {
			return b.post("change?"+block.Encode(), url.Values{})
		},
		"cross-site":   func() (int, string) { return b.post("change", block, "Sec-Fetch-Site: cross-site") },
		"another port": func() (int, string) { return b.post("change", block, "Sec-Fetch-Site: same-site") },
		"origin":       func() (int, string) { return b.post("change", block, "Origin: http://127.0.0.1:8080") },
		"null origin":  func() (int, string) { return b.post("change", block, "Origin: null") },
		"GET":          func() (int, string) { return b.get(b.base + "change?" + block.Encode()) },
		"end":          func() (int, string) { return b.post("end", url.Values{}) },
	} {
		if status, text := attack(); status/100 != 4 {
			t.Errorf("%s: status %d\n%s", name, status, text)
		}
		s.daemon.unchanged(t, name)
	}
	q, _ := http.NewRequest(http.MethodGet, b.base+"live", nil)
	q.Header.Set("Sec-Fetch-Site", "same-site")
	if status, _, _ := b.do(q); status != http.StatusForbidden {
		t.Errorf("read from another port: status %d", status)
	}
	if status, _ := b.post("change", block, "Sec-Fetch-Site: same-origin", "Origin: "+s.server.URL); status != http.StatusSeeOther {
		t.Errorf("its own page: status %d", status)
	}
}

// A site whose name leads to this address gets nothing, with whatever port.
func TestRebinding(t *testing.T) {
	s := start(t)
	b := s.open(false)
	for host, want := range map[string]bool{
		"evil.example": false, "evil.example:9479": false, "127.0.0.1.evil.example": false, "localhost.evil.example:80": false, "192.0.2.1:9479": false, "": false, "[::2]": false,
		"0.0.0.0:9479": false, "127.0.0.1": true, "127.0.0.1:8888": true, "localhost:9479": true, "LOCALHOST": true, "[::1]:9479": true, "127.3.2.1:1": true,
	} {
		w, q := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, b.base, nil)
		u, _ := url.Parse(b.base)
		q.Host = host
		q.AddCookie(b.client.Jar.Cookies(u)[0])
		s.ServeHTTP(w, q)
		if got := w.Code == http.StatusOK; got != want || !got && w.Code != http.StatusMisdirectedRequest {
			t.Errorf("Host %q: status %d", host, w.Code)
		}
	}
}

// Nothing inline may run, nothing be framed or kept.
func TestHeaders(t *testing.T) {
	s := start(t)
	b := s.open(false)
	for _, address := range []string{b.base, s.server.URL, s.server.URL + staticURL("console.js"), s.server.URL + "/open/x"} {
		q, _ := http.NewRequest(http.MethodGet, address, nil)
		_, text, h := b.do(q)
		csp := h.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self';", "style-src 'self';", "frame-ancestors 'none'", "form-action 'self'", "base-uri 'none'"} {
			if !strings.Contains(csp, want) {
				t.Errorf("%s: the policy lacks %s", address, want)
			}
		}
		if strings.Contains(csp, "unsafe") || h.Get("X-Frame-Options") != "DENY" || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %v", address, h)
		}
		if !strings.Contains(address, staticPath) {
			if h.Get("Cache-Control") != "no-store" {
				t.Errorf("%s may be kept", address)
			}
			if inline := regexp.MustCompile(`<script>|<style|style="| on[a-z]+="|javascript:|//[a-z]`).FindString(strings.ReplaceAll(text, "https://example.com", "")); inline != "" {
				t.Errorf("%s has %s", address, inline)
			}
		}
	}
}

// What others choose, such as the text of a feed, a packet or a reason, is no markup.
func TestHostileTexts(t *testing.T) {
	s := start(t)
	s.daemon.hostile = `"><script>alert(1)</script><img src=x onerror=alert(1)>'&`
	s.daemon.answers = []api.Answer{{Packet: s.daemon.hostile, List: s.daemon.hostile, Matches: []api.Match{{List: s.daemon.hostile, Entry: s.daemon.hostile, Source: s.daemon.hostile, Reason: s.daemon.hostile, Origin: s.daemon.hostile}}}}
	b := s.open(false)
	b.post("change", b.change("block", s.daemon.hostile))
	hostile := url.QueryEscape(s.daemon.hostile)
	for _, path := range []string{"", "lists?open=drop", "lists?open=quiet", "worth", "worth?open=drop" + hostile, "worth?open=" + hostile + "&list=" + hostile + "&sort=" + hostile, "lists?open=" + hostile + "&list=" + hostile + "&sort=" + hostile, "?q=192.0.2.1", "?q=" + hostile, "events?match=" + hostile, "events?reason=" + hostile, "events"} {
		_, text := b.get(b.base + path)
		if strings.Contains(text, "<script>") || strings.Contains(text, "<img") {
			t.Errorf("%q has markup of others", path)
		}
	}
	if c := s.daemon.changes; len(c) != 0 && strings.Contains(c[0].Entries[0], "\n") {
		t.Error(c)
	}
	// In a stream, a line break would begin another message.
	s.daemon.hostile = "\n\nevent: ended\ndata: x\n\n\r\revent: ended\r"
	q, _ := http.NewRequest(http.MethodGet, b.base+"live", nil)
	r, err := b.client.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	messages, lines := 0, bufio.NewScanner(r.Body)
	lines.Buffer(nil, 1<<20)
	for messages < len(panels) && lines.Scan() {
		text := lines.Text()
		if strings.HasPrefix(text, "event: ended") || strings.Contains(text, "\r") {
			t.Fatalf("the stream has %q", text)
		}
		if strings.HasPrefix(text, "event: ") {
			messages++
		}
	}
}

// Forms, requests and streams are bounded.
func TestBounds(t *testing.T) {
	s := start(t)
	b := s.open(false)
	if status, _ := b.post("change", b.change("block", strings.Repeat("1", 2*maxForm))); status != http.StatusBadRequest {
		t.Errorf("a large form: status %d", status)
	}
	s.daemon.unchanged(t, "a large form")
	for i := range maxStreams + 1 {
		r, err := b.client.Get(b.base + "live")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if want := map[bool]int{true: http.StatusOK, false: http.StatusTooManyRequests}[i < maxStreams]; r.StatusCode != want {
			t.Errorf("stream %d: status %d", i, r.StatusCode)
		}
	}
	// A page whose browser has left has no more looks.
	gone, leave := context.WithCancel(t.Context())
	leave()
	over := make(chan struct{})
	go func() {
		defer close(over)
		q := httptest.NewRequestWithContext(gone, http.MethodGet, "/", nil)
		follow(s.Console, httptest.NewRecorder(), q, &session{expires: time.Now().Add(time.Hour)}, nil, func(n int) int {
			if n > 1 { // a tick may come with its end
				t.Error("a stream goes on without its client")
				runtime.Goexit()
			}
			return 0
		})
	}()
	<-over
	answered := func() (n int) { // while the clock stands
		for range 2 * requestBurst {
			if status, _ := b.get(b.base + "explain?q="); status != http.StatusTooManyRequests {
				n++
			}
		}
		return n
	}
	if n := answered(); n == 0 || n > requestBurst {
		t.Errorf("%d requests at once are answered, want at most %d", n, requestBurst)
	}
	s.advance(time.Second)
	if n := answered(); n != requestRate {
		t.Errorf("a second later %d requests are answered, want %d", n, requestRate)
	}
	if status, _ := s.open(false).get(b.base); status != http.StatusForbidden {
		t.Errorf("status %d", status)
	}
}

// Events of a flood are bounded by what a page can show, and the rest counted.
func TestManyEvents(t *testing.T) {
	s := start(t)
	b := s.open(true)
	r, err := b.client.Get(b.base + "events/live?reason=blocked")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	lines := bufio.NewScanner(r.Body)
	var text strings.Builder
	for lines.Scan() && lines.Text() != "" {
		text.WriteString(lines.Text() + "\n")
	}
	if n := strings.Count(text.String(), ">blocked<"); n != maxPerTick || !strings.Contains(text.String(), "and 80 more in this half second") {
		t.Errorf("%d rows:\n%s", n, &text)
	}
	if _, page := b.get(b.base + "events?match=nothing"); strings.Contains(page, `id="event-rows"><tr`) || !strings.Contains(page, "Events of one second: 0") {
		t.Error("events that do not match are shown")
	}
	if _, page := b.get(b.base + "events?reason=none"); !strings.Contains(page, "unknown reason") {
		t.Error("an unknown reason is not refused")
	}
}

// An explanation names the list, the file and the line.
func TestExplain(t *testing.T) {
	s := start(t)
	b := s.open(true)
	s.daemon.answers = []api.Answer{{
		Packet: "from 192.0.2.1", Verdict: api.VerdictDrop, Reason: "blocked", List: "drop",
		Matches: []api.Match{{List: "drop", Action: "block", Entry: "192.0.2.0/24", Source: "/lists/drop.txt", Line: 7, Packets: new(uint64(1234))}},
	}}
	_, text := b.get(b.base + "?q=192.0.2.1")
	for _, want := range []string{"from 192.0.2.1: <strong>drop</strong>", "192.0.2.0/24", "/lists/drop.txt:7", "has caught 1,234 packets"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	match := &s.daemon.answers[0].Matches[0]
	match.Listed = new(time.Now().Add(-3 * time.Hour))
	for earlier, want := range map[bool]string{false: "", true: " or earlier"} {
		match.Earlier = earlier
		if _, text := b.get(b.base + "?q=192.0.2.1"); !regexp.MustCompile(", listed [0-9]+ h ago" + want + ", the list has").MatchString(text) {
			t.Errorf("earlier %t: not listed hours ago%s in\n%s", earlier, want, text)
		}
	}
	s.daemon.answers[0].LastDrop = &api.LastDrop{Reason: "blocked", List: "drop", Packets: 9, MonitorPackets: 5}
	for monitor, want := range map[bool]string{false: "Last dropped at about", true: "Would last have been dropped, if not for monitor mode, at about"} {
		s.daemon.answers[0].LastDrop.Monitor = monitor
		if _, text := b.get(b.base + "?q=192.0.2.1"); !strings.Contains(text, want) || !strings.Contains(text, "9 packets in the last hour, of which 5 passed in monitor mode.") {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	changes := s.open(false)
	for verdict, want := range map[string]string{api.VerdictDrop: "Allow 192.0.2.1 for an hour", api.VerdictPass: "Block 192.0.2.1 for an hour"} {
		s.daemon.answers[0].Verdict = verdict
		if _, text = changes.get(changes.base + "?q=192.0.2.1"); !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if _, text = changes.get(changes.base + "?q=nonsense"); !strings.Contains(text, "result failed") || strings.Contains(text, "Block nonsense") {
		t.Errorf("nonsense is explained, or to be blocked:\n%s", text)
	}
}

// A page with all that it loads has at most 100 kB on the wire.
func TestSize(t *testing.T) {
	s := start(t)
	b := s.open(false)
	_, page := b.get(b.base)
	sum := len(page)
	for _, m := range regexp.MustCompile(`(?:src|href)="(/static/[^"]+)"`).FindAllStringSubmatch(page, -1) {
		q, _ := http.NewRequest(http.MethodGet, s.server.URL+m[1], nil)
		q.Header.Set("Accept-Encoding", "gzip")
		status, text, h := b.do(q)
		if status != http.StatusOK || h.Get("Content-Encoding") != "gzip" || !strings.Contains(h.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: status %d, %v", m[1], status, h)
		}
		unzipped, err := gzip.NewReader(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(unzipped)
		q.Header.Set("Accept-Encoding", "identity")
		if _, direct, _ := b.do(q); err != nil || direct != string(plain) {
			t.Errorf("%s: compressed it is another: %v", m[1], err)
		}
		sum += len(text)
	}
	if t.Logf("%d bytes", sum); sum > 100_000 {
		t.Errorf("%d bytes", sum)
	}
}

// The libraries agree with docs/dependencies.md, and have their licenses.
func TestLibraries(t *testing.T) {
	doc := must.Read(t, "../../docs/dependencies.md")
	libraries, err := os.ReadDir("static")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range libraries {
		if !l.IsDir() {
			continue
		}
		files, _ := os.ReadDir(path.Join("static", l.Name()))
		licensed := false
		for _, f := range files {
			text, err := os.ReadFile(path.Join("static", l.Name(), f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if f.Name() == "LICENSE" {
				licensed = len(text) > 100
				continue
			}
			name, compressed := strings.CutSuffix(f.Name(), ".gz")
			unzipped, err := gzip.NewReader(bytes.NewReader(text))
			if err != nil || !compressed {
				t.Errorf("%s: not compressed, as gzip -9n does: %v", f.Name(), err)
				continue
			}
			text, err = io.ReadAll(unzipped)
			sum := sha256.Sum256(text)
			if err != nil || !bytes.Contains(doc, []byte("`"+name+"`")) || !bytes.Contains(doc, []byte(hex.EncodeToString(sum[:]))) {
				t.Errorf("docs/dependencies.md lacks %s, or its SHA-256 %x: %v", name, sum, err)
			}
		}
		if !licensed {
			t.Errorf("%s has no license", l.Name())
		}
	}
}

func TestURL(t *testing.T) {
	for _, c := range []struct {
		address string
		secure  bool
		want    string
	}{
		{"127.0.0.1:9479", false, "http://127.0.0.1:9479"},
		{"[::1]:9479", false, "http://[::1]:9479"},
		{"192.0.2.1:443", true, "https://192.0.2.1:443"},
		{"0.0.0.0:9479", true, "https://edge:9479"},
		{":9479", true, "https://edge:9479"},
	} {
		if got := urlOf(c.address, "edge", c.secure); got != c.want {
			t.Errorf("%s: %s, want %s", c.address, got, c.want)
		}
	}
}
