package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/feed"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/node"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/control/lists"
	"weir/control/metrics"
	"weir/control/ruleset"
	"weir/filter/verdict"
)

var (
	_ ruleset.Source = (*feed.Feed)(nil)
	_ ruleset.Source = (*node.List)(nil)
)

// fleet is the host's membership of a fleet. It is safe for concurrent use.
type fleet struct {
	node       *node.Node // nil: the host is in none
	service    *service
	rehearsals rehearsals
	awaits     atomic.Pointer[string] // what the start waits for; nil: nothing
	log        *slog.Logger
}

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

// Known implements [shared].
func (f *fleet) Known() bool {
	return f.node != nil && slices.ContainsFunc(f.node.Lists(), func(l *node.List) bool { return l.Contents().Len() > 0 })
}

// Lists implements [shared].
func (f *fleet) Lists(c *config.Config) (lists []config.List, from map[string]ruleset.Source) {
	if f.node == nil {
		return nil, nil
	}
	from = make(map[string]ruleset.Source)
	for _, l := range f.node.Lists() {
		one, err := fleetConfig(l.Name(), l.Settings())
		if err == nil {
			err = c.CheckShared(one, lists)
		}
		if err != nil {
			l.Revert(l.Version(), err)
			continue
		}
		lists = append(lists, one)
		from[one.Name] = l
	}
	return lists, from
}

// fleetConfig returns a list of the fleet as a configuration would have it.
func fleetConfig(name string, s wire.Settings) (c config.List, err error) {
	c.SetDefaults()
	c.Name = config.FleetPrefix + name
	c.Priority = s.Priority
	if c.Aggregate = config.Aggregate(s.Aggregate); s.Prefix6 != 0 {
		c.Prefix6 = s.Prefix6
		c.WidenAll()
	}
	action, limited := strings.CutSuffix(s.Action, wire.Limited)
	if limited {
		c.Enforce = !s.Trial
		err = errors.Join(each(s.Ports, func(text string) error {
			var p verdict.PortRange
			err := p.UnmarshalText([]byte(text))
			c.Ports = append(c.Ports, p)
			return err
		}), each(s.Protocols, func(text string) error {
			var p config.Protocol
			err := p.UnmarshalText([]byte(text))
			c.Protocols = append(c.Protocols, p)
			return err
		}), each(s.VLANs, func(text string) error {
			v, err := strconv.Atoi(text)
			c.VLANs = append(c.VLANs, v)
			return err
		}))
	}
	err = errors.Join(err, c.Action.UnmarshalText([]byte(action)), c.Direction.UnmarshalText([]byte(s.Direction)), c.Check())
	return c, err
}

// each calls read with each of the texts that are joined by commas.
func each(texts string, read func(text string) error) error {
	if texts == "" {
		return nil
	}
	for text := range strings.SplitSeq(texts, ",") {
		if err := read(text); err != nil {
			return err
		}
	}
	return nil
}

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
func (d *Daemon) reassemble() error {
	d.updateLingering()
	last, p := kept{Generation: d.active.engine}, d.active.prepared
	_, err := d.reconfigure(d.assemble(p.Config, p.Stages, p.Feeds()), new(kept))
	if err == nil {
		last.close(d.o.Log)
	}
	d.note()
	return err
}

// awaiting is a daemon that filters by no list of the fleet yet.
type awaiting struct{}

var errAwaiting = errors.New("the program from before filters on until each list that it has is known")

func (awaiting) TakeLists(context.Context) error                         { return errAwaiting }
func (awaiting) TakeContents(context.Context, *node.List) error          { return errAwaiting }
func (awaiting) Counted() (passed, dropped uint64)                       { return 0, 0 }
func (awaiting) Answer(context.Context, string, []byte) (any, error)     { return nil, errAwaiting }
func (awaiting) Rehearse(context.Context, string, *node.Candidate) error { return errAwaiting }
func (awaiting) Rehearsed(string) wire.Rehearsal                         { return wire.Rehearsal{} }
func (awaiting) Conversed(string) *wire.Conversed                        { return nil }
func (awaiting) Measure(context.Context, string, *node.Candidate, *list.Set) *wire.Conversed {
	return nil
}

// awaitInterval is how often await looks for lists.
const awaitInterval = 100 * time.Millisecond

// await waits until the lists of the fleet are known which a program has that filters
// already: what would replace it must not be without them. The node may have lost what it
// had saved, and the hub be out of reach.
func (f *fleet) await(ctx context.Context, attached []string) error {
	if f.node == nil {
		return nil
	}
	missing := func() (all []string) {
		for _, name := range attached {
			if hubs, ok := strings.CutPrefix(name, config.FleetPrefix); ok && f.node.Expects(hubs) {
				all = append(all, name)
			}
		}
		return all
	}
	if len(missing()) == 0 {
		return nil
	}
	following, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	failed := make(chan error, 1)
	all.Go(func() { failed <- f.node.Run(following, awaiting{}) })
	defer f.awaits.Store(nil)
	tick := time.NewTicker(awaitInterval)
	defer tick.Stop()
	logged, notified := "", time.Time{}
	for {
		lists := missing()
		if len(lists) == 0 {
			return nil
		}
		text := "waiting for " + strings.Join(lists, ", ") + ", which the program from before has: it filters on"
		if err := f.node.Age().Err(); err != nil {
			text += "; " + err.Error()
		}
		f.awaits.Store(&text)
		switch now := time.Now(); {
		case notified.IsZero(): // the program from before filters: no service manager is to end this
			f.service.notified(f.service.Ready(text))
			notified = now
		case now.Sub(notified) >= time.Second:
			f.service.notified(f.service.Alive(text))
			notified = now
		}
		if what := strings.Join(lists, ","); what != logged {
			logged = what
			f.log.Warn("the lists of the fleet that filter already are not saved: "+text, "lists", what)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("stopped while lists of the fleet were awaited, nothing has changed: %w", ctx.Err())
		case err := <-failed:
			if err == nil {
				err = ctx.Err()
			}
			return err
		case <-tick.C:
		}
	}
}

// status returns the state of the node, nil if the host is in no fleet.
func (f *fleet) status() *api.Fleet {
	if f.node == nil {
		return nil
	}
	age := f.node.Age()
	s := &api.Fleet{Node: f.node.Name(), Connected: age.Connected, Refused: f.node.Refused()}
	if !age.Confirmed.IsZero() {
		s.Confirmed = &age.Confirmed
	}
	if until := f.node.Expires(); !until.IsZero() && enrollment.ExpiresSoon(until, time.Now()) {
		s.Expires = &until
	}
	if err := age.Err(); err != nil {
		s.Stale, s.Problem = true, err.Error()
	}
	return s
}

// metrics returns the same for metrics.
func (f *fleet) metrics() *metrics.Fleet {
	s := f.status()
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
func (r *readings) Counted() (passed, dropped uint64) {
	interfaces, _ := r.meter.Read()
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
