package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/feed"
)

// Reload reads the configuration again, with its files and directories, and
// activates all of it or nothing.
func (d *Daemon) Reload(ctx context.Context) (api.Reloaded, error) { return d.reload(ctx, 0) }

// reload reloads a configuration that is to be confirmed within a time; 0: it need
// not be.
func (d *Daemon) reload(ctx context.Context, within time.Duration) (r api.Reloaded, err error) {
	d.reloading.Lock()
	defer d.reloading.Unlock()
	var last *Prepared
	var warnings []string
	if err := d.Do(ctx, func() error { last = d.prepared; return nil }); err != nil {
		return r, err
	}
	d.notified(d.manager.Reloading())
	// Sources may take their time, which Run's goroutine does not have.
	var feeds map[string]*feed.Feed
	var read []*decision
	how := preparation{log: d.o.Log, version: d.o.Version, journal: d.journal, last: last, reload: true, progress: d.o.Progress, watcher: d.watcher}
	c, err := d.o.Config.Read()
	if err == nil {
		feeds, err = openFeeds(ctx, c, how)
	}
	if bad := d.Do(context.WithoutCancel(ctx), func() error { // the service manager waits for it
		if err == nil {
			r, err = d.reconfigureUnconfirmed(c, feeds, within)
		}
		record := &d.record.config
		record.Last, record.Failed = time.Now(), err != nil
		if err != nil {
			record.Refused++
			read = d.takeRead() // the old configuration has the same files
		} else {
			record.Done++
			record.LastDone = record.Last
			read = d.prepared.decisions()
			warnings = d.prepared.Warnings()
			d.prepared.logFailures(d.o.Log)
		}
		d.note()
		d.notified(d.manager.Ready(d.summary()))
		return nil
	}); bad != nil {
		return r, bad
	}
	for _, c := range read {
		c.settle(d.o.Log)
	}
	if err != nil {
		d.news.refusedReload(ctx, err)
		return r, fmt.Errorf("reload, the old configuration stays active: %w", err)
	}
	for _, line := range r.Changes {
		d.o.Log.Info("configuration", "change", line)
	}
	for _, line := range r.Unfiltered {
		d.o.Log.Error("the configuration is active, but " + line)
	}
	d.auditReload(ctx, slices.Concat(r.Changes, r.Unfiltered))
	r.Changes = append(r.Changes, warnings...)
	return r, nil
}

// reconfigure activates a configuration.
func (d *Daemon) reconfigure(c *config.Config, feeds map[string]*feed.Feed) (r api.Reloaded, err error) {
	old := d.prepared.config
	if c.StateDir != old.StateDir || c.Pins != old.Pins || c.API != old.API || c.Metrics != old.Metrics || c.Console != old.Console || c.Fleet != old.Fleet {
		return r, errors.New("state_dir, pins, api, metrics, console and fleet change with a restart only")
	}
	next, err := assemble(c, d.journal, feeds, d.fleet, d.prepared)
	if err != nil {
		return r, err
	}
	for _, l := range next.lists {
		if l.refused != nil && l.feed != nil {
			return r, l.refused
		}
	}
	current := d.observers.recorder
	recorder, err := newRecorder(c, current, d.o.Log)
	if err != nil {
		return r, err
	}
	if err := d.activate(next, recorder); err != nil {
		return r, errors.Join(err, recorder.CloseUnless(current))
	}
	if err := current.CloseUnless(recorder); err != nil {
		d.o.Log.Error(err.Error())
	}
	_ = d.followInterfaces() // Run ends where nothing is left
	d.followFeeds()
	d.news.configure(c)
	d.exports.configure(c.Export, d.hub, time.Now(), d.meter.Hits())
	if d.o.Logging != nil {
		d.o.Logging.Configure(c.Log)
	}
	return api.Reloaded{Changes: config.Diff(old, c), Unfiltered: d.attach.Problems()}, nil
}
