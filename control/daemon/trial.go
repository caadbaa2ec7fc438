package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/fleet/node"
	"weir/control/lists"
	"weir/control/observe"
	"weir/control/ruleset"
	"weir/filter/membership"
)

// trials has the decisions of commands about lists on trial, as the owner of its keeper. Enforce is
// safe for concurrent use; all else is for Run's goroutine.
type trials struct {
	lists.TrialKeeper

	loop        *loop
	active      *active
	antiLockout *antiLockout
	collateral  *observe.Conversations
	reloads     *confirmation
	audit       *audit.Log
	reassemble  func() error // activates the configuration again, with the decisions
	note        func()       // publishes the state
}

// Trial implements [lists.TrialOwner].
func (s *trials) Trial(list string) (t *api.Trial, ok bool) {
	l := s.active.prepared.List(list)
	if l == nil {
		return nil, false
	}
	return l.Trial, true
}

// check saves what commands have decided again where the file is missing.
func (s *trials) check() error {
	if len(s.Decided()) == 0 {
		return nil
	}
	return restoreDecisions(s.Path, "lists on trial", s.Save, s.Log)
}

// Enforce implements [server.Enforcer].
func (s *trials) Enforce(ctx context.Context, name string, c api.EnforceChange) (done api.Enforced, err error) {
	r := audit.OfTrial(name, c)
	by := audit.Cut(r.Who(), audit.MaxText)
	if !c.Off && c.After == 0 && !c.Force {
		_, err = s.collateral.Read(ctx) // for enforce
	}
	if err == nil {
		err = s.loop.doAlone(ctx, func() (err error) {
			done, err = s.enforce(name, c, by)
			return err
		})
	}
	if done.Changed {
		r.Changed = 1
	}
	s.audit.AttemptBy(ctx, r, err)
	return done, err
}

// enforce carries out a change of a trial.
func (s *trials) enforce(name string, c api.EnforceChange, by string) (done api.Enforced, err error) {
	l, err := s.active.prepared.ByName.Find(name)
	if err != nil {
		return done, err
	}
	if err := s.refuse(l, c); err != nil {
		return done, &api.BadRequest{Err: err}
	}
	if before, kept := s.Decided()[name]; kept && !lists.CommandedTrial(l.Trial) && s.reloads.unconfirmed != nil {
		return done, &api.BadRequest{Err: fmt.Errorf("list %s: what a command has decided on %s is kept for the configuration before, until the present one is confirmed: weir confirm, and try again",
			name, before.Since.Local().Format(time.DateTime))}
	}
	return s.Command(name, c, by, func() error {
		if err := s.antiLockout.enforcingCutsOff([]*ruleset.List{l}, callers(c.SSH, c.Connection)...); err != nil {
			return &api.BadRequest{Err: fmt.Errorf("list %s stays on trial: its %w: %s", name, err, orForce)}
		}
		if err := s.collateral.DropsPartners(name); err != nil {
			return &api.BadRequest{Err: lists.TrialStays(name, err)}
		}
		return nil
	})
}

// refuse returns why a list cannot be enforced, or be on trial.
func (s *trials) refuse(l *ruleset.List, c api.EnforceChange) error {
	_, shared := l.From.(*node.List)
	switch {
	case shared && l.Action != config.Allow:
		return fmt.Errorf("list %s is of the fleet: weir fleet enforce %s at the hub, or enforce in hub.yaml, says for all nodes whether it is on trial", l.Name, strings.TrimPrefix(l.Name, config.FleetPrefix))
	case c.Off && s.active.prepared.Config.Mode != membership.Exact:
		return fmt.Errorf("list %s cannot be on trial: mode: approx does not know which list matches a packet: set mode: exact", l.Name)
	}
	return lists.RefuseTrial(l.Name, l.Action == config.Allow, l.Enforce, c)
}

// Decide implements [lists.TrialOwner]: the data plane follows what commands have decided.
func (s *trials) Decide(next lists.Trials) error {
	if !s.active.prepared.Decide(next) {
		return s.reassemble()
	}
	s.note()
	return nil
}

// callers returns the connections of a caller.
func callers(ssh, connection string) (all []ruleset.Peer) {
	for what, text := range map[string]string{"your SSH session": ssh, "your connection": connection} {
		if p, ok := ruleset.ConnectionPeer(what, text); ok {
			all = append(all, p)
		}
	}
	return all
}

// end enforces the lists whose trial is over.
func (s *trials) end(now time.Time) error {
	held, err := s.End(now)
	for _, name := range slices.Sorted(maps.Keys(held)) {
		err = errors.Join(err, held[name])
	}
	return err
}

// Holds implements [lists.TrialOwner].
func (s *trials) Holds(list string) error {
	if err := s.antiLockout.enforcingCutsOff([]*ruleset.List{s.active.prepared.List(list)}); err != nil {
		return fmt.Errorf("the trial of list %s is over, but it is not enforced: its %w: allow that, or weir enforce --force %s", list, err, list)
	}
	if s.collateral.Unread(s.active.prepared.Config) { // since the start, before which the trial's time may have come
		return fmt.Errorf("the trial of list %s is over, but it is not enforced yet: with whom this host has conversed has yet to be read", list)
	}
	if err := s.collateral.DropsPartners(list); err != nil {
		return lists.TrialOverdue(list, err, "weir enforce")
	}
	return nil
}

// Ended implements [lists.TrialOwner].
func (s *trials) Ended(list string) {
	s.audit.Record(audit.Record{Change: audit.Enforce, List: list, Changed: 1, Source: "expiry"})
}

// follow forgets decisions that no longer count, and returns a line for each. Until a configuration
// is confirmed, it may be the one before that is to count.
func (s *trials) follow(confirmed bool) []string {
	if !confirmed {
		return nil
	}
	return s.Follow()
}
