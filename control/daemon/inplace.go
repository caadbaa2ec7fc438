package daemon

import (
	"reflect"
	"slices"
	"time"

	"weir/control/config"
	"weir/control/engine"
)

// differsInLists reports whether a configuration differs from another one, for which programs
// are attached, in nothing that these are specialised to: only in the sources and contents of
// lists, and in other tasks of the daemon.
func (p *Prepared) differsInLists(last *Prepared) bool {
	same := func(a, b engine.List) bool { a.Contents, b.Contents = nil, nil; return a.Equal(b) }
	return reflect.DeepEqual(programmed(p.config), programmed(last.config)) && slices.EqualFunc(p.rules, last.rules, same) &&
		slices.Equal(p.watched(), last.watched()) && slices.Equal(p.watchedOut(), last.watchedOut()) &&
		reflect.DeepEqual(p.engineConfig(), last.engineConfig()) // which also has facts of the host
}

// programmed returns a configuration without the sections that programs do not depend on.
func programmed(c *config.Config) config.Config {
	only := *c
	only.Lists = nil
	only.Log, only.Notify, only.Export = config.Config{}.Log, config.Config{}.Notify, config.Config{}.Export
	return only
}

// activateInPlace activates a configuration in the present engine, by the differences of its
// lists, and reports whether it has. All of them are active then, or none. Where that is
// not possible, another engine is to be built: as for host facts that programs are loaded with.
func (d *Daemon) activateInPlace(next *Prepared, applied uint64) bool {
	if next.config.TakesCommands() || len(next.config.Shared()) > 0 ||
		d.active.engine.Monitor != d.monitor.monitors(next.config) || d.active.engine.SamplesClean() != d.fleet.rehearsals.any() {
		return false
	}
	targets := targetsOf(next.config)
	if d.active.attach.Check(targets) != nil {
		return false
	}
	began, active := time.Now(), d.active.engine.Lists()
	var changes []engine.Change
	suits := false
	last := d.active.prepared.copied()
	d.loop.aside(func() {
		if suits = next.differsInLists(last); suits {
			changes = differences(next.rules, active)
		}
	})
	if !suits {
		return false
	}
	if d.active.applied != applied { // manual entries have changed meanwhile
		missed, derived, _, err := next.withDerived(next.missed(next.lists...))
		if err != nil {
			return false
		}
		rules, _, err := engine.With(next.rules, missed)
		if err != nil {
			return false
		}
		next.derived = derived
		next.rules, changes = rules, differences(rules, d.active.engine.Lists())
	}
	if _, err := d.enactInPlace(changes); err != nil {
		d.o.Log.Debug("building the next engine: " + err.Error())
		return false
	}
	next.rules = d.active.engine.Lists()
	d.active.prepared = next
	d.observers.observe(next)
	d.active.attach.Retarget(targets)
	lists := next.descriptions()
	d.active.changed = d.active.changed || !slices.Equal(lists, d.active.attach.Metadata().Lists)
	d.active.describe()
	d.observers.record.loaded(true, began, nil)
	d.active.announce(d.o.Log, "reloaded", time.Since(began))
	return true
}

// differences returns the changes of active lists to the contents of others, which
// are otherwise the same.
func differences(lists, active []engine.List) (changes []engine.Change) {
	for i, l := range lists {
		if l.Contents == active[i].Contents {
			continue
		}
		if delta := l.Contents.Diff(active[i].Contents); delta.Len() > 0 {
			changes = append(changes, engine.Change{List: uint16(i + 1), Delta: delta})
		}
	}
	return changes
}
