package daemon

import (
	"slices"
	"time"

	"weir/control/engine"
	"weir/control/ruleset"
)

// activateInPlace activates a configuration in the present engine, by the differences of its
// lists, and reports whether it has. All of them are active then, or none. Where that is
// not possible, another engine is to be built: as for host facts that programs are loaded with.
func (d *Daemon) activateInPlace(next *ruleset.Ruleset, applied uint64) bool {
	if next.Config.TakesCommands() || len(next.Config.Shared()) > 0 ||
		d.active.engine.Monitor != d.monitor.monitors(next.Config) || d.active.engine.SamplesClean() != d.fleet.rehearsals.Any() {
		return false
	}
	targets := targetsOf(next.Config)
	if d.active.attach.Check(targets) != nil {
		return false
	}
	began, active := time.Now(), d.active.engine.Lists()
	var changes []engine.Change
	suits := false
	last := d.active.prepared.Copy()
	d.loop.aside(func() {
		if suits = next.DiffersInLists(last); suits {
			changes = differences(next.Rules, active)
		}
	})
	if !suits {
		return false
	}
	if d.active.applied != applied { // manual entries have changed meanwhile
		missed, derived, _, err := next.WithDerived(next.Missed(next.Lists...))
		if err != nil {
			return false
		}
		rules, _, err := engine.With(next.Rules, missed)
		if err != nil {
			return false
		}
		next.Derived = derived
		next.Rules, changes = rules, differences(rules, d.active.engine.Lists())
	}
	if _, err := d.enactInPlace(changes); err != nil {
		d.o.Log.Debug("building the next engine: " + err.Error())
		return false
	}
	next.Rules = d.active.engine.Lists()
	d.active.prepared = next
	d.observers.observe(next)
	d.active.attach.Retarget(targets)
	lists := next.Descriptions()
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
