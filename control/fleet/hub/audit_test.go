package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/api/server"
	"weir/control/audit"
	"weir/filter/key"
	"weir/tests/wait"
)

// Each change at the hub is a line of the audit with who asked for it and what became of
// it, also those that are refused, and is shown after a restart.
func TestAudit(t *testing.T) {
	f := newFleet(t)
	lists := fmt.Sprintf("console: {listen: 127.0.0.1:9481}\n%s", inWaves(f.feed("192.0.2.1"), "{labels: [canary], for: 1h}"))
	f.start(lists)
	socket := filepath.Join(t.TempDir(), "hub.sock")
	l, err := server.ListenGroup(socket, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(ctx, l, server.HubHandler(f.hub), testLog()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(serving.Wait)
	hub := client.DialHub(socket)

	wait.Until(t, func() error {
		if s, err := hub.Fleet(ctx); err != nil || len(s.Lists) == 0 || s.Lists[0].Entries == 0 {
			return fmt.Errorf("the feed was not read yet: %w", err)
		}
		return nil
	})
	change := func(c api.Change, entries ...string) func() error {
		return func() error {
			c.Entries = entries
			_, err := hub.ChangeFleet(ctx, c)
			return err
		}
	}
	roll := func(do, list string) func() error {
		return func() error {
			_, err := hub.Roll(ctx, api.FleetRoll{Do: do, List: list})
			return err
		}
	}
	for _, c := range []struct {
		do      func() error
		want    audit.Record
		refused string
	}{
		{change(api.Change{Action: api.Block, TTL: 3600, Reason: "scans"}, "192.0.2.7", "192.0.2.8"),
			audit.Record{Change: "block", List: "block", Entries: 2, Changed: 2, First: []string{"192.0.2.7", "192.0.2.8"}, TTL: 3600, Reason: "scans"}, ""},
		{change(api.Change{Action: api.Block, Remove: true}, "192.0.2.7"),
			audit.Record{Change: "unblock", List: "block", Entries: 1, Changed: 1, First: []string{"192.0.2.7"}}, ""},
		{change(api.Change{Action: api.Allow}, "192.0.2.9"),
			audit.Record{Change: "allow", List: "allow", Entries: 1, Changed: 1, First: []string{"192.0.2.9"}}, ""},
		{change(api.Change{Action: api.Block}, "0.0.0.0/1"),
			audit.Record{Change: "block", List: "block", Entries: 1, First: []string{"0.0.0.0/1"}}, "max_coverage"},
		{change(api.Change{Action: api.Block}, "nonsense"),
			audit.Record{Change: "block", List: "block", Entries: 1, First: []string{"nonsense"}}, "nonsense"},
		{change(api.Change{Action: api.Block, List: "none"}, "192.0.2.7"),
			audit.Record{Change: "block", List: "none", Entries: 1, First: []string{"192.0.2.7"}}, "none"},
		{roll(api.RollPause, ""), audit.Record{Change: "pause", Entries: 1, Changed: 1, First: []string{"drop"}}, ""},
		{roll(api.RollResume, "drop"), audit.Record{Change: "resume", List: "drop", Entries: 1, Changed: 1}, ""},
		{roll(api.RollForward, "drop"), audit.Record{Change: "forward", List: "drop", Entries: 1, Changed: 1}, ""},
		{roll(api.RollRollback, "drop"), audit.Record{Change: "rollback", List: "drop", Entries: 1, Changed: 1}, ""},
		{roll(api.RollPause, ""), audit.Record{Change: "pause"}, "no rollout is running"},
		{func() error { _, err := hub.Accept(ctx, "none"); return err }, audit.Record{Change: "accept", List: "none"}, "none"},
		{func() error { _, err := hub.OpenConsole(ctx, api.ConsoleRequest{}); return err }, audit.Record{Change: "console"}, ""},
		{func() error { _, err := hub.EndConsole(ctx); return err }, audit.Record{Change: "console end"}, ""},
	} {
		err := c.do()
		if refused := err != nil; refused != (c.refused != "") {
			t.Errorf("%s: %v", c.want.Change, err)
		}
		a, err := hub.Audit(ctx, 1)
		if err != nil || len(a.Changes) != 1 {
			t.Fatalf("%+v, %v", a, err)
		}
		got := a.Changes[0]
		if got.UID == nil || *got.UID != uint32(os.Getuid()) || got.Source != "socket" || got.Time.IsZero() || got.PID != os.Getpid() {
			t.Errorf("%s: by %+v", c.want.Change, got)
		}
		if !strings.Contains(got.Error, c.refused) || got.Error != "" && c.refused == "" {
			t.Errorf("%s: error %q, want %q", c.want.Change, got.Error, c.refused)
		}
		got.Time, got.UID, got.User, got.Source, got.Error = c.want.Time, nil, "", "", ""
		got.Process, got.LoginName = c.want.Process, ""
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("got %+v, want %+v", got, c.want)
		}
	}

	before := f.hub.Audit(api.MaxAudit)
	f.stop()
	text, err := os.ReadFile(filepath.Join(f.dir, "hub", audit.File))
	var last audit.Record
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if err == nil {
		err = json.Unmarshal([]byte(lines[len(lines)-1]), &last)
	}
	if err != nil || len(lines) != len(before) || last.Change != "console end" {
		t.Errorf("%d lines of %d changes, the last is %+v, %v", len(lines), len(before), last, err)
	}
	f.start(lists)
	if after := f.hub.Audit(api.MaxAudit); len(after) != len(before) || after[0].Change != before[0].Change {
		t.Errorf("%d changes after a restart, and %d before", len(after), len(before))
	}

	// A change that comes after the end fails, and is recorded.
	f.stop()
	if _, err := f.hub.Change(context.WithoutCancel(ctx), block("192.0.2.7")); !errors.Is(err, ErrStopped) {
		t.Error(err)
	}
	if r := f.lastRecord(); r.Change != "block" || r.Changed != 0 || r.Error != ErrStopped.Error() {
		t.Errorf("%+v", r)
	}
}

// A change that is recorded, and whose client leaves before it is a version, is in the audit as made, with
// the error that is returned.
func TestAuditOfWhoLeaves(t *testing.T) {
	f := newFleet(t)
	f.start("")
	for i := range 200 { // the version may be made first
		address := fmt.Sprintf("192.0.2.%d", i+1)
		of := key.Source(netip.MustParsePrefix(address + "/32"))
		ctx, leave := context.WithCancel(t.Context())
		var leaving sync.WaitGroup
		leaving.Go(func() {
			for recorded := false; !recorded; {
				if err := f.hub.Do(t.Context(), func() error { _, recorded = f.hub.journal.Current("block", of); return nil }); err != nil {
					t.Error(err)
					return
				}
			}
			leave()
		})
		_, err := f.hub.Change(ctx, block(address))
		leaving.Wait()
		if err == nil {
			continue
		}
		r := f.lastRecord()
		if !errors.Is(err, context.Canceled) || r.Changed != 1 || !slices.Equal(r.First, []string{address}) || r.Error != err.Error() {
			t.Errorf("%v: %+v", err, r)
		}
		return
	}
	t.Error("each version was made before its client had left")
}

// Nodes and sites that commands enroll and revoke are in the audit once each, with the time
// at which that was done, also if the hub was not running.
func TestAuditCredentials(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	do := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	check := func(more ...string) {
		t.Helper()
		want = append(want, more...)
		wait.Until(t, func() error {
			var got []string
			for _, r := range f.hub.Audit(api.MaxAudit) {
				got = append(got, r.Change+" "+strings.Join(r.First, " "))
			}
			slices.Reverse(got)
			if !slices.Equal(got, want) {
				return fmt.Errorf("got %q, want %q", got, want)
			}
			return nil
		})
	}
	const lists = "lists: {block: {}}"
	do(f.authority.Enroll("edge-1", nil, []string{"tls://192.0.2.1:9443"}))
	f.start(lists)
	check("enroll edge-1")
	do(f.authority.EnrollSite("paris", []string{"tls://192.0.2.2:9443"}, []string{"tls://192.0.2.1:9443"}))
	do(nil, f.authority.Revoke("edge-1"))
	check("enroll site paris", "revoke edge-1")

	f.stop()
	down := time.Now()
	do(f.authority.Enroll("edge-1", nil, []string{"tls://192.0.2.1:9443"})) // anew
	do(nil, f.authority.RevokeSite("paris"))
	up := time.Now()
	f.start(lists)
	check("enroll edge-1", "revoke site paris")
	if r := f.hub.Audit(1)[0]; r.Time.Before(down) || r.Time.After(up) || r.Source != "weir-hub" {
		t.Errorf("%+v", r)
	}
	f.stop()
	f.start(lists)
	time.Sleep(1500 * time.Millisecond) // beyond a look at the keys
	check()

	// A change that follows does not hide them, if the hub ends before it looks.
	f.stop()
	do(nil, f.authority.Revoke("edge-1"))
	audit.New(filepath.Join(f.dir, "hub"), testLog()).Record(audit.Record{Time: time.Now().Add(time.Second), Change: "block", First: []string{"192.0.2.1"}})
	f.start(lists)
	check("block 192.0.2.1", "revoke edge-1")
	do(nil, f.authority.Forget("edge-1"))
	check("forget edge-1")
}
