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
	"weir/control/config"
	"weir/control/durable"
)

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
func loadMonitor(path string, now time.Time, log *slog.Logger) *api.MonitorOverride {
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

// saveMonitor saves manual monitor mode, nil for off.
func (d *Daemon) saveMonitor(o *api.MonitorOverride) error {
	path := monitorPath(d.active.prepared.config)
	if path == "" {
		return nil
	}
	if o == nil {
		return durable.Remove(path)
	}
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return durable.WriteFile(path, append(text, '\n'))
}

// SetMonitor implements [server.Daemon]. A full disk does not hold it up.
func (d *Daemon) SetMonitor(ctx context.Context, c api.MonitorChange) (done api.Monitored, err error) {
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
	err = d.loop.doAlone(ctx, func() error {
		if o == nil && d.active.prepared.config.Monitor {
			return &api.BadRequest{Err: errors.New("weir is configured to monitor: remove monitor: true from weir.yaml, then weir reload; or restart it without --monitor")}
		}
		before, unsaved := d.monitor, error(nil)
		if o != nil {
			unsaved = d.saveMonitor(o)
		}
		d.monitor = o
		if err := d.switchMonitor(); err != nil {
			d.monitor = before
			return errors.Join(fmt.Errorf("monitor mode stays as it was: %w", err), d.saveMonitor(before))
		}
		if o == nil { // a crash before finds it on, which is what was acknowledged
			unsaved = d.saveMonitor(nil)
		}
		if unsaved != nil {
			done.Unsaved = unsaved.Error()
			d.o.Log.Error("monitor mode was switched, but a restart would forget that: " + done.Unsaved)
		}
		done.Monitor, done.Override = d.active.engine.Monitor, o
		return nil
	})
	d.audit.attempt(ctx, r, err)
	return done, err
}

// switchMonitor switches to the mode that the configuration and commands want, with
// one step for each interface. Filters stay as they are. When it fails, nothing has
// changed, or the error says where it has.
func (d *Daemon) switchMonitor() error {
	on := d.monitors(d.active.prepared.config)
	defer d.note()
	if d.active.engine.Monitor == on {
		return nil
	}
	next, err := d.active.engine.WithMonitor(on)
	if err != nil {
		return err
	}
	m := d.active.attach.Metadata()
	m.Monitor = on
	if err := d.active.swap(next, m); err != nil {
		return err
	}
	d.o.Log.Warn("monitor mode was switched", "monitor", on)
	return nil
}

// monitors reports whether a configuration is to be in monitor mode.
func (d *Daemon) monitors(c *config.Config) bool { return c.Monitor || d.monitor != nil }

// endMonitor ends manual monitor mode once its time is over.
func (d *Daemon) endMonitor(now time.Time) error {
	before := d.monitor
	if !expired(before, now) {
		return nil
	}
	d.monitor = nil
	if err := d.switchMonitor(); err != nil {
		d.monitor = before
		return fmt.Errorf("monitor mode could not be ended, retrying: %w", err)
	}
	if err := d.saveMonitor(nil); err != nil { // a start ignores it
		d.o.Log.Error(err.Error())
	}
	d.audit.Record(audit.Record{Change: audit.MonitorOff, Source: "expiry"})
	return nil
}
