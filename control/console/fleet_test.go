package console

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/control/api"
	"weir/control/api/server"
	"weir/control/fleet/wire"
	"weir/tests/wait"
)

// fakeHub is a hub with fixed answers, which records changes.
type fakeHub struct {
	server.Hub // what the console does not use

	mu      sync.Mutex
	asked   int // for the state of the fleet
	reports int // of the nodes
	changes []api.Change
	trials  []string
	rolls   []api.FleetRoll
	caller  api.Caller // of the last of them
	hostile string
}

func (h *fakeHub) Fleet(ctx context.Context) (api.HubStatus, error) {
	if err := ctx.Err(); err != nil {
		return api.HubStatus{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked++
	seen := time.Unix(1700000000+int64(10*h.reports), 0)
	v := func(n uint64) wire.Place { return wire.Place{Epoch: 7, Version: n} }
	node := func(name, state string, active uint64) api.FleetNode {
		return api.FleetNode{Name: name, Labels: []string{"paris" + h.hostile}, State: state, Seen: &seen, Report: &wire.Status{
			Version: "v9" + h.hostile, Passed: uint64(1000 * h.reports), Dropped: uint64(500 * h.reports), Problems: []string{"disk" + h.hostile},
			Lists: []wire.ListStatus{{Name: "drop", Active: v(active), Wanted: v(4), Error: h.hostile}},
		}}
	}
	s := api.HubStatus{
		Connected: true, Problems: []string{"feed fails" + h.hostile},
		Lists: []api.FleetList{{
			Name: "drop", Action: api.Block, Entries: 12345, Version: v(4), Published: v(4),
			Collateral: &api.FleetCollateral{Measured: 3},
			Feeds:      []api.FeedSource{{Source: "https://example.com/x" + h.hostile, Outcome: api.Failed, Error: h.hostile}},
			Rollout: &api.FleetRollout{
				State: api.RolloutHalted, Reason: "too much" + h.hostile, From: v(3), To: v(4), Wave: 1, Waves: []api.FleetWave{{Mode: "rehearse"}}, Limit: 0.001, Nodes: 3, Confirmed: 1, Needed: 3,
				Collateral: api.FleetCollateral{Measured: 1, Unmeasured: 2, Conversed: 1, Most: []api.FleetConversed{{Node: "edge-1", Conversed: api.Conversed{Addresses: 1, Latest: []string{"192.0.2.77" + h.hostile}}}}},
				Passed:     10000, WouldDrop: 200, Top: []api.FleetAffected{{Node: "edge-1", Affected: wire.Affected{Source: "192.0.2.9" + h.hostile, Packets: 77}}},
			},
		}},
		Nodes: []api.FleetNode{node("edge-1", api.NodeCurrent, 4), node("edge-2", api.NodeBehind, 3), {Name: "edge-3" + h.hostile, State: api.NodeUnseen}},
	}
	for i := range maxNodes {
		s.Nodes = append(s.Nodes, api.FleetNode{Name: fmt.Sprint("old-", i), State: api.NodeRevoked})
	}
	return s, nil
}

func (h *fakeHub) Change(_ context.Context, c api.Change) (api.FleetChanged, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changes = append(h.changes, c)
	done := api.FleetChanged{Changed: api.Changed{List: "block", Added: 1}}
	if c.Remove {
		done.Added, done.Removed = 0, 1
	}
	return done, nil
}

func (h *fakeHub) Audit(int) []api.AuditRecord {
	return []api.AuditRecord{{Change: "pause" + h.hostile, List: "drop" + h.hostile, User: "ada" + h.hostile, Error: "no rollout is running" + h.hostile}}
}

func (h *fakeHub) Roll(ctx context.Context, r api.FleetRoll) (api.FleetRolled, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.caller, _ = api.CallerOf(ctx)
	if h.rolls = append(h.rolls, r); r.Do == api.RollPause {
		return api.FleetRolled{}, fmt.Errorf("it is halted%s", h.hostile)
	}
	return api.FleetRolled{Lists: []string{r.List}, Published: true}, nil
}

func (h *fakeHub) Enforce(ctx context.Context, list string, c api.EnforceChange) (api.FleetEnforced, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.caller, _ = api.CallerOf(ctx)
	h.trials = append(h.trials, list)
	if !c.Off {
		return api.FleetEnforced{}, fmt.Errorf("nodes have conversed%s", h.hostile)
	}
	return api.FleetEnforced{Enforced: api.Enforced{List: list, Changed: true, Trial: &api.Trial{}}, Warnings: []string{"one node is silent" + h.hostile}}, nil
}

func (h *fakeHub) Top(context.Context, []string, api.FleetTopQuestion) (api.FleetTop, error) {
	return api.FleetTop{
		Rate: 3600, Rest: 180,
		Flows: []api.FlowRate{{Key: "198.51.100.49" + h.hostile, Rate: 900, Least: 800, Share: 0.25, Nodes: 2}},
		Nodes: []api.NodeRate{{Node: "edge-1"}, {Node: "edge-2", Problem: "no such tracker" + h.hostile}},
	}, nil
}

func (h *fakeHub) Explain(_ context.Context, _ []string, packets string) (api.FleetExplanation, error) {
	drop := api.Explanation{Answers: []api.Answer{{Packet: "from " + packets + h.hostile, Verdict: api.VerdictDrop, Reason: "blocked", List: "fleet.drop"}}}
	pass := api.Explanation{Answers: []api.Answer{{Packet: "from " + packets}}}
	return api.FleetExplanation{Nodes: []api.NodeExplanation{
		{Node: "edge-1", Explanation: &pass}, {Node: "edge-2", Explanation: &drop}, {Node: "edge-3", Explanation: &drop}, {Node: "edge-4", Problem: "no answer" + h.hostile}, {Node: "edge-5", Problem: "no such tracker" + h.hostile},
	}}, nil
}

func startFleet(t *testing.T, h *fakeHub) *setup {
	t.Helper()
	s := &setup{t: t, Console: NewHub(h, "127.0.0.1:9481", false, "v1")}
	s.server = httptest.NewServer(s.Console)
	s.url = s.server.URL
	t.Cleanup(func() { s.End(); s.server.CloseClientConnections(); s.server.Close() })
	return s
}

// until loads a page until it has a text.
func (b *browser) until(path, text string) string {
	b.t.Helper()
	for deadline := wait.Deadline(); ; time.Sleep(200 * time.Millisecond) {
		_, page := b.get(b.base + path)
		if strings.Contains(page, text) {
			return page
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("no %q in\n%s", text, page)
		}
	}
}

// The page of a hub has its nodes, versions, rollouts and the largest flows.
func TestFleetPage(t *testing.T) {
	h := &fakeHub{}
	b := startFleet(t, h).open(false)
	page := b.until("", "198.51.100.49")
	for _, want := range []string{
		"Nodes behind: 1 of 3.", "feed fails", "list drop has version 7.3, wants 7.4", "disk", "v9", "1 have it, 1 have 7.3", "12,345",
		">halted<", "too much", "2 % of 10,000, limit 0.1 %", "1 of 3, 3 needed", "77 packets from 192.0.2.9 on edge-1", "conversed in 24h with additions to list drop: edge-1 with 1: 192.0.2.77 (not measured by 2 of 3 nodes)", `<td class="long">none</td>`, "and 3 more: <code>weir fleet status",
		"900 pps", "25.0 %", "Without edge-2: no such tracker", "Failing: 1 of 1 sources.", `value="resume drop"`, "they need two reports", "Block 1 h",
		"No other source has more than 180 pps (5.0 %)", `<bdi>disk`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if i, j := strings.Index(page, ">edge-2<"), strings.Index(page, ">edge-1<"); i < 0 || j < i {
		t.Error("nodes with trouble do not come first")
	}
	// The rates of all nodes, from two reports of each.
	h.mu.Lock()
	h.reports++
	h.mu.Unlock()
	if page = b.until("", "Of nodes"); !strings.Contains(page, `data-passed="200.0" data-dropped="100.0"`) {
		t.Errorf("wrong rates:\n%s", page)
	}
	// Many pages ask as often as one.
	h.mu.Lock()
	before := h.asked
	h.mu.Unlock()
	for range 20 {
		b.get(b.base)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asked > before+3 {
		t.Errorf("asked %d times for 20 pages", h.asked-before)
	}
	if t.Failed() {
		t.Log(page)
	}
}

// A page of which nothing changes hears within its patience that the hub lives.
func TestFleetAlive(t *testing.T) {
	t.Parallel()
	b := startFleet(t, &fakeHub{}).open(false)
	b.until("", "198.51.100.49")
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.base+"live", nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := b.client.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	lines, last := bufio.NewScanner(r.Body), time.Now()
	lines.Buffer(nil, 1<<20)
	for heard := 0; heard < 4 && lines.Scan(); {
		if lines.Text() != "event: "+alive {
			continue
		}
		if gap := time.Since(last); gap > 5*time.Second {
			t.Fatalf("nothing was heard for %v", gap)
		}
		last = time.Now()
		heard++
	}
	if err := lines.Err(); err != nil {
		t.Error(err)
	}
}

// A page that is closed while the hub is asked is no trouble of the others.
func TestFleetPageIsClosed(t *testing.T) {
	s := startFleet(t, &fakeHub{})
	s.open(true)
	closed, cancel := context.WithCancel(t.Context())
	cancel()
	f := s.changer.(*fleet)
	f.asked = time.Time{} // ask again
	if v := f.look(closed, &session{}); v.trouble != "" || len(v.status.Nodes) == 0 {
		t.Errorf("%d nodes, trouble: %s", len(v.status.Nodes), v.trouble)
	}
}

// Nodes with the same answer are shown together.
func TestFleetExplain(t *testing.T) {
	b := startFleet(t, &fakeHub{}).open(true)
	_, text := b.get(b.base + "?q=192.0.2.1")
	for _, want := range []string{"2 of 5 nodes: edge-2, edge-3", "from 192.0.2.1: <strong>drop</strong>", "fleet.drop", "1 of 5 nodes: edge-1", "1 of 5 nodes: edge-4", "no answer", "1 of 5 nodes: edge-5", "no such tracker"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// Entries are blocked on all nodes, and that is undone; rollouts are steered. A session to
// read does neither.
func TestFleetChange(t *testing.T) {
	h := &fakeHub{}
	s := startFleet(t, h)
	b := s.open(false)
	_, text := b.post("change", b.change("block", "192.0.2.1"), "HX-Request: true")
	if !strings.Contains(text, "192.0.2.1 is blocked for 60 min, in list block on all nodes. It is not published yet") || len(h.changes) != 1 || h.changes[0].UID != 7 {
		t.Errorf("%+v\n%s", h.changes, text)
	}
	undo := regexp.MustCompile(`name="undo" value="(\d+)"`).FindStringSubmatch(text)
	if undo == nil {
		t.Fatal("no way to undo it")
	}
	if b.post("change", b.change("undo", undo[1])); len(h.changes) != 2 || !h.changes[1].Remove || h.changes[1].List != "block" {
		t.Errorf("%+v", h.changes)
	}
	for form, want := range map[string]string{
		"resume drop": "The rollout of drop goes on", "rollback drop": "The rollout of drop is rolled back", "pause drop": "it is halted", "stop drop": "Nothing was changed", "pause ": "Nothing was changed",
	} {
		if _, text := b.post("change", b.change("roll", form), "HX-Request: true"); !strings.Contains(text, want) {
			t.Errorf("%s: %s", form, text)
		}
	}
	if len(h.rolls) != 3 || h.caller.UID != 7 {
		t.Errorf("%+v by %+v", h.rolls, h.caller)
	}
	for form, want := range map[string]string{
		"try drop": "On all nodes list drop is on trial, and drops nothing. one node is silent. It is not published yet", "enforce drop": "nodes have conversed", "end drop": "want enforce or try", "try ": "want enforce or try",
	} {
		if _, text := b.post("change", b.change("trial", form), "HX-Request: true"); !strings.Contains(text, want) {
			t.Errorf("%s: %s", form, text)
		}
	}
	if len(h.trials) != 2 || h.caller.UID != 7 {
		t.Errorf("%+v by %+v", h.trials, h.caller)
	}
	if _, page := b.get(b.base); !strings.Contains(page, `name="trial" value="try drop"`) {
		t.Errorf("no button for the trial of a list in\n%s", page)
	}
	if _, text := b.post("change", b.change("roll", "pause drop"), "HX-Request: true"); !strings.Contains(text, `id="p-audit"`) || !strings.Contains(text, "failed: no rollout is running") {
		t.Errorf("no changes in %s", text)
	}

	reader := s.open(true)
	reader.form = s.sessions.all[path.Base(reader.base)].form
	for _, form := range []string{"block", "roll", "trial"} {
		if status, _ := reader.post("change", reader.change(form, "resume drop")); status != http.StatusForbidden {
			t.Errorf("status %d", status)
		}
	}
	if len(h.rolls) != 4 || len(h.changes) != 2 || len(h.trials) != 2 {
		t.Error("a session to read has changed something")
	}
	if _, page := reader.get(reader.base); strings.Contains(page, "Block 1 h") || strings.Contains(page, "resume drop") || strings.Contains(page, "try drop") {
		t.Error("a session to read is shown buttons")
	}
}

// What nodes report is no markup, in pages and in the stream.
func TestFleetHostileTexts(t *testing.T) {
	h := &fakeHub{hostile: `"><script>alert(1)</script><img src=x onerror=alert(1)>'&`}
	b := startFleet(t, h).open(false)
	for _, path := range []string{"", "?q=192.0.2.1"} {
		if text := b.until(path, "198.51.100.49"); strings.Contains(text, "<script>") || strings.Contains(text, "<img") {
			t.Errorf("%q has markup of others", path)
		}
	}
	if _, text := b.post("change", b.change("roll", "pause drop"), "HX-Request: true"); strings.Contains(text, "<script>") {
		t.Error(text)
	}
}

// However many questions there were, the next one is answered.
func TestFleetQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which finds a question that waits for ever
		f := &fleet{hub: &fakeHub{}, asking: make(chan struct{}, maxAsking)}
		for n := range 2*maxAsking + 1 {
			v := &fleetView{}
			f.answer(httptest.NewRequest(http.MethodGet, "/?q=192.0.2.1", nil), v)
			if v.answers == nil || len(v.answers.Nodes) != 5 || v.Wrong != "" {
				t.Fatalf("question %d: %+v, %q", n, v.answers, v.Wrong)
			}
		}
		closed, leave := context.WithCancel(t.Context())
		leave()
		for range maxAsking {
			f.asking <- struct{}{}
		}
		v := &fleetView{}
		if f.answer(httptest.NewRequestWithContext(closed, http.MethodGet, "/?q=192.0.2.1", nil), v); v.answers != nil || len(f.asking) != maxAsking {
			t.Errorf("%d ask, want %d; %+v", len(f.asking), maxAsking, v.answers)
		}
	})
}

// The rates of a node are those between two of its reports. A node that has begun to count anew has none
// until its next report.
func TestFleetRates(t *testing.T) {
	f := &fleet{}
	at := time.Unix(1700000000, 0)
	for _, c := range []struct {
		what              string
		after             time.Duration
		state             string
		passed, dropped   uint64
		known             bool
		passing, dropping float64
	}{
		{"the first report", 0, api.NodeCurrent, 1000, 100, false, 0, 0},
		{"the same report", 0, api.NodeCurrent, 1000, 100, false, 0, 0},
		{"another", 10 * time.Second, api.NodeCurrent, 3000, 150, true, 200, 5},
		{"the same one again", 10 * time.Second, api.NodeBehind, 3000, 150, true, 200, 5},
		{"within a second", 10*time.Second + 1, api.NodeCurrent, 3010, 151, true, 10, 1},
		{"drops went back", 20 * time.Second, api.NodeCurrent, 4000, 150, false, 0, 0},
		{"and go on", 30 * time.Second, api.NodeCurrent, 5000, 160, true, 100, 1},
		{"what passes went back", 40 * time.Second, api.NodeCurrent, 4999, 170, false, 0, 0},
		{"silent", 40 * time.Second, api.NodeSilent, 4999, 170, false, 0, 0},
		{"heard again", 50 * time.Second, api.NodeCurrent, 5999, 180, false, 0, 0},
	} {
		f.status.Nodes = []api.FleetNode{{Name: "edge-1", State: c.state, Seen: new(at.Add(c.after)), Report: &wire.Status{Passed: c.passed, Dropped: c.dropped}}}
		f.count()
		if got := f.traffic["edge-1"]; got.known != c.known || got.passing != c.passing || got.dropping != c.dropping {
			t.Errorf("%s: %+v, want %t, %g and %g", c.what, got, c.known, c.passing, c.dropping)
		}
	}
}
