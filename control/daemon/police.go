package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/clock"
	"weir/control/config"
	"weir/control/quantity"
	"weir/control/ruleset"
	"weir/control/stage/tracker"
	"weir/control/stages"
	"weir/filter/flood"
	"weir/filter/key"
	"weir/filter/penalty"
	"weir/loader/netif"
)

// policing has the limits of interfaces, of sources and of patterns that commands have set. SetPolice is safe for
// concurrent use; all else is for Run's goroutine.
type policing struct {
	set      []api.PoliceOverride // as decided
	enforced []api.PoliceOverride // by the programs; the slice is replaced, never changed
	held     map[string]held      // by source or pattern
	stood    map[string]time.Time // by pattern that was enforced after a trial, when it expired
	fleet    atomic.Pointer[fleetPatterns]

	clock       *clock.Clock
	loop        *loop
	active      *active
	antiLockout *antiLockout
	reloads     *confirmation
	audit       *audit.Log
	activate    func() error // has the programs follow the limits
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
	Limits []api.PoliceOverride `json:"limits"`
	Ended  []endedPattern       `json:"ended,omitempty"`
}

// load reads the limits that were saved, but for those that have ended meanwhile.
func (p *policing) load(c *config.Config, now time.Time) {
	var s savedPolicing
	if !loadDecisions(statePath(c, policeFile), &s, "what commands have limited", p.log) {
		return
	}
	for n := range s.Ended {
		s.Ended[n].Until = p.clock.Wall(s.Ended[n].Until)
	}
	p.fleet.Store(&fleetPatterns{ended: s.Ended})
	for _, o := range s.Limits {
		o.Since, o.Until, o.Trial = p.clock.Wall(o.Since), clock.Optional(p.clock.Wall, o.Until), clock.Optional(p.clock.Wall, o.Trial)
		if over(o.Until, now) {
			p.log.Info("a limit has ended while weir did not run", "of", o.Place(), "by", o.By)
			continue
		}
		p.set = append(p.set, o)
	}
	p.enforced = p.set
}

// begin begins trials that were saved, since programs have counted nothing of their patterns before.
func (p *policing) begin(now time.Time) {
	if !slices.ContainsFunc(p.set, func(o api.PoliceOverride) bool { return o.Trial != nil }) {
		return
	}
	next := slices.Clone(p.set)
	for n, o := range next {
		if o.Trial != nil {
			next[n].Trial = trialFrom(now, o)
		}
	}
	p.set, p.enforced = next, next
	p.note()
}

// stoodFor is for how long a pattern that has expired after its trial needs no other one: floods come in
// pulses.
const stoodFor = time.Hour

// stoodTrial reports whether a pattern was enforced after a trial, matched no more conversations than it may,
// and expired a short time ago.
func (p *policing) stoodTrial(pattern string, now time.Time) bool {
	at, ok := p.stood[pattern]
	return ok && now.Sub(at) < stoodFor
}

// remember keeps whether a pattern has stood its trial, as it ends. One that matched next to nothing has not.
func (p *policing) remember(o api.PoliceOverride, expired bool, now time.Time) {
	delete(p.stood, o.Pattern)
	maps.DeleteFunc(p.stood, func(_ string, at time.Time) bool { return now.Sub(at) >= stoodFor })
	if o.TrialFor != 0 && o.Trial == nil && expired && o.Hits != nil && o.Hits.Packets >= leastMatched {
		p.stood[o.Pattern] = now
	}
}

// trialFrom returns when the trial of a pattern ends that begins at a time.
func trialFrom(begin time.Time, o api.PoliceOverride) *time.Time {
	return new(begin.Add(time.Duration(o.TrialFor * float64(time.Second))))
}

// save makes limits durable.
func (p *policing) save(set []api.PoliceOverride) error {
	path := statePath(p.active.prepared.Config, policeFile)
	s := savedPolicing{slices.Clone(set), slices.Clone(p.ofFleet().ended)}
	if len(set)+len(s.Ended) == 0 {
		return forgetDecisions(path)
	}
	for n := range s.Ended {
		s.Ended[n].Until = p.clock.Steady(s.Ended[n].Until)
	}
	for n, o := range set {
		l := &s.Limits[n]
		l.Since, l.Until, l.Trial = p.clock.Steady(o.Since), clock.Optional(p.clock.Steady, o.Until), clock.Optional(p.clock.Steady, o.Trial)
	}
	return saveDecisions(path, s)
}

func targetOf(o api.PoliceOverride) netif.Target {
	return netif.Target{Netns: o.Netns, Iface: o.Interface}
}

// sameLimit reports whether two limits are of the same.
func sameLimit(a, b api.PoliceOverride) bool {
	return a.Source == b.Source && a.Pattern == b.Pattern && targetOf(a) == targetOf(b)
}

// limits returns the limits that a configuration can have.
func (p *policing) limits(c *config.Config) stages.Limits {
	all := stages.Limits{Interfaces: make(map[netif.Target]quantity.Rate)}
	for _, o := range p.set {
		var rate quantity.Rate
		err := rate.UnmarshalText([]byte(o.Rate))
		switch {
		case err != nil:
		case o.Source != "":
			if prefix, err := flood.ParsePrefix(o.Source); err == nil {
				all.Sources = append(all.Sources, stages.Source{Prefix: prefix, Rate: rate, Until: endsAt(o)})
			}
		case o.Pattern != "":
			if pattern, err := patternOf(o); err == nil {
				all.Patterns = append(all.Patterns, pattern)
			}
		case c.CheckPolice(targetOf(o), rate) == nil:
			all.Interfaces[targetOf(o)] = rate
		}
	}
	return all
}

// endsAt returns when a limit ends, zero for never.
func endsAt(o api.PoliceOverride) (at time.Time) {
	if o.Until != nil {
		at = *o.Until
	}
	return at
}

// patternOf returns the pattern of a limit, as programs have it.
func patternOf(o api.PoliceOverride) (p stages.Pattern, err error) {
	p = stages.Pattern{Until: endsAt(o), Trial: o.Trial != nil}
	if p.Rule, err = flood.ParseRule(o.Pattern); err == nil {
		err = p.Rate.UnmarshalText([]byte(o.Rate))
	}
	return p, err
}

// endOf returns the audit's record that a limit ends, without who ended it.
func endOf(o api.PoliceOverride) audit.Record {
	if o.Source+o.Pattern != "" {
		return audit.Record{Change: audit.LimitOff, First: []string{audit.Cut(o.Source+o.Pattern, audit.MaxText)}}
	}
	return audit.Record{Change: audit.PoliceOff, Interface: o.Place()}
}

// SetPolice implements [server.Policer]. A full disk does not hold it up.
func (p *policing) SetPolice(ctx context.Context, c api.PoliceChange) (done api.Policed, err error) {
	of := api.PoliceOverride{Interface: c.Interface, Netns: c.Netns, Reason: c.Reason}
	if c.Source != "" {
		prefix, err := flood.ParsePrefix(c.Source)
		if err != nil {
			return done, &api.BadRequest{Err: fmt.Errorf("%q: %w", c.Source, err)}
		}
		of.Source = key.Source(prefix).String()
	}
	if c.Pattern != "" {
		rule, err := flood.ParseRule(c.Pattern)
		if err != nil {
			return done, &api.BadRequest{Err: err}
		}
		of.Pattern = rule.String()
	}
	r := endOf(of)
	r.Reason = c.Reason
	if !c.Off {
		r.Change, r.TTL, r.Entries, r.First = strings.TrimSuffix(r.Change, " off"), c.For, 1, append(r.First, audit.Cut(c.Rate, audit.MaxText))
	}
	audit.By(&r, c.UID, c.Client)
	err = p.loop.doAlone(ctx, func() (err error) {
		of.By = audit.Cut(r.Who(), audit.MaxText)
		done, err = p.change(of, c)
		return err
	})
	if done.Changed {
		r.Changed = 1
	}
	if o := done.Override; o != nil && o.Trial != nil {
		time.AfterFunc(time.Until(*o.Trial), p.endTrial)
	}
	p.audit.AttemptBy(ctx, r, err)
	return done, err
}

// endTrial ends a trial at once when its time is over, and not only when the loop looks for what is over.
func (p *policing) endTrial() {
	_ = p.loop.doAlone(context.Background(), func() error { // which fails when the daemon ends
		return p.end(time.Now())
	})
}

// change sets a limit, or ends it.
func (p *policing) change(of api.PoliceOverride, c api.PoliceChange) (done api.Policed, err error) {
	if done.Source, done.Pattern = of.Source, of.Pattern; of.Interface != "" {
		done.Interface = of.Place()
	}
	next := slices.DeleteFunc(slices.Clone(p.set), func(o api.PoliceOverride) bool { return sameLimit(o, of) })
	if c.Off && len(next) == len(p.set) {
		return done, nil
	}
	if p.reloads.unconfirmed != nil { // the way back has the limits as they are
		return done, &api.BadRequest{Err: errors.New("a reload is to be confirmed: weir confirm, and try again")}
	}
	if !c.Off {
		of.Since = time.Now()
		if err := p.may(c, &of); err != nil {
			return done, &api.BadRequest{Err: err}
		}
		if err := roomFor(next, of); err != nil {
			return done, &api.BadRequest{Err: err}
		}
		done.Override, next = &of, append(next, of)
	}
	ended := p.ofFleet()
	if at := slices.IndexFunc(p.set, func(o api.PoliceOverride) bool { return sameLimit(o, of) }); c.Off {
		p.endHere(p.set[at], "a command has ended it, by "+of.By)
	}
	before := p.set
	unsaved := p.save(next) // a crash before it is active finds it, as was asked for
	p.set = next
	if err := p.activate(); err != nil {
		p.set = before
		p.fleet.Store(ended)
		done.Override = nil
		return done, errors.Join(fmt.Errorf("%v is limited as it was: %w", of.Place(), err), p.save(before))
	}
	if of.Trial != nil { // it begins now, however long it took to build programs
		*of.Trial = *trialFrom(time.Now(), of)
		unsaved = p.save(next)
	}
	p.enforced = next
	delete(p.held, of.Place())
	p.note()
	if done.Changed = true; unsaved != nil {
		done.Unsaved = unsaved.Error()
		p.log.Error("a limit was changed, but a restart would forget that: " + done.Unsaved)
	}
	p.log.Warn("a limit was changed", "of", of.Place(), "rate", cmp.Or(c.Rate, "as configured"), "by", of.By)
	return done, nil
}

// roomFor returns why there cannot be one limit more.
func roomFor(all []api.PoliceOverride, of api.PoliceOverride) error {
	if of.Source != "" && len(all) >= penalty.MaxLimits {
		return fmt.Errorf("there are %d limits, as many as there can be: weir limit shows them", len(all))
	}
	patterns := slices.DeleteFunc(slices.Clone(all), func(o api.PoliceOverride) bool { return o.Pattern == "" })
	if of.Pattern != "" && len(patterns) >= flood.MaxPatterns {
		return fmt.Errorf("there are %d patterns, as many as there can be: weir limit shows them", len(patterns))
	}
	return nil
}

// may completes a limit, and returns why it must not be.
func (p *policing) may(c api.PoliceChange, o *api.PoliceOverride) error {
	var rate quantity.Rate
	if err := rate.UnmarshalText([]byte(c.Rate)); err != nil {
		return err
	}
	if rate.Value == 0 && rate.Unit != quantity.AnyUnit {
		rate.Unit = quantity.Packets // all are dropped, however long they are
	}
	o.Rate = rate.String()
	if c.For != 0 {
		o.Until = new(o.Since.Add(time.Duration(c.For * float64(time.Second))))
	}
	if o.Pattern != "" {
		if c.Trial != 0 {
			if o.TrialFor = c.Trial; c.Trial == c.For || !p.stoodTrial(o.Pattern, o.Since) {
				o.Trial = trialFrom(o.Since, *o)
			}
		}
		return p.mayPattern(c, *o, rate)
	}
	with, option, shares := "a flood", "--for", func(ruleset.Peer) bool { return true }
	err := p.active.prepared.Config.CheckPolice(targetOf(*o), rate)
	if o.Source != "" {
		prefix, _ := flood.ParsePrefix(o.Source) // which SetPolice has read
		with, option, shares = "all else from "+o.Source, "--ttl", func(peer ruleset.Peer) bool { return peer.Key.Overlaps(key.Source(prefix)) }
		if err = stages.CheckSource(rate); err == nil && !c.Force {
			err = p.spares(key.Source(prefix), rate)
		}
	}
	if err != nil || c.For != 0 || c.Force {
		return err
	}
	for _, peer := range callers(c.SSH, c.Connection) {
		if shares(peer) && !p.antiLockout.passes(peer) {
			return fmt.Errorf("%s would share %v with %s, without an end: set one by %s (for_seconds), %s", peer.What, rate, with, option, orForce)
		}
	}
	return nil
}

// mayPattern returns why a pattern must not be limited to a rate: what is dropped must be narrow, end by
// itself, and cut off no one who must not be.
func (p *policing) mayPattern(c api.PoliceChange, o api.PoliceOverride, rate quantity.Rate) error {
	pattern, err := patternOf(o)
	if err == nil {
		err = pattern.Check()
	}
	if err == nil {
		err = pattern.Rule.Narrow()
	}
	switch {
	case err != nil:
		return err
	case c.For == 0:
		return errors.New("a pattern takes a time after which it ends: --ttl (for_seconds), as in 10m")
	case c.Trial > c.For:
		return errors.New("the trial takes longer than the pattern: give it a longer --ttl (for_seconds)")
	case c.Trial == c.For || c.Force || tracker.Suffices(rate): // one on trial to its end only counts
		return nil
	}
	for _, within := range pattern.Keys() {
		if err := p.spares(within, rate); err != nil {
			return err
		}
		for _, peer := range callers(c.SSH, c.Connection) {
			if peer.Key.Overlaps(within) && !p.antiLockout.passes(peer) {
				return fmt.Errorf("%v would hold back %s: %s", rate, peer.What, orForce)
			}
		}
	}
	return nil
}

// spares returns why a source must not be limited to a rate that a penalty could not have either.
func (p *policing) spares(source key.Key, rate quantity.Rate) error {
	if tracker.Suffices(rate) {
		return nil
	}
	prepared := p.active.prepared
	if what := ruleset.Penalties(prepared.Rules, ruleset.PolicyOf(prepared.Config), prepared.Peers, []key.Key{source})[source]; what != "" {
		return fmt.Errorf("%v would hold back %s: %s", rate, what, orForce)
	}
	return nil
}

// held are the packets of a source or a pattern.
type held struct {
	before, now counted            // by earlier programs, and by these
	judged      api.PatternPackets // what a pattern had matched when it was judged last
}

// counted are packets above the rate, and what a pattern matches.
type counted struct {
	held uint64
	hits api.PatternPackets
}

func (c counted) add(o counted) counted {
	c.held += o.held
	c.hits.Packets += o.hits.Packets
	c.hits.Conversing += o.hits.Conversing
	c.hits.Unknown += o.hits.Unknown
	return c
}

// count returns what the programs have counted of a limit, and false where that cannot be read.
func (p *policing) count(o api.PoliceOverride) (c counted, ok bool) {
	k := p.active.engine.Kernel()
	if o.Source != "" {
		prefix, err := flood.ParsePrefix(o.Source)
		if err != nil {
			return c, false
		}
		n, err := (stages.Source{Prefix: prefix}).Held(k)
		return counted{held: n.Packets}, err == nil
	}
	pattern, err := patternOf(o)
	if err != nil {
		return c, false
	}
	n, ok := p.active.prepared.Stages.Patterns.Counts(k, pattern)
	return counted{n.Dropped.Packets, api.PatternPackets{Packets: n.Matched.Packets, Conversing: n.Conversing, Unknown: n.Unknown}}, ok
}

// shown returns the limits, with the packets that they hold back. Programs end those of sources and
// patterns by themselves, also while a reload is to be confirmed.
func (p *policing) shown() []api.PoliceOverride {
	now, next := time.Now(), make(map[string]held)
	all := slices.DeleteFunc(slices.Clone(p.enforced), func(o api.PoliceOverride) bool { return o.Interface == "" && over(o.Until, now) })
	for n, o := range all {
		if o.Interface != "" {
			continue
		}
		of := p.held[o.Place()]
		// Where it cannot be read, the next look counts it.
		if c, ok := p.count(o); ok {
			if c.held < of.now.held || c.hits.Packets < of.now.hits.Packets { // other programs count anew
				of.before = of.before.add(of.now)
			}
			of.now = c
		}
		sum := of.before.add(of.now)
		next[o.Place()], all[n].Held = of, sum.held
		if o.Pattern != "" {
			all[n].Hits = &sum.hits
		}
	}
	p.held = next
	return all
}

// hits returns the packets that a pattern has matched, nil where that cannot be read.
func (p *policing) hits(o api.PoliceOverride) *api.PatternPackets {
	now, ok := p.count(o)
	if !ok {
		return nil
	}
	sum := p.held[o.Place()].before.add(now)
	return &sum.hits
}

// leastMatched is from how many packets on the share in conversations of a pattern that is enforced
// counts, and leastConversing from how many in conversations, of fewer: what is cut off sends little.
const (
	leastMatched    = 100
	leastConversing = 5
)

// conversing returns the share of a pattern's packets in conversations of this host: of those of which
// it is known, where they are many.
func conversing(p api.PatternPackets) float64 {
	of := p.Packets - p.Unknown
	if of < leastMatched {
		of = p.Packets
	}
	return float64(p.Conversing) / float64(max(1, of))
}

// since returns what a pattern has matched since it had matched so much.
func since(p, before api.PatternPackets) api.PatternPackets {
	if p.Packets < before.Packets {
		return p
	}
	return api.PatternPackets{Packets: p.Packets - before.Packets, Conversing: p.Conversing - before.Conversing, Unknown: p.Unknown - before.Unknown}
}

// tried returns what becomes of a limit by its trial at a time: the limit as it is then, and whether it
// ends, since it matches conversations: on trial by all that it has counted, later by what it has since
// it was judged last.
func (p *policing) tried(o api.PoliceOverride, now time.Time) (next api.PoliceOverride, ends bool) {
	if o.TrialFor == 0 || o.Hits == nil {
		return o, false
	}
	if o.Trial != nil {
		if !over(o.Trial, now) || o.Hits.Packets == 0 { // nothing is known of whom it would hit
			return o, false
		}
		p.judge(o)
		o.Trial = nil
		return o, conversing(*o.Hits) > api.MostConversing
	}
	grown := since(*o.Hits, p.held[o.Place()].judged)
	if grown.Packets < leastMatched && grown.Conversing < leastConversing {
		return o, false
	}
	p.judge(o)
	return o, conversing(grown) > api.MostConversing
}

// judge remembers what a pattern had matched when it was judged.
func (p *policing) judge(o api.PoliceOverride) {
	if p.held == nil {
		p.held = make(map[string]held)
	}
	of := p.held[o.Place()]
	of.judged = *o.Hits
	p.held[o.Place()] = of
}

// end ends the limits whose time is over, and trials. While a reload is to be confirmed, they stay.
func (p *policing) end(now time.Time) error {
	if len(p.set) == 0 || p.reloads.unconfirmed != nil {
		return nil
	}
	var past, next, enforced []api.PoliceOverride
	var why []string
	changed := false
	for _, o := range p.set {
		if o.TrialFor != 0 {
			o.Hits = p.hits(o)
		}
		became, ends := p.tried(o, now)
		switch became.Hits = nil; {
		case ends:
			past, why = append(past, o), append(why, "conversations")
			p.log.Warn("a pattern matches conversations of this host, and ends", "pattern", o.Pattern,
				"packets", o.Hits.Packets, "in conversations", o.Hits.Conversing)
		case over(o.Until, now):
			past, why = append(past, o), append(why, "expiry")
		default:
			if became.Trial == nil && o.Trial != nil {
				changed = true
				enforced = append(enforced, became)
				p.log.Warn("the trial of a pattern is over, and it is enforced", "pattern", o.Pattern, "packets", o.Hits.Packets, "in conversations", o.Hits.Conversing)
			}
			next = append(next, became)
		}
	}
	switch {
	case len(past) == 0 && !changed:
		return nil
	case now.Before(p.retry):
		return p.failed
	}
	before := p.set
	p.set = next
	if err := p.activate(); err != nil {
		p.set, p.retry = before, now.Add(retryInterval)
		p.failed = fmt.Errorf("a limit is over, and could not be ended, retrying in %v: %w", retryInterval, err)
		return p.failed
	}
	p.enforced = p.set
	for i, o := range past {
		p.remember(o, why[i] == "expiry", now)
		if why[i] != "expiry" {
			p.endHere(o, "it matches conversations of the node")
		}
	}
	p.note()
	if err := p.save(p.set); err != nil { // a start ignores what has ended
		p.log.Error(err.Error())
	}
	for i, o := range past {
		r := endOf(o)
		r.Changed, r.Source = 1, why[i]
		p.audit.Record(r)
	}
	for _, o := range enforced {
		p.audit.Record(audit.Record{Change: audit.Limit, First: append(endOf(o).First, o.Rate), Entries: 1, Changed: 1, Source: "trial"})
	}
	return nil
}

// follow forgets the limits that the configuration cannot have, and returns a line for each. Until
// it is confirmed, the one before may be active again.
func (p *policing) follow() (lines []string) {
	if !p.reloads.done() {
		return nil
	}
	rates := p.limits(p.active.prepared.Config).Interfaces
	next := slices.DeleteFunc(slices.Clone(p.set), func(o api.PoliceOverride) bool {
		_, stays := rates[targetOf(o)]
		if stays = stays || o.Interface == ""; !stays {
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
	return restoreDecisions(statePath(p.active.prepared.Config, policeFile), "limits by commands", func() error { return p.save(p.set) }, p.log)
}

// ofInterfaces are the limits of interfaces among others.
func ofInterfaces(all []api.PoliceOverride) []api.PoliceOverride {
	return slices.DeleteFunc(slices.Clone(all), func(o api.PoliceOverride) bool { return o.Interface == "" })
}

// restage makes the programs have the limits that commands have set. Where these already limit
// sources, or have patterns, a change of those alone is made in their memory, else the configuration is
// activated again.
func (d *Daemon) restage() error {
	p := d.active.prepared
	limits := d.policing.limits(p.Config)
	same := slices.EqualFunc(ofInterfaces(d.policing.set), ofInterfaces(d.policing.enforced), func(a, b api.PoliceOverride) bool { return sameLimit(a, b) && a.Rate == b.Rate })
	sources, patterns, k := p.Stages.Limits, p.Stages.Patterns, d.active.engine.Kernel()
	if same && (sources != nil) == (len(limits.Sources) > 0) && (patterns != nil) == (len(limits.Patterns) > 0) {
		followed := patterns == nil || patterns.Follow(k, limits.Patterns)
		if followed && sources != nil {
			return sources.Follow(k, limits.Sources)
		}
		if followed {
			return nil
		}
	}
	var of *stages.Table
	var err error
	d.loop.aside(func() { of, err = p.Config.Stages(limits) })
	if err == nil {
		err = d.reassembleBy(of)
	}
	return err
}
