package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/feed"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/node"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/control/metrics"
	"weir/filter/key"
)

// source is where a list's contents come from, but for manual entries: a [feed.Feed],
// or a [node.List] of the fleet.
type source interface {
	Contents() *list.Set
	Version() uint64
	Accepted() bool
	Keep(version uint64) error
	Revert(version uint64, reason error)
	Status() feed.Status
	Find(keys []key.Key) []feed.Origin
}

var (
	_ source      = (*feed.Feed)(nil)
	_ source      = (*node.List)(nil)
	_ node.Daemon = (*Daemon)(nil)
)

// openFleet returns the node of the fleet that a configuration names, nil if it names
// none.
func openFleet(c *config.Config, version string, readOnly bool, log *slog.Logger) (*node.Node, error) {
	if !c.Fleet.On() {
		return nil, nil
	}
	e, err := enrollment.Read(string(c.Fleet.Enroll))
	if err != nil {
		return nil, fmt.Errorf("fleet.enroll: %w", err)
	}
	n := node.Config{Enrollment: e, MaxAge: time.Duration(c.Fleet.MaxAge), MaxRate: int64(c.Fleet.MaxRate.PerSecond()), ReadOnly: readOnly, Version: version, Prefix: config.FleetPrefix, Log: log}
	if c.StateDir != "" {
		n.Directory = filepath.Join(string(c.StateDir), "fleet")
	}
	return node.Open(n)
}

// fleetLists returns the lists of a fleet as a configuration would have them, and where
// their contents come from, by name.
func fleetLists(n *node.Node) (lists []config.List, from map[string]*node.List) {
	if n == nil {
		return nil, nil
	}
	from = make(map[string]*node.List)
	for _, l := range n.Lists() {
		c, err := fleetList(l)
		if err != nil {
			l.Revert(l.Version(), err)
			continue
		}
		lists = append(lists, c)
		from[c.Name] = l
	}
	return lists, from
}

func fleetList(l *node.List) (c config.List, err error) {
	return fleetConfig(l.Name(), l.Settings())
}

// fleetConfig returns a list of the fleet as a configuration would have it.
func fleetConfig(name string, s wire.Settings) (c config.List, err error) {
	c.SetDefaults()
	c.Name = config.FleetPrefix + name
	c.Priority = s.Priority
	err = errors.Join(c.Action.UnmarshalText([]byte(s.Action)), c.Direction.UnmarshalText([]byte(s.Direction)), c.Check())
	return c, err
}

// TakeLists implements [node.Daemon]. The lists change like those of a configuration
// that is reloaded: with one step for each interface, or not at all.
func (d *Daemon) TakeLists(ctx context.Context) error {
	d.reloading.Lock()
	defer d.reloading.Unlock()
	var read []*decision
	err := d.Do(ctx, func() error {
		feeds := make(map[string]*feed.Feed)
		for _, l := range d.prepared.lists {
			if l.feed != nil {
				feeds[l.Name] = l.feed
			}
		}
		_, err := d.reconfigure(d.prepared.config, feeds)
		if err == nil {
			read = d.prepared.decisions()
		}
		d.note()
		return err
	})
	for _, c := range read {
		c.settle(d.o.Log)
	}
	return err
}

// fleetStatus returns the state of the node, nil if the host is in no fleet.
func (d *Daemon) fleetStatus() *api.Fleet {
	if d.fleet == nil {
		return nil
	}
	age := d.fleet.Age()
	s := &api.Fleet{Node: d.fleet.Name(), Connected: age.Connected, Refused: d.fleet.Refused()}
	if !age.Confirmed.IsZero() {
		s.Confirmed = &age.Confirmed
	}
	if err := age.Err(); err != nil {
		s.Stale, s.Problem = true, err.Error()
	}
	return s
}

// fleetMetrics returns the same for metrics.
func (d *Daemon) fleetMetrics() *metrics.Fleet {
	s := d.fleetStatus()
	if s == nil {
		return nil
	}
	m := &metrics.Fleet{Connected: s.Connected, Stale: s.Stale, Refused: s.Refused}
	if s.Confirmed != nil {
		m.Confirmed = *s.Confirmed
	}
	return m
}

// Counted implements [node.Daemon].
func (d *Daemon) Counted() (passed, dropped uint64) {
	interfaces, _ := d.meter.Read()
	for _, i := range interfaces {
		for _, c := range i.Counts {
			if c.Drops {
				dropped += c.Packets
			} else {
				passed += c.Packets
			}
		}
	}
	return passed, dropped
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
