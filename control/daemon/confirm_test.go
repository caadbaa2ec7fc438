package daemon

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/quantity"
	"weir/filter/key"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/wait"
)

// A configuration that is not confirmed goes by itself; after a crash, at once.
func TestReloadUnconfirmed(t *testing.T) {
	t.Parallel() // it waits a lot
	l := lab.New(t)
	r := configure(t, l.B)
	r.c.StateDir = config.Path(t.TempDir())
	r.c.Lists[0].Name = "good"
	good := r.c.Lists
	r.lists(t, feedFile(t, "bad.txt", secondSource+"\n"))
	bad := r.c.Lists
	set := func(lists []config.List) { r.change(func(c *config.Config) { c.Lists = lists }) }
	set(good)
	d := begin(t, r)
	defer func() { d.stop() }()
	active := func(when string, want []config.List) {
		t.Helper()
		first, second := verdict.Drop, verdict.Pass
		if want[0].Name == "bad" {
			first, second = second, first
		}
		if a, b := verdictOf(t, d.Daemon, firstSource), verdictOf(t, d.Daemon, secondSource); a != first || b != second {
			t.Fatalf("%s: %v and %v, want the list %s", when, a, b, want[0].Name)
		}
	}
	reload := func(within time.Duration) error {
		_, err := d.ReloadUnconfirmed(t.Context(), within)
		return err
	}
	awaitRollback := func() {
		t.Helper()
		for end := wait.Deadline(); d.readings.Status().ConfirmUntil != nil; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("it is not rolled back")
			}
		}
	}
	var refused *api.BadRequest

	set(bad)
	if err := reload(4 * time.Second); err != nil {
		t.Fatal(err)
	}
	active("unconfirmed", bad)
	if s := d.readings.Status(); s.ConfirmUntil == nil || s.RolledBack {
		t.Errorf("%+v", s)
	}
	if _, err := d.Reload(t.Context()); !errors.As(err, &refused) {
		t.Errorf("a reload before it is confirmed: %v", err)
	}
	awaitRollback()
	active("rolled back", good)
	if s := d.readings.Status(); !s.RolledBack {
		t.Errorf("%+v", s)
	}
	if err := d.Confirm(t.Context()); !errors.As(err, &refused) {
		t.Errorf("confirmed too late: %v", err)
	}
	d.stop()
	d = begin(t, r)
	active("the same file after a restart", good)
	if s := d.readings.Status(); !s.RolledBack {
		t.Errorf("%+v", s)
	}
	if _, err := d.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	active("an explicit reload", bad)
	if s := d.readings.Status(); s.RolledBack {
		t.Errorf("%+v", s)
	}

	// Confirmed, it stays, also over a restart.
	set(good)
	if err := reload(time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := d.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := d.readings.Status(); s.ConfirmUntil != nil {
		t.Errorf("%+v", s)
	}
	d.stop()
	d = begin(t, r)
	active("confirmed, after a restart", good)

	// A restart before that rolls back.
	set(bad)
	if err := reload(time.Hour); err != nil {
		t.Fatal(err)
	}
	d.stop()
	d = begin(t, r)
	active("unconfirmed, after a restart", good)
	r.change(func(c *config.Config) { c.MaxCoverage = 0.5 })
	d.stop()
	d = begin(t, r)
	active("another file after a restart", bad)

	// What cannot be rolled back after a crash is not activated.
	if _, err := d.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	set(good)
	if err := os.Mkdir(rollbackPath(&r.c)+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := reload(time.Hour); err == nil {
		t.Error("active, though a crash could not be rolled back")
	}
	active("a refused reload", bad)
}

// A rollback keeps what was read before it, of lists whose settings it changes, too.
func TestRollbackKeepsContents(t *testing.T) {
	t.Parallel() // it waits
	r := configure(t, lab.New(t).B)
	r.c.StateDir = config.Path(t.TempDir())
	file := string(r.c.Lists[0].Sources[0].File)
	write(t, file, firstSource+"\n")
	d := begin(t, r)
	r.change(func(c *config.Config) { c.Lists[0].Priority = 3 })
	if _, err := d.ReloadUnconfirmed(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	write(t, file, firstSource+"\n"+secondSource+"\n")
	if all, err := d.api.Refresh(t.Context(), r.c.Lists[0].Name, false); err != nil || len(all) != 1 || all[0].Error != "" {
		t.Fatalf("%+v, %v", all, err)
	}
	if err := os.Remove(file); err != nil { // it cannot be read again
		t.Fatal(err)
	}
	if err := d.loop.doAlone(t.Context(), func() error { return d.rollBack(d.reloads.unconfirmed.until) }); err != nil {
		t.Fatal(err)
	}
	if s := d.readings.Status(); !s.RolledBack {
		t.Errorf("%+v", s)
	}
	for _, source := range []string{firstSource, secondSource} {
		if got := verdictOf(t, d.Daemon, source); got != verdict.Drop {
			t.Errorf("%s: %v", source, got)
		}
	}
}

// A rollback returns to the engine of before, with what lists contain now.
func TestRollbackKeepsEngine(t *testing.T) {
	t.Parallel() // it waits a lot
	r := configure(t, lab.New(t).B)
	good, file := r.c.Lists, string(r.c.Lists[0].Sources[0].File)
	other := feedFile(t, "other.txt", secondSource+"\n")
	d := begin(t, r)
	engineNow := func() (e *engine.Generation) {
		t.Helper()
		if err := d.loop.Do(t.Context(), func() error { e = d.active.engine; return nil }); err != nil {
			t.Fatal(err)
		}
		return e
	}
	reload := func(within time.Duration) {
		t.Helper()
		if _, err := d.ReloadUnconfirmed(t.Context(), within); err != nil {
			t.Fatal(err)
		}
	}
	before := engineNow()
	r.lists(t, other)
	reload(time.Hour)
	write(t, file, "198.51.100.3"+"\n")
	if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Block, Entries: []string{"198.51.100.4"}, UID: api.NoUID}); err != nil {
		t.Fatal(err)
	}
	r.change(func(c *config.Config) { c.Monitor = true })
	reload(time.Second) // with the same way back
	if engineNow() == before {
		t.Fatal("the engine of before is active")
	}
	await(t, "rollbacks", 1, func() uint64 {
		if d.readings.Status().RolledBack {
			return 1
		}
		return 0
	})
	if engineNow() != before {
		t.Error("an engine was built to roll back")
	}
	await(t, "entries of the file", 1, func() (n uint64) {
		for _, l := range d.readings.Lists().Lists {
			if l.Name == good[0].Name {
				n = uint64(l.Entries)
			}
		}
		return n
	})
	for source, want := range map[string]verdict.Action{secondSource: verdict.Pass, "198.51.100.4": verdict.Drop} {
		if got := verdictOf(t, d.Daemon, source); got != want {
			t.Errorf("%s: %v", source, got)
		}
	}

	// What is confirmed has no way back any more.
	reload(time.Hour)
	if err := d.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := before.Load(nil); err == nil {
		t.Error("the engine of before is kept")
	}
}

// A rollback returns to a configuration that would refuse what the present one has of a list: the
// list keeps its former contents.
func TestRollbackOfMaxCoverage(t *testing.T) {
	t.Parallel() // it waits
	r := configure(t, lab.New(t).B)
	r.c.StateDir = config.Path(t.TempDir())
	d := begin(t, r)
	r.change(func(c *config.Config) { c.MaxCoverage = 1 })
	write(t, string(r.c.Lists[0].Sources[0].File), wide)
	if _, err := d.ReloadUnconfirmed(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if got := verdictOf(t, d.Daemon, wideSource); got != verdict.Drop {
		t.Fatalf("unconfirmed: %v", got)
	}
	rollBackNow(t, d)
	for source, want := range map[string]verdict.Action{firstSource: verdict.Drop, wideSource: verdict.Pass} {
		if got := verdictOf(t, d.Daemon, source); got != want {
			t.Errorf("%s: %v, want %v", source, got, want)
		}
	}
}

// wide is more than lists may cover by default.
const wide, wideSource = "64.0.0.0/2\n128.0.0.0/2\n", "64.1.2.3"

// rollBackNow returns to the previous configuration, as if it were time.
func rollBackNow(t *testing.T, d *running) {
	t.Helper()
	if err := d.loop.doAlone(t.Context(), func() error { return d.rollBack(d.reloads.unconfirmed.until) }); err != nil {
		t.Fatal(err)
	}
	if s := d.readings.Status(); !s.RolledBack {
		t.Errorf("%+v", s)
	}
}

// A rollback also returns to a configuration that was started with a refused list.
func TestRollbackToRefused(t *testing.T) {
	t.Parallel() // it waits
	r := configure(t, lab.New(t).B)
	d := beginRefused(t, r)
	r.change(func(c *config.Config) { c.MaxCoverage = 1 })
	if _, err := d.ReloadUnconfirmed(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	rollBackNow(t, d)
	if got := verdictOf(t, d.Daemon, wideSource); got != verdict.Pass {
		t.Errorf("what is refused is active: %v", got)
	}
}

// beginRefused begins with one list, whose saved contents are refused.
func beginRefused(t *testing.T, r *configured) *running {
	t.Helper()
	r.c.StateDir, r.c.Lists[0].Required = config.Path(t.TempDir()), false
	most := r.c.MaxCoverage
	r.c.MaxCoverage = 1
	write(t, string(r.c.Lists[0].Sources[0].File), wide)
	begin(t, r).stop()
	r.c.MaxCoverage = most
	d := begin(t, r)
	if d.active.prepared.List("feed").Refused == nil {
		t.Fatal("the list is not refused")
	}
	return d
}

// What a configuration has read of files serves it again: a rollback and a command about a trial do
// not fail where one of them is gone.
func TestRollbackWithoutKeyFile(t *testing.T) {
	t.Parallel() // it waits
	r := configure(t, lab.New(t).B)
	key := feedFile(t, "loop.key", "0123456789abcdef0123456789abcdef\n")
	off := r.c.Loop
	r.c.Loop.Node, r.c.Loop.KeyFile, r.c.Loop.Size = 1, quantity.Path(key), 64
	d := begin(t, r)
	r.change(func(c *config.Config) { c.Loop = off })
	if _, err := d.ReloadUnconfirmed(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	rollBackNow(t, d)
	if err := d.loop.doAlone(t.Context(), d.reassemble); err != nil {
		t.Errorf("the configuration again: %v", err)
	}
}

// A rollback also undoes the entries of the configuration, which do not stay for a TTL.
func TestRollbackOfEntries(t *testing.T) {
	t.Parallel() // it waits
	r := configure(t, lab.New(t).B)
	r.c.StateDir = config.Path(t.TempDir())
	r.c.Lists[0].Sources, r.c.Lists[0].Entries, r.c.Lists[0].TTL = nil, []string{firstSource}, quantity.Duration(2*time.Hour)
	d := begin(t, r)
	r.change(func(c *config.Config) {
		c.Lists = slices.Clone(c.Lists)
		c.Lists[0].Entries = []string{secondSource}
	})
	if _, err := d.ReloadUnconfirmed(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if first, second := verdictOf(t, d.Daemon, firstSource), verdictOf(t, d.Daemon, secondSource); first != verdict.Pass || second != verdict.Drop {
		t.Fatalf("unconfirmed: %v, %v", first, second)
	}
	rollBackNow(t, d)
	awaitSchedule(t, d.Daemon)
	if all, err := d.api.Refresh(t.Context(), "feed", false); err != nil || len(all) != 1 || all[0].Error != "" {
		t.Fatalf("%+v, %v", all, err)
	}
	if first, second := verdictOf(t, d.Daemon, firstSource), verdictOf(t, d.Daemon, secondSource); first != verdict.Drop || second != verdict.Pass {
		t.Errorf("rolled back: %v, %v", first, second)
	}
	if e, ok := d.journal.Get("feed", key.Source(netip.PrefixFrom(netip.MustParseAddr(secondSource), 32))); ok {
		t.Errorf("it stays: %+v", e)
	}
}

// A start with another configuration than the one that was not confirmed ends what was to be: the
// former configuration does not come back with a later change of the file.
func TestRollbackIsForgotten(t *testing.T) {
	t.Parallel() // it waits
	r := configure(t, lab.New(t).B)
	r.c.StateDir = config.Path(t.TempDir())
	d := begin(t, r)
	change := func(most quantity.Share) { r.change(func(c *config.Config) { c.MaxCoverage = most }) }
	before := r.c.MaxCoverage
	change(0.3)
	if _, err := d.ReloadUnconfirmed(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	rollBackNow(t, d)
	d.stop()
	change(0.4)
	d = begin(t, r)
	d.stop()
	change(0.3)
	d = begin(t, r)
	if got := d.active.prepared.Config.MaxCoverage; got == before || d.readings.Status().RolledBack {
		t.Errorf("max_coverage is %v after the file has changed twice, want 0.3", got)
	}
}
