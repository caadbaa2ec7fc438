package tracker

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"weir/control/quantity"
	"weir/filter/key"
	"weir/filter/ordered"
	"weir/filter/penalty"
	"weir/filter/sketch"
	"weir/loader"
)

// What a flow may have at least, in a second and at once, if a penalty of it would cut off
// something.
const (
	leastProtectedPackets = 1000
	leastProtectedBytes   = 1_000_000
)

// Suffices reports whether a rate is enough for a flow of which a penalty would cut off something.
func Suffices(r quantity.Rate) bool {
	if r.Unit == quantity.Packets {
		return r.Value >= leastProtectedPackets
	}
	return r.PerSecond() >= leastProtectedBytes
}

// punished is a flow that is heavy, or was within its tracker's duration.
type punished struct {
	sketch.Flow
	over    time.Duration // the time that Flow was counted over
	until   time.Duration
	excess  float64 // the most that it had, in units of the threshold
	cutsOff string  // what a penalty would cut off, as in "the gateway 192.0.2.1"
	active  bool    // it has a penalty
	unmet   bool    // an event has said that there was no room for its penalty
}

// MaxPenalties is the maximum number of penalties.
const MaxPenalties = loader.PenaltyBuckets * penalty.Slots

// CutsOff returns what penalties of flows would cut off, as in "the gateway 192.0.2.1".
// Those that are missing cut off nothing.
type CutsOff func(flows []key.Key) map[key.Key]string

// Protect sets whose packets must not be blocked: what finds out what a penalty would cut
// off, and the keys of the packets concerned. Penalties that exist are judged anew at the
// next tick, so it is to be called whenever the answers may have changed.
func (w *Watcher) Protect(cutsOff CutsOff, peers []key.Key) {
	w.cutsOff, w.peers = cutsOff, peers
	w.reviewed, w.sparing = false, false
	w.rest.due = 0
}

// protects reports whether a tracker's penalties are not to cut off anything.
func (t *tracker) protects() bool {
	return t.punishes() && t.AntiLockout
}

// sentence returns the penalty of a flow, and false if it has none.
func (t *tracker) sentence(p *punished, now time.Duration) (x penalty.Penalty, ok bool) {
	x = t.penalty(now)
	x.Until = p.until
	switch {
	case t.Action == ReportOnly:
		return penalty.Penalty{}, false
	case p.cutsOff == "":
	case t.Action == Block:
		return penalty.Penalty{}, false
	default:
		least := t.leastLimit().Value
		x.Rate, x.Burst = max(x.Rate, least), max(x.Burst, least)
	}
	return x, true
}

// leastLimit is the least that a flow may have if a penalty of it would cut off something.
func (s Spec) leastLimit() quantity.Rate {
	if s.Counts() == sketch.Bytes {
		return quantity.Rate{Value: max(s.limit(), leastProtectedBytes), Unit: quantity.Bytes}
	}
	return quantity.Rate{Value: max(s.limit(), leastProtectedPackets), Unit: quantity.Packets}
}

// punish sets penalties of flows that are heavy by exact counts over a time, and extends
// those of flows that have not calmed down.
func (w *Watcher) punish(t *tracker, now, over time.Duration, flows []sketch.Flow, heavy uint64, on interfaces) (events []Event) {
	var set, begun []*punished
	for _, f := range flows {
		n := float64(f.Exact(t.Counts()))
		p := t.penal[f.Hash]
		switch {
		case p != nil && n >= hysteresis*float64(heavy):
		case p == nil && n >= float64(heavy):
			p = &punished{}
			t.penal[f.Hash] = p
			begun = append(begun, p)
		default:
			continue
		}
		p.Flow, p.over, p.until = f, over, now+time.Duration(t.Duration)
		p.excess = max(p.excess, n/float64(max(heavy, 1)))
		set = append(set, p)
	}
	w.judge(t, begun)
	if t.Action != ReportOnly && len(set) > 0 {
		w.impose(t, now, set, on)
	}
	for _, p := range begun {
		_, wanted := t.sentence(p, now)
		p.unmet = wanted && !p.active
		events = append(events, Event{Spec: t.Spec, Flow: p.Flow, Over: p.over, CutsOff: p.cutsOff, Unmet: p.unmet})
	}
	for _, p := range set {
		if p.unmet && p.active { // it has displaced another one since
			p.unmet = false
			events = append(events, Event{Spec: t.Spec, Flow: p.Flow, Over: p.over, CutsOff: p.cutsOff})
		}
	}
	return append(events, t.forget()...)
}

// judge finds out what penalties of flows would cut off.
func (w *Watcher) judge(t *tracker, flows []*punished) {
	if len(flows) == 0 || !t.protects() || w.cutsOff == nil {
		return
	}
	var keys []key.Key
	for _, p := range flows {
		keys = append(keys, p.Key)
	}
	cut := w.cutsOff(keys)
	for _, p := range flows {
		p.cutsOff = cut[p.Key]
	}
}

// impose sets the penalties of flows, if there are interfaces. In a full bucket, one may displace
// a weaker one.
func (w *Watcher) impose(t *tracker, now time.Duration, set []*punished, on interfaces) {
	if len(on) == 0 {
		for _, p := range set {
			p.active = false
		}
		return
	}
	displaced := make(map[uint64]bool)
	table := table(on[0])
	for _, p := range set {
		x, ok := t.sentence(p, now)
		if !ok {
			table.Remove(p.Hash)
			continue
		}
		if table.Set(p.Hash, x) {
			continue
		}
		if weakest, ok := w.weakest(t, p, table.Rivals(p.Hash), now); ok {
			table.Remove(weakest)
			table.Set(p.Hash, x)
			displaced[weakest] = true
		}
	}
	w.setPenalized(on, table)
	for _, p := range set {
		p.active = table.Contains(p.Hash)
	}
	for h := range displaced {
		if table.Contains(h) {
			continue
		}
		if _, p := w.owner(h); p == nil || p.until > now {
			w.replaced++
		}
		if _, p := w.owner(h); p != nil {
			p.active = false
		}
	}
}

// weakest returns which of the penalties in a full bucket makes room for that of p, if any
// does. A tracker that has less than its share of the bucket displaces the weakest one of
// those with more than theirs; another one displaces a weaker penalty than its own.
func (w *Watcher) weakest(t *tracker, p *punished, rivals []penalty.Rival, now time.Duration) (hash uint64, ok bool) {
	share := len(rivals) / max(1, w.punishing())
	held := make(map[*tracker]int)
	for _, r := range rivals {
		of, _ := w.owner(r.Hash)
		held[of]++
	}
	least := math.Inf(1)
	if held[t] >= share {
		least = t.weight(p, now)
	}
	for _, r := range rivals {
		of, q := w.owner(r.Hash)
		var weight float64
		switch {
		case of == nil: // an earlier watcher has set it
			weight = t.weight(&punished{excess: 1, until: r.Until}, now)
		case of == t && held[t] < share, of != t && held[of] <= share:
			continue
		default:
			weight = of.weight(q, now)
		}
		if weight < least {
			hash, least, ok = r.Hash, weight, true
		}
	}
	return hash, ok
}

// weight says how much a flow deserves its penalty: by how much it has exceeded the
// threshold, and how lately.
func (t *tracker) weight(p *punished, now time.Duration) float64 {
	return p.excess * min(1, max(0, (p.until-now).Seconds()/t.Duration.Seconds()))
}

// owner returns the flow that has the penalty of a hash, and its tracker; nil for one that an
// earlier watcher has set.
func (w *Watcher) owner(h uint64) (*tracker, *punished) {
	for _, t := range w.trackers {
		if p := t.penal[h]; p != nil && t.Action != ReportOnly {
			return t, p
		}
	}
	return nil, nil
}

// punishing returns the number of trackers that limit or block.
func (w *Watcher) punishing() (n int) {
	for _, t := range w.trackers {
		if t.punishes() {
			n++
		}
	}
	return n
}

// Replaced returns the number of penalties that made room for others.
func (w *Watcher) Replaced() uint64 { return w.replaced }

// forget forgets flows without penalties, the oldest first, where there are more than
// [MaxPenalties].
func (t *tracker) forget() (events []Event) {
	if len(t.penal) <= MaxPenalties {
		return nil // most often
	}
	var idle []*punished
	for _, p := range t.penal {
		if !p.active {
			idle = append(idle, p)
		}
	}
	if len(idle) <= MaxPenalties {
		return nil
	}
	slices.SortFunc(idle, func(a, b *punished) int { return cmp.Or(cmp.Compare(a.until, b.until), cmp.Compare(a.Hash, b.Hash)) })
	const some = MaxPenalties / 8 // more than one at a time, so that this is seldom
	for _, p := range idle[:len(idle)-MaxPenalties+some] {
		delete(t.penal, p.Hash)
		events = append(events, Event{Spec: t.Spec, Flow: p.Flow, Over: p.over, Released: true, Forgotten: true})
	}
	return events
}

// review judges the penalties of flows anew where it may have changed what they cut off. It
// also removes those that an earlier watcher has set.
func (w *Watcher) review(now time.Duration, on interfaces) (events []Event) {
	if w.reviewed || len(on) == 0 || w.cutsOff == nil {
		return nil
	}
	for i, t := range w.trackers {
		if t.protects() {
			events = append(events, w.reviewTracker(t, i, now, on)...)
		}
	}
	w.reviewed = true
	return events
}

func (w *Watcher) reviewTracker(t *tracker, i int, now time.Duration, on interfaces) (events []Event) {
	candidates := t.covering(w.peers)
	keys := slices.Clone(candidates)
	for _, p := range t.penal {
		keys = append(keys, p.Key)
	}
	cut := w.cutsOff(keys)
	var changed []*punished
	for _, h := range slices.Sorted(maps.Keys(t.penal)) {
		if p := t.penal[h]; p.cutsOff != cut[p.Key] {
			p.cutsOff = cut[p.Key]
			changed = append(changed, p)
		}
	}
	table := table(on[0])
	for _, k := range candidates {
		if h := on[0].Hash(i, k); cut[k] != "" && t.penal[h] == nil {
			table.Remove(h)
		}
	}
	for _, p := range changed {
		if x, ok := t.sentence(p, now); !ok {
			table.Remove(p.Hash)
		} else if table.Contains(p.Hash) { // otherwise it gets one if it is still heavy
			table.Set(p.Hash, x)
		}
	}
	w.setPenalized(on, table)
	for _, p := range changed {
		if _, ok := t.sentence(p, now); !ok && p.active {
			p.active = false
			events = append(events, Event{Spec: t.Spec, Flow: p.Flow, Over: p.over, CutsOff: p.cutsOff, Released: true})
		}
	}
	return events
}

// covering returns the tracker's flows that all packets of one of these keys are in.
func (t *tracker) covering(peers []key.Key) (all []key.Key) {
	v4, v6 := t.Key.Shapes()
	for _, k := range peers {
		for _, s := range []key.Shape{v4, v6} {
			if !s.Within(k.Shape) {
				continue
			}
			of := key.Tuple{Src: k.Src, Dst: k.Dst, Proto: k.Proto, HasPorts: true, SrcPort: k.SrcPort, DstPort: k.DstPort}
			if one, ok := s.Of(of); ok && !slices.Contains(all, one) {
				all = append(all, one)
			}
		}
	}
	return all
}

// Spared is a heavy hitter that has no penalty, or a milder one, because a penalty would
// cut something off.
type Spared struct {
	Spec    Spec
	Flow    key.Key
	CutsOff string // as in "the gateway 192.0.2.1"
	Until   time.Duration
}

// Spared returns the flows that are spared, in the order of their trackers. A nil Watcher
// has none.
func (w *Watcher) Spared(now time.Duration) (all []Spared) {
	if w == nil {
		return nil
	}
	for _, t := range w.trackers {
		first := len(all)
		for _, p := range t.penal {
			if p.cutsOff != "" && p.until > now {
				all = append(all, Spared{t.Spec, p.Key, p.cutsOff, p.until})
			}
		}
		ordered.By(all[first:], func(a, b Spared) int { return compareFlows(a.Flow, b.Flow) })
	}
	return all
}

// compareFlows orders the flows of a tracker.
func compareFlows(a, b key.Key) int {
	return cmp.Or(a.Src.Compare(b.Src), a.Dst.Compare(b.Dst), cmp.Compare(a.Proto, b.Proto),
		cmp.Compare(a.SrcPort, b.SrcPort), cmp.Compare(a.DstPort, b.DstPort))
}

// Inherit takes over the penalties of a watcher that this one replaces, which may be nil. Where
// other trackers are configured, the programs begin with empty tables. A tracker takes over
// from an equal one, or else from one that counts the same by the same key.
func (w *Watcher) Inherit(last *Watcher) {
	if last == nil {
		return
	}
	paired := make(map[*tracker]bool)
	for _, fits := range []func(t, of *tracker) bool{
		func(t, of *tracker) bool { return t.Watched == of.Watched },
		func(t, of *tracker) bool { return t.Key == of.Key && t.CountsPairs() == of.CountsPairs() },
	} {
		for _, t := range w.trackers {
			i := slices.IndexFunc(last.trackers, func(of *tracker) bool {
				return t.punishes() && of.punishes() && !paired[t] && !paired[of] && fits(t, of)
			})
			if i >= 0 {
				of := last.trackers[i]
				paired[t], paired[of] = true, true
				t.inherit = slices.AppendSeq(slices.Clone(of.inherit), maps.Values(of.penal))
			}
		}
	}
}

// rehash gives inherited penalties the hashes of the present trackers. Then adopt imposes them:
// the memory is new to this watcher.
func (w *Watcher) rehash(now time.Duration, on interfaces) {
	if len(on) == 0 {
		return
	}
	for i, t := range w.trackers {
		for _, p := range t.inherit {
			p.Hash, p.until = on[0].Hash(i, p.Key), t.latest(p.until, now)
			if !t.protects() {
				p.cutsOff = "" // otherwise review judges it anew
			}
			if t.penal[p.Hash] == nil {
				t.penal[p.Hash] = p
			}
		}
		t.inherit = nil
	}
}

// release forgets the flows whose penalty has ended.
func (t *tracker) release(now time.Duration) (events []Event) {
	for h, p := range t.penal {
		if now >= p.until {
			delete(t.penal, h)
			events = append(events, Event{Spec: t.Spec, Flow: p.Flow, Over: p.over, Released: true})
		}
	}
	return events
}

// mark adds penalties to a report.
func (t *tracker) mark(r *Report) {
	if t.Action == ReportOnly {
		return
	}
	for i := range r.Flows {
		if p := t.penal[r.Flows[i].Hash]; p != nil {
			if r.Flows[i].CutsOff = p.cutsOff; p.active {
				r.Flows[i].State, r.Flows[i].Until = t.Action, p.until
			}
		}
	}
}

// tidy removes expired penalties.
func (w *Watcher) tidy(now time.Duration, on interfaces) {
	if !on.penalized() {
		return // the memory need not be touched
	}
	if table := table(on[0]); table.Len() > 0 {
		table.Expire(now)
		w.setPenalized(on, table)
	}
}

// penalized reports whether programs look for penalties.
func (on interfaces) penalized() bool {
	return slices.ContainsFunc(on, func(c interfaceTrackers) bool { return c.Penalized() > 0 })
}

// setPenalized sets the number of penalties on all interfaces.
func (w *Watcher) setPenalized(on interfaces, t *penalty.Table) {
	w.penalized = nil // a program may have imposed one that is counted now
	n := t.Len()
	for _, c := range on {
		c.SetPenalized(n)
	}
	if n > 0 {
		return
	}
	for range t.All() { // a program may have imposed one before it read that there are none
		for _, c := range on {
			c.SetPenalized(1)
		}
		return
	}
}

func table(c interfaceTrackers) *penalty.Table {
	t, err := penalty.NewTable(c.penalties)
	if err != nil {
		panic(err) // the map has whole buckets
	}
	return t
}
