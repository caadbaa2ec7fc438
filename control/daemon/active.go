package daemon

import (
	"fmt"
	"log/slog"
	"time"

	"weir/control/attach"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/feed"
	"weir/control/ruleset"
	"weir/filter/membership"
	"weir/loader"
)

// active has the configuration that filters, with its engine and interfaces. Run's goroutine
// owns it.
type active struct {
	prepared *ruleset.Ruleset
	engine   *engine.Generation
	attach   *attach.Manager
	began    time.Time
	took     time.Duration // to start
	number   int           // of the engine, from 1
	changed  bool          // entries have changed since the metadata was written
	applied  uint64        // changes of entries, made or not

	inherited []string // interfaces on which a program of before has filtered until the start
}

// sharedMaps returns the maps that all programs share, nil for none: those of the present
// programs, whatever has become of their pins, unless there are others or a size changes.
func (a *active) sharedMaps(c *config.Config) (*loader.Shared, error) {
	entries := c.Shared()
	if len(entries) == 0 {
		return nil, nil
	}
	if a.engine != nil {
		if known := a.engine.Kernel().Shared(entries); known != nil {
			return known, nil
		}
	}
	return c.Pins.OpenShared(entries)
}

// announce logs what is active, once the maps that its programs share are pinned.
func (a *active) announce(log *slog.Logger, what string, took time.Duration) {
	pins := a.prepared.Config.Pins
	keep := func() error { return pins.KeepShared(a.engine.Kernel()) }
	if len(a.prepared.Config.Shared()) == 0 {
		keep = func() error { return attach.ForgetShared(pins) }
	}
	if err := keep(); err != nil {
		log.Error(err.Error())
	}
	m := a.attach.Metadata()
	with := log
	if m.Mode == membership.Approximate.String() {
		with = log.With("predicted_false_positive_rate", fmt.Sprintf("%.2g", m.Predicted))
	}
	with.Info(what,
		"interfaces", a.attach.Names(),
		"entries", m.Entries,
		"mode", m.Mode,
		"monitor", m.Monitor,
		"kernel_bytes", m.KernelBytes,
		"load_time", took.Round(time.Millisecond).String())
	log.Debug("the program is specialised", "shapes", m.Shapes)
}

// describe updates the metadata after changes in place.
func (a *active) describe() {
	if a.changed {
		a.changed = false
		a.attach.Describe(a.attach.Metadata().Changed(a.engine, a.prepared.Descriptions()))
	}
}

// swap replaces the engine by one with the same filters in another mode, with one step for
// each interface.
func (a *active) swap(next *engine.Generation, m attach.Metadata) error {
	rollout, err := a.attach.Prepare(next, m, nil)
	if err != nil {
		return err
	}
	if err := rollout.Commit(); err != nil {
		return err
	}
	a.engine = next
	return nil
}

// problems says what an operator has to look at, a line each.
func (a *active) problems() (all []string) {
	for _, i := range a.attach.Interfaces() {
		if i.Condition != attach.Filtered {
			line := "interface " + i.Target.String() + " is " + i.Condition.Says()
			if i.Problem != "" {
				line += ": " + i.Problem
			}
			all = append(all, line)
		}
	}
	for _, l := range a.prepared.Lists {
		if l.Refused != nil {
			all = append(all, "list "+l.Name+": "+l.Refused.Error())
		}
		if l.From == nil {
			continue
		}
		for _, s := range l.From.Status().Sources {
			if s.Failures > 0 || s.Last.Failure == feed.Damaged {
				all = append(all, fmt.Sprintf("list %s: source %s FAILED (%v)", l.Name, s.Source, s.Last.Failure))
			}
		}
	}
	return all
}
