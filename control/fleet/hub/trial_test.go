package hub

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/clock"
	"weir/control/fleet/wire"
	"weir/control/lists"
	"weir/tests/long"
	"weir/tests/wait"
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
		wait.Until(t, func() error {
			catalog, status = nil, nil
			var lists []wire.ListState // as in the catalog
			if err := f.hub.Do(t.Context(), func() error {
				for _, l := range f.hub.lists.all {
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
	last := func() api.AuditRecord { return f.lastRecord() }
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
	f.stop()
	f.savedAt(25 * time.Hour)
	f.start(text("false"))
	if err := f.hub.Do(t.Context(), func() error { f.hub.trials.end(time.Now()); return nil }); err != nil {
		t.Fatal(err)
	}
	onTrial("after a restart with a clock that is a day ahead", "drop")
	if err := f.hub.Do(t.Context(), func() error {
		if left := time.Until(*f.hub.trials.Decided()["drop"].EnforcedAt); left > time.Hour || left < 50*time.Minute {
			return fmt.Errorf("%v of an hour are left", left)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	began := time.Now()
	enforce("drop", api.EnforceChange{After: 3600}, true)
	at := time.Now().Add(time.Hour)
	if err := f.hub.Do(t.Context(), func() error { f.hub.trials.end(began.Add(time.Hour - time.Second)); return nil }); err != nil {
		t.Fatal(err)
	}
	onTrial("before its time", "drop")
	if err := f.hub.Do(t.Context(), func() error { f.hub.trials.end(at); return nil }); err != nil {
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
	if _, err := os.Stat(f.hub.trials.Path); !os.IsNotExist(err) {
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

// away is a broker that cannot be reached.
type away struct{ Broker }

func (away) URL() string { return "tls://127.0.0.1:1" }

// A hub that has not reached its broker cannot have heard its nodes, however long it runs: a trial
// does not end, and a command that ends one fails unless it is by force.
func TestTrialUnheard(t *testing.T) {
	long.Seconds(t)
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.reserve()
	const lists = "lists: {drop: {entries: [192.0.2.1], enforce: false}, quiet: {entries: [192.0.2.2], enforce: false}}\n"
	f.start(lists)
	edge := f.host("edge-1")
	edge.becomes("drop", "192.0.2.1")
	if _, err := f.hub.Enforce(t.Context(), "drop", api.EnforceChange{After: 60, Off: true}); err != nil {
		t.Fatal(err)
	}
	f.stop()
	edge.stop()
	f.run(f.hub.conf(), away{f.broker})
	// later has the hub end the trials whose time has come some minutes from now.
	later := func() (enforced bool) {
		t.Helper()
		if err := f.hub.Do(t.Context(), func() error {
			f.hub.trials.end(time.Now().Add(2 * time.Minute))
			enforced = f.hub.lists.get("drop").enforced()
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return enforced
	}
	if later() {
		t.Fatal("the trial has ended, and no node was heard")
	}
	_, err := f.hub.Enforce(t.Context(), "quiet", api.EnforceChange{})
	if err == nil || !strings.Contains(err.Error(), "list quiet stays on trial: the hub has not reached its broker yet") || !strings.Contains(err.Error(), "--force") {
		t.Errorf("enforced: %v", err)
	}
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Second) // it cannot publish
	defer cancel()
	if done, err := f.hub.Enforce(soon, "quiet", api.EnforceChange{Force: true}); err != nil || !done.Changed {
		t.Errorf("by force: %+v, %v", done, err)
	}
	f.stop()
	f.start(lists)
	wait.Until(t, func() error {
		s, err := f.hub.Fleet(t.Context())
		if err == nil && !s.Connected {
			err = fmt.Errorf("not connected: %q", s.Problems)
		}
		return err
	})
	wait.For(t, "the trial has ended, after the time in which nodes report", func() bool { return later() })
}

// savedAt changes the times in the files of trials and of the steady time to those by a clock that is
// behind.
func (f *fleet) savedAt(behind time.Duration) {
	f.t.Helper()
	for _, name := range []string{lists.TrialFile, clock.File} {
		path := filepath.Join(f.dir, "hub", name)
		text, err := os.ReadFile(path)
		if err != nil {
			f.t.Fatal(err)
		}
		text = times.ReplaceAllFunc(text, func(m []byte) []byte {
			at, err := time.Parse(time.RFC3339Nano, string(m[1:len(m)-1]))
			if err != nil {
				f.t.Fatal(err)
			}
			return []byte(at.Add(-behind).Format(`"` + time.RFC3339Nano + `"`))
		})
		if err := os.WriteFile(path, text, 0o600); err != nil {
			f.t.Fatal(err)
		}
	}
}

var times = regexp.MustCompile(`"[0-9]{4}-[0-9]{2}-[0-9]{2}T[^"]*"`)

// A list is not enforced, by a command or by time, while nodes have conversed with whom it would drop, not
// even right after a start, when they have not said so yet.
func TestEnforceConversed(t *testing.T) {
	long.Seconds(t)
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.reserve()
	const lists = "max_age: 20s\nlists: {drop: {entries: [192.0.2.1, 192.0.2.2], enforce: false}}\n"
	f.start(lists)
	edge, former := f.host("edge-1"), f.host("edge-2")
	converses := func(partners ...string) {
		edge.mu.Lock()
		defer edge.mu.Unlock()
		edge.partners = append([]string{}, partners...)
	}
	converses("192.0.2.1", "203.0.113.1")
	status := func() *api.HubStatus {
		t.Helper()
		s, err := f.hub.Fleet(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return &s
	}
	reported := func(want string) {
		t.Helper()
		wait.Until(t, func() error {
			for _, l := range status().Lists {
				if l.Name == "drop" && l.Collateral != nil && l.Collateral.String() == want {
					return nil
				}
			}
			return fmt.Errorf("%+v, want %q", status().Lists, want)
		})
	}
	edge.becomes("drop", "192.0.2.1")
	former.becomes("drop", "192.0.2.1")
	const known = "edge-1 with 1: 192.0.2.1 (not measured by 1 of 2 nodes)"
	reported(known)
	var refused string
	refuse := func() {
		t.Helper()
		_, err := f.hub.Enforce(t.Context(), "drop", api.EnforceChange{})
		if err == nil {
			t.Fatal("it is enforced")
		}
		refused = err.Error()
		for _, part := range []string{"list drop stays on trial: in the last 24 hours nodes have conversed", known, "--force"} {
			if !strings.Contains(refused, part) {
				t.Errorf("%q does not say %q", refused, part)
			}
		}
	}
	refuse()
	if r := f.lastRecord(); r.Error != refused {
		t.Errorf("the audit has %+v", r)
	}
	// It stays on trial when its time comes, over a restart.
	if _, err := f.hub.Enforce(t.Context(), "drop", api.EnforceChange{After: 0.5, Off: true}); err != nil {
		t.Fatal(err)
	}
	onTrial := func(when string) {
		t.Helper()
		for _, l := range status().Lists {
			if l.Name == "drop" && !l.Trial {
				t.Fatalf("%s: the list is enforced", when)
			}
		}
	}
	overdue := func() {
		t.Helper()
		wait.Until(t, func() error {
			for _, p := range status().Problems {
				if strings.Contains(p, "the trial of list drop is over, but it is not enforced: ") && strings.Contains(p, known) && strings.Contains(p, "weir fleet enforce --force drop") {
					return nil
				}
			}
			return fmt.Errorf("%q", status().Problems)
		})
	}
	overdue()
	f.stop()
	f.start(lists)
	onTrial("right after a start")
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.hub.Enforce(short, "drop", api.EnforceChange{}); err == nil { // its context ends before the reports are there
		t.Error("it is enforced before nodes have reported")
	}
	refuse() // once nodes have said so
	overdue()
	onTrial("after a restart")
	// Until no node has conversed with them any more.
	converses("203.0.113.1")
	reported("none (not measured by 1 of 2 nodes)")
	wait.Until(t, func() error {
		if l := status().Lists[0]; l.Trial || len(status().Problems) > 0 {
			return fmt.Errorf("%+v, %q", l, status().Problems)
		}
		return nil
	})
	if r := f.lastRecord(); r.Change != audit.Enforce || r.Source != "expiry" {
		t.Errorf("%+v", r)
	}
	// By force, and where no node reports anything.
	again := func(partners []string, force bool, warnings int) {
		t.Helper()
		if _, err := f.hub.Enforce(t.Context(), "drop", api.EnforceChange{Off: true}); err != nil {
			t.Fatal(err)
		}
		converses(partners...)
		if partners != nil {
			reported(known)
			refuse()
		}
		done, err := f.hub.Enforce(t.Context(), "drop", api.EnforceChange{Force: force})
		if err != nil || !done.Changed || len(done.Warnings) != warnings {
			t.Errorf("%+v, %v", done, err)
		}
	}
	again([]string{"192.0.2.1"}, true, 0)
	converses()
	reported("none (not measured by 1 of 2 nodes)")
	again(nil, false, 1)

	// A node that is away meanwhile goes by what it has until it hears the hub again.
	trialAt := func(h *host) bool {
		for _, l := range h.Lists() {
			if l.Name() == "drop" {
				return l.Settings().Trial
			}
		}
		t.Fatal("the node has lost the list")
		return false
	}
	published := *status().Catalog
	wait.For(t, "the node has what was changed last", func() bool { return !former.Age().Confirmed.Before(published) })
	if _, err := f.hub.Enforce(t.Context(), "drop", api.EnforceChange{Off: true, After: 6}); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the node has the list on trial", func() bool { return trialAt(former) })
	former.stop()
	wait.For(t, "the trial is over", func() bool { return !status().Lists[0].Trial })
	if !trialAt(former) {
		t.Error("a node that does not run has heard of it")
	}
	former = f.again(former)
	wait.For(t, "the node that was away enforces the list", func() bool { return !trialAt(former) })
}
