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
	"runtime/debug"
	"sync"
	"time"

	"weir/control/config"
	"weir/control/engine"
	"weir/control/feed"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/metrics"
	"weir/control/notify"
	"weir/control/ruleset"
	"weir/control/run"
	"weir/filter/key"
	"weir/filter/membership"
)

// Options say how a daemon runs, besides its configuration.
type Options struct {
	Config   string // path of the configuration
	Takeover bool   // from another weir that runs
	Version  string // weir's
	Log      *slog.Logger
	Progress ruleset.Progress
	// Logging, unless it is nil, is called when a new configuration is in force,
	// for what is logged from then on, and how.
	Logging func(config.Log)
}

// Daemon filters by a configuration.
type Daemon struct {
	Options
	*run.Filter
	state   *state
	journal *journal.Journal
	ctx     context.Context // done when the daemon stops
	feeds   map[*feed.Feed]context.CancelFunc
	manager *notify.Manager
	retry   time.Time // when to try again what is behind
	cutOff  []string  // feeds whose servers are blocked, as the log has them

	reloading sync.Mutex // held while the configuration is read again
	reloads   metrics.Reloads
}

// maxLingering bounds the entries that an update may leave to their TTL: beyond
// it, the feed has become another, and the journal is not the place for the old one.
const maxLingering = 200_000

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
	if d.manager, err = notify.Dial(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(string(c.StateDir), 0o700); err != nil {
		o.Log.Error("the state directory cannot be made, nothing will be saved: " + err.Error())
	}
	if d.journal, err = d.openJournal(ctx, c); err != nil {
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
	feeds, err := d.openFeeds(ctx, c, nil)
	if err != nil {
		return err
	}
	if d.state, err = newState(c, feeds, d.journal); err != nil {
		return err
	}
	d.tellRefused(d.state)
	o, err := d.options(d.state)
	if err != nil {
		return err
	}
	// The lists live long and are most of the memory: a heap of twice their size,
	// which the collector would allow otherwise, is a lot.
	debug.SetGCPercent(25)
	d.Filter, err = run.Start(ctx, o)
	return err
}

// options are those of a filter by a configuration.
func (d *Daemon) options(s *state) (run.Options, error) {
	c := s.config
	o := run.Options{
		Rules: s.loaded.Rules, Wait: true, Pins: c.Pins, Keep: true, Takeover: d.Takeover, Version: d.Version,
		Socket: string(c.API.Socket), Group: c.API.Group, Control: d,
		TLS: run.TLS{
			Address: string(c.API.Listen), Cert: string(c.API.TLS.Cert), Key: string(c.API.TLS.Key), ClientCA: string(c.API.TLS.ClientCA),
		},
		Metrics: string(c.Metrics.Listen), Log: d.Log, Progress: d.Progress,
		Load:      func(ruleset.Progress) (*ruleset.Loaded, error) { return s.loaded, nil },
		Multicast: func() engine.Multicast { return s.multicast(d.journal) },
		Tell:      d.tell,
	}
	for _, i := range c.Interfaces {
		o.Places = append(o.Places, run.Place{Target: run.Target{Netns: i.Netns, Iface: i.Name}, XDP: i.XDP})
	}
	o.HalfLife, o.Digests = time.Duration(c.Learning.HalfLife), c.Digests()
	if c.Mode == membership.Approximate {
		o.Learn = c.Learning.Elements
	}
	if c.Loop.On() {
		var err error
		if o.Loop, err = loopOf(c.Loop); err != nil {
			return o, fmt.Errorf("loop: %w", err)
		}
	}
	o.Track = c.Trackers
	return o, nil
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
			if src.Last.Result != feed.Failed && src.Entries == 0 {
				d.Log.Info("nothing is in it yet", "list", l.Name, "source", src.Source)
			}
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
	d.reloads.Last, d.reloads.LastDone, d.reloads.Done = time.Now(), time.Now(), 1
	d.told(d.manager.Ready(d.summary()))
	if w := d.manager.Watchdog(); w > 0 {
		go d.alive(ctx, w/2)
	}
	go d.tend(ctx)
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
func (d *Daemon) Stop() error {
	d.told(d.manager.Stopping())
	return errors.Join(d.Filter.Stop(), d.journal.Close())
}

// told logs that the service manager could not be told.
func (d *Daemon) told(err error) {
	if err != nil {
		d.Log.Warn(err.Error())
	}
}

// summary is how the daemon is, in a line.
func (d *Daemon) summary() string {
	return fmt.Sprintf("filtering %d entries of %d lists", d.state.loaded.Entries(), len(d.state.lists))
}

// alive tells the service manager so, and how it is, from the goroutine that must not hang.
func (d *Daemon) alive(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_ = d.Do(ctx, func() error { d.told(d.manager.Alive(d.summary())); return nil })
		}
	}
}

// tell adds to metrics what the filter does not know.
func (d *Daemon) tell(s *metrics.Snapshot) {
	for _, l := range d.state.lists {
		if l.feed != nil {
			s.Feeds = append(s.Feeds, l.feed)
		}
	}
	for i := range s.Lists {
		if l := d.state.list(s.Lists[i].Name); l != nil {
			s.Lists[i].Refused = l.refused != nil
		}
	}
	reloads := d.reloads
	s.Config = &reloads
}

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
		go f.Run(ctx, func(o feed.Outcome) { _ = d.fetched(ctx, name, f, o) }) // it is in the log
	}
}

// manyEntries is from when on a feed takes memory that is worth giving back.
const manyEntries = 1 << 19

// fetched takes in what came of an attempt to read a source. It fails where that
// is new, and not in force.
func (d *Daemon) fetched(ctx context.Context, name string, f *feed.Feed, o feed.Outcome) error {
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
	if o.Entries >= manyEntries {
		// What reading took is given back now, not at some later collection.
		defer debug.FreeOSMemory()
	}
	if !o.Changed {
		return nil
	}
	err := d.Do(ctx, func() error {
		l := d.state.list(name)
		if l == nil || l.feed != f {
			return nil // another configuration is in force
		}
		if l.taken == f.Version() {
			return l.refused // it was caught up with
		}
		return d.update(l)
	})
	if err != nil && ctx.Err() == nil {
		log.Error("feed read, but it is not in force: " + err.Error())
	}
	return err
}

// update gives a list the contents of its feed.
func (d *Daemon) update(l *aList) error {
	version := l.feed.Version() // before its contents, which may change
	contents := l.feed.Contents()
	if l.refused = refuse(d.state.config, l.List, contents); l.refused != nil {
		l.taken = version
		return fmt.Errorf("refused, the old contents stay: %w", l.refused)
	}
	began := time.Now()
	delta := contents.Diff(d.state.contents(l.sources))
	changes := []engine.Change{{List: l.sources, Delta: delta}}
	if l.TTL > 0 && delta.Len() <= maxLingering {
		if stay, err := d.linger(l, delta.Remove); err == nil {
			changes = append(changes, stay)
		} else {
			d.Log.Error("what has left a feed stays, since it could not be recorded for how long: "+err.Error(), "list", l.Name)
			changes[0].Delta = list.Delta{Add: delta.Add}
		}
	}
	if _, err := d.Apply(changes); err != nil {
		return d.late(err, l)
	}
	l.taken, l.behind = version, false
	d.Log.Info("list updated", "list", l.Name, "entries", contents.Len(), "changes", delta.Len(),
		"took", time.Since(began).Round(time.Microsecond).String())
	return nil
}

// linger keeps entries that have left a feed for the list's TTL: as entries by
// command, which outlast a restart.
func (d *Daemon) linger(l *aList, left *list.Set) (stay engine.Change, err error) {
	now := time.Now()
	var batch []journal.Change
	var keys []key.Key
	rule := l.rule()
	rule.Contents = left
	for k := range rule.All() {
		e := journal.Entry{
			List: l.Name, Allow: l.Action == config.Allow, Key: k, Added: now, Expires: expires(now, time.Duration(l.TTL)), Reason: "left the feed",
		}
		keys = append(keys, k)
		if by, ok := d.journal.Get(l.Name, k); ok && (by.Expires.IsZero() || by.Expires.After(e.Expires)) {
			continue // who added it by command wants it for longer
		}
		batch = append(batch, journal.Change{Entry: e})
	}
	stay = engine.Change{List: l.command, Delta: list.Delta{Add: list.SetOf(keys...)}}
	return stay, d.journal.Apply(batch)
}

// tend does what time asks for: it removes entries when theirs has come, and
// tries again what could not be put in force.
func (d *Daemon) tend(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	told := ""
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			err := d.Do(ctx, func() error {
				var late error
				if now.After(d.retry) {
					late = d.catchUpAll()
				}
				late = errors.Join(late, d.expire(now))
				d.tellCutOff()
				return late
			})
			switch {
			case err == nil:
				told = ""
			case err.Error() != told && ctx.Err() == nil: // once while it stays the same
				told = err.Error()
				d.Log.Error(told)
			}
		}
	}
}

// expire removes the entries whose time has come. They end also where that
// cannot be recorded: the next weir will see that their time has come.
func (d *Daemon) expire(now time.Time) error {
	batch := d.journal.Expired(now)
	if len(batch) == 0 {
		return nil
	}
	unrecorded := d.journal.Apply(batch)
	if unrecorded != nil {
		unrecorded = fmt.Errorf("entries have expired, which could not be recorded: %w", unrecorded)
	}
	n, err := d.enforce(batch)
	if n > 0 {
		d.Log.Info("entries have expired", "entries", n)
	}
	if err != nil {
		var behind []*aList
		for _, c := range batch {
			if l := d.state.list(c.List); l != nil {
				behind = append(behind, l)
			}
		}
		err = d.late(err, behind...)
	}
	return errors.Join(unrecorded, err)
}

// change makes changes durable, then puts them in force. It gives the number of
// entries that changed. When it fails, nothing has changed.
func (d *Daemon) change(batch []journal.Change) (int, error) {
	before := make([]journal.Change, len(batch))
	for i, c := range batch {
		e, had := d.journal.Get(c.List, c.Key)
		if e.List, e.Key = c.List, c.Key; !had {
			e.Allow = c.Allow
		}
		before[len(batch)-1-i] = journal.Change{Remove: !had, Entry: e}
	}
	if err := d.journal.Apply(batch); err != nil {
		return 0, err
	}
	n, err := d.enforce(batch)
	if err != nil {
		if err := d.journal.Apply(before); err != nil {
			d.Log.Error("entries that are not in force are recorded, and will be after a restart: " + err.Error())
		}
		return 0, fmt.Errorf("nothing was changed: %w", err)
	}
	return n, nil
}

// enforce applies changes of the journal. It returns the number of entries that
// change.
func (d *Daemon) enforce(batch []journal.Change) (int, error) {
	type keys struct{ add, remove []key.Key }
	lists := make(map[uint16]*keys)
	for _, c := range batch {
		l := d.state.list(c.List)
		if l == nil { // of a list that is no longer configured
			continue
		}
		if lists[l.command] == nil {
			lists[l.command] = &keys{}
		}
		if k := lists[l.command]; c.Remove {
			k.remove = append(k.remove, c.Key)
		} else {
			k.add = append(k.add, c.Key)
		}
	}
	var changes []engine.Change
	for n, k := range lists {
		changes = append(changes, engine.Change{List: n, Delta: list.Delta{Add: list.SetOf(k.add...), Remove: list.SetOf(k.remove...)}})
	}
	return d.Apply(changes)
}

// retryInterval is how soon a change that failed is tried again.
const retryInterval = 10 * time.Second

// late notes that changes of lists have failed.
func (d *Daemon) late(err error, lists ...*aList) error {
	for _, l := range lists {
		l.behind = true
	}
	d.retry = time.Now().Add(retryInterval)
	return fmt.Errorf("what was in force stays, and it is tried again in %v: %w", retryInterval, err)
}

// catchUpAll tries again to change the lists that are behind.
func (d *Daemon) catchUpAll() error {
	var commands map[string][]key.Key
	var errs []error
	for _, l := range d.state.lists {
		if !l.behind {
			continue
		}
		if commands == nil {
			commands = byList(d.journal, d.state.configured())
		}
		delta := list.SetOf(commands[l.Name]...).Diff(d.state.contents(l.command))
		_, err := d.Apply([]engine.Change{{List: l.command, Delta: delta}})
		switch {
		case err != nil:
			err = d.late(err, l)
		case l.feed != nil:
			err = d.update(l)
		default:
			l.behind = false
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Reload reads the configuration again, and puts it in force: all of it or
// nothing. It gives what has changed.
func (d *Daemon) Reload(ctx context.Context) (summary []string, err error) {
	d.reloading.Lock()
	defer d.reloading.Unlock()
	d.told(d.manager.Reloading())
	var last *state
	if err := d.Do(ctx, func() error { last = d.state; return nil }); err != nil {
		return nil, err
	}
	// Sources may take their time, which the filter has not got.
	var feeds map[string]*feed.Feed
	c, err := config.Load(d.Config)
	if err == nil {
		feeds, err = d.openFeeds(ctx, c, last)
	}
	if bad := d.Do(ctx, func() error {
		if err == nil {
			summary, err = d.reconfigure(c, feeds)
		}
		d.reloads.Last, d.reloads.Failed = time.Now(), err != nil
		if err != nil {
			d.reloads.Refused++
		} else {
			d.reloads.Done++
			d.reloads.LastDone = d.reloads.Last
		}
		d.told(d.manager.Ready(d.summary()))
		return nil
	}); bad != nil {
		return nil, bad
	}
	if err != nil {
		return nil, fmt.Errorf("reload, the old configuration stays in force: %w", err)
	}
	for _, line := range summary {
		d.Log.Info("configuration", "change", line)
	}
	return summary, nil
}

// reconfigure puts a configuration in force.
func (d *Daemon) reconfigure(c *config.Config, feeds map[string]*feed.Feed) ([]string, error) {
	old := d.state
	if c.StateDir != old.config.StateDir || c.Pins != old.config.Pins || c.API != old.config.API || c.Metrics != old.config.Metrics {
		return nil, errors.New("state_dir, pins, api and metrics change with a restart only")
	}
	next, err := newState(c, feeds, d.journal)
	if err != nil {
		return nil, err
	}
	for _, l := range next.lists {
		if l.refused != nil {
			return nil, l.refused
		}
	}
	o, err := d.options(next)
	if err != nil {
		return nil, err
	}
	if err := d.Reconfigure(o); err != nil {
		return nil, err
	}
	d.state = next
	d.follow()
	if d.Logging != nil {
		d.Logging(c.Log)
	}
	return append(config.Diff(old.config, c), d.Unfiltered()...), nil
}
