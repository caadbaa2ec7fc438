package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/quantity"
	"weir/filter/verdict"
	"weir/tests/lab"
)

// The metric of a trial begins and ends with it.
func TestTrialMetric(t *testing.T) {
	r := configure(t, lab.New(t).B)
	r.lists(t, feedFile(t, "a.txt", "198.51.100.1\n"))
	r.c.Lists[0].Enforce = false
	d := begin(t, r)
	onTrial := func() (is bool) {
		for _, l := range d.readings.Metrics().Lists {
			is = is || l.Name == "a" && l.Trial
		}
		return is
	}
	for i, off := range []bool{true, false, true, false} {
		if i > 0 {
			if _, err := d.trials.Enforce(t.Context(), "a", api.EnforceChange{Off: off}); err != nil {
				t.Fatal(err)
			}
		}
		if onTrial() != off {
			t.Errorf("change %d: on trial %t, want %t", i, !off, off)
		}
	}
}

// What commands have decided for the configuration before is there when it returns: until the
// present one is confirmed, no command replaces it.
func TestTrialKeptForRollback(t *testing.T) {
	r := configure(t, lab.New(t).B)
	r.lists(t, feedFile(t, "a.txt", "198.51.100.1\n"))
	r.c.StateDir = config.Path(t.TempDir())
	set := func(enforce bool) { r.change(func(c *config.Config) { c.Lists[0].Enforce = enforce }) }
	d := begin(t, r)
	defer func() { d.stop() }()
	enforce := func(off bool) error {
		_, err := d.trials.Enforce(t.Context(), "a", api.EnforceChange{Off: off})
		return err
	}
	onTrial := func(when string, want bool) {
		t.Helper()
		var got bool
		if err := d.loop.Do(t.Context(), func() error { got = !d.active.prepared.List("a").Enforce; return nil }); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s: on trial %t, want %t", when, got, want)
		}
	}
	if err := enforce(true); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(string(r.c.StateDir), audit.File))
	if want := `"change":"enforce off","list":"a","entries":0,"changed":1,`; err != nil || !strings.Contains(string(text), want) {
		t.Errorf("audit: %v, want %s in %s", err, want, text)
	}
	set(false)
	if _, err := d.ReloadUnconfirmed(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	var refused *api.BadRequest
	if err := enforce(false); !errors.As(err, &refused) || !strings.Contains(err.Error(), "weir confirm") {
		t.Errorf("a command about a list of which the configuration before has a decision: %v", err)
	}
	onTrial("unconfirmed", true)
	d.stop()
	d = begin(t, r)
	onTrial("rolled back", true)
	set(true)
	if _, err := d.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := enforce(false); err != nil {
		t.Fatal(err)
	}
	set(false)
	if _, err := d.ReloadUnconfirmed(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := enforce(false); err != nil {
		t.Errorf("a command where there is no other decision: %v", err)
	}
	onTrial("enforced", false)
}

// A trial that is over at a start waits for the first reading of the record, which may hold it.
func TestTrialWaitsForTheRecord(t *testing.T) {
	r := configure(t, lab.New(t).B)
	r.lists(t, feedFile(t, "a.txt", "198.51.100.1\n"))
	r.c.Collateral.Sources = 1024
	r.c.Interfaces[0].Egress = true
	d := begin(t, r)
	for _, read := range []bool{true, false} {
		if read {
			if _, err := d.observers.collateral.Read(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.loop.Do(t.Context(), func() error {
			if !read {
				d.observers.collateral.Forget()
			}
			if err := d.trials.Holds("a"); (err == nil) != read {
				return fmt.Errorf("read: %v: %w", read, err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}

// A list that is refused since the start holds up no decision about another one.
func TestTrialBesideRefused(t *testing.T) {
	r := configure(t, lab.New(t).B)
	r.change(func(c *config.Config) {
		if _, err := c.AddFile(feedFile(t, "a.txt", "198.51.100.1\n"), config.Block); err != nil {
			t.Fatal(err)
		}
		c.Lists[1].Enforce = false
	})
	d := beginRefused(t, r)
	if _, err := d.trials.Enforce(t.Context(), "a", api.EnforceChange{Force: true}); err != nil {
		t.Fatal(err)
	}
	if got := verdictOf(t, d.Daemon, "198.51.100.1"); got != verdict.Drop {
		t.Errorf("enforced: %v", got)
	}
	if got := verdictOf(t, d.Daemon, wideSource); got != verdict.Pass {
		t.Errorf("what is refused is active: %v", got)
	}
}

// Where the configuration is activated again, a list keeps what it has while what was read of it is
// refused.
func TestRefusedKeepsContents(t *testing.T) {
	r := configure(t, lab.New(t).B)
	file := string(r.c.Lists[0].Sources[0].File)
	r.change(func(c *config.Config) {
		l := &c.Lists[0]
		l.Sources = append(l.Sources, l.Sources[0])
		l.Sources[1].File = quantity.Path(feedFile(t, "half.txt", "64.0.0.0/3\n"))
	})
	d := begin(t, r)
	unscheduled(t, d.Daemon)
	write(t, file, "96.0.0.0/3\n11.0.0.0/8\n") // which may become active alone
	if err := d.loop.doAlone(t.Context(), func() error {
		l := d.active.prepared.List("feed")
		if _, err := l.FromFeed.Fetch(t.Context()); err != nil {
			return err
		}
		if err := d.reassemble(); err != nil {
			return err
		}
		if l = d.active.prepared.List("feed"); l.Refused == nil {
			return errors.New("the contents are not refused")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for source, want := range map[string]verdict.Action{firstSource: verdict.Drop, "64.1.2.3": verdict.Drop, "100.64.0.1": verdict.Pass} {
		if got := verdictOf(t, d.Daemon, source); got != want {
			t.Errorf("%s: %v, want %v", source, got, want)
		}
	}
}
