package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/control/api"
	"weir/control/clock"
	"weir/control/config"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/node"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/control/metrics"
	"weir/control/ruleset"
)

// fleet is the host's membership of a fleet: the lists that its configuration has from there, and the wait for
// them at a start. It is safe for concurrent use.
type fleet struct {
	node       atomic.Pointer[node.Node] // nil: the host is in none
	rehearsals *rehearsals

	follow func(*node.Node) // has the host follow its lists; set by Run

	service *service               // notified while the start waits
	awaits  atomic.Pointer[string] // what the start waits for; nil: nothing
}

// Node returns the host as a node, nil if it is in no fleet.
func (f *fleet) Node() *node.Node { return f.node.Load() }

// Awaited returns what the start waits for, "" for nothing.
func (f *fleet) Awaited() string {
	if text := f.awaits.Load(); text != nil {
		return *text
	}
	return ""
}

// openNode returns the node of the fleet that a configuration names, nil if it names
// none.
func openNode(c *config.Config, by *clock.Clock, version string, readOnly bool, log *slog.Logger) (*node.Node, error) {
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
		n.Clock = by
	}
	return node.Open(n)
}

// reread takes in another enrollment file, as of a host that has joined anew. It returns what has changed, or why not.
func (f *fleet) reread(c *config.Config) []string {
	n := f.Node()
	if n == nil || !c.Fleet.On() {
		return nil
	}
	e, err := enrollment.Read(string(c.Fleet.Enroll))
	other := false
	if err == nil {
		other, err = n.Take(e)
	}
	switch {
	case err != nil:
		return []string{"fleet.enroll: " + err.Error()}
	case other:
		return []string{"fleet.enroll: the node connects by another file"}
	}
	return nil
}

// Known implements [ruleset.Shared].
func (f *fleet) Known() bool {
	n := f.Node()
	return n != nil && slices.ContainsFunc(n.Lists(), func(l *node.List) bool { return l.Contents().Len() > 0 })
}

// Lists implements [ruleset.Shared].
func (f *fleet) Lists(c *config.Config) (lists []config.List, from map[string]ruleset.Source) {
	n := f.Node()
	if n == nil {
		return nil, nil
	}
	from = make(map[string]ruleset.Source)
	for _, l := range n.Lists() {
		one, err := listOf(l.Name(), l.Settings())
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

// awaiting is a daemon that filters by no list of the fleet yet.
type awaiting struct{}

var errAwaiting = errors.New("the program from before filters on until each list that it has is known")

func (awaiting) TakeLists(context.Context) error                         { return errAwaiting }
func (awaiting) TakeContents(context.Context, *node.List) error          { return errAwaiting }
func (awaiting) DescribeNode(*wire.Status)                               {}
func (awaiting) Answer(context.Context, string, []byte) (any, error)     { return nil, errAwaiting }
func (awaiting) Rehearse(context.Context, string, *node.Candidate) error { return errAwaiting }
func (awaiting) Rehearsed(string) wire.Rehearsal                         { return wire.Rehearsal{} }
func (awaiting) Conversed(string) *wire.Conversed                        { return nil }

func (awaiting) TakePatterns(context.Context, []wire.Pattern, time.Time) error { return errAwaiting }

func (awaiting) Measure(context.Context, string, *node.Candidate, *list.Set) *wire.Conversed {
	return nil
}

// awaitInterval is how often await looks for lists.
const awaitInterval = 100 * time.Millisecond

// Await waits until the lists of the fleet are known which a program has that filters
// already: what would replace it must not be without them. The node may have lost what it
// had saved, and the hub be out of reach.
func (f *fleet) Await(ctx context.Context, attached []string) error {
	n := f.Node()
	if n == nil {
		return nil
	}
	missing := func() (all []string) {
		for _, name := range attached {
			if hubs, ok := strings.CutPrefix(name, config.FleetPrefix); ok && n.Expects(hubs) {
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
	all.Go(func() { failed <- n.Run(following, awaiting{}) })
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
		if err := n.Age().Err(); err != nil {
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
			f.service.log.Warn("the lists of the fleet that filter already are not saved: "+text, "lists", what)
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

// Status returns the state of the node, nil if the host is in no fleet.
func (f *fleet) Status() *api.Fleet {
	n := f.Node()
	if n == nil {
		return nil
	}
	age := n.Age()
	s := &api.Fleet{Node: n.Name(), Connected: age.Connected, Refused: n.Refused()}
	if !age.Confirmed.IsZero() {
		s.Confirmed = &age.Confirmed
	}
	if until := n.Expires(); !until.IsZero() {
		s.Expires = &until
	}
	s.Denied = n.Denied()
	if r := n.Renewal(); r != nil {
		s.RenewalFails, s.RenewalProblem = &r.Since, r.Why
	}
	if err := age.Err(); err != nil {
		s.Stale, s.Problem = true, err.Error()
	}
	return s
}

// Metrics returns the same for metrics.
func (f *fleet) Metrics() *metrics.Fleet {
	s := f.Status()
	if s == nil {
		return nil
	}
	m := &metrics.Fleet{Connected: s.Connected, Stale: s.Stale, Refused: s.Refused, RenewalFails: s.RenewalFails != nil}
	if s.Confirmed != nil {
		m.Confirmed = *s.Confirmed
	}
	return m
}
