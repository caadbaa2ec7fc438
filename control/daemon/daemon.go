// Package daemon is weir as an operator leaves it running: it filters by a
// configuration whose lists come from feeds and from commands, follows both,
// and loses nothing.
//
// Whatever changes the lists happens in one goroutine, that of the filter
// (run.Filter.Do): updates of feeds, commands, expiry, a new configuration.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"weir/control/config"
	"weir/control/feed"
	"weir/control/generation"
	"weir/control/heavy"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/ruleset"
	"weir/control/run"
	"weir/filter/key"
)

// Options say how a daemon runs, besides its configuration.
type Options struct {
	Config   string // path of the configuration
	Takeover bool   // from another weir that runs
	Version  string // weir's
	Log      *slog.Logger
	Progress ruleset.Progress
}

// Daemon filters by a configuration.
type Daemon struct {
	Options
	*run.Filter
	state   *state
	journal *journal.Journal
	ctx     context.Context // done when the daemon stops
	feeds   map[*feed.Feed]context.CancelFunc
	expired *time.Timer
}

// mostInPlace bounds the changes of one update that go in place: beyond it, the
// next generation is as quick and does not keep others waiting.
const mostInPlace = 200_000

// Start begins to filter by a configuration, with what is known of its lists:
// the saved contents of feeds, and entries that were added by command. Only
// where nothing is saved are sources asked before: what may be filtering there
// already knows more than nothing.
func Start(ctx context.Context, o Options) (*Daemon, error) {
	c, err := config.Load(o.Config)
	if err != nil {
		return nil, err
	}
	d := &Daemon{Options: o, feeds: make(map[*feed.Feed]context.CancelFunc)}
	if err := os.MkdirAll(string(c.StateDir), 0o700); err != nil {
		o.Log.Error("the state directory cannot be made, nothing will be saved: " + err.Error())
	}
	if d.journal, err = journal.Open(filepath.Join(string(c.StateDir), "entries"), o.Log); err != nil {
		return nil, err
	}
	if err := d.start(ctx, c); err != nil {
		return nil, errors.Join(err, d.journal.Close())
	}
	return d, nil
}

func (d *Daemon) start(ctx context.Context, c *config.Config) (err error) {
	if err := d.journal.Apply(d.journal.Expired(time.Now())); err != nil {
		d.Log.Error("expired entries could not be removed from the journal: " + err.Error())
	}
	if d.state, err = newState(ctx, c, nil, d.journal); err != nil {
		return err
	}
	d.tellRefused(d.state)
	o, err := d.options(d.state)
	if err != nil {
		return err
	}
	d.Filter, err = run.Start(ctx, o)
	return err
}

// options are those of a filter by a configuration.
func (d *Daemon) options(s *state) (run.Options, error) {
	c := s.config
	o := run.Options{
		Rules: s.loaded.Rules, Wait: true, Pins: c.Pins, Keep: true, Takeover: d.Takeover, Version: d.Version,
		Socket: string(c.API.Socket), Log: d.Log, Progress: d.Progress,
		Load: func(ruleset.Progress) (*ruleset.Loaded, error) { return s.loaded, nil },
	}
	for _, i := range c.Interfaces {
		o.Places = append(o.Places, run.Place{Target: run.Target{Netns: i.Netns, Iface: i.Name}, XDP: i.XDP})
	}
	if c.Learning.Enabled {
		o.Learn = run.LearnByMode
		if c.Learning.Elements > 0 && s.loaded.Rules.Mode.String() == "approx" {
			o.Learn = c.Learning.Elements
		}
	}
	for _, t := range c.Trackers {
		spec, err := heavy.Parse(specOf(t))
		if err != nil {
			return o, fmt.Errorf("trackers: %w", err)
		}
		o.Track = append(o.Track, spec)
	}
	return o, nil
}

// specOf writes a tracker of the configuration as package heavy reads it.
func specOf(t config.Tracker) string {
	s := fmt.Sprintf("key=%s,unit=%s,interval=%v,action=%s", t.Key, t.Unit, t.Interval, t.Action)
	if t.Threshold.Rate > 0 {
		s += fmt.Sprintf(",rate=%f", float64(t.Threshold.Rate))
	}
	if t.Threshold.Share > 0 {
		s += fmt.Sprintf(",share=%f", float64(t.Threshold.Share))
	}
	if t.Action == config.Limit {
		s += fmt.Sprintf(",limit=%f", float64(t.Rate))
	}
	if t.Action != config.Report {
		s += fmt.Sprintf(",for=%v", t.Duration)
	}
	return s
}

func (d *Daemon) tellRefused(s *state) {
	for _, l := range s.lists {
		if l.refused != nil {
			d.Log.Error("refused: " + l.refused.Error())
		}
		if l.feed == nil {
			continue
		}
		for _, src := range l.feed.Status().Sources {
			if src.Last.Result == feed.Failed {
				d.Log.Error("feed failed", "in_force", src.Entries, "list", l.Name, "source", src.Source, "error", src.Last.Err)
			}
		}
	}
}

// Serve filters, asks the feeds, and answers commands until ctx is done. Each
// value from reload makes it read the configuration again.
func (d *Daemon) Serve(ctx context.Context, reload <-chan os.Signal, interval time.Duration, show func(run.Rates)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d.ctx = ctx
	d.follow()
	go d.expire(ctx)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-reload:
				d.Log.Info("reloading")
				if _, err := d.Reload(ctx); err != nil {
					d.Log.Error(err.Error())
				}
			}
		}
	}()
	return d.Filter.Serve(ctx, nil, interval, show)
}

// Stop ends the daemon. The program stays in force.
func (d *Daemon) Stop() error { return errors.Join(d.Filter.Stop(), d.journal.Close()) }

// follow runs the feeds of the present lists, and no others.
func (d *Daemon) follow() {
	wanted := make(map[*feed.Feed]string)
	for _, l := range d.state.lists {
		if l.feed != nil {
			wanted[l.feed] = l.Name
		}
	}
	for f, cancel := range d.feeds {
		if _, ok := wanted[f]; !ok {
			cancel()
			delete(d.feeds, f)
		}
	}
	for f, name := range wanted {
		if d.feeds[f] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(d.ctx)
		d.feeds[f] = cancel
		go f.Run(ctx, func(o feed.Outcome) { d.fetched(ctx, name, f, o) })
	}
}

// fetched takes in what came of an attempt to read a source.
func (d *Daemon) fetched(ctx context.Context, name string, f *feed.Feed, o feed.Outcome) {
	log := d.Log.With("list", name, "source", o.Source, "entries", o.Entries, "took", o.Ended.Sub(o.Began).Round(time.Millisecond).String())
	switch {
	case o.Result == feed.Failed:
		log.Error("feed failed, the old contents stay", "failure", o.Failure.String(), "error", o.Err)
	case o.Unsaved != nil:
		log.Error("feed read, but it could not be saved: a restart would find the old contents", "error", o.Unsaved)
	case o.Changed:
		log.Info("feed read", "result", o.Result.String())
	default:
		log.Debug("feed read", "result", o.Result.String())
	}
	if !o.Changed {
		return
	}
	err := d.Do(ctx, func() error {
		l := d.state.list(name)
		if l == nil || l.feed != f {
			return nil // another configuration is in force
		}
		return d.update(l)
	})
	if err != nil && ctx.Err() == nil {
		log.Error("feed read, but it is not in force: " + err.Error())
	}
}

// update brings a list in step with its feed.
func (d *Daemon) update(l *aList) error {
	entries := l.feed.Entries()
	if l.refused = d.state.refuse(l, entries); l.refused != nil {
		return fmt.Errorf("refused, the old contents stay: %w", l.refused)
	}
	began := time.Now()
	store := d.state.loaded.Store
	changes, ok := store.Difference(l.sources, entries, mostInPlace)
	if ok && l.TTL > 0 {
		more, err := d.linger(l, changes)
		if err != nil {
			return err
		}
		changes = append(changes, more...)
	}
	d.state.count(l.sources, entries.Len())
	var err error
	if ok {
		_, err = d.Apply(changes)
	} else {
		store.Replace(l.sources, entries)
		err = d.Filter.Reload()
	}
	if err == nil {
		d.Log.Info("list updated", "list", l.Name, "entries", entries.Len(), "changes", len(changes), "in_place", ok,
			"took", time.Since(began).Round(time.Microsecond).String())
	}
	return err
}

// linger keeps entries that have left a feed for the list's TTL: as entries by
// command, which outlast a restart.
func (d *Daemon) linger(l *aList, changes []generation.Change) (more []generation.Change, err error) {
	now := time.Now()
	var batch []journal.Change
	for _, c := range changes {
		if c.Add {
			continue
		}
		batch = append(batch, journal.Change{Entry: journal.Entry{
			List: l.Name, Allow: l.Action == config.Allow, Key: c.Key, Added: now, Expires: expires(now, l.TTL), Reason: "left the feed",
		}})
		more = append(more, generation.Change{List: l.command, Add: true, Key: c.Key})
	}
	if len(batch) == 0 {
		return nil, nil
	}
	return more, d.journal.Apply(batch)
}

// expire removes entries when their time has come.
func (d *Daemon) expire(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			err := d.Do(ctx, func() error {
				batch := d.journal.Expired(now)
				if len(batch) == 0 {
					return nil
				}
				if _, err := d.change(batch); err != nil {
					return err
				}
				d.Log.Info("entries have expired", "entries", len(batch))
				return nil
			})
			if err != nil && ctx.Err() == nil {
				d.Log.Error("expiry: " + err.Error())
			}
		}
	}
}

// change makes changes durable, then puts them in force. It gives the number of
// entries that changed.
func (d *Daemon) change(batch []journal.Change) (int, error) {
	if err := d.journal.Apply(batch); err != nil {
		return 0, err
	}
	var changes []generation.Change
	for _, c := range batch {
		if l := d.state.list(c.List); l != nil { // else of a list that is no longer configured
			changes = append(changes, generation.Change{List: l.command, Add: !c.Remove, Key: c.Key})
			n := &d.state.loaded.Sources[l.command-1].Entries
			if *n++; c.Remove {
				*n -= 2
			}
		}
	}
	return d.Apply(changes)
}

// Reload reads the configuration again, and puts it in force: all of it or
// nothing. It gives what has changed.
func (d *Daemon) Reload(ctx context.Context) (summary []string, err error) {
	c, err := config.Load(d.Config)
	if err != nil {
		return nil, fmt.Errorf("reload, the old configuration stays in force: %w", err)
	}
	err = d.Do(ctx, func() error {
		old := d.state
		summary = config.Diff(old.config, c)
		if c.StateDir != old.config.StateDir || c.Pins != old.config.Pins || c.API.Socket != old.config.API.Socket {
			return errors.New("state_dir, pins and api.socket change with a restart only")
		}
		next, err := newState(ctx, c, old, d.journal)
		if err != nil {
			return err
		}
		o, err := d.options(next)
		if err != nil {
			return err
		}
		if err := d.Reconfigure(o); err != nil {
			return err
		}
		d.state = next
		d.tellRefused(next)
		d.follow()
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reload, the old configuration stays in force: %w", err)
	}
	for _, line := range summary {
		d.Log.Info("configuration", "change", line)
	}
	return summary, nil
}

// parse reads entries as they stand in lists.
func parse(l generation.List, texts []string) ([]key.Key, error) {
	var all []key.Key
	for i, text := range texts {
		entries, err := list.ParseEntry(text)
		if err != nil {
			return nil, fmt.Errorf("entry %d, %q: %w", i+1, text, err)
		}
		all = append(all, keys(l, entries)...)
	}
	return all, nil
}
