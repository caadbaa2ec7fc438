package heavy

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"weir/control/engine"
	"weir/filter/penalty"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
)

// Flow is a flow in a report.
type Flow struct {
	sketch.Flow
	Heavy bool
	State Action        // the penalty, if it has one
	Until time.Duration // its end, by the kernel's monotonic clock
}

// Role is what a tracker is for.
type Role uint8

const (
	Hitters  Role = iota // heavy hitters, and their penalties
	Learning             // weights: whatever is heavy, the flow memory is well filled
	Drops                // who is being dropped
)

// Watched is a tracker with its role.
type Watched struct {
	Spec
	Role Role
}

// Tracker is the data plane's part of a tracker.
func (w Watched) Tracker() engine.Tracker {
	t := w.Spec.Tracker()
	t.Unexempt = t.Unexempt || w.Role == Learning // weights are of what the lists are asked for
	t.Dropped = w.Role == Drops
	return t
}

// Report is the result of a tracker's interval.
type Report struct {
	Spec     Spec
	Role     Role
	Interval time.Duration // measured
	Packets  uint64        // of all flows
	Bytes    uint64
	Denied   uint64  // packets whose flow had no room in the flow memory; if there are any, counts are estimates
	Heavy    uint64  // units from which on a flow is heavy
	Full     bool    // a guard's window ended early, since its memory was full
	Distinct float64 // estimated number of different flows, for trackers of learning
	Flows    []Flow  // in the flow memory, the largest first
}

// Event says that a flow became heavy, or was released.
type Event struct {
	Spec     Spec
	Flow     sketch.Flow
	Released bool
	Unmet    bool // there was no room for the penalty
}

func (e Event) String() string {
	switch {
	case e.Released:
		return fmt.Sprintf("%v is released", Name(e.Flow.Key))
	case e.Unmet:
		return fmt.Sprintf("%v is heavy, but there is no room for another penalty", Name(e.Flow.Key))
	}
	return fmt.Sprintf("%v is heavy", Name(e.Flow.Key))
}

// Tick is how often Watcher.Tick is to be called: it bounds the time from when a
// flow becomes heavy until it is rate-limited or blocked.
const Tick = 100 * time.Millisecond

// Watcher reads the trackers of a generation on some interfaces, exchanges their
// banks at the end of each interval, and sets penalties of flows that are heavy by
// exact counts, all interfaces and CPUs together. It is not safe for concurrent use.
// An interface must have only one.
type Watcher struct {
	trackers []*tracker
}

type tracker struct {
	Watched
	spare uint64 // from this many units on, flows enter the memory while it has room

	began    time.Duration // start of this interval
	previous uint64        // units in the previous interval
	before   uint64        // units in the interval before that
	early    bool          // this interval ends early: see full
	started  map[*loader.Stats]bool
	penal    map[uint64]*punished
	last     *Report
}

// punished is a flow that has a penalty.
type punished struct {
	sketch.Flow
	until  time.Duration
	active bool // on an interface at least: there was room for it
}

// NewWatcher returns a watcher of these trackers, which must be those of the
// generations, in their order.
func NewWatcher(trackers []Watched) *Watcher {
	w := &Watcher{}
	for _, t := range trackers {
		w.trackers = append(w.trackers, &tracker{
			Watched: t, spare: 4 * t.leastSpare(),
			started: make(map[*loader.Stats]bool), penal: make(map[uint64]*punished),
		})
	}
	return w
}

// Last returns the last report of each tracker, nil before the end of its first
// interval.
func (w *Watcher) Last() []*Report {
	last := make([]*Report, len(w.trackers))
	for i, t := range w.trackers {
		last[i] = t.last
	}
	return last
}

// Interval calls read with the banks of the last interval of a tracker of heavy
// hitters, and the length of that. It reports false if there is no such tracker, or no
// interval has ended yet.
func (w *Watcher) Interval(g *engine.Generation, stats []*loader.Stats, k Key, unit sketch.Unit, read func(time.Duration, []*sketch.Bank)) bool {
	for i, t := range w.trackers {
		if t.Role != Hitters || t.Key != k || t.Counts() != unit || t.last == nil {
			continue
		}
		on := open(g, stats)
		defer on.close()
		banks := on.idle(i)
		if len(banks) > 0 {
			read(t.last.Interval, banks)
		}
		return len(banks) > 0
	}
	return false
}

// Tick does what is due at this time of the kernel's monotonic clock. It returns the
// reports of the trackers whose interval has ended, and the events of flows.
func (w *Watcher) Tick(now time.Duration, g *engine.Generation, stats []*loader.Stats) (reports []*Report, events []Event) {
	on := open(g, stats)
	defer on.close()
	ended := make([]bool, len(w.trackers))
	any := false
	for i, t := range w.trackers {
		if t.began == 0 {
			t.began = now
		}
		t.early = t.full(i, on)
		ended[i] = now-t.began >= time.Duration(t.Interval) || t.early
		any = any || ended[i]
	}
	// Penalties do not wait for the end of the interval.
	for i, t := range w.trackers {
		if (t.Action != ReportOnly || t.Guard()) && !ended[i] {
			flows, heavy := t.sofar(i, on)
			events = append(events, t.punish(now, flows, heavy, on)...)
		}
		t.start(i, on)
	}
	if any {
		for i, t := range w.trackers {
			if ended[i] {
				t.exchange(i, on)
			}
		}
		loader.Grace() // what still counted in the banks that are read now is through
		for i, t := range w.trackers {
			if !ended[i] {
				continue
			}
			r := t.report(now, i, on)
			if t.Role == Hitters {
				events = append(events, t.punish(now, r.flows(), r.Heavy, on)...)
				events = append(events, t.release(now)...)
				t.mark(r)
			}
			t.last = r
			reports = append(reports, r)
		}
		tidy(now, on)
	}
	return reports, events
}

// interfaces are the trackers of all interfaces, open for one tick.
type interfaces []interfaceTrackers

type interfaceTrackers struct {
	*engine.Trackers
	stats *loader.Stats
}

// open opens the generation's trackers on the interfaces that have them.
func open(g *engine.Generation, stats []*loader.Stats) (on interfaces) {
	for _, s := range stats {
		if t, err := g.OpenTrackers(s); err == nil {
			on = append(on, interfaceTrackers{t, s})
		}
	}
	return on
}

func (on interfaces) close() {
	for _, i := range on {
		i.Close() // if it fails, the memory leaks
	}
}

// active returns the banks of tracker i that count, of all interfaces and CPUs.
func (on interfaces) active(i int) (all []*sketch.Bank) {
	for _, c := range on {
		all = append(all, c.Banks(i, c.Active(i))...)
	}
	return all
}

// idle returns the banks of tracker i that do not count, in the same order.
func (on interfaces) idle(i int) (all []*sketch.Bank) {
	for _, c := range on {
		all = append(all, c.Banks(i, 1-c.Active(i))...)
	}
	return all
}

// start sets the admission of programs that have begun to count without one.
func (t *tracker) start(i int, on interfaces) {
	banks := 0
	for _, c := range on {
		banks += c.CPUs
	}
	for _, c := range on {
		if t.started[c.stats] {
			continue
		}
		for _, b := range c.Banks(i, c.Active(i)) {
			t.admit(b, banks)
		}
		t.started[c.stats] = true
	}
	for s := range t.started {
		if !slices.ContainsFunc(on, func(c interfaceTrackers) bool { return c.stats == s }) {
			delete(t.started, s)
		}
	}
}

// admit sets from how many units on flows enter the memory of a bank: low enough to
// miss no heavy hitter, and lower while there is room, so that the largest flows are
// counted exactly even if none is heavy.
func (t *tracker) admit(b *sketch.Bank, banks int) {
	if t.Role == Learning {
		b.Admit(math.MaxUint64, 0)
	} else {
		b.Admit(t.threshold().Admission(t.previous, banks))
	}
	b.SetSpare(t.spare)
}

// leastSpare is the minimum of a tracker's spare: two packets.
func (s Spec) leastSpare() uint64 {
	if s.Counts() == sketch.Bytes {
		return 2 * 64
	}
	return 2
}

// sofar returns the flows that may have enough in the current interval to be
// punished, and the units from which on they are heavy already: by the traffic of the previous interval, if that was
// more.
func (t *tracker) sofar(i int, on interfaces) (flows []sketch.Flow, heavy uint64) {
	banks := on.active(i)
	heavy = t.threshold().Heavy(max(total(banks), t.previous), t.previous)
	// One of C banks has counted a C-th of what a flow has to have.
	least := uint64(hysteresis*float64(heavy)) / uint64(max(1, len(banks)))
	return sketch.MergeFrom(least, banks...), heavy
}

func total(banks []*sketch.Bank) (units uint64) {
	for _, b := range banks {
		units += b.Total()
	}
	return units
}

// exchange prepares the idle banks, with the flows that last, and makes the programs
// count in them.
func (t *tracker) exchange(i int, on interfaces) {
	banks, idle := on.active(i), on.idle(i)
	units := total(banks)
	heavy := t.threshold().Heavy(units, t.previous)
	t.adapt(banks)
	heavy = min(heavy, 2*t.spare)
	lasting := make(map[uint64]bool)
	for _, f := range sketch.Merge(banks...) {
		lasting[f.Hash] = f.Lasts(t.Counts(), heavy)
	}
	t.before, t.previous = t.previous, units
	for j, b := range idle {
		b.Reset()
		t.admit(b, len(idle))
		for f := range banks[j].Flows() {
			if lasting[f.Hash] {
				b.Keep(f) // without room, it passes the sketch again
			}
		}
	}
	for _, c := range on {
		if p := c.Pairs(i, 1-c.Active(i)); p != nil {
			p.Clear()
		}
		c.Exchange(i)
	}
}

// maxKept bounds the flows of all banks together, which are merged at each
// interval. Those of learning are bounded by their memory.
const maxKept = 2048

// adapt changes spare so that the flow memory is well filled, but has room to spare.
func (t *tracker) adapt(banks []*sketch.Bank) {
	var full float64
	var kept []uint64 // the units of all that is in the memory
	for _, b := range banks {
		before := len(kept)
		for f := range b.Flows() {
			kept = append(kept, f.Estimate(b.Unit))
		}
		full = max(full, float64(len(kept)-before)/float64(8*b.Buckets))
		t.spare = max(t.spare, b.Spare()) // raised by flows that found no room
	}
	switch {
	case full > 0.6 || t.Role != Learning && len(kept) > maxKept:
		slices.Sort(kept)
		t.spare = max(t.spare, kept[len(kept)/2])
	case full < 0.25 && (t.Role == Learning || len(kept) < maxKept/4):
		t.spare = max(t.spare/2, t.leastSpare())
	}
}

// report reads the banks that have stopped counting.
func (t *tracker) report(now time.Duration, i int, on interfaces) *Report {
	r := &Report{Spec: t.Spec, Role: t.Role, Interval: now - t.began, Full: t.early}
	t.began = now
	banks := on.idle(i)
	for _, b := range banks {
		r.Packets += b.Packets()
		r.Bytes += b.Bytes()
		r.Denied += b.Denied()
	}
	if t.Role == Learning {
		r.Distinct = sketch.Distinct(banks...)
	}
	for _, f := range sketch.Merge(banks...) {
		if f.Packets > 0 || f.Before > 0 { // otherwise it lasted, but had no packets
			r.Flows = append(r.Flows, Flow{Flow: f})
		}
	}
	units := r.Packets
	if t.Counts() == sketch.Bytes {
		units = r.Bytes
	}
	r.Heavy = t.threshold().Heavy(units, t.before)
	for i := range r.Flows {
		n := r.Flows[i].Estimate(t.Counts())
		if t.Guard() { // the noise of a flood is no scan
			n = r.Flows[i].Exact(t.Counts())
		}
		r.Flows[i].Heavy = n >= r.Heavy
	}
	slices.SortFunc(r.Flows, func(a, b Flow) int {
		return cmp.Or(cmp.Compare(b.Estimate(t.Counts()), a.Estimate(t.Counts())), cmp.Compare(a.Hash, b.Hash))
	})
	return r
}

func (r *Report) flows() []sketch.Flow {
	flows := make([]sketch.Flow, len(r.Flows))
	for i, f := range r.Flows {
		flows[i] = f.Flow
	}
	return flows
}

// punish sets penalties of flows that are heavy by exact counts, and extends those of
// flows that have not calmed down.
func (t *tracker) punish(now time.Duration, flows []sketch.Flow, heavy uint64, on interfaces) (events []Event) {
	var set []*punished
	for _, f := range flows {
		n := float64(f.Exact(t.Counts()))
		p := t.penal[f.Hash]
		switch {
		case p != nil && n >= hysteresis*float64(heavy):
			p.Flow, p.until = f, now+time.Duration(t.Duration)
			set = append(set, p)
		case p == nil && n >= float64(heavy):
			p = &punished{Flow: f, until: now + time.Duration(t.Duration)}
			t.penal[f.Hash] = p
			set = append(set, p)
			events = append(events, Event{Spec: t.Spec, Flow: f})
		}
	}
	if t.Action == ReportOnly || len(set) == 0 {
		return events
	}
	unmet := make(map[uint64]bool)
	for _, c := range on {
		table := table(c)
		for _, p := range set {
			if table.Set(p.Hash, t.penalty(now)) {
				p.active = true
			} else {
				unmet[p.Hash] = true
			}
		}
		c.SetPenalized(table.Len())
	}
	for i := range events {
		events[i].Unmet = unmet[events[i].Flow.Hash]
	}
	return events
}

// Penalties returns the active penalties, in the order of their trackers.
func (w *Watcher) Penalties(now time.Duration) (all []verdict.Penalty) {
	for _, t := range w.trackers {
		if t.Action == ReportOnly {
			continue
		}
		first := len(all)
		for _, p := range t.penal {
			if p.until <= now || !p.active {
				continue
			}
			active := t.penalty(now)
			active.Until = p.until
			all = append(all, verdict.Penalty{Flow: p.Key, Penalty: active})
		}
		slices.SortFunc(all[first:], func(a, b verdict.Penalty) int { return cmp.Compare(a.Flow.String(), b.Flow.String()) })
	}
	return all
}

// release forgets the flows whose penalty has ended.
func (t *tracker) release(now time.Duration) (events []Event) {
	for h, p := range t.penal {
		if now >= p.until {
			delete(t.penal, h)
			events = append(events, Event{Spec: t.Spec, Flow: p.Flow, Released: true})
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
			r.Flows[i].State, r.Flows[i].Until = t.Action, p.until
		}
	}
}

// tidy removes expired penalties.
func tidy(now time.Duration, on interfaces) {
	for _, c := range on {
		if table := table(c); table.Len() > 0 {
			table.Expire(now)
			c.SetPenalized(table.Len())
		}
	}
}

func table(c interfaceTrackers) *penalty.Table {
	t, err := penalty.NewTable(c.Penalties)
	if err != nil {
		panic(err) // the map has whole buckets
	}
	return t
}
