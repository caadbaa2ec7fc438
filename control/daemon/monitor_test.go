package daemon

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/audit"
	ours "weir/control/clock"
	"weir/control/config"
	"weir/control/ruleset"
	"weir/filter/verdict"
	"weir/tests/clock"
	"weir/tests/lab"
	"weir/tests/wait"
)

func setMonitor(t *testing.T, d *running, on bool, during time.Duration) api.Monitored {
	t.Helper()
	m, err := d.monitor.SetMonitor(t.Context(), api.MonitorChange{On: &on, For: during.Seconds(), UID: 0})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func monitored(d *Daemon) uint64 { return left(d, verdict.WouldBlock.String(), false) }

// Everything passes at once: also after a reload, and on an interface
// that comes back. Lists that change meanwhile are active when it is off again.
func TestMonitorOverride(t *testing.T) {
	t.Parallel() // it waits a lot
	l := lab.New(t)
	r := configure(t, l.B)
	r.c.StateDir = config.Path(t.TempDir())
	d := begin(t, r)
	defer watched(t, d.Daemon)()
	send(t, l, 5, firstSource)
	await(t, "before", 5, func() uint64 { return blocked(d.Daemon) })

	if m := setMonitor(t, d, true, 0); !m.Monitor || m.Override == nil || m.Override.User != "root" || m.Override.Client != "" || m.Override.Until != nil || m.Unsaved != "" {
		t.Errorf("%+v", m)
	}
	if s := d.readings.Status(); !s.Monitor || s.MonitorOverride == nil || !d.readings.Metrics().Monitor || !d.readings.Metrics().MonitorOverride {
		t.Errorf("status %+v", s)
	}
	if got := verdictOf(t, d.Daemon, firstSource); got != verdict.Pass {
		t.Errorf("explain: %v", got)
	}
	send(t, l, 5, firstSource)
	await(t, "on", 5, func() uint64 { return monitored(d.Daemon) })

	if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Block, Entries: []string{secondSource}}); err != nil {
		t.Fatal(err)
	}
	send(t, l, 5, secondSource)
	await(t, "a new entry", 10, func() uint64 { return monitored(d.Daemon) })
	if _, err := d.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	send(t, l, 5, secondSource)
	await(t, "after a reload", 15, func() uint64 { return monitored(d.Daemon) })
	deleteWire(t, l)
	l.Wire(t)
	awaitState(t, d, l.B.Iface, api.Filtered)
	send(t, l, 5, secondSource)
	await(t, "on the interface that is back", 20, func() uint64 { return monitored(d.Daemon) })

	on := true
	if m, err := d.monitor.SetMonitor(t.Context(), api.MonitorChange{On: &on, UID: api.NoUID, Client: "CN=ada"}); err != nil || m.Override.Client != "CN=ada" || m.Override.UID != nil {
		t.Errorf("switched on by a remote client: %+v, %v", m.Override, err)
	}
	if m := setMonitor(t, d, false, 0); m.Monitor || m.Override != nil {
		t.Errorf("%+v", m)
	}
	send(t, l, 5, firstSource)
	send(t, l, 5, secondSource)
	await(t, "off again", 15, func() uint64 { return blocked(d.Daemon) })
	// The sets are the engine's own: they change in place, as before.
	if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Block, Entries: []string{cleanSource}}); err != nil {
		t.Fatal(err)
	}
	send(t, l, 5, cleanSource)
	await(t, "an entry after it", 20, func() uint64 { return blocked(d.Daemon) })
	if s := d.readings.Status(); s.Monitor || s.MonitorOverride != nil || d.readings.Metrics().MonitorOverride {
		t.Errorf("status %+v", s)
	}
	text, err := os.ReadFile(filepath.Join(string(r.c.StateDir), audit.File))
	if err != nil || !strings.Contains(string(text), `"change":"monitor on"`) || !strings.Contains(string(text), `"change":"monitor off"`) {
		t.Errorf("the audit is %s, %v", text, err)
	}
	if _, err := os.Stat(statePath(&r.c, monitorFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("monitor mode would come back: %v", err)
	}

	r.change(func(c *config.Config) { c.Monitor = true })
	if _, err := d.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	off := false
	_, err = d.monitor.SetMonitor(t.Context(), api.MonitorChange{On: &off})
	var bad *api.BadRequest
	if !errors.As(err, &bad) || !strings.Contains(err.Error(), "monitor: true") {
		t.Errorf("off against the configuration: %v", err)
	}
}

// awaitState waits for the state of an interface.
func awaitState(t *testing.T, d *running, name, state string) {
	t.Helper()
	for end := wait.Deadline(); stateOf(t, d, name).State != state; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v", stateOf(t, d, name))
		}
	}
}

// It ends by itself, and a restart takes it over, unless its time is over.
func TestMonitorOutlastsDaemon(t *testing.T) {
	t.Parallel() // it waits a lot
	l := lab.New(t)
	r := configure(t, l.B)
	r.c.StateDir = config.Path(t.TempDir())
	d := begin(t, r)
	until := setMonitor(t, d, true, 15*time.Second).Override.Until
	d.stop()
	d = begin(t, r)
	if s := d.readings.Status(); !s.Monitor || s.MonitorOverride == nil || !s.MonitorOverride.Until.Round(0).Equal(until.Round(0)) {
		t.Fatalf("after a restart: %+v", s)
	}
	for d.readings.Status().Monitor {
		if time.Now().After(until.Add(wait.Patience)) {
			t.Fatal("it does not end")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if early := time.Until(*until); early > 0 {
		t.Errorf("it has ended %v early", early)
	}
	send(t, l, 5, firstSource)
	await(t, "when it has ended", 5, func() uint64 { return blocked(d.Daemon) })

	setMonitor(t, d, true, 100*time.Millisecond)
	d.stop()
	time.Sleep(100 * time.Millisecond)
	if d = begin(t, r); d.readings.Status().Monitor {
		t.Error("it has not ended while no daemon ran")
	}
	write(t, statePath(&r.c, monitorFile), `{"since": "2026`)
	if got := loadMonitor(statePath(&r.c, monitorFile), nil, time.Now(), slog.New(slog.DiscardHandler)); got != nil {
		t.Errorf("a torn file is read as %+v", got)
	}
}

// However the clock was set before and meanwhile, manual monitor mode and limits of interfaces last as long as they
// were to.
func TestMonitorOutlastsTheClock(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, ahead := range []time.Duration{0, 5 * time.Hour, -5 * time.Hour, -20000 * 24 * time.Hour, 87600 * time.Hour} {
		for _, reboots := range []bool{false, true} {
			m := clock.NewMachine(t)
			c := config.Default()
			c.StateDir = config.Path(t.TempDir())
			begun := func() *override {
				by := ours.Open(m.Host(), string(c.StateDir), log)
				by.Save()
				return &override{clock: by, active: &active{prepared: &ruleset.Ruleset{Config: c}}}
			}
			o := begun()
			m.Set(3*time.Hour, false)
			o.clock.Follow()
			until := m.Now().Add(10 * time.Minute)
			limits := policing{clock: o.clock, active: o.active, log: log}
			if err := limits.save([]api.PoliceOverride{{Interface: "eth0", Rate: "1kpps", Since: m.Now(), Until: &until}}); err != nil {
				t.Fatal(err)
			}
			if err := o.save(&api.MonitorOverride{Since: m.Now(), Until: &until}); err != nil {
				t.Fatal(err)
			}
			m.Pass(time.Minute)
			o.clock.Save()
			if m.Set(ahead, false); reboots {
				m.Reboot(time.Hour)
			}
			o = begun()
			ends := func() (all []*time.Time) {
				if o := loadMonitor(statePath(c, monitorFile), o.clock, m.Now(), log); o != nil {
					all = append(all, o.Until)
				}
				limits = policing{clock: o.clock, active: o.active, log: log}
				limits.load(c, m.Now())
				for _, o := range limits.set {
					all = append(all, o.Until)
				}
				return all
			}
			all := ends()
			if len(all) != 2 {
				t.Errorf("clock set by %v, reboot %t: %d of 2 have not ended", ahead, reboots, len(all))
			}
			for _, until := range all {
				if left := until.Sub(m.Now()); (left - 9*time.Minute).Abs() > time.Minute {
					t.Errorf("clock set by %v, reboot %t: %v are left", ahead, reboots, left)
				}
			}
			if m.Pass(10 * time.Minute); len(ends()) != 0 {
				t.Errorf("clock set by %v, reboot %t: it goes on", ahead, reboots)
			}
		}
	}
}

// What cannot be saved is switched all the same, and the answer says so.
func TestMonitorUnsaved(t *testing.T) {
	r := configure(t, lab.New(t).B)
	r.c.StateDir = config.Path(t.TempDir())
	d := begin(t, r)
	if err := os.Mkdir(statePath(&r.c, monitorFile)+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	if m := setMonitor(t, d, true, 0); !m.Monitor || m.Unsaved == "" {
		t.Errorf("%+v", m)
	}
}

// What ends at a time by the monotonic clock is shown with the time by the wall clock as it is now.
func TestTimesByTheClock(t *testing.T) {
	t.Parallel()
	d := begin(t, configure(t, lab.New(t).B))
	for _, ahead := range []time.Duration{-24 * time.Hour, 0, 2 * time.Hour} {
		var s api.Status
		var lists []api.List
		in := time.Now().Add(time.Minute)
		if err := d.loop.Do(t.Context(), func() error {
			until := clock.Set(t, in, ahead) // known before the clock was set
			noted := *d.readings.status.Load()
			noted.ConfirmUntil, noted.MonitorOverride = &until, &api.MonitorOverride{Until: &until}
			noted.Trials = []api.TrialList{{List: "drop", Trial: api.Trial{EnforcedAt: &until}}}
			d.readings.status.Store(&noted)
			s = d.readings.Status()
			described := d.readings.lister.last.Load()
			d.readings.lister.last.Store(&api.Lists{Lists: []api.List{{Name: "drop", Trial: &noted.Trials[0].Trial}}})
			lists = d.readings.Lists().Lists // as last described: this goroutine is busy
			d.readings.lister.last.Store(described)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for what, shown := range map[string]*time.Time{"confirm": s.ConfirmUntil, "monitor": s.MonitorOverride.Until, "trial": s.Trials[0].EnforcedAt, "list": lists[0].Trial.EnforcedAt} {
			if off := shown.Round(0).Sub(in.Round(0)); off.Abs() > time.Second {
				t.Errorf("%s, known when the clock was %v ahead: off by %v", what, ahead, off)
			}
		}
	}
}

// The answer to a change says that what it blocks passes.
func TestChangeInMonitorMode(t *testing.T) {
	for _, monitor := range []bool{false, true} {
		r := configure(t, lab.New(t).B)
		r.change(func(c *config.Config) { c.Monitor = monitor })
		d := begin(t, r)
		for action, blocks := range map[string]bool{api.Block: true, api.Allow: false} {
			changed, err := d.changes.Change(t.Context(), api.Change{Action: action, Entries: []string{"198.51.100.4"}})
			if err != nil || changed.Monitor != (monitor && blocks) {
				t.Errorf("%s, monitor %t: %+v, %v", action, monitor, changed, err)
			}
		}
	}
}
