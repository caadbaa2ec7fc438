package main

import (
	"strings"
	"testing"
	"time"

	"weir/control/api"
)

func TestEnforce(t *testing.T) {
	t.Setenv("SSH_CONNECTION", "192.0.2.9 50000 192.0.2.1 22")
	d := &fakeDaemon{}
	socket := serveDaemon(t, d)
	for _, c := range []struct {
		args []string
		want api.EnforceChange
		out  string
	}{
		{[]string{"drop"}, api.EnforceChange{}, "list drop is enforced\n"},
		{[]string{"drop", "--after", "24h", "--force"}, api.EnforceChange{After: 86400, Force: true}, "list drop is enforced\n"},
		{[]string{"drop", "--off"}, api.EnforceChange{Off: true}, "list drop is on trial, and drops nothing, since 2026-01-02 03:04:05 by ada\n"},
		{[]string{"drop", "--json"}, api.EnforceChange{}, "{\n  \"list\": \"drop\",\n  \"changed\": true\n}\n"},
	} {
		code, out, log := weir(t, "", append([]string{"enforce", "--socket", socket}, c.args...)...)
		got := d.enforced["drop"]
		if code != exitOK || out != c.out || log != "" || got.SSH != "192.0.2.9 50000 192.0.2.1 22" {
			t.Errorf("%q: exit code %d, %+v\n%s%s", c.args, code, got, out, log)
		}
		if c.want.SSH, c.want.UID = got.SSH, got.UID; got != c.want {
			t.Errorf("%q: asked for %+v", c.args, got)
		}
	}
	if code, _, log := weir(t, "", "enforce", "drops", "--socket", socket); code != exitFailure || !strings.Contains(log, "there are drop") {
		t.Errorf("an unknown list: exit code %d, %s", code, log)
	}
	for _, args := range [][]string{{}, {"a", "b"}, {"a", "--after", "10"}, {"a", "--after", "-1h"}, {"a", "--after", "0s"}} {
		if code, _, log := weir(t, "", append([]string{"enforce", "--socket", socket}, args...)...); code != exitUsage {
			t.Errorf("%q: exit code %d, %s", args, code, log)
		}
	}
}

// The status, the lists and explain say which lists are on trial, since and until when.
func TestTrialsShown(t *testing.T) {
	now := time.Now()
	since, at := now.Add(-time.Hour), now.Add(30*time.Minute+30*time.Second)
	trials := []api.TrialList{
		{List: "a", Trial: api.Trial{Configured: true}},
		{List: "b", Trial: api.Trial{Since: &since, EnforcedAt: &at, By: "ada"}},
		{List: "c", Trial: api.Trial{Enforced: true, Configured: true, Since: &since}},
		{List: "d", Trial: api.Trial{Configured: true, Since: &since, By: "ada"}},
	}
	by := ", since " + since.Format(time.DateTime)
	texts := []string{
		"is on trial, and drops nothing, as configured",
		"is on trial, and drops nothing" + by + " by ada, until " + at.Format(time.DateTime),
		"is enforced" + by + ", though the configuration says enforce: false",
		"is on trial, and drops nothing" + by + " by ada",
	}
	var b strings.Builder
	s := status{Daemon: &api.Status{Trials: trials}}
	s.print(&b, false)
	var lists []api.List
	for _, l := range trials {
		lists = append(lists, api.List{Name: l.List, For: "tcp/22", Trial: &l.Trial})
	}
	printLists(&b, &api.Lists{Lists: lists, At: now}, now)
	for i, text := range texts {
		for _, want := range []string{"TRIAL: list " + trials[i].List + " " + text, trials[i].List + ": TRIAL: it " + text, trials[i].List + ": only for tcp/22"} {
			if !strings.Contains(b.String(), want+"\n") {
				t.Errorf("%q is missing in\n%s", want, b.String())
			}
		}
	}
	b.Reset()
	printExplanation(&b, api.NewExplanation("192.0.2.1", api.Answer{
		Packet: "src 192.0.2.1", Verdict: api.VerdictPass, Reason: api.ReasonWouldBlock, List: "a",
		Matches: []api.Match{{List: "a", Action: api.Block, Entry: "src 192.0.2.1", Trial: true}},
	}), false, true, now)
	if want := "src 192.0.2.1: pass (would-block, since list a is on trial)\n"; !strings.HasPrefix(b.String(), want) {
		t.Errorf("got %s", b.String())
	}
}

func TestFleetEnforce(t *testing.T) {
	now := time.Now()
	h := &hubOf{fleet: api.HubStatus{Time: now, Lists: []api.FleetList{{Name: "drop", Trial: true, Decision: &api.Trial{Since: &now, By: "ada"}, Collateral: &api.FleetCollateral{Unmeasured: 3}}}}}
	socket := serveHub(t, h)
	for _, c := range []struct {
		args string
		code int
		out  string
		want api.EnforceChange
	}{
		{"drop", exitOK, "list drop is enforced", api.EnforceChange{}},
		{"drop --after 24h", exitOK, "list drop is enforced", api.EnforceChange{After: 86400}},
		{"drop --force", exitOK, "list drop is enforced", api.EnforceChange{Force: true}},
		{"drop --off", exitUnpublished, "It is not published yet", api.EnforceChange{Off: true}},
		{"none", exitFailure, "", api.EnforceChange{}},
		{"drop --after -1h", exitUsage, "", api.EnforceChange{}},
		{"", exitUsage, "", api.EnforceChange{}},
	} {
		h.trial = api.EnforceChange{}
		args := append([]string{"fleet", "enforce", "--socket", socket}, strings.Fields(c.args)...)
		code, out, errs := weir(t, "", args...)
		if h.trial.UID, h.trial.Client, h.trial.Connection = 0, "", ""; code != c.code || !strings.Contains(out, c.out) || h.trial != c.want {
			t.Errorf("%s: %d, %+v\n%s%s", c.args, code, h.trial, out, errs)
		}
	}
	if _, out, _ := weir(t, "", "fleet", "status", "--socket", socket); !strings.Contains(out, "\nlist drop is on trial, and drops nothing, since "+now.Local().Format(time.DateTime)+" by ada\nlist drop: nodes that have conversed in 24h with what it would drop: not measured\n") {
		t.Errorf("%s", out)
	}
}
