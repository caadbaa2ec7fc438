package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"weir/control/api"
	"weir/control/attach"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/journal"
	"weir/control/ruleset"
	"weir/filter/membership"
	"weir/loader"
)

// builder builds engines, in Run's goroutine and beside it.
type builder struct {
	loop       *loop
	active     *active
	observers  *observers
	monitor    *override
	rehearsals *rehearsals
	queue      *queuedChanges
	journal    *journal.Journal
	version    string
	log        *slog.Logger

	replanning time.Time // when to look next whether another engine would make fewer mistakes
	judging    time.Time // when to look next whether this one makes more than it would without classes
	equal      bool      // build without classes of networks
}

// replanInterval is how often that is looked at. It is a variable for tests.
var replanInterval = time.Minute

const (
	replanPause   = time.Hour // between two engines that are built for it
	worthAnEngine = 2         // times fewer mistakes
	fewMistakes   = 1e-5      // of the unlisted elements
)

// replan builds another engine where networks with other numbers of bits would make half of the mistakes
// or fewer, by what was learned of the traffic.
func (d *Daemon) replan(now time.Time) {
	b, learned := &d.builder, d.observers.learn
	if learned == nil || !d.active.prepared.Learns() || d.revert(now) || now.Before(b.replanning) {
		return
	}
	b.replanning = now.Add(replanInterval)
	present, planned := d.active.engine.Replanned(learned.Demand(loader.Monotonic()))
	if present < max(worthAnEngine*planned, fewMistakes) {
		return
	}
	if !d.rebuild(now) {
		return
	}
	b.observers.reverted = nil
	d.o.Log.Info("networks have other numbers of bits, for fewer mistakes: weir weights",
		"predicted", fmt.Sprintf("%.2g", planned), "before", fmt.Sprintf("%.2g", present))
}

// revert builds an engine without classes of networks where these make more mistakes than are predicted without
// them, and forgets what had led to them: what was learned is not what is sent. It reports whether it did.
func (d *Daemon) revert(now time.Time) bool {
	b, learned := &d.builder, d.observers.learn
	if now.Before(b.judging) {
		return false
	}
	b.judging = now.Add(replanInterval)
	counted, equal, worse := learned.Worse(d.active.engine.Block)
	if !worse {
		return false
	}
	b.equal = true
	defer func() { b.equal = false }()
	if !d.rebuild(now) {
		return false
	}
	learned.Forget(loader.Monotonic())
	b.observers.reverted = &api.Reverted{Time: now, Counted: counted, Equal: equal}
	d.o.Log.Warn("all networks have the same number of bits again: with others, more packets were dropped by mistake",
		"counted", fmt.Sprintf("%.2g", counted), "equal", fmt.Sprintf("%.2g", equal))
	return true
}

// rebuild replaces the engine by one that is built by what was learned, and reports whether it did.
func (d *Daemon) rebuild(now time.Time) bool {
	d.builder.replanning = now.Add(replanPause)
	last := kept{Generation: d.active.engine}
	if err := d.activate(d.active.prepared.Copy(), nil, d.active.applied, new(kept)); err != nil {
		d.o.Log.Error("a filter with fewer mistakes: " + err.Error())
		return false
	}
	last.close(d.o.Log)
	return true
}

// build builds the engine of a configuration, unless one is kept, with its metadata.
func (b *builder) build(p *ruleset.Ruleset, by *kept) (*engine.Generation, attach.Metadata, error) {
	c := p.EngineConfig()
	c.Monitor, c.SampleClean = b.monitor.monitors(p.Config), b.rehearsals.Any()
	b.observers.configure(p, &c)
	if b.equal {
		c.Demand.Sightings = nil
	}
	c.Wakes = b.observers.stages.Trackers.Wakes()
	c.Owner = b.owner(p.Config)
	var err error
	if c.Shared, err = b.active.sharedMaps(p.Config); err != nil {
		return nil, attach.Metadata{}, err
	}
	defer c.Shared.Close() // the engine shares them
	e := by.engineFor(p, c, b.log)
	if e == nil {
		e = b.adopt(p, c)
	}
	if e == nil {
		rules := p.Rules
		b.loop.aside(func() {
			e, err = engine.Build(rules, c)
			// What reading and building took is given back now, not some minutes later:
			// it is several times what stays.
			debug.FreeOSMemory()
		})
	}
	if err != nil {
		return nil, attach.Metadata{}, err
	}
	b.observers.stages.Connect(e)
	if evadable(e) || e.Out() != nil && evadable(e.Out()) {
		b.log.Warn("IPv6 flows with ports can be evaded by packets whose header chain hides the ports " +
			"(reasons truncated, unparsed): malformed: drop closes that")
	}
	m := attach.Describe(e, c, p.Descriptions())
	m.Stages = p.Stages
	m.About = p.Stages.OfHost()
	m.Version, m.PID, m.Loaded = b.version, os.Getpid(), time.Now()
	m.Service = attach.ServiceOf(m.PID)
	m.Since, m.StateDir = m.Loaded, b.queue.StateDir()
	return e, m, nil
}

// load builds the engine of a configuration, unless one is kept, and loads its programs.
func (b *builder) load(next *ruleset.Ruleset, targets []attach.Target, by *kept) (*engine.Generation, *attach.Rollout, error) {
	e, m, err := b.build(next, by)
	if err != nil {
		return nil, nil, err
	}
	b.observers.weigh(e)
	if now := b.active.engine; now != nil {
		b.observers.weigh(now) // it filters until the next one is committed, or goes on where that fails
	}
	rollout, err := b.active.attach.Plan(e, m, targets)
	if err != nil {
		return nil, nil, errors.Join(err, e.Close())
	}
	b.loop.asideAt(loading, func() { err = rollout.Load() })
	if err != nil {
		return nil, nil, errors.Join(err, rollout.Close(), e.Close())
	}
	return e, rollout, nil
}

// owner identifies the state directory, whose journal only one process has open: only
// that may change a filter in the kernel. It is "" where others may.
func (b *builder) owner(c *config.Config) string {
	if c.StateDir == "" || !b.journal.Exclusive() {
		return ""
	}
	info, err := os.Stat(string(c.StateDir))
	if err != nil {
		return ""
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%d:%d", s.Dev, s.Ino)
}

// adopt returns the first engine, over the filter that the last process has left in the
// kernel, or nil where it is to be built.
func (b *builder) adopt(p *ruleset.Ruleset, c engine.Config) *engine.Generation {
	if b.active.engine != nil || c.Owner == "" || c.Mode != membership.Approximate {
		return nil
	}
	began := time.Now()
	f, err := b.active.attach.Filter(targetsOf(p.Config))
	if f == nil {
		if err != nil {
			b.log.Info("the filter in the kernel cannot be adopted, it is built anew: " + err.Error())
		}
		return nil
	}
	e, changed, err := engine.Adopt(p.Rules, c, f)
	if err != nil {
		b.log.Info("the filter in the kernel is built anew: " + err.Error())
		return nil
	}
	b.log.Info("adopted the filter in the kernel", "entries", p.Blocked(), "changed_bits", changed,
		"took", time.Since(began).Round(time.Millisecond).String())
	return e
}
