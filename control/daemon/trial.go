package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/durable"
	"weir/control/fleet/node"
	"weir/control/guard"
	"weir/filter/membership"
)

// A trial is decided by the configuration (enforce: false), or by a command that overrides it.
// A command counts as long as the configuration says what it said then: who changes enforce
// there decides anew, and who takes the list away ends its trial.

// trialFile is the name of the file below the state directory that has what commands decided.
const trialFile = "trial.json"

// trialVersion is the version of its contents.
const trialVersion = 1

// trials have the decisions of commands, by list. Once in use they are not changed, as they are
// read beside the loop.
type trials map[string]api.Trial

// savedTrials are the contents of the file.
type savedTrials struct {
	Version int    `json:"version"`
	Lists   trials `json:"lists"`
}

// of returns the trial of a list as the configuration has it, nil where it is enforced and no
// command has decided that.
func (t trials) of(c *config.Config, l *config.List) *api.Trial {
	if l.Action == config.Allow || c.Mode != membership.Exact {
		return nil
	}
	if o, ok := t[l.Name]; ok && o.Configured == !l.Enforce {
		return &o
	}
	if !l.Enforce {
		return &api.Trial{Configured: true}
	}
	return nil
}

func trialPath(c *config.Config) string {
	if c.StateDir == "" {
		return ""
	}
	return filepath.Join(string(c.StateDir), trialFile)
}

// loadTrials returns what commands have decided, as it was saved. A trial whose time has come
// meanwhile is ended by the first tick, which knows whom that would cut off.
func loadTrials(path string, log *slog.Logger) trials {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var saved savedTrials
	if err == nil {
		err = json.Unmarshal(text, &saved)
	}
	if err == nil && saved.Version != trialVersion {
		err = fmt.Errorf("it has version %d, and this daemon knows %d", saved.Version, trialVersion)
	}
	if err != nil {
		log.Error("which lists commands have put on trial, or enforced, is unknown, the configuration decides: "+err.Error(), "file", path)
		return nil
	}
	maps.DeleteFunc(saved.Lists, func(_ string, o api.Trial) bool { return o.Since == nil }) // of no command
	return saved.Lists
}

// saveTrials makes what commands have decided durable.
func (d *Daemon) saveTrials(t trials) error {
	path := trialPath(d.prepared.config)
	switch {
	case path == "":
		return nil
	case len(t) == 0:
		return durable.Remove(path)
	}
	text, err := json.Marshal(savedTrials{trialVersion, t})
	if err != nil {
		return err
	}
	return durable.WriteFile(path, append(text, '\n'))
}

// checkTrials saves what commands have decided again where the file is missing.
func (d *Daemon) checkTrials() error {
	path := trialPath(d.prepared.config)
	if len(d.trials) == 0 || !missing(path) {
		return nil
	}
	d.o.Log.Error("a state file was removed while weir ran: it is written anew", "file", path)
	if err := d.saveTrials(d.trials); err != nil {
		return fmt.Errorf("lists on trial: %w", err)
	}
	return nil
}

// Enforce implements [server.Daemon].
func (d *Daemon) Enforce(ctx context.Context, name string, c api.EnforceChange) (done api.Enforced, err error) {
	r := audit.Record{Change: audit.Enforce, List: name, TTL: c.After}
	if c.Off {
		r.Change = audit.EnforceOff
	}
	audit.By(&r, c.UID, c.Client)
	by := audit.Cut(r.Who(), audit.MaxText)
	if !c.Off && c.After == 0 && !c.Force {
		_, err = d.readCollateral(ctx) // for setTrial
	}
	if err == nil {
		err = d.doAlone(ctx, func() (err error) {
			done, err = d.setTrial(name, c, by)
			return err
		})
	}
	if done.Changed {
		r.Changed = 1
	}
	d.audited(ctx, r, err)
	return done, err
}

// setTrial carries out a change of a trial: first durably, then in the data plane.
func (d *Daemon) setTrial(name string, c api.EnforceChange, by string) (done api.Enforced, err error) {
	l := d.prepared.list(name)
	if l == nil {
		return done, d.noList(name)
	}
	if err := d.refuseTrial(l, c); err != nil {
		return done, &api.BadRequest{Err: err}
	}
	now := time.Now()
	o := api.Trial{Enforced: !c.Off && c.After == 0, Configured: l.trial != nil && l.trial.Configured, Since: &now, By: by}
	if c.After > 0 {
		at := now.Add(time.Duration(c.After * float64(time.Second)))
		o.EnforcedAt = &at
	}
	if o.EnforcedAt == nil && o.Enforced == l.Enforce && (l.trial == nil || l.trial.EnforcedAt == nil) {
		return api.Enforced{List: name, Trial: l.trial}, nil
	}
	if o.Enforced && !l.Enforce && !c.Force {
		if err := d.enforcingCutsOff([]*managedList{l}, callers(c.SSH, c.Connection)...); err != nil {
			return done, &api.BadRequest{Err: fmt.Errorf("list %s stays on trial: its %w: allow that first, or use --force (force: true)", name, err)}
		}
		if err := d.dropsPartners(name); err != nil {
			return done, &api.BadRequest{Err: fmt.Errorf("list %s stays on trial: %w: allow those first, or use --force (force: true)", name, err)}
		}
	}
	before, next := d.trials, maps.Clone(d.trials)
	if next == nil {
		next = make(trials)
	}
	next[name] = o
	if o.EnforcedAt == nil && o.Enforced == !o.Configured {
		delete(next, name) // as the configuration says
	}
	if err := d.saveTrials(next); err != nil {
		return done, fmt.Errorf("list %s stays as it was, since a restart would forget the change: %w", name, err)
	}
	if err := d.decide(next); err != nil {
		return done, errors.Join(fmt.Errorf("list %s stays as it was: %w", name, err), d.saveTrials(before))
	}
	return api.Enforced{List: name, Changed: true, Trial: d.prepared.list(name).trial}, nil
}

// refuseTrial returns why a list cannot be enforced, or be on trial.
func (d *Daemon) refuseTrial(l *managedList, c api.EnforceChange) error {
	_, shared := l.from.(*node.List)
	switch {
	case l.Action == config.Allow:
		return fmt.Errorf("list %s allows: it drops nothing, and has no trial: name a block list", l.Name)
	case shared:
		return fmt.Errorf("list %s is of the fleet: enforce in hub.yaml says for all nodes whether it is on trial", l.Name)
	case c.After > 0 && !c.Off && l.Enforce:
		return fmt.Errorf("list %s is enforced already: leave out --after (after_seconds), or put it on trial until then by --off (off: true) beside it", l.Name)
	case c.Off && d.prepared.config.Mode != membership.Exact:
		return fmt.Errorf("list %s cannot be on trial: mode: approx does not know which list matches a packet: set mode: exact", l.Name)
	}
	return nil
}

// decide makes the data plane follow what commands have decided. When it fails, nothing has
// changed.
func (d *Daemon) decide(next trials) error {
	before := d.trials
	d.trials = next
	same := true
	for _, l := range d.prepared.lists {
		t := l.trialBy(d.prepared.config, next)
		same = same && l.Enforce == (t == nil || t.Enforced)
	}
	if same { // only times have changed, and what others read beside the loop stays
		for _, l := range d.prepared.lists {
			l.trial = l.trialBy(d.prepared.config, next)
		}
		d.note()
		return nil
	}
	err := d.reassemble()
	if err != nil {
		d.trials = before
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
func (l *managedList) trialBy(c *config.Config, t trials) *api.Trial {
	as := l.configured()
	return t.of(c, &as)
}

// follow sets whether a new list is on trial.
func (l *managedList) follow(c *config.Config, t trials) {
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

// enforcingCutsOff returns which peers the manual entries of lists on trial would cut off
// once they are enforced. What sources have is left out then.
func (d *Daemon) enforcingCutsOff(lists []*managedList, caller ...guard.Peer) error {
	d.freshPeers()
	before := d.prepared.rules
	after := slices.Clone(before)
	for _, l := range lists {
		if r := after[l.manual-1].Rule; r != nil {
			enforced := *r
			enforced.Trial = false
			after[l.manual-1].Rule = &enforced
		}
	}
	all, policy := slices.Concat(caller, d.prepared.peers), policyOf(d.prepared.config)
	if worse := guard.New(guard.Check(after, policy, all), guard.Check(before, policy, all)); len(worse) > 0 {
		return fmt.Errorf("entry %w", guard.Error(worse))
	}
	return nil
}

// endTrials enforces the lists whose trial is over.
func (d *Daemon) endTrials(now time.Time) error {
	if now.Before(d.retryTrials) {
		return nil
	}
	next := maps.Clone(d.trials)
	var ended []*managedList
	var failed error
	for _, name := range slices.Sorted(maps.Keys(d.trials)) {
		o, l := d.trials[name], d.prepared.list(name)
		if o.EnforcedAt == nil || now.Before(*o.EnforcedAt) || l == nil || !l.commanded() {
			continue
		}
		if err := d.enforcingCutsOff([]*managedList{l}); err != nil {
			failed = errors.Join(failed, fmt.Errorf("the trial of list %s is over, but it is not enforced: its %w: allow that, or weir enforce --force %s", name, err, name))
			continue
		}
		if err := d.dropsPartners(name); err != nil {
			failed = errors.Join(failed, fmt.Errorf("the trial of list %s is over, but it is not enforced: %w: allow those, or weir enforce --force %s", name, err, name))
			continue
		}
		o.Enforced, o.Since, o.EnforcedAt = true, o.EnforcedAt, nil
		if next[name] = o; !o.Configured {
			delete(next, name)
		}
		ended = append(ended, l)
	}
	if len(ended) > 0 {
		if err := d.decide(next); err != nil {
			failed = errors.Join(failed, fmt.Errorf("a trial is over, but its list could not be enforced, retrying in %v: %w", retryInterval, err))
			ended = nil
		} else if err := d.saveTrials(next); err != nil { // a start finds the time again
			d.o.Log.Error(err.Error())
		}
	}
	for _, l := range ended {
		d.audit.Record(audit.Record{Change: audit.Enforce, List: l.Name, Changed: 1, Source: "expiry"})
	}
	if failed != nil {
		d.retryTrials = now.Add(retryInterval)
	}
	return failed
}

// commanded reports whether a command decides about the list's trial.
func (l *managedList) commanded() bool { return l.trial != nil && l.trial.Since != nil }

// followTrials forgets what commands have decided about lists whose configuration has changed,
// or which are gone, and returns a line for each. Until a configuration is confirmed, it may
// be the one before that is to count.
func (d *Daemon) followTrials() (lines []string) {
	if len(d.trials) == 0 || d.unconfirmed != nil || d.rolledBack {
		return nil
	}
	next := maps.Clone(d.trials)
	for _, name := range slices.Sorted(maps.Keys(d.trials)) {
		why := "the configuration has changed"
		if l := d.prepared.list(name); l == nil {
			why = "the list is gone"
		} else if l.commanded() {
			continue
		}
		was := "weir enforce --off"
		if d.trials[name].Enforced {
			was = "weir enforce"
		}
		lines = append(lines, fmt.Sprintf("list %s: `%s` of %s no longer counts: %s", name, was, d.trials[name].Since.Local().Format(time.DateTime), why))
		delete(next, name)
	}
	if len(lines) == 0 {
		return nil
	}
	d.trials = next
	if err := d.saveTrials(next); err != nil {
		d.o.Log.Error("the next start will forget commands that no longer count: " + err.Error())
	}
	d.o.Log.Info("trials: " + strings.Join(lines, "; "))
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
