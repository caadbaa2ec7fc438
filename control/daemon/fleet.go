package daemon

import (
	"context"

	"weir/control/api"
	"weir/control/config"
	"weir/control/feed"
	"weir/control/fleet/node"
	"weir/control/fleet/wire"
	"weir/control/lists"
	"weir/control/ruleset"
	"weir/control/stages"
)

var (
	_ ruleset.Source = (*feed.Feed)(nil)
	_ ruleset.Source = (*node.List)(nil)
)

// TakeLists implements [node.Daemon]. The lists change like those of a configuration
// that is reloaded: with one step for each interface, or not at all.
func (d *Daemon) TakeLists(ctx context.Context) error {
	d.reloads.reading.Lock()
	defer d.reloads.reading.Unlock()
	var read []*lists.Decision
	err := d.loop.doAlone(ctx, func() error {
		err := d.reassemble()
		if err == nil {
			read = d.active.prepared.Decisions()
		}
		return err
	})
	lists.SettleAll(read, d.o.Log)
	return err
}

// reassemble activates the configuration again, whose lists have changed in more than their
// contents.
func (d *Daemon) reassemble() error { return d.reassembleBy(d.active.prepared.Stages) }

// reassembleBy is reassemble with other stages.
func (d *Daemon) reassembleBy(of *stages.Table) error {
	d.updateLingering()
	last, p := kept{Generation: d.active.engine}, d.active.prepared
	_, err := d.reconfigure(d.assemble(p.Config, of, p.Feeds()), new(kept))
	if err == nil {
		last.close(d.o.Log)
	}
	d.note()
	return err
}

// DescribeNode implements [node.Daemon].
func (r *readings) DescribeNode(to *wire.Status) {
	s := r.Status()
	to.Mode, to.Monitor, to.Interfaces = s.Mode, s.Monitor, len(s.Interfaces)
	for _, i := range s.Interfaces {
		if i.State == api.Filtered || i.State == api.Unpinned {
			to.Filtered++
		}
	}
	interfaces, _ := r.meter.Read()
	for _, i := range interfaces {
		for _, c := range i.Counts {
			if c.Drops {
				to.Dropped += c.Packets
			} else {
				to.Passed += c.Packets
			}
		}
	}
}

// Answer implements [node.Daemon].
func (a *API) Answer(ctx context.Context, what string, question []byte) (any, error) {
	switch what {
	case wire.AskFloods:
	case wire.AskMeasure:
		return a.floods.Measure(question)
	default:
		return a.Explainer.Answer(ctx, what, question)
	}
	floods := a.Floods()
	floods.Past = []api.Flood{} // the hub shows what goes on
	return api.NodeFloods{Floods: &floods, Patterns: a.Patterns()}, nil
}

// TakeContents implements [node.Daemon].
func (d *Daemon) TakeContents(ctx context.Context, l *node.List) error {
	name := config.FleetPrefix + l.Name()
	err := d.take(ctx, name, l)
	if err != nil && ctx.Err() == nil {
		d.o.Log.Error("a list of the fleet is not active, the old contents stay: "+err.Error(), "list", name)
	}
	return err
}
