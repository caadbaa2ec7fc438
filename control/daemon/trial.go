package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/fleet/node"
	"weir/control/guard"
	"weir/control/trial"
	"weir/filter/membership"
)

// trials are the decisions of commands about lists on trial. Enforce is safe for concurrent use;
// all else is for Run's goroutine.
type trials struct {
	decided trial.Decisions
	retry   time.Time // where ending one failed
	kept    time.Time // when they were last saved for their ends

	loop       *loop
	active     *active
	guards     *guards
	collateral *collateral
	audit      auditor
	reassemble func() error // activates the configuration again, with the decisions
	note       func()       // publishes the state
	log        *slog.Logger
}

// trialOf returns the trial of a list as the configuration has it, nil where it is enforced and no
// command has decided that.
func trialOf(c *config.Config, l *config.List, decided trial.Decisions) *api.Trial {
	if l.Action == config.Allow || c.Mode != membership.Exact {
		return nil
	}
	return decided.Of(l.Name, l.Enforce)
}

func trialPath(c *config.Config) string {
	if c.StateDir == "" {
		return ""
	}
	return filepath.Join(string(c.StateDir), trial.File)
}

// loadTrials returns what commands have decided, as it was saved. A trial whose time has come
// meanwhile is ended by the first tick, which knows whom that would cut off.
func loadTrials(c *config.Config, log *slog.Logger) trial.Decisions {
	if path := trialPath(c); path != "" {
		return trial.Load(path, log)
	}
	return nil
}

// save makes what commands have decided durable.
func (s *trials) save(t trial.Decisions) error {
	if path := trialPath(s.active.prepared.config); path != "" {
		return t.Save(path)
	}
	return nil
}

// check saves what commands have decided again where the file is missing.
func (s *trials) check() error {
	path := trialPath(s.active.prepared.config)
	if len(s.decided) == 0 || !missing(path) {
		return nil
	}
	s.log.Error("a state file was removed while weir ran: it is written anew", "file", path)
	if err := s.save(s.decided); err != nil {
		return fmt.Errorf("lists on trial: %w", err)
	}
	return nil
}

// keep notes how much of the trials has passed that are to end, at an interval.
func (s *trials) keep(now time.Time) {
	if !s.decided.End() || now.Sub(s.kept) < trial.Interval {
		return
	}
	s.kept = now
	next, lines := s.decided.At(now)
	for _, line := range lines {
		s.log.Warn(line)
	}
	if err := s.save(next); err != nil {
		s.log.Error("trials would end later after a restart of the machine: " + err.Error())
	}
	if len(lines) > 0 {
		if err := s.decide(next); err != nil {
			s.log.Error(err.Error())
		}
	}
}

// Enforce implements [server.Enforcer].
func (s *trials) Enforce(ctx context.Context, name string, c api.EnforceChange) (done api.Enforced, err error) {
	r := audit.OfTrial(name, c)
	by := audit.Cut(r.Who(), audit.MaxText)
	if !c.Off && c.After == 0 && !c.Force {
		_, err = s.collateral.read(ctx) // for set
	}
	if err == nil {
		err = s.loop.doAlone(ctx, func() (err error) {
			done, err = s.set(name, c, by)
			return err
		})
	}
	if done.Changed {
		r.Changed = 1
	}
	s.audit.attempt(ctx, r, err)
	return done, err
}

// set carries out a change of a trial: first durably, then in the data plane.
func (s *trials) set(name string, c api.EnforceChange, by string) (done api.Enforced, err error) {
	l := s.active.prepared.list(name)
	if l == nil {
		return done, s.active.prepared.noList(name)
	}
	if err := s.refuse(l, c); err != nil {
		return done, &api.BadRequest{Err: err}
	}
	o := trial.New(c, l.trial == nil || !l.trial.Configured, by, time.Now())
	if !trial.Changes(l.trial, o) {
		return api.Enforced{List: name, Trial: l.trial}, nil
	}
	if o.Enforced && !l.Enforce && !c.Force {
		if err := s.guards.enforcingCutsOff([]*managedList{l}, callers(c.SSH, c.Connection)...); err != nil {
			return done, &api.BadRequest{Err: fmt.Errorf("list %s stays on trial: its %w: allow that first, or use --force (force: true)", name, err)}
		}
		if err := s.collateral.dropsPartners(name); err != nil {
			return done, &api.BadRequest{Err: trial.Stays(name, err)}
		}
	}
	before, next := s.decided, s.decided.With(name, o)
	if err := s.save(next); err != nil {
		return done, fmt.Errorf("list %s stays as it was, since a restart would forget the change: %w", name, err)
	}
	if err := s.decide(next); err != nil {
		return done, errors.Join(fmt.Errorf("list %s stays as it was: %w", name, err), s.save(before))
	}
	return api.Enforced{List: name, Changed: true, Trial: s.active.prepared.list(name).trial}, nil
}

// refuse returns why a list cannot be enforced, or be on trial.
func (s *trials) refuse(l *managedList, c api.EnforceChange) error {
	_, shared := l.from.(*node.List)
	switch {
	case shared && l.Action != config.Allow:
		return fmt.Errorf("list %s is of the fleet: weir fleet enforce %s at the hub, or enforce in hub.yaml, says for all nodes whether it is on trial", l.Name, strings.TrimPrefix(l.Name, config.FleetPrefix))
	case c.Off && s.active.prepared.config.Mode != membership.Exact:
		return fmt.Errorf("list %s cannot be on trial: mode: approx does not know which list matches a packet: set mode: exact", l.Name)
	}
	return trial.Refuse(l.Name, l.Action == config.Allow, l.Enforce, c)
}

// decide makes the data plane follow what commands have decided. When it fails, nothing has
// changed.
func (s *trials) decide(next trial.Decisions) error {
	before := s.decided
	s.decided = next
	same := true
	for _, l := range s.active.prepared.lists {
		t := l.trialBy(s.active.prepared.config, next)
		same = same && l.Enforce == (t == nil || t.Enforced)
	}
	if same { // only times have changed, and what others read beside the loop stays
		for _, l := range s.active.prepared.lists {
			l.trial = l.trialBy(s.active.prepared.config, next)
		}
		s.note()
		return nil
	}
	err := s.reassemble()
	if err != nil {
		s.decided = before
	}
	return err
}

// configured returns the list as the configuration has it.
func (l *managedList) configured() config.List {
	c := l.List
	if l.trial != nil {
		c.Enforce = !l.trial.Configured
	}
	return c
}

// trialBy returns the trial of a list where commands have decided that.
func (l *managedList) trialBy(c *config.Config, t trial.Decisions) *api.Trial {
	as := l.configured()
	return trialOf(c, &as, t)
}

// follow sets whether a new list is on trial.
func (l *managedList) follow(c *config.Config, t trial.Decisions) {
	if l.trial = l.trialBy(c, t); l.trial != nil {
		l.Enforce = l.trial.Enforced
	}
}

// callers returns the connections of a caller.
func callers(ssh, connection string) (all []guard.Peer) {
	for what, text := range map[string]string{"your SSH session": ssh, "your connection": connection} {
		if p, ok := guard.Connection(what, text); ok {
			all = append(all, p)
		}
	}
	return all
}

// end enforces the lists whose trial is over.
func (s *trials) end(now time.Time) error {
	if now.Before(s.retry) {
		return nil
	}
	next := s.decided
	var ended []*managedList
	var failed error
	for _, name := range s.decided.Over(now) {
		l := s.active.prepared.list(name)
		if l == nil || !l.commanded() {
			continue
		}
		if err := s.guards.enforcingCutsOff([]*managedList{l}); err != nil {
			failed = errors.Join(failed, fmt.Errorf("the trial of list %s is over, but it is not enforced: its %w: allow that, or weir enforce --force %s", name, err, name))
			continue
		}
		if err := s.collateral.dropsPartners(name); err != nil {
			failed = errors.Join(failed, trial.Overdue(name, err, "weir enforce"))
			continue
		}
		next = next.With(name, trial.Ended(s.decided[name]))
		ended = append(ended, l)
	}
	if len(ended) > 0 {
		if err := s.decide(next); err != nil {
			failed = errors.Join(failed, fmt.Errorf("a trial is over, but its list could not be enforced, retrying in %v: %w", retryInterval, err))
			ended = nil
		} else if err := s.save(next); err != nil { // a start finds the time again
			s.log.Error(err.Error())
		}
	}
	for _, l := range ended {
		s.audit.Record(audit.Record{Change: audit.Enforce, List: l.Name, Changed: 1, Source: "expiry"})
	}
	if failed != nil {
		s.retry = now.Add(retryInterval)
	}
	return failed
}

// commanded reports whether a command decides about the list's trial.
func (l *managedList) commanded() bool { return l.trial != nil && l.trial.Since != nil }

// follow forgets what commands have decided about lists whose configuration has changed,
// or which are gone, and returns a line for each. Until a configuration is confirmed, it may
// be the one before that is to count.
func (s *trials) follow(confirmed bool) (lines []string) {
	if len(s.decided) == 0 || !confirmed {
		return nil
	}
	next, lines := s.decided.Follow(func(name string) int {
		switch l := s.active.prepared.list(name); {
		case l == nil:
			return trial.Gone
		case l.commanded():
			return trial.Counts
		}
		return trial.Changed
	})
	if len(lines) == 0 {
		return nil
	}
	s.decided = next
	if err := s.save(next); err != nil {
		s.log.Error("the next start will forget commands that no longer count: " + err.Error())
	}
	s.log.Info("trials: " + strings.Join(lines, "; "))
	return lines
}

// trialLists describes the lists whose trial is open, or was ended by a command.
func (p *Prepared) trialLists() (all []api.TrialList) {
	for _, l := range p.lists {
		if l.trial != nil {
			all = append(all, api.TrialList{List: l.Name, Trial: *l.trial})
		}
	}
	return all
}
