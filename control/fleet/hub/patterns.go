package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/clock"
	"weir/control/durable"
	"weir/control/fleet/authority"
	"weir/control/fleet/wire"
	"weir/filter/flood"
)

// patterns keeps the patterns that commands have published, until they are over. It belongs to [Hub.Run].
type patterns struct {
	all   []wire.Pattern // with steady times; replaced, not changed
	path  string
	clock *clock.Clock
}

// patternsFile has them, below the state directory.
const patternsFile = "patterns.json"

// open reads the patterns that were saved.
func (p *patterns) open() error {
	text, err := os.ReadFile(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, &p.all)
	}
	if err != nil {
		err = fmt.Errorf("the patterns that commands have published end at their time, and are not shown: %w", err)
	}
	return err
}

// current returns the patterns whose time is not over, by the clock as it is set now.
func (p *patterns) current(now time.Time) (all []wire.Pattern) {
	for _, w := range p.all {
		if w.Until = p.clock.Wall(w.Until); now.Before(w.Until) {
			all = append(all, w)
		}
	}
	return all
}

// change changes patterns, durably, and returns the IDs of those that have changed.
func (p *patterns) change(c api.FleetFloodsChange, now time.Time) (ids []string, err error) {
	next := p.current(now)
	if c.Off {
		for i := range next {
			w := &next[i]
			if ends := len(c.Patterns) == 0 || slices.Contains(c.Patterns, w.Pattern); ends && !w.Off {
				w.Off = true
				ids = append(ids, w.ID)
			}
		}
		if len(ids) == 0 {
			return nil, errors.New("no such pattern is published: weir fleet flood shows those that are")
		}
		return ids, p.save(next)
	}
	for _, text := range c.Patterns {
		w := wire.Pattern{
			ID: wire.NewID(), Groups: c.Labels, Pattern: text, Rate: "0pps", Until: now.Add(time.Duration(c.For * float64(time.Second))),
			Trial: c.Trial, Rehearse: c.Trial == c.For, Reason: c.Reason,
		}
		at := slices.IndexFunc(next, func(o wire.Pattern) bool { return o.Pattern == text })
		if at >= 0 && w.Rehearse && !next[at].Off && !next[at].Rehearse {
			return nil, fmt.Errorf("%s is published already: weir fleet flood shows what it matches", text)
		}
		if at >= 0 {
			next = slices.Delete(next, at, at+1)
		}
		next, ids = append(next, w), append(ids, w.ID)
	}
	if n := live(next); n > api.MaxFleetPatterns || len(next) > wire.MaxPatterns {
		return nil, fmt.Errorf("%d patterns, and %d that have ended early and whose time is not over: there can be %d, and %d in all",
			n, len(next)-n, api.MaxFleetPatterns, wire.MaxPatterns)
	}
	return ids, p.save(next)
}

// live returns how many patterns have not ended early.
func live(all []wire.Pattern) (n int) {
	for _, w := range all {
		if !w.Off {
			n++
		}
	}
	return n
}

// save makes patterns durable, then current.
func (p *patterns) save(next []wire.Pattern) error {
	for i := range next {
		next[i].Until = p.clock.Steady(next[i].Until)
	}
	text, err := json.Marshal(next)
	if err == nil {
		err = durable.WriteFile(p.path, text)
	}
	if err == nil {
		p.all = next
	}
	return err
}

// at returns the patterns with what has become of them at nodes, by their answers.
func (p *patterns) at(nodes []api.NodeFloods, members map[string]authority.Member) (all []api.FleetPattern) {
	for _, w := range p.current(time.Now()) {
		of := api.FleetPattern{ID: w.ID, Pattern: w.Pattern, Labels: w.Groups, Until: w.Until, Trial: w.Trial, Counts: w.Rehearse, Ended: w.Off, Reason: w.Reason}
		for _, n := range nodes {
			if !wire.Names(w.Groups, members[n.Node].Labels) {
				continue
			}
			is := api.NodePattern{ID: w.ID, Pattern: w.Pattern, State: api.PatternAwaited, Why: n.Problem}
			if at := slices.IndexFunc(n.Patterns, func(o api.NodePattern) bool { return o.ID == w.ID }); at >= 0 {
				is = n.Patterns[at]
			}
			is.Node, is.Pattern = n.Node, w.Pattern
			of.Nodes = append(of.Nodes, is)
		}
		all = append(all, of)
	}
	return all
}

// askPatterns is how long to wait before nodes are asked again what has become of patterns, and trialGrace how
// long after a trial it counts as one that no packet has ended.
const (
	askPatterns = 100 * time.Millisecond
	trialGrace  = time.Second
	mostTrial   = 10 * time.Second // that a command waits for
)

// ChangeFloods implements [server.Hub]. The answer has what nodes do, for which it waits.
func (h *Hub) ChangeFloods(ctx context.Context, c api.FleetFloodsChange) (done api.FleetFloodsChanged, err error) {
	c.Patterns = slices.Clone(c.Patterns)
	for i, text := range c.Patterns {
		rule, err := flood.ParseRule(text)
		if err == nil && !c.Off {
			err = rule.Narrow()
		}
		if err != nil {
			return done, &api.BadRequest{Err: err}
		}
		c.Patterns[i] = rule.String()
	}
	r := audit.Record{Change: audit.Limit, Entries: len(c.Patterns), TTL: c.For, Reason: c.Reason}
	if c.Off {
		r.Change = audit.LimitOff
	}
	for _, text := range c.Patterns[:min(len(c.Patterns), audit.MaxFirst)] {
		r.First = append(r.First, audit.Cut(text, audit.MaxText))
	}
	audit.ByCaller(ctx, &r)
	var ids []string
	var wait <-chan struct{}
	err = h.command(ctx, func() (err error) {
		if ids, err = h.patterns.change(c, time.Now()); err != nil {
			return &api.BadRequest{Err: err}
		}
		wait = h.publisher.again()
		return nil
	})
	r.Changed = len(ids)
	h.audit.Attempt(r, err)
	if err != nil {
		return done, err
	}
	done.Published = h.publisher.wait(ctx, wait)
	return done, h.followPatterns(ctx, c, ids, &done)
}

// followPatterns asks nodes what has become of patterns, until that is known or nothing more is to be expected.
func (h *Hub) followPatterns(ctx context.Context, c api.FleetFloodsChange, ids []string, done *api.FleetFloodsChanged) error {
	trial := min(time.Duration(c.Trial*float64(time.Second)), mostTrial)
	if c.Trial == c.For {
		trial = 0
	}
	began := time.Now()
	for {
		f, err := h.unmeasured(ctx, nil)
		if err != nil {
			return err
		}
		done.Patterns = slices.DeleteFunc(f.Patterns, func(p api.FleetPattern) bool { return !slices.Contains(ids, p.ID) })
		took := time.Since(began)
		open := slices.ContainsFunc(done.Patterns, func(p api.FleetPattern) bool {
			return slices.ContainsFunc(p.Nodes, func(n api.NodePattern) bool { return undecided(p, n, took > trial+trialGrace) })
		})
		if !open || !done.Published || took > trial+h.publisher.patience() {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(askPatterns):
		}
	}
}

// undecided reports whether it is yet to be heard what becomes of a pattern at a node.
func undecided(p api.FleetPattern, n api.NodePattern, tried bool) bool {
	switch n.State {
	case api.PatternAwaited:
		return n.Why == "" && !p.Ended // there is an answer, but the catalog has not come yet
	case api.PatternOnTrial:
		return p.Ended || !p.Counts && !(tried && (n.Hits == nil || n.Hits.Packets == 0))
	case api.PatternEnforced:
		return p.Ended
	}
	return false
}
