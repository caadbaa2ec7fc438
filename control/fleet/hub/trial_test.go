package hub

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/fleet/wire"
)

// What a command decides about the trial of a list is in the catalog, in the status and in the
// audit. It outlasts a restart, ends by itself, also while no hub runs, comes with a restored
// copy, and no longer counts where hub.yaml changes.
func TestEnforce(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.reserve()
	text := func(quiet string) string {
		return "lists: {drop: {entries: [192.0.2.1], ports: [tcp/22]}, quiet: {entries: [192.0.2.2], enforce: " + quiet + "}, ours: {action: allow, entries: [192.0.2.3]}}\n"
	}
	f.start(text("false"))
	enforce := func(list string, c api.EnforceChange, changed bool) {
		t.Helper()
		c.UID = 0
		if done, err := f.hub.Enforce(t.Context(), list, c); err != nil || done.Changed != changed || !done.Published {
			t.Fatalf("%s, %+v: %+v, %v", list, c, done, err)
		}
	}
	// onTrial checks which lists are on trial by the catalog and by the status.
	onTrial := func(when string, want ...string) {
		t.Helper()
		slices.Sort(want)
		var catalog, status []string
		eventually(t, func() error {
			catalog, status = nil, nil
			var lists []wire.ListState // as in the catalog
			if err := f.hub.Do(t.Context(), func() error {
				for _, l := range f.hub.lists {
					lists = append(lists, l.wanted(l.history.Place()))
				}
				return nil
			}); err != nil {
				return err
			}
			for _, l := range lists {
				if l.Trial && l.Action != "block"+wire.Limited {
					return fmt.Errorf("%s: former nodes take list %s as one that is enforced: %+v", when, l.Name, l)
				}
				if l.Trial {
					catalog = append(catalog, l.Name)
				}
			}
			s, err := f.hub.Fleet(t.Context())
			if err != nil {
				return err
			}
			for _, l := range s.Lists {
				if l.Trial {
					status = append(status, l.Name)
				}
			}
			slices.Sort(catalog)
			slices.Sort(status)
			if !slices.Equal(catalog, want) || !slices.Equal(status, want) {
				return fmt.Errorf("%s: on trial are %q by the catalog and %q by the status, want %q", when, catalog, status, want)
			}
			return nil
		})
	}
	last := func() api.AuditRecord { return f.hub.Audit(1)[0] }
	onTrial("by hub.yaml", "quiet")
	for _, c := range []struct {
		list   string
		change api.EnforceChange
		want   string
	}{
		{"none", api.EnforceChange{}, "none"},
		{"ours", api.EnforceChange{}, "allows"},
		{"drop", api.EnforceChange{After: 60}, "is enforced already"},
	} {
		if _, err := f.hub.Enforce(t.Context(), c.list, c.change); err == nil || !strings.Contains(err.Error(), c.want) || last().Error == "" {
			t.Errorf("%s: %v, audit %+v", c.list, err, last())
		}
	}
	enforce("drop", api.EnforceChange{}, false)
	enforce("drop", api.EnforceChange{Off: true}, true)
	if r := last(); r.Change != audit.EnforceOff || r.List != "drop" || r.Changed != 1 || r.User != "root" {
		t.Errorf("%+v", r)
	}
	enforce("quiet", api.EnforceChange{}, true)
	onTrial("by commands", "drop")
	f.copyOf("hub", "copy/hub")

	f.stop()
	f.start(text("false"))
	onTrial("after a restart", "drop")
	enforce("drop", api.EnforceChange{After: 3600}, true)
	onTrial("for an hour", "drop")
	at := time.Now().Add(time.Hour + time.Second)
	if err := f.hub.Do(t.Context(), func() error { f.hub.endTrials(at.Add(-2 * time.Second)); return nil }); err != nil {
		t.Fatal(err)
	}
	onTrial("before its time", "drop")
	if err := f.hub.Do(t.Context(), func() error { f.hub.endTrials(at); return nil }); err != nil {
		t.Fatal(err)
	}
	onTrial("after its time")
	if r := last(); r.Change != audit.Enforce || r.Source != "expiry" {
		t.Errorf("%+v", r)
	}
	enforce("drop", api.EnforceChange{After: 0.5, Off: true}, true)
	f.stop()
	time.Sleep(time.Second)
	f.start(text("false"))
	onTrial("after its time, while no hub ran")

	// hub.yaml changes, and the list goes.
	enforce("drop", api.EnforceChange{Off: true}, true)
	f.text = strings.Replace(strings.Replace(f.text, "enforce: false", "enforce: true", 1), "drop: {entries: [192.0.2.1], ports: [tcp/22]}, ", "", 1)
	r, err := f.hub.Reload(t.Context())
	if err != nil || len(r.Changes) < 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	if all := strings.Join(r.Changes, "\n"); !strings.Contains(all, "list drop: `enforce --off` of") || !strings.Contains(all, "list quiet: `enforce` of") {
		t.Errorf("%s", all)
	}
	onTrial("after a reload")
	if _, err := os.Stat(f.hub.trialPath()); !os.IsNotExist(err) {
		t.Errorf("decisions that no longer count are kept: %v", err)
	}

	// A copy from before.
	f.stop()
	if err := os.RemoveAll(f.dir + "/hub"); err != nil {
		t.Fatal(err)
	}
	f.copyOf("copy/hub", "hub")
	f.start(text("false"))
	onTrial("restored", "drop")
}
