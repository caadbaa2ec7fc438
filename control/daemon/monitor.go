package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/clock"
	"weir/control/config"
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

// loadMonitor returns manual monitor mode as it was saved, nil if it is off or
// has ended meanwhile.
func loadMonitor(path string, by *clock.Clock, now time.Time, log *slog.Logger) *api.MonitorOverride {
	o := new(api.MonitorOverride)
	if !loadDecisions(path, o, "whether monitor mode was switched on manually", log) {
		return nil
	}
	o.Since, o.Until = by.Wall(o.Since), clock.Optional(by.Wall, o.Until)
	if over(o.Until, now) {
		log.Info("manual monitor mode has ended while weir did not run", "by", o.Who(), "until", o.Until)
		return nil
	}
	log.Warn("monitor mode was switched on manually: nothing is dropped", "by", o.Who(), "since", o.Since, "until", untilText(o))
	return o
}

func untilText(o *api.MonitorOverride) string {
	if o.Until == nil {
		return "weir monitor off"
	}
	return o.Until.Format(time.RFC3339)
}

// save saves manual monitor mode with steady times, nil for off.
func (m *override) save(o *api.MonitorOverride) error {
	path := statePath(m.active.prepared.Config, monitorFile)
	if o == nil {
		return forgetDecisions(path)
	}
	saved := *o
	saved.Since, saved.Until = m.clock.Steady(o.Since), clock.Optional(m.clock.Steady, o.Until)
	return saveDecisions(path, saved)
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
	if before == nil || !over(before.Until, now) {
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
	if m.manual == nil {
		return nil
	}
	return restoreDecisions(statePath(m.active.prepared.Config, monitorFile), "monitor mode", func() error { return m.save(m.manual) }, m.log)
}
