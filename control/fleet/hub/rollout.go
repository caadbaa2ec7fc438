package hub

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/fleet/wire"
	"weir/filter/ordered"
)

const (
	// settle is the time within which a live node has reported after a wave begins, or
	// the hub first reaches the broker: nodes report every ten seconds.
	settle = 15 * time.Second

	// leastLooked is how many packets a node must have looked at before its share of them
	// can halt a rollout: the share of a few means little.
	leastLooked = 100
)

// released says which versions of a list the nodes are to have. It is durable.
type released struct {
	// Stable is the version of nodes that no wave has reached; the zero Place: they keep
	// what they have, since the hub has released nothing in this epoch.
	Stable  wire.Place `json:"stable"`
	Rollout *rollout   `json:"rollout,omitempty"` // the last one

	// Refused is the checksum of contents that were rolled back.
	Refused string `json:"refused,omitempty"`
}

// rollout brings a version to the nodes, wave by wave. It is durable, and changes by
// copying.
type rollout struct {
	State  string     `json:"state"` // as in [api.FleetRollout]
	Reason string     `json:"reason,omitempty"`
	From   wire.Place `json:"from"`
	To     wire.Place `json:"to"`

	// As they were configured when it began.
	Waves   []wave  `json:"waves"`
	Limit   float64 `json:"limit"`
	Packets uint64  `json:"packets"`

	// MaxConversed bounds the addresses with which a node has conversed; nil: any number.
	MaxConversed *int    `json:"max_conversed,omitempty"`
	Confirm      float64 `json:"confirm"`

	Began     time.Time `json:"began"`
	Wave      int       `json:"wave"`    // its index; len(Waves): all nodes
	Entered   time.Time `json:"entered"` // the wave
	Settled   bool      `json:"settled"` // Absent is known
	Absent    []string  `json:"absent,omitempty"`
	Confirmed time.Time `json:"confirmed,omitzero"` // by enough nodes of the wave
	Accepted  bool      `json:"accepted,omitempty"` // an operator has accepted what halted this wave

	// Conversed: max_conversed has halted a wave that enforces. The nodes of that drop what the
	// version adds, and so do not report it of the next version, which also has it.
	Conversed bool `json:"conversed,omitempty"`
}

type wave struct {
	Labels   []string      `json:"labels,omitempty"` // none: all nodes
	Rehearse bool          `json:"rehearse,omitempty"`
	For      time.Duration `json:"for"`
}

// newRollout returns a rollout of a list that begins, by its configuration.
func newRollout(c *config.Rollout, action config.Action, from, to wire.Place, now time.Time) *rollout {
	r := &rollout{
		State: api.RolloutRunning, From: from, To: to, Began: now, Entered: now,
		Limit: float64(c.Limit), Packets: uint64(c.Packets), Confirm: float64(c.Confirm),
	}
	if c.MaxConversed != config.AnyNumber && action == config.Block {
		r.MaxConversed = new(int(c.MaxConversed))
	}
	for _, w := range c.Waves {
		r.Waves = append(r.Waves, wave{Labels: w.Labels, Rehearse: w.Mode == config.Rehearse, For: time.Duration(w.For)})
	}
	return r
}

// active reports whether the rollout has not ended.
func (r *rollout) active() bool {
	return r != nil && (r.State == api.RolloutRunning || r.State == api.RolloutPaused || r.State == api.RolloutHalted)
}

// releases returns the releases for the catalog: the stable version, and what the waves
// so far give their nodes.
func (x *released) releases() []wire.Release {
	all := []wire.Release{{Place: x.Stable}}
	r := x.Rollout
	if r == nil || x.Stable == r.To || !r.active() && x.Stable.Version != 0 {
		return all
	}
	for i, w := range r.Waves[:min(r.Wave+1, len(r.Waves))] {
		if w.Rehearse && (i < r.Wave || !r.active()) {
			continue
		}
		all = append(all, wire.Release{Groups: w.Labels, Place: r.To, Rehearse: w.Rehearse})
	}
	return all
}

// observed is the last report of a node, on one list.
type observed struct {
	name   string
	labels []string
	seen   time.Time // zero: not since the hub started
	idle   bool      // it drops nothing: it monitors, or filters no interface
	list   wire.ListStatus
}

func (w *wave) has(n observed) bool {
	return wire.Names(w.Labels, n.labels)
}

// gate is the progress of a wave's nodes.
type gate struct {
	nodes, confirmed, needed, absent int
	idle                             []string // nodes that have the version, and drop nothing
	looked, passed, wouldDrop        uint64
	top                              []api.FleetAffected
	collateral                       api.FleetCollateral
	waits                            string // what the rollout waits for
	stuck                            string // that it waits for what does not come by itself; "": it does
	waited                           time.Duration
}

// view is the state of a wave's nodes.
type view struct {
	gate
	in      []observed
	alive   func(observed) bool
	refused []observed
	over    *observed // the node that would drop most beyond the limit, nil: none
}

// addCollateral adds with whom a node has conversed that the version drops in addition, where it
// has the version, or rehearses it.
func (r *rollout) addCollateral(g *gate, w *wave, n observed) {
	s := n.list.Rehearsal
	switch {
	case w.Rehearse && s != nil && s.Place == r.To:
		g.collateral.Add(n.name, s.Conversed)
	case n.list.Active == r.To:
		g.collateral.Add(n.name, n.list.Added)
	}
}

// tooMuch returns why a version must go no further, "" if it may: a node would drop too many of the
// packets that pass, or has conversed with too many of the addresses.
func (r *rollout) tooMuch(v view) string {
	if v.over != nil {
		s := v.over.list.Rehearsal
		return fmt.Sprintf("node %s would drop %s of the packets that pass, more than the limit of %s: %d of %d, by %d looked at%s",
			v.over.name, percent(s.Share()), percent(r.Limit), s.WouldDrop, s.Passed, s.Looked, first(s.Top))
	}
	if r.MaxConversed == nil || v.collateral.Largest() <= *r.MaxConversed {
		return ""
	}
	worst := v.collateral.Most[0]
	return fmt.Sprintf("node %s has conversed in the last 24 hours with addresses that it would drop in addition, more than max_conversed, %d: %s", worst.Node, *r.MaxConversed, worst.Conversed)
}

// look returns the state of a wave's nodes.
func (r *rollout) look(w *wave, now time.Time, maxAge time.Duration, all []observed) view {
	v := view{in: slices.DeleteFunc(slices.Clone(all), func(n observed) bool { return !w.has(n) })}
	v.alive = func(n observed) bool { return !n.seen.IsZero() && now.Sub(n.seen) <= max(maxAge, 2*settle) }
	v.nodes = len(v.in)
	for i, n := range v.in {
		if s := n.list.Rehearsal; s != nil && s.Place == r.To {
			v.add(n.name, s)
			if w.Rehearse && s.Looked >= leastLooked && s.Share() > r.Limit && (v.over == nil || s.Share() > v.over.list.Rehearsal.Share()) {
				v.over = &v.in[i]
			}
		}
		r.addCollateral(&v.gate, w, n)
		switch {
		case !v.alive(n):
		case r.confirmedBy(w, n):
			v.confirmed++
		case n.idle && r.has(n):
			v.idle = append(v.idle, n.name)
		case n.refuses(r.To):
			v.refused = append(v.refused, n)
		}
	}
	slices.Sort(v.idle)
	ordered.By(v.top, func(a, b api.FleetAffected) int { return cmp.Compare(b.Packets, a.Packets) })
	v.top = v.top[:min(len(v.top), wire.MaxTop)]
	return v
}

// step returns the rollout after the nodes' reports, and the progress of its wave. up is
// the time since the hub first reached the broker: until nodes have had time to report, their
// silence means nothing.
func (r rollout) step(now time.Time, up, maxAge time.Duration, all []observed) (rollout, gate) {
	if !r.active() || r.Wave >= len(r.Waves) {
		return r, gate{}
	}
	w := &r.Waves[r.Wave]
	v := r.look(w, now, maxAge, all)
	if r.State != api.RolloutRunning {
		return r, v.gate
	}
	if why := r.tooMuch(v); why != "" && !r.Accepted {
		r.Conversed = !w.Rehearse
		return r.halt(why), v.gate
	}
	if up < settle && slices.ContainsFunc(v.in, func(n observed) bool { return n.seen.IsZero() }) {
		v.needed, v.waits = v.nodes, "the nodes' reports: the hub has just started"
		return r, v.gate
	}
	r.count(now, &v)
	v.waited = now.Sub(r.Entered)
	v.stuck = r.stuck(w, &v, maxAge)
	present := v.nodes - v.absent
	if present == 0 {
		r.Confirmed = time.Time{}
		v.waits = "a node" + w.labelled() + ": none reports"
		return r, v.gate
	}
	if len(v.refused) > present-v.needed && !r.Accepted {
		return r.halt(fmt.Sprintf("%d of %d nodes refuse it: %s: %s", len(v.refused), present, v.refused[0].name, v.refused[0].refusal())), v.gate
	}
	if v.confirmed < v.needed {
		r.Confirmed = time.Time{}
		v.waits = v.toConfirm(w, present)
		return r, v.gate
	}
	if r.Confirmed.IsZero() {
		r.Confirmed = now
	}
	switch left := w.For - now.Sub(r.Confirmed); {
	case left > 0:
		v.waits = fmt.Sprintf("the end of the wave, in %v", left.Round(time.Second))
	case w.Rehearse && slices.ContainsFunc(v.in, func(n observed) bool { return v.alive(n) && n.seen.Sub(r.Confirmed) < w.For }):
		v.waits = "the nodes' reports of their counts"
	case w.Rehearse && v.looked < r.Packets && !r.Accepted:
		v.waits = fmt.Sprintf("packets: %d were looked at, %d are needed", v.looked, r.Packets)
	case w.Rehearse && r.MaxConversed != nil && v.collateral.Measured == 0 && !r.Accepted:
		v.waits = "a node" + w.labelled() + " that says with whom it has conversed: weir.yaml needs collateral for that, and a version of weir that reports it"
	default:
		r.Wave++
		r.Entered, r.Confirmed, r.Settled, r.Absent, r.Accepted = now, time.Time{}, false, nil, false
		if r.Wave == len(r.Waves) {
			r.State = api.RolloutDone
		}
	}
	return r, v.gate
}

// patient is how many max_age a wave may wait longer than it lasts.
const patient = 3

// stuck says for whom a wave waits in vain: at once where no node that is enrolled has its label, and
// otherwise when it has waited too long.
func (r *rollout) stuck(w *wave, v *view, maxAge time.Duration) string {
	switch {
	case v.nodes == 0 && len(w.Labels) > 0:
		return "no node" + w.labelled() + " is enrolled: enroll one, or weir fleet resume --now releases the version to all"
	case v.nodes > 0 && !slices.ContainsFunc(v.in, v.alive):
		return fmt.Sprintf("none of %d nodes%s reports: start one, or weir fleet resume --now releases the version to all", v.nodes, w.labelled())
	case v.waited > w.For+patient*max(maxAge, 2*settle):
		return fmt.Sprintf("wave %d has waited for %v", r.Wave+1, v.waited.Round(time.Second))
	}
	return ""
}

// toConfirm says which nodes of a wave are still to confirm.
func (v *view) toConfirm(w *wave, present int) string {
	text := fmt.Sprintf("nodes%s to confirm: %d of %d have, %d are needed", w.labelled(), v.confirmed, present, v.needed)
	if len(v.idle) > 0 {
		text += "; these have it, and drop nothing: " + named(v.idle)
	}
	return text
}

// count sets how many nodes of a wave must confirm. Those that were silent when it began,
// and still are, do not count.
func (r *rollout) count(now time.Time, v *view) {
	if !r.Settled && now.Sub(r.Entered) >= settle {
		r.Settled = true
		for _, n := range v.in {
			if !v.alive(n) {
				r.Absent = append(r.Absent, n.name)
			}
		}
	}
	for _, n := range v.in {
		if !v.alive(n) && slices.Contains(r.Absent, n.name) {
			v.absent++
		}
	}
	v.needed = int(math.Ceil(r.Confirm*float64(v.nodes-v.absent) - 1e-9))
}

func (r rollout) halt(reason string) rollout {
	r.State, r.Reason, r.Confirmed = api.RolloutHalted, reason, time.Time{}
	return r
}

// has reports whether a node has the version, or a later one.
func (r *rollout) has(n observed) bool {
	return n.list.Active.Epoch == r.To.Epoch && !n.list.Active.Before(r.To)
}

// confirmedBy reports whether a node drops packets by the version, or has it or rehearses it if the wave
// does: a node that drops nothing shows no effect of enforcing it.
func (r *rollout) confirmedBy(w *wave, n observed) bool {
	if r.has(n) {
		return w.Rehearse || !n.idle
	}
	s := n.list.Rehearsal
	return w.Rehearse && s != nil && s.Place == r.To && s.Error == ""
}

// refuses reports whether the node refuses a version, rather than lacks it so far.
func (n observed) refuses(to wire.Place) bool {
	s := n.list.Rehearsal
	return n.list.Refused && n.list.Wanted == to || s != nil && s.Place == to && s.Error != ""
}

func (n observed) refusal() string {
	if s := n.list.Rehearsal; s != nil && s.Error != "" {
		return s.Error
	}
	return n.list.Error
}

func (w *wave) labelled() string {
	if len(w.Labels) == 0 {
		return ""
	}
	return " with label " + strings.Join(w.Labels, " or ")
}

func (g *gate) add(node string, s *wire.Rehearsal) {
	g.looked += s.Looked
	g.passed += s.Passed
	g.wouldDrop += s.WouldDrop
	for _, a := range s.Top {
		g.top = append(g.top, api.FleetAffected{Node: node, Affected: a})
	}
}

func percent(share float64) string { return fmt.Sprintf("%.3g%%", 100*share) }

// first describes the source of most of the packets that would be dropped.
func first(top []wire.Affected) string {
	if len(top) == 0 {
		return ""
	}
	return fmt.Sprintf(", as from %.60s by %.100s", top[0].Source, top[0].Entry)
}

// show returns the rollout for the API.
func (r *rollout) show(g gate, waiting bool) *api.FleetRollout {
	out := &api.FleetRollout{
		State: r.State, Reason: r.Reason, From: r.From, To: r.To, Wave: r.Wave + 1, Waves: []api.FleetWave{}, Limit: r.Limit,
		Began: r.Began, Entered: r.Entered, Nodes: g.nodes, Confirmed: g.confirmed, Needed: g.needed, Absent: g.absent,
		MaxConversed: r.MaxConversed, Collateral: g.collateral,
		Looked: g.looked, Passed: g.passed, WouldDrop: g.wouldDrop, Top: append([]api.FleetAffected{}, g.top...), WaitsFor: g.waits, Newer: waiting,
	}
	for _, w := range r.Waves {
		mode := config.Enforce
		if w.Rehearse {
			mode = config.Rehearse
		}
		out.Waves = append(out.Waves, api.FleetWave{Labels: append([]string{}, w.Labels...), Mode: string(mode), For: w.For.Seconds()})
	}
	return out
}
