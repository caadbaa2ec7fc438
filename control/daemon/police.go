package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/clock"
	"weir/control/config"
	"weir/control/quantity"
	"weir/control/stages"
	"weir/loader/netif"
)

// policing has the limits of interfaces that commands have set. SetPolice is safe for concurrent
// use; all else is for Run's goroutine.
type policing struct {
	set      []api.PoliceOverride // as decided, by interface
	enforced []api.PoliceOverride // by the programs, as status shows it; the slice is replaced, never changed

	clock       *clock.Clock
	loop        *loop
	active      *active
	antiLockout *antiLockout
	reloads     *confirmation
	audit       *audit.Log
	activate    func() error // has the interfaces follow the limits
	note        func()       // publishes the state
	log         *slog.Logger

	retry  time.Time // where a limit could not be ended
	failed error     // why
}

// policeFile is the name of the file below the state directory that is there while a command
// limits an interface.
const policeFile = "police.json"

// savedPolicing is the contents of the file, with steady times.
type savedPolicing struct {
	Interfaces []api.PoliceOverride `json:"interfaces"`
}

// load reads the limits that were saved, but for those that have ended meanwhile.
func (p *policing) load(c *config.Config, now time.Time) {
	var s savedPolicing
	if !loadDecisions(statePath(c, policeFile), &s, "which interfaces commands have limited", p.log) {
		return
	}
	for _, o := range s.Interfaces {
		o.Since, o.Until = p.clock.Wall(o.Since), clock.Optional(p.clock.Wall, o.Until)
		if over(o.Until, now) {
			p.log.Info("the limit of an interface has ended while weir did not run", "interface", targetOf(o).String(), "by", o.By)
			continue
		}
		p.set = append(p.set, o)
	}
	p.enforced = p.set
}

// save makes limits durable.
func (p *policing) save(set []api.PoliceOverride) error {
	path := statePath(p.active.prepared.Config, policeFile)
	if len(set) == 0 {
		return forgetDecisions(path)
	}
	s := savedPolicing{slices.Clone(set)}
	for n, o := range set {
		s.Interfaces[n].Since, s.Interfaces[n].Until = p.clock.Steady(o.Since), clock.Optional(p.clock.Steady, o.Until)
	}
	return saveDecisions(path, s)
}

func targetOf(o api.PoliceOverride) netif.Target {
	return netif.Target{Netns: o.Netns, Iface: o.Interface}
}

// rates returns the limits that a configuration can have.
func (p *policing) rates(c *config.Config) map[netif.Target]quantity.Rate {
	all := make(map[netif.Target]quantity.Rate)
	for _, o := range p.set {
		var rate quantity.Rate
		if err := rate.UnmarshalText([]byte(o.Rate)); err == nil && c.CheckPolice(targetOf(o), rate) == nil {
			all[targetOf(o)] = rate
		}
	}
	return all
}

// SetPolice implements [server.Policer]. A full disk does not hold it up.
func (p *policing) SetPolice(ctx context.Context, c api.PoliceChange) (done api.Policed, err error) {
	t := netif.Target{Netns: c.Netns, Iface: c.Interface}
	r := audit.Record{Change: audit.PoliceOff, Interface: t.String()}
	if !c.Off {
		r.Change, r.TTL, r.Entries, r.First = audit.Police, c.For, 1, []string{audit.Cut(c.Rate, audit.MaxText)}
	}
	audit.By(&r, c.UID, c.Client)
	err = p.loop.doAlone(ctx, func() (err error) {
		done, err = p.change(t, c, audit.Cut(r.Who(), audit.MaxText))
		return err
	})
	if done.Changed {
		r.Changed = 1
	}
	p.audit.AttemptBy(ctx, r, err)
	return done, err
}

func (p *policing) change(t netif.Target, c api.PoliceChange, by string) (done api.Policed, err error) {
	done.Interface = t.String()
	next := slices.DeleteFunc(slices.Clone(p.set), func(o api.PoliceOverride) bool { return targetOf(o) == t })
	if c.Off && len(next) == len(p.set) {
		return done, nil
	}
	if p.reloads.unconfirmed != nil { // the way back has the limits as they are
		return done, &api.BadRequest{Err: errors.New("a reload is to be confirmed: weir confirm, and try again")}
	}
	if !c.Off {
		o := api.PoliceOverride{Interface: t.Iface, Netns: t.Netns, Since: time.Now(), By: by}
		if err := p.may(t, c, &o); err != nil {
			return done, &api.BadRequest{Err: err}
		}
		done.Override, next = &o, append(next, o)
	}
	before := p.set
	unsaved := p.save(next) // a crash before it is active finds it, as was asked for
	p.set = next
	if err := p.activate(); err != nil {
		p.set = before
		done.Override = nil
		return done, errors.Join(fmt.Errorf("%v is limited as it was: %w", t, err), p.save(before))
	}
	p.enforced = next
	p.note()
	if done.Changed = true; unsaved != nil {
		done.Unsaved = unsaved.Error()
		p.log.Error("a limit was changed, but a restart would forget that: " + done.Unsaved)
	}
	p.log.Warn("the limit of an interface was changed", "interface", done.Interface, "rate", cmp.Or(c.Rate, "as configured"), "by", by)
	return done, nil
}

// may completes a limit, and returns why it must not be.
func (p *policing) may(t netif.Target, c api.PoliceChange, o *api.PoliceOverride) error {
	var rate quantity.Rate
	if err := rate.UnmarshalText([]byte(c.Rate)); err != nil {
		return err
	}
	if err := p.active.prepared.Config.CheckPolice(t, rate); err != nil {
		return err
	}
	o.Rate = rate.String()
	if c.For != 0 {
		o.Until = new(o.Since.Add(time.Duration(c.For * float64(time.Second))))
		return nil
	}
	for _, peer := range callers(c.SSH, c.Connection) {
		if !c.Force && !p.antiLockout.passes(peer) {
			return fmt.Errorf("%s would share %v with a flood, without an end: set one by --for (for_seconds), %s", peer.What, rate, orForce)
		}
	}
	return nil
}

// end ends the limits whose time is over. While a reload is to be confirmed, they stay.
func (p *policing) end(now time.Time) error {
	past := slices.DeleteFunc(slices.Clone(p.set), func(o api.PoliceOverride) bool { return !over(o.Until, now) })
	switch {
	case len(past) == 0 || p.reloads.unconfirmed != nil:
		return nil
	case now.Before(p.retry):
		return p.failed
	}
	before := p.set
	p.set = slices.DeleteFunc(slices.Clone(p.set), func(o api.PoliceOverride) bool { return over(o.Until, now) })
	if err := p.activate(); err != nil {
		p.set, p.retry = before, now.Add(retryInterval)
		p.failed = fmt.Errorf("the limit of an interface is over, and could not be ended, retrying in %v: %w", retryInterval, err)
		return p.failed
	}
	p.enforced = p.set
	p.note()
	if err := p.save(p.set); err != nil { // a start ignores what has ended
		p.log.Error(err.Error())
	}
	for _, o := range past {
		p.audit.Record(audit.Record{Change: audit.PoliceOff, Interface: targetOf(o).String(), Changed: 1, Source: "expiry"})
	}
	return nil
}

// follow forgets the limits that the configuration cannot have, and returns a line for each. Until
// it is confirmed, the one before may be active again.
func (p *policing) follow() (lines []string) {
	if !p.reloads.done() {
		return nil
	}
	rates := p.rates(p.active.prepared.Config)
	next := slices.DeleteFunc(slices.Clone(p.set), func(o api.PoliceOverride) bool {
		_, stays := rates[targetOf(o)]
		if !stays {
			lines = append(lines, fmt.Sprintf("%v: `police` of %s no longer counts: the configuration has changed", targetOf(o), o.Since.Local().Format(time.DateTime)))
		}
		return !stays
	})
	if len(lines) > 0 {
		p.set, p.enforced = next, next
		if err := p.save(next); err != nil {
			p.log.Error("the next start will forget limits that no longer count: " + err.Error())
		}
		p.note()
	}
	return lines
}

// check saves the limits again where their file is missing.
func (p *policing) check() error {
	if len(p.set) == 0 {
		return nil
	}
	return restoreDecisions(statePath(p.active.prepared.Config, policeFile), "limits of interfaces", func() error { return p.save(p.set) }, p.log)
}

// restage activates the configuration again, with the limits that commands have set.
func (d *Daemon) restage() error {
	c := d.active.prepared.Config
	rates := d.policing.rates(c)
	var of *stages.Table
	var err error
	d.loop.aside(func() { of, err = c.Stages(rates) })
	if err != nil {
		return err
	}
	return d.reassembleBy(of)
}
