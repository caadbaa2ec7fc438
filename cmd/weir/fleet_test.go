package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/api/server"
	"weir/control/fleet/wire"
	"weir/tests/must"
)

// hubOf answers for a hub.
type hubOf struct {
	server.Asker
	server.EntriesReader
	fleet  api.HubStatus
	asked  api.Change
	answer api.FleetChanged
	rolled api.FleetRoll
	trial  api.EnforceChange
	audit  []api.AuditRecord
	lost   api.FleetLost
	floods func(api.FleetFloodsChange) (api.FleetFloodsChanged, error)

	planned  api.FleetPlanQuestion
	plan     api.FleetPlan
	reloaded api.FleetReloaded
	failure  error
}

func (h *hubOf) Fleet(context.Context) (api.HubStatus, error) { return h.fleet, nil }

func (h *hubOf) Change(_ context.Context, c api.Change) (api.FleetChanged, error) {
	h.asked = c
	if c.List == "none" {
		return api.FleetChanged{}, api.ErrNoList
	}
	return h.answer, nil
}

func (h *hubOf) Flush(_ context.Context, name string, _ api.FlushChange) (api.FleetChanged, error) {
	if name == "none" {
		return api.FleetChanged{}, api.ErrNoList
	}
	return h.answer, nil
}

func (h *hubOf) Entries(context.Context, api.EntriesQuestion) (api.Entries, error) {
	return api.Entries{Entries: []api.Entry{{List: "block", Action: api.Block, Entry: "192.0.2.7", Manual: true, Reason: "scans"}}}, nil
}

func (h *hubOf) OpenConsole(_ context.Context, r api.ConsoleRequest) (api.ConsoleOpened, error) {
	return api.ConsoleOpened{URL: "http://127.0.0.1:9481/open/x", ReadOnly: r.ReadOnly, Expires: time.Now().Add(time.Minute)}, nil
}

func (h *hubOf) EndConsole(context.Context) (api.ConsoleEnded, error) {
	return api.ConsoleEnded{Sessions: 1}, nil
}

func (h *hubOf) Audit(limit int) []api.AuditRecord { return h.audit[:min(len(h.audit), limit)] }

func (h *hubOf) Plan(_ context.Context, q api.FleetPlanQuestion) (api.FleetPlan, error) {
	h.planned = q
	return h.plan, h.failure
}

func (h *hubOf) Lost(context.Context) (api.FleetLost, error) { return h.lost, nil }

func (h *hubOf) ChangeFloods(_ context.Context, c api.FleetFloodsChange) (api.FleetFloodsChanged, error) {
	return h.floods(c)
}

func (h *hubOf) TakeOver(context.Context) (api.FleetTakenOver, error) {
	return api.FleetTakenOver{From: "at 192.0.2.7:4222", Published: true}, h.failure
}

func (h *hubOf) Roll(_ context.Context, r api.FleetRoll) (api.FleetRolled, error) {
	h.rolled = r
	if r.List == "none" {
		return api.FleetRolled{}, api.ErrNoList
	}
	return api.FleetRolled{Lists: []string{"drop"}, Published: r.Do != api.RollPause}, nil
}

func (h *hubOf) Enforce(_ context.Context, list string, c api.EnforceChange) (api.FleetEnforced, error) {
	if list == "none" {
		return api.FleetEnforced{}, api.ErrNoList
	}
	h.trial = c
	return api.FleetEnforced{Enforced: api.Enforced{List: list, Changed: true, Trial: &api.Trial{Enforced: !c.Off}}, Published: !c.Off}, nil
}

func (h *hubOf) Reload(context.Context) (api.FleetReloaded, error) { return h.reloaded, h.failure }

func (h *hubOf) Versions(_ context.Context, list string, diff ...string) (api.ListVersions, error) {
	switch {
	case list == "none":
		return api.ListVersions{}, api.ErrNoList
	case slices.Contains(diff, "none"):
		return api.ListVersions{}, &api.BadRequest{Err: errors.New("no such version")}
	case len(diff) > 0:
		of := &api.VersionDiff{From: "fedcba9876543210", Added: diff}
		return api.ListVersions{List: list, Sources: []api.SourceVersions{{Source: "x", Versions: []api.FeedVersion{{SHA256: "0123456789abcdef", Diff: of}}}}}, nil
	}
	return api.ListVersions{List: list, Sources: []api.SourceVersions{{Source: "x", Versions: []api.FeedVersion{{Entries: 1204, SHA256: "0123456789abcdef"}}}}}, nil
}

func (h *hubOf) Rollback(_ context.Context, list string) (api.FetchOutcome, error) {
	return api.FetchOutcome{List: list, Source: "x", Outcome: "new", Entries: 7, Changed: true}, nil
}

func (h *hubOf) Refresh(_ context.Context, name string, accept bool) ([]api.FetchOutcome, error) {
	if name == "none" {
		return nil, api.ErrNoList
	}
	o := api.FetchOutcome{List: "drop", Source: "x", Outcome: api.Failed, Failure: "shrunk", Error: "1 entries, down from 4", Entries: 4}
	if accept {
		o = api.FetchOutcome{List: "drop", Source: "x", Outcome: "new", Entries: 1, Changed: true}
	}
	return []api.FetchOutcome{o}, nil
}

func serveHub(t *testing.T, h *hubOf) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "hub.sock")
	l, err := server.ListenGroup(socket, "")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: server.HubHandler(h)}
	go func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { s.Close() })
	return socket
}

func TestFleetReload(t *testing.T) {
	h := &hubOf{reloaded: api.FleetReloaded{Changes: []string{"lists.more: added"}, Published: true}}
	socket := serveHub(t, h)
	for _, c := range []struct {
		args []string
		says string
	}{{nil, "lists.more: added\n"}, {[]string{"--json"}, `"published": true`}} {
		if code, out, log := weir(t, "", append([]string{"fleet", "reload", "--socket", socket}, c.args...)...); code != exitOK || !strings.Contains(out, c.says) {
			t.Errorf("%q: exit code %d\n%s%s", c.args, code, out, log)
		}
	}
	h.reloaded = api.FleetReloaded{}
	if code, out, _ := weir(t, "", "fleet", "reload", "--socket", socket); code != exitUnpublished || !strings.HasPrefix(out, "nothing has changed since the files were read last\nIt is not published yet") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	h.failure = errors.New("reload, the old configuration stays: broken")
	if code, _, log := weir(t, "", "fleet", "reload", "--socket", socket); code != exitFailure || !strings.Contains(log, "the old configuration stays: broken") {
		t.Errorf("exit code %d\n%s", code, log)
	}
}

func TestFleetAudit(t *testing.T) {
	h := &hubOf{audit: []api.AuditRecord{
		{Change: "pause", First: []string{"drop"}, Entries: 1, User: "ada"},
		{Change: "block", List: "block", First: []string{"0.0.0.0/1"}, Reason: "flood", Error: "covers too much", Source: "CN=console"},
	}}
	socket := serveHub(t, h)
	code, out, log := weir(t, "", "fleet", "audit", "--socket", socket)
	if code != exitOK {
		t.Errorf("exit code %d\n%s", code, log)
	}
	for _, want := range []string{"pause", "drop", "ada", "0.0.0.0/1", "CN=console", "flood; failed: covers too much"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	var a api.Audit
	if code, out, _ = weir(t, "", "fleet", "audit", "--limit", "1", "--json", "--socket", socket); code != exitOK || json.Unmarshal([]byte(out), &a) != nil || len(a.Changes) != 1 {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

func TestFleet(t *testing.T) {
	seen := time.Now().Add(-3 * time.Second)
	h := &hubOf{
		answer: api.FleetChanged{Changed: api.Changed{List: "block", Added: 1}, Published: true, Nodes: 500, Enforcing: 500},
		fleet: api.HubStatus{Time: time.Now(), Connected: true,
			Lists: []api.FleetList{{Name: "drop", Action: api.Block, Entries: 1_200_000, Version: wire.Place{Epoch: 7, Version: 3}, Published: wire.Place{Epoch: 7, Version: 3},
				Wanted: []api.FleetShare{{Version: wire.Place{Epoch: 7, Version: 3}, Nodes: 2}, {Nodes: 6}},
				Have:   []api.FleetShare{{Nodes: 5}, {Version: wire.Place{Epoch: 7, Version: 3}, Nodes: 1}, {Version: wire.Place{Epoch: 6, Version: 9}, Nodes: 1}}}},
			Nodes: []api.FleetNode{
				{Name: "edge-1", Labels: []string{"paris"}, State: api.NodeCurrent, Seen: &seen, Report: &wire.Status{Passed: 1000, Dropped: 20}},
				{Name: "edge-2", State: api.NodeUnseen},
			}},
	}
	socket := serveHub(t, h)
	code, out, _ := weir(t, "", "fleet", "block", "--socket", socket, "--ttl", "1h", "--reason", "scans", "192.0.2.1")
	if code != exitOK || out != "blocked in list block: 1\nin effect on 500 of 500 nodes\n" || !h.asked.Await || h.asked.TTL != 3600 || h.asked.Reason != "scans" {
		t.Errorf("%d: %s (%+v)", code, out, h.asked)
	}
	for _, enforcing := range []int{498, 0} {
		h.answer.Enforcing = enforcing
		if code, out, _ = weir(t, "", "fleet", "block", "--socket", socket, "192.0.2.1"); code != exitUnpublished || !strings.Contains(out, fmt.Sprintf("on %d of 500 nodes: weir fleet status says why", enforcing)) {
			t.Errorf("%d: %s", code, out)
		}
	}
	h.answer.Published = false
	if code, out, _ = weir(t, "192.0.2.1\n192.0.2.2\n", "fleet", "unblock", "--socket", socket, "-"); code != exitUnpublished || !strings.Contains(out, "It is not published yet") || !h.asked.Remove || len(h.asked.Entries) != 2 {
		t.Errorf("%d: %s (%+v)", code, out, h.asked)
	}
	if code, out, _ = weir(t, "", "fleet", "status", "--list", "all", "--nodes", "--socket", socket); code != exitOK || !strings.Contains(out, " 2 of 8 .3, 6 as it is    5 of 8 nothing, 1 .3, 1 6.9, 1 unknown\n") ||
		!strings.Contains(out, "edge-1") || !strings.Contains(out, "1.2 M") {
		t.Errorf("%d: %s", code, out)
	}
	if code, out, _ = weir(t, "", "fleet", "status", "--socket", socket); code != exitOK || out != "nodes: 2 (current 1; unseen 1: edge-2), 1 of 1 that report enforce\nlists: 1, with 1.2 M entries, 0 of them manual: weir fleet status --list all\n"+
		"list drop: nodes have 5 of 8 nothing, 1 .3, 1 6.9, 1 unknown; they are to have 2 of 8 .3, 6 what they have\n" {
		t.Errorf("%d: %s", code, out)
	}
	h.fleet.Nodes[0].State, h.fleet.Nodes[0].Report.Problems = api.NodeStale, []string{"list drop: no space"}
	if code, out, _ = weir(t, "", "fleet", "status", "--nodes", "--socket", socket); code != exitUnfiltered || !strings.Contains(out, "  problem: list drop: no space\n") {
		t.Errorf("%d: %s", code, out)
	}
	if code, out, _ = weir(t, "", "fleet", "status", "--socket", socket); code != exitUnfiltered || !strings.HasPrefix(out, "problem: 1 of 2 nodes report problems, as edge-1, problem: list drop: no space: weir fleet status --nodes shows them\n") {
		t.Errorf("%d: %s", code, out)
	}
	h.fleet.Nodes[0].NotEnforcing = "monitor mode"
	if _, out, _ = weir(t, "", "fleet", "status", "--state", "stale", "--socket", socket); !strings.Contains(out, " stale    no       3s ") || !strings.Contains(out, "\n  not enforcing: monitor mode\n") {
		t.Error(out)
	}
	var got api.HubStatus
	if _, out, _ = weir(t, "", "fleet", "status", "--json", "--socket", socket); json.Unmarshal([]byte(out), &got) != nil || len(got.Nodes) != 2 {
		t.Error(out)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"fleet", "block", "--socket", socket, "--list", "none", "192.0.2.1"}, exitFailure, "no such list"},
		{[]string{"fleet", "block", "--socket", socket, "192.0.2.300"}, exitUsage, "192.0.2.300"},
		{[]string{"fleet", "status", "--socket", socket + "x"}, exitFailure, "start `weir hub run`"},
		{[]string{"fleet", "blok"}, exitUsage, "did you mean block?"},
	} {
		if code, _, log := weir(t, "", c.args...); code != c.code || !strings.Contains(log, c.want) {
			t.Errorf("%q: %d: %s", c.args, code, log)
		}
	}
}

// TestFleetStatusOfMany looks at a fleet of 500 nodes with trouble: what is wrong stands in ten lines,
// and flags select the rest.
func TestFleetStatusOfMany(t *testing.T) {
	h := &hubOf{fleet: api.HubStatus{Time: time.Now(), Connected: true}}
	for i := range 500 {
		n := api.FleetNode{Name: fmt.Sprintf("edge-%d", i), State: api.NodeCurrent, Labels: []string{"web"}, Report: &wire.Status{Version: "v0.9", Address: "192.0.2.1"}}
		if i%100 == 0 {
			n.State, n.Labels, n.Report.Version = api.NodeSilent, []string{"canary"}, "v0.8"
			n.Report.Problems = []string{"broken"}
		}
		h.fleet.Nodes = append(h.fleet.Nodes, n)
	}
	for i := range 30 {
		h.fleet.Lists = append(h.fleet.Lists, api.FleetList{Name: fmt.Sprintf("list-%d", i), Version: wire.Place{Epoch: 1, Version: 2}, Wanted: []api.FleetShare{{Version: wire.Place{Epoch: 1, Version: 2}, Nodes: 500}}})
		h.fleet.Problems = append(h.fleet.Problems, fmt.Sprintf("number %d", i))
	}
	socket := serveHub(t, h)
	code, out, _ := weir(t, "", "fleet", "status", "--socket", socket)
	if lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n"); code != exitUnfiltered || len(lines) != 10 || lines[0] != "problem: number 0" || lines[4] != "27 more problems: weir fleet status --json has all" ||
		!strings.HasPrefix(lines[5], "nodes: 500 (current 495; silent 5: edge-0, edge-100, edge-200, edge-300, edge-400), 495 of 495 that report enforce") || !strings.HasPrefix(lines[9], "28 more lines about lists") {
		t.Errorf("%d:\n%s", code, out)
	}
	for _, c := range []struct {
		args  []string
		lines int
		has   string
	}{
		{[]string{"--nodes"}, 506, "edge-499 "},
		{[]string{"--state", "silent"}, 11, "  problem: broken\n"},
		{[]string{"--state", "silent", "--label", "web"}, 1, "NODE"},
		{[]string{"--label", "canary", "--versions"}, 6, " v0.8             192.0.2.1 "},
		{[]string{"--list", "list-7"}, 2, "list-7 "},
		{[]string{"--list", "all"}, 31, "list-29 "},
	} {
		code, out, log := weir(t, "", append([]string{"fleet", "status", "--socket", socket}, c.args...)...)
		if code != exitUnfiltered || strings.Count(out, "\n") != c.lines || !strings.Contains(out, c.has) {
			t.Errorf("%q: %d, %d lines:\n%.500s%s", c.args, code, strings.Count(out, "\n"), out, log)
		}
	}
	h.fleet.Patterns = 2
	if _, out, _ := weir(t, "", "fleet", "status", "--socket", socket); strings.Count(out, "\n") != 10 || !strings.Contains(out, "\n2 patterns published against floods: weir fleet flood says what nodes do with them\n") {
		t.Errorf("with patterns:\n%s", out)
	}
	var got api.HubStatus
	if code, out, _ := weir(t, "", "fleet", "status", "--json", "--label", "canary", "--list", "list-7", "--socket", socket); code != exitUnfiltered || json.Unmarshal([]byte(out), &got) != nil || len(got.Nodes) != 5 || len(got.Lists) != 1 {
		t.Errorf("%d: %d nodes, %d lists", code, len(got.Nodes), len(got.Lists))
	}
	for arg, want := range map[string]int{"--state=gone": exitUsage, "--list=none": exitFailure} {
		if code, _, log := weir(t, "", "fleet", "status", arg, "--socket", socket); code != want || !strings.Contains(log, arg[2:6]) {
			t.Errorf("%s: %d: %s", arg, code, log)
		}
	}
}

func TestFleetConsole(t *testing.T) {
	socket := serveHub(t, &hubOf{})
	if code, out, log := weir(t, "", "fleet", "console", "--read-only", "--socket", socket); code != exitOK || log != "" || !strings.HasPrefix(out, "http://127.0.0.1:9481/open/x\n") || !strings.Contains(out, "may only read") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if code, out, _ := weir(t, "", "fleet", "console", "--end", "--socket", socket); code != exitOK || out != "ended: 1 session\n" {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

func TestFleetRefresh(t *testing.T) {
	socket := serveHub(t, &hubOf{})
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, exitFailure, "FAILED (shrunk): 1 entries, down from 4; entries: 4"},
		{[]string{"drop", "--accept"}, exitOK, "drop: x: new; entries: 1\n"},
		{[]string{"drop", "--accept", "--json"}, exitOK, `"outcome": "new"`},
		{[]string{"drop", "--rollback"}, exitOK, "drop: x: new; entries: 7\n"},
		{[]string{"--accept"}, exitUsage, "name the lists"},
		{[]string{"--rollback"}, exitUsage, "name the lists"},
		{[]string{"none"}, exitFailure, "no such list"},
	} {
		code, out, log := weir(t, "", append([]string{"fleet", "refresh", "--socket", socket}, c.args...)...)
		if code != c.code || !strings.Contains(out+log, c.says) {
			t.Errorf("%q: exit code %d\n%s%s", c.args, code, out, log)
		}
	}
}

// What is lost is listed with its entries, and has an exit code of its own.
func TestFleetLost(t *testing.T) {
	h := &hubOf{}
	socket := serveHub(t, h)
	if code, out, _ := weir(t, "", "fleet", "lost", "--socket", socket); code != exitOK || out != "nothing is known to be lost\n" {
		t.Errorf("code %d: %s", code, out)
	}
	h.lost.Lost = []api.LostChanges{{Time: time.Unix(0, 0), List: "block", Node: "edge-1", Version: wire.Place{Epoch: 7, Version: 3}, Added: []string{"192.0.2.1"}, Removed: []string{"192.0.2.2"}, More: 5, Why: "x"}}
	code, out, _ := weir(t, "", "fleet", "lost", "--socket", socket)
	if _, lines, _ := strings.Cut(out, "  list"); code != exitProblem || lines != " block, of which node edge-1 had version 7.3: x\n  + 192.0.2.1\n  - 192.0.2.2\n  and 5 more\n" {
		t.Errorf("code %d: %s", code, out)
	}
	var l api.FleetLost
	if code, out, _ = weir(t, "", "fleet", "lost", "--json", "--socket", socket); code != exitProblem || json.Unmarshal([]byte(out), &l) != nil || len(l.Lost) != 1 || l.Lost[0].Added[0] != "192.0.2.1" {
		t.Errorf("code %d: %s", code, out)
	}
}

// What was blocked by commands is shown, imported and removed at the hub.
func TestFleetEntries(t *testing.T) {
	h := &hubOf{fleet: api.HubStatus{Lists: []api.FleetList{{Name: "block", Action: api.Block}, {Name: "partners", Action: api.Allow}}}}
	h.answer = api.FleetChanged{Changed: api.Changed{List: "block", Added: 2, Removed: 2}, Published: true, Nodes: 8, Enforcing: 8}
	socket := serveHub(t, h)
	file := filepath.Join(t.TempDir(), "some.txt")
	must.Write(t, file, "192.0.2.1\n192.0.2.2\n")
	for _, c := range []struct {
		args []string
		says string
		code int
	}{
		{[]string{"entries"}, "scans", exitOK},
		{[]string{"entries", "--json"}, `"entry":"192.0.2.7"`, exitOK},
		{[]string{"import", "block", file, "--ttl", "1h"}, "blocked in list block: 2\nin effect on 8 of 8 nodes", exitOK},
		{[]string{"import", "none", file}, `no such list: "none"`, exitFailure},
		{[]string{"flush", "block"}, "removed from list block: 2\nin effect on 8 of 8 nodes", exitOK},
		{[]string{"flush", "none"}, "no such list", exitFailure},
	} {
		code, out, errs := weir(t, "", append([]string{"fleet", c.args[0], "--socket", socket}, c.args[1:]...)...)
		if code != c.code || !strings.Contains(out+errs, c.says) {
			t.Errorf("%q: %d, %s%s", c.args, code, out, errs)
		}
	}
	if h.asked.TTL != 3600 || h.asked.Action != api.Block || !h.asked.Import || !h.asked.Await || len(h.asked.Entries) != 2 {
		t.Errorf("imported by %+v", h.asked)
	}
	h.answer.Enforcing = 7
	if code, out, _ := weir(t, "", "fleet", "flush", "--socket", socket, "block"); code != exitUnpublished || !strings.Contains(out, "in effect on 7 of 8 nodes") {
		t.Errorf("%d, %s", code, out)
	}
	h.answer = api.FleetChanged{Changed: api.Changed{List: "block"}, Published: true}
	if code, out, _ := weir(t, "", "fleet", "flush", "--socket", socket, "block"); code != exitOK || out != "removed from list block: 0\n" {
		t.Errorf("nothing to remove: exit code %d: %s", code, out)
	}
}

func TestFleetPlan(t *testing.T) {
	h := &hubOf{plan: api.FleetPlan{Changes: []string{"lists.web: removed"}, Lists: []api.PlannedList{
		{Name: "new", After: &api.PlannedNodes{Nodes: 8, Waves: []api.PlannedWave{{Labels: []string{"canary"}, Mode: "rehearse", Nodes: 1}}}, Gain: []string{"a"}},
		{Name: "drop", Before: &api.PlannedNodes{Nodes: 8}, After: &api.PlannedNodes{Nodes: 7}, Entries: 12, Lose: []string{"b"}},
		{Name: "web", Before: &api.PlannedNodes{Nodes: 2}, Entries: 3, Lose: []string{"a", "b"}},
	}, Warnings: []string{"none has the list"}}}
	socket := serveHub(t, h)
	const want = `lists.web: removed
list new: new, on 8 nodes; wave 1: rehearse on 1 node with canary; then all
list drop: on 7 nodes instead of 8, 12 entries; no longer on b
list web: removed from 2 nodes, with 3 entries
`
	if code, out, log := weir(t, "lists: {}\n", "fleet", "plan", "-", "--socket", socket); code != exitOK || out != want || !strings.Contains(log, "warning: none has the list") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if h.planned.Text != "lists: {}\n" {
		t.Errorf("the hub was asked for %+v", h.planned)
	}
	h.plan = api.FleetPlan{Changes: []string{"servers[1]: added"}, Restart: []string{"servers[1]: added"}}
	if code, out, log := weir(t, "", "fleet", "plan", "--socket", socket); code != exitFailure || !strings.Contains(out, "needs a restart: servers[1]: added\n") || !strings.Contains(log, "would refuse") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if code, _, log := weir(t, "", "fleet", "plan", "/absent.yaml", "--socket", socket); code != exitFailure || !strings.Contains(log, "/absent.yaml") {
		t.Errorf("exit code %d: %s", code, log)
	}
}
