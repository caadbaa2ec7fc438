package daemon

import (
	"context"

	"weir/control/ruleset"
	"weir/loader"
)

// hosting is the daemon, as it lends what filters to the parts that read it. It is safe for concurrent
// use, but for what says otherwise.
type hosting struct{ d *Daemon }

// lent returns the rule set that filters, with its engine. It is for Run's goroutine.
func (h hosting) lent() ruleset.Active {
	return ruleset.Active{Ruleset: h.d.active.prepared, Engine: h.d.active.engine}
}

// Lend implements [ruleset.Host].
func (h hosting) Lend(ctx context.Context, fn func(ruleset.Active) error) error {
	return h.d.loop.Do(ctx, func() error { return fn(h.lent()) })
}

// LendAlone is Lend for what may change programs: it waits while an engine is built.
func (h hosting) LendAlone(ctx context.Context, fn func(ruleset.Active) error) error {
	return h.d.loop.doAlone(ctx, func() error { return fn(h.lent()) })
}

// Stats implements [observe.Host]. It is for Run's goroutine.
func (h hosting) Stats() []*loader.Stats { return h.d.active.attach.Stats(false) }

// Note implements [observe.Host]. It is for Run's goroutine.
func (h hosting) Note() { h.d.note() }

// SampleClean has the programs report packets that match nothing, or no longer, with one step for each interface. It
// is for LendAlone, in Run's goroutine.
func (h hosting) SampleClean(on bool) error {
	active := h.d.active
	if active.engine.SamplesClean() == on {
		return nil
	}
	next, err := active.engine.WithCleanSampled(on)
	if err != nil {
		return err
	}
	if err := active.swap(next, active.attach.Metadata()); err != nil {
		return err
	}
	h.d.note()
	return nil
}
