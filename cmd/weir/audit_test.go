package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
)

func TestAudit(t *testing.T) {
	d := &fakeDaemon{audit: []api.AuditRecord{
		{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local), Change: "block", List: "manual", Entries: 7, Changed: 7, First: []string{"192.0.2.1", "192.0.2.2"}, TTL: 3600, Reason: "flood\x1b[2J", UID: new(uint32(7)), User: "ada"},
		{Change: "reload", UID: new(uint32(8))}, {Change: "unblock", Source: "expiry"},
		{Change: "rollback list", List: "drop", Entries: 10_862, Changed: 1, First: []string{"https://example.com/feed"}, UID: new(uint32(7)), User: "ada"},
		{Change: "enforce", List: "scanners", TTL: 86400, UID: new(uint32(7)), User: "ada"},
	}}
	socket := serveDaemon(t, d)
	code, out, log := weir(t, "", "audit", "--socket", socket)
	if code != exitOK || log != "" || d.auditAsked != api.DefaultAudit {
		t.Errorf("exit code %d, %d asked\n%s", code, d.auditAsked, log)
	}
	for _, want := range []string{"2026-01-02 03:04:05", "ada", "manual", "192.0.2.1, 192.0.2.2 and 5 more for 1h: flood", "scanners  after 1d", "https://example.com/feed\n", "uid 8", "expiry"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "\x1b") {
		t.Errorf("a reason controls the terminal: %q", out)
	}
	var a api.Audit
	if code, out, _ = weir(t, "", "audit", "--limit", "200", "--json", "--socket", socket); code != exitOK || json.Unmarshal([]byte(out), &a) != nil || len(a.Changes) != 5 || d.auditAsked != 200 {
		t.Errorf("exit code %d, %d asked\n%s", code, d.auditAsked, out)
	}
	for _, limit := range []string{"0", "201"} {
		if code, _, log := weir(t, "", "audit", "--limit", limit, "--socket", socket); code != exitUsage || !strings.Contains(log, "want 1 to 200") {
			t.Errorf("exit code %d\n%s", code, log)
		}
	}
	for _, since := range []string{"0s", "-1h"} {
		if code, _, log := weir(t, "", "audit", "--since", since, "--socket", socket); code != exitUsage || !strings.Contains(log, "since") {
			t.Errorf("exit code %d\n%s", code, log)
		}
	}
	// However the clock was set, those of the time are shown.
	now := time.Now()
	d.audit = []api.AuditRecord{{Time: now, List: "a"}, {Time: now.Add(-3 * time.Hour), List: "b"}, {Time: now.Add(-time.Hour), List: "c"}}
	a = api.Audit{}
	if code, out, log := weir(t, "", "audit", "--since", "2h", "--json", "--socket", socket); code != exitOK || json.Unmarshal([]byte(out), &a) != nil ||
		len(a.Changes) != 2 || a.Changes[1].List != "c" || log != "" || d.auditAsked != api.MaxAudit {
		t.Errorf("exit code %d, %d asked\n%s%s", code, d.auditAsked, out, log)
	}
	if code, _, _ := weir(t, "", "audit", "--since", "2h", "--limit", "7", "--socket", socket); code != exitOK || d.auditAsked != 7 {
		t.Errorf("exit code %d, %d asked", code, d.auditAsked)
	}
	d.audit = slices.Repeat(d.audit[:1], api.MaxAudit)
	if code, _, log := weir(t, "", "audit", "--since", "2h", "--socket", socket); code != exitOK || log != "weir: there may be more: these are the last 200 changes\n" {
		t.Errorf("exit code %d\n%s", code, log)
	}
	d.audit = nil
	if code, out, _ := weir(t, "", "audit", "--socket", socket); code != exitOK || out != "no change was made\n" {
		t.Errorf("exit code %d\n%s", code, out)
	}
}
