package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/clock"
	"weir/control/config"
	"weir/control/durable"
)

// override is manual monitor mode. SetMonitor is safe for concurrent use; all else is for Run's
// goroutine.
type override struct {
	manual *api.MonitorOverride // nil: the configuration decides

	clock  *clock.Clock
	loop   *loop
	active *active
	audit  *audit.Log
	note   func() // publishes the state
	log    *slog.Logger
}

// monitorFile is the name of the file below the state directory that outlasts a
// crash: it is there during manual monitor mode.
const monitorFile = "monitor.json"

func monitorPath(c *config.Config) string {
	if c.StateDir == "" {
		return ""
	}
	return filepath.Join(string(c.StateDir), monitorFile)
}

// loadMonitor returns manual monitor mode as it was saved, nil if it is off or
// has ended meanwhile.
func loadMonitor(path string, by *clock.Clock, now time.Time, log *slog.Logger) *api.MonitorOverride {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	o := new(api.MonitorOverride)
	if err == nil {
		err = json.Unmarshal(text, o)
	}
	if err != nil {
		log.Error("whether monitor mode was switched on manually is unknown, the configuration decides: "+err.Error(), "file", path)
		return nil
	}
	o.Since, o.Until = by.Wall(o.Since), clock.Optional(by.Wall, o.Until)
	if expired(o, now) {
		log.Info("manual monitor mode has ended while weir did not run", "by", o.Who(), "until", o.Until)
		return nil
	}
	log.Warn("monitor mode was switched on manually: nothing is dropped", "by", o.Who(), "since", o.Since, "until", untilText(o))
	return o
}

func expired(o *api.MonitorOverride, now time.Time) bool {
	return o != nil && o.Until != nil && !o.Until.After(now)
}

func untilText(o *api.MonitorOverride) string {
	if o.Until == nil {
		return "weir monitor off"
	}
	return o.Until.Format(time.RFC3339)
}

// save saves manual monitor mode with steady times, nil for off.
func (m *override) save(o *api.MonitorOverride) error {
	path := monitorPath(m.active.prepared.Config)
	if path == "" {
		return nil
	}
	if o == nil {
		return durable.Remove(path)
	}
	saved := *o
	saved.Since, saved.Until = m.clock.Steady(o.Since), clock.Optional(m.clock.Steady, o.Until)
	text, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	return durable.WriteFile(path, append(text, '\n'))
}

// shown returns a time by the wall clock as it is set now, nil for nil.
func shown(t *time.Time) *time.Time {
	return clock.Optional(clock.Shown, t)
}

// trialShown returns a trial with its end by the wall clock as it is set now, nil for nil.
func trialShown(t *api.Trial) *api.Trial {
	if t == nil {
		return nil
	}
	as := *t
	as.EnforcedAt = shown(t.EnforcedAt)
	return &as
}

// SetMonitor implements [server.Monitor]. A full disk does not hold it up.
func (m *override) SetMonitor(ctx context.Context, c api.MonitorChange) (done api.Monitored, err error) {
	now := time.Now()
	r := audit.Record{Change: audit.MonitorOff}
	audit.By(&r, c.UID, c.Client)
	var o *api.MonitorOverride
	if *c.On {
		r.Change, r.TTL = audit.MonitorOn, c.For
		o = &api.MonitorOverride{Since: now, UID: r.UID, User: r.User}
		if r.UID == nil {
			o.Client = audit.Cut(r.Source, audit.MaxText)
		}
		if c.For != 0 {
			until := now.Add(time.Duration(c.For * float64(time.Second)))
			o.Until = &until
		}
	}
	err = m.loop.doAlone(ctx, func() error {
		if o == nil && m.active.prepared.Config.Monitor {
			return &api.BadRequest{Err: errors.New("weir is configured to monitor: remove monitor: true from weir.yaml, then weir reload; or restart it without --monitor")}
		}
		before, unsaved := m.manual, error(nil)
		if o != nil {
			unsaved = m.save(o)
		}
		m.manual = o
		if err := m.follow(); err != nil {
			m.manual = before
			return errors.Join(fmt.Errorf("monitor mode stays as it was: %w", err), m.save(before))
		}
		if o == nil { // a crash before finds it on, as was acknowledged
			unsaved = m.save(nil)
		}
		if unsaved != nil {
			done.Unsaved = unsaved.Error()
			m.log.Error("monitor mode was switched, but a restart would forget that: " + done.Unsaved)
		}
		done.Monitor, done.Override = m.active.engine.Monitor, o
		return nil
	})
	m.audit.AttemptBy(ctx, r, err)
	return done, err
}

// follow switches to the mode that the configuration and commands want, with
// one step for each interface. Filters stay as they are. When it fails, nothing has
// changed, or the error says where it has.
func (m *override) follow() error {
	on := m.monitors(m.active.prepared.Config)
	defer m.note()
	if m.active.engine.Monitor == on {
		return nil
	}
	next, err := m.active.engine.WithMonitor(on)
	if err != nil {
		return err
	}
	about := m.active.attach.Metadata()
	about.Monitor = on
	if err := m.active.swap(next, about); err != nil {
		return err
	}
	m.log.Warn("monitor mode was switched", "monitor", on)
	return nil
}

// monitors reports whether a configuration is to be in monitor mode.
func (m *override) monitors(c *config.Config) bool { return c.Monitor || m.manual != nil }

// end ends manual monitor mode once its time is over.
func (m *override) end(now time.Time) error {
	before := m.manual
	if !expired(before, now) {
		return nil
	}
	m.manual = nil
	if err := m.follow(); err != nil {
		m.manual = before
		return fmt.Errorf("monitor mode could not be ended, retrying: %w", err)
	}
	if err := m.save(nil); err != nil { // a start ignores it
		m.log.Error(err.Error())
	}
	m.audit.Record(audit.Record{Change: audit.MonitorOff, Source: "expiry"})
	return nil
}

// check saves manual monitor mode again where its file is missing.
func (m *override) check() error {
	path := monitorPath(m.active.prepared.Config)
	if m.manual == nil || !missing(path) {
		return nil
	}
	m.log.Error("a state file was removed while weir ran: it is written anew", "file", path)
	if err := m.save(m.manual); err != nil {
		return fmt.Errorf("monitor mode: %w", err)
	}
	return nil
}
