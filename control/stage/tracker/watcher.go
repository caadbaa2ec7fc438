package tracker

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"time"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/stage"
	"weir/filter/blocked"
	"weir/filter/key"
	"weir/filter/ordered"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
)

// Flow is a flow in a report.
type Flow struct {
	sketch.Flow
	Heavy   bool
	State   Action        // the penalty, if it has one
	Until   time.Duration // its end, by the kernel's monotonic clock
	CutsOff string        // what a penalty would cut off: there is none, or a milder one
}

// Role is the purpose of a tracker.
type Role uint8

const (
	Hitters Role = iota // heavy hitters, and their penalties
	Drops               // who is being dropped
)

// Watched is a tracker with its role.
type Watched struct {
	Spec
	Role Role
}

// Counting returns how programs count for the tracker.
func (w Watched) Counting() Counting {
	t := w.Spec.Counting()
	if t.Dropped = w.Role == Drops; t.Dropped {
		t.Lines, t.Cold = t.Lines+t.Cold, 0 // a cold filter knows keys, not causes
	}
	return t
}

// Report is the result of a tracker's interval.
type Report struct {
	Spec     Spec
	Role     Role
	Interval time.Duration // measured
	Packets  uint64        // of all flows
	Bytes    uint64
	Denied   uint64 // packets whose flow had no room in the flow memory; if there are any, counts are estimates
	Heavy    uint64 // units from which on a flow is heavy
	Full     bool   // a scan detector's window ended early, since its memory was full

	// Spread is the number of flows, about, where the largest carry little: see [api.Tracker].
	Spread float64
	Flows  []Flow // in the flow memory, the largest first
}

// Event says that a flow became heavy, or was released.
type Event struct {
	Spec      Spec
	Flow      sketch.Flow
	Over      time.Duration // the time that Flow was counted over
	Released  bool
	Unmet     bool   // there was no room for the penalty; if there is later, another event says so
	Forgotten bool   // with Released: there are too many heavy hitters to remember it
	CutsOff   string // what a penalty would cut off, as in "the gateway 192.0.2.1"; "": nothing
}

// Discarded says how many intervals of a tracker were not judged, since the watcher was
// held up for too long.
type Discarded struct {
	Spec      Spec
	Intervals int
	Longest   time.Duration
}

// Tick is how often Watcher.Tick is to be called while there is something to see: it bounds
// the time from when a flow becomes heavy until it is rate-limited or blocked.
const Tick = 100 * time.Millisecond

// Watcher reads the trackers of a generation on some interfaces, exchanges their
// banks at the end of each interval, and sets penalties of flows that are heavy by
// exact counts, all interfaces and CPUs together. It is not safe for concurrent use.
// An interface must have only one.
//
// A bank has the time when it began to count, which outlives the process. Counts are
// compared with a threshold for the time that they were counted over; those of a longer
// time than longest returns, or of an unknown one, are discarded. So it neither punishes nor
// reports a flow below the threshold, wherever it was held up, and for how long.
type Watcher struct {
	trackers []*tracker
	grace    func() // waits until no program counts in banks that are idle now

	cutsOff  CutsOff   // nil: nothing is protected
	peers    []key.Key // of the packets that are
	replaced uint64    // penalties
	reviewed bool      // penalties are judged by these
	sparing  bool      // programs spare these

	opened interfaces         // of the last tick, which stay open
	of     *engine.Generation // that they were opened for
	place  *uint64            // of the memory in the last tick, nil if there was none
	met    bool               // this tick has the memory of the last one
	had    bool               // the last tick had any
	rest   rest

	unknown   map[uint64]time.Duration // penalties that no flow was found for, and when they expire
	again     time.Duration            // when to look for those flows again
	penalized map[*loader.Stats]int    // by interface, the numbers of penalties when all were known
}

type tracker struct {
	Watched
	spare uint64 // from this many units on, flows enter the memory while it has room

	began    time.Duration // start of this interval
	previous uint64        // units in the previous interval
	before   uint64        // units in the interval before that
	known    bool          // previous is: an interval has ended, and the watcher has looked since
	early    bool          // this interval ends early: see full
	started  bool          // the banks have an admission
	empty    contents
	penal    map[uint64]*punished
	inherit  []*punished // whose hashes by the present tracker are not known yet
	last     *Report
	read     bool // the idle banks belong to last

	exchanged bool // at the end of the last interval: otherwise the banks have counted nothing

	discarded Discarded // since Watcher.Discarded was called
}

// NewWatcher returns a watcher of these trackers, which must be those of the
// generations, in their order.
func NewWatcher(trackers []Watched) *Watcher {
	w := &Watcher{grace: loader.Grace, unknown: make(map[uint64]time.Duration)}
	for _, t := range trackers {
		first := 4 * t.leastSpare()
		if t.CountsPairs() && t.Memory >= roomy {
			first = t.leastSpare() // so that all of a scan is counted exactly
		}
		w.trackers = append(w.trackers, &tracker{
			Watched: t, spare: first, penal: make(map[uint64]*punished),
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

// Discarded returns the trackers of which intervals were discarded since it was called last.
// Those of an earlier watcher, which may have been gone for long, do not count.
func (w *Watcher) Discarded() (all []Discarded) {
	for _, t := range w.trackers {
		if d := t.discarded; d.Intervals > 0 {
			d.Spec, t.discarded = t.Spec, Discarded{}
			all = append(all, d)
		}
	}
	return all
}

// discard counts an interval that is discarded.
func (t *tracker) discard(over time.Duration) {
	t.discarded.Intervals++
	t.discarded.Longest = max(t.discarded.Longest, over)
}

// Interval calls read with the banks of the last interval of a tracker of heavy
// hitters, and the length of that. It reports false if there is no such tracker, if no
// interval has ended yet, or if the last one was discarded.
func (w *Watcher) Interval(g *engine.Generation, stats []*loader.Stats, k stage.Key, unit sketch.Unit, read func(time.Duration, []*sketch.Bank)) bool {
	for i, t := range w.trackers {
		if t.Role != Hitters || t.Key != k || t.Counts() != unit || !t.read {
			continue
		}
		banks := w.open(g, stats).idle(i)
		if len(banks) > 0 {
			read(t.last.Interval, banks)
		}
		return len(banks) > 0
	}
	return false
}

// Tick does what is due by the kernel's monotonic clock. It returns the reports of the
// trackers whose interval has ended, and the events of flows.
func (w *Watcher) Tick(clock func() time.Duration, g *engine.Generation, stats []*loader.Stats) (reports []*Report, events []Event) {
	return w.tick(clock, w.open(g, stats))
}

// Close releases the memory of the trackers. A nil Watcher has none.
func (w *Watcher) Close() error {
	if w == nil {
		return nil
	}
	err := w.opened.close(nil)
	w.opened, w.of = nil, nil
	return err
}

func (w *Watcher) tick(clock func() time.Duration, on interfaces) (reports []*Report, events []Event) {
	w.meet(on)
	renewed := false
	for i, t := range w.trackers {
		if t.renew(i, clock, on) {
			renewed = true
			events = append(events, t.release(clock())...) // who is below the threshold stays released
		}
	}
	if renewed {
		w.grace()
	}
	w.rehash(clock(), on)
	events = append(events, w.review(clock(), on)...)
	w.arm(on)
	events = append(events, w.adopt(clock(), on)...)
	ended := make([]bool, len(w.trackers))
	any := false
	now := clock()
	for i, t := range w.trackers {
		if len(on) > 0 {
			t.began = on.began(i)
		} else if t.began == 0 {
			t.began = now
		}
		t.early = t.full(i, on)
		ended[i] = now-t.began >= time.Duration(t.Interval) || t.early
		any = any || ended[i]
	}
	// Penalties do not wait for the end of the interval.
	for i, t := range w.trackers {
		if (t.Action != ReportOnly || t.CountsPairs()) && !ended[i] {
			flows, heavy, now := t.sofar(i, clock, on)
			events = append(events, w.punish(t, now, now-t.began, flows, heavy, on)...)
		}
		t.start(i, on)
	}
	if any {
		exchanged := false
		for i, t := range w.trackers {
			if ended[i] {
				t.exchange(i, clock, on)
				exchanged = exchanged || t.exchanged
			}
		}
		if exchanged {
			w.grace() // what still counted in the banks that are read now is through
		}
		for i, t := range w.trackers {
			if !ended[i] {
				continue
			}
			now := clock() // they have counted until now at most
			r := t.report(now, i, on)
			if r == nil {
				events = append(events, t.release(now)...)
				continue
			}
			if t.Role == Hitters {
				events = append(events, w.punish(t, now, r.Interval, r.Counted(), r.Heavy, on)...)
				events = append(events, t.release(now)...)
				t.mark(r)
			}
			t.last = r
			reports = append(reports, r)
		}
		w.tidy(now, on)
	}
	w.settle(clock, on)
	return reports, events
}

// counters are the trackers of an interface, as [Memory] has them.
type counters interface {
	Threshold(tracker int) loader.Threshold
	SetThreshold(tracker int, t loader.Threshold)
	SourceHash(tracker int, src netip.Addr) uint64
	Banks(tracker, bank int) []*sketch.Bank  // of each CPU
	Pairs(tracker, bank int) *blocked.Filter // nil: the tracker is no scan detector's
	Active(tracker int) (bank int)
	SetActive(tracker, bank int) // on all interfaces
	Began(tracker, bank int) time.Duration
	SetPenalized(n int)
	Penalized() int
	Hash(tracker int, k key.Key) uint64
	SetWake(on bool)
	Wakes() bool
	IsPresent(*loader.Stats) bool
	Close() error
}

// interfaces are the trackers of all interfaces, which have one memory. Each has of its own the
// number of penalties, and whether programs wake this process.
type interfaces []interfaceTrackers

type interfaceTrackers struct {
	counters
	place     *uint64 // of the memory
	cpus      int
	penalties []uint64
	windows   []uint64
	stats     *loader.Stats
}

// open opens the generation's trackers on the interfaces that have them. They stay open until
// programs count elsewhere, or other interfaces or another generation are asked for.
func (w *Watcher) open(g *engine.Generation, stats []*loader.Stats) (on interfaces) {
	for _, s := range stats {
		if at := w.opened.of(s); at >= 0 && w.of == g && w.opened[at].IsPresent(s) {
			on = append(on, w.opened[at])
			continue
		}
		if t, err := Open(g, s); err == nil {
			on = append(on, interfaceTrackers{t, t.Place(), t.CPUs, t.Penalties, t.Windows, s})
		}
	}
	_ = w.opened.close(on) // if it fails, the memory leaks
	w.opened, w.of = on, g
	return on
}

// of returns the index of the trackers that count in the stats, -1 if there are none.
func (on interfaces) of(s *loader.Stats) int {
	return slices.IndexFunc(on, func(i interfaceTrackers) bool { return i.stats == s })
}

// close releases the memory of all but those that stay.
func (on interfaces) close(stay interfaces) error {
	var errs []error
	for _, i := range on {
		if at := stay.of(i.stats); at < 0 || stay[at].counters != i.counters {
			errs = append(errs, i.Close())
		}
	}
	return errors.Join(errs...)
}

// began returns when the banks that count tracker i began to.
func (on interfaces) began(i int) time.Duration { return on[0].Began(i, on[0].Active(i)) }

// cpus returns the number of banks that count for a tracker.
func (on interfaces) cpus() int {
	if len(on) == 0 {
		return 0
	}
	return on[0].cpus
}

// active returns the banks of tracker i that count, one for each CPU.
func (on interfaces) active(i int) []*sketch.Bank {
	if len(on) == 0 {
		return nil
	}
	return on[0].Banks(i, on[0].Active(i))
}

// idle returns the banks of tracker i that do not count, in the same order.
func (on interfaces) idle(i int) []*sketch.Bank {
	if len(on) == 0 {
		return nil
	}
	return on[0].Banks(i, 1-on[0].Active(i))
}

// meet notices whether the memory is another one than in the last tick.
func (w *Watcher) meet(on interfaces) {
	var place *uint64
	if len(on) > 0 {
		place = on[0].place
	}
	w.met = w.had && len(on) > 0 && place == w.place
	if w.place, w.had = place, len(on) > 0; w.met {
		return
	}
	w.reviewed, w.sparing, w.penalized = false, false, nil
	for _, t := range w.trackers {
		t.started, t.empty = false, contents{}
	}
}

// start sets the admission of programs that have begun to count without one.
func (t *tracker) start(i int, on interfaces) {
	if t.started || len(on) == 0 {
		return
	}
	for _, b := range on.active(i) {
		t.admit(b, on.cpus())
	}
	t.started = true
}

// admit sets from how many units on flows enter the memory of a bank: low enough to
// miss no heavy hitter, and lower while there is room, so that the largest flows are
// counted exactly even if none is heavy. It also sets the step in which programs report flows.
func (t *tracker) admit(b *sketch.Bank, cpus int) {
	b.Admit(t.threshold(0).Admission(t.previous, cpus))
	b.SetSpare(t.spare)
	b.SetStep(t.step(cpus))
}

// leastSpare is the minimum of a tracker's spare: two packets.
func (s Spec) leastSpare() uint64 {
	if s.Counts() == sketch.Bytes {
		return 2 * 64
	}
	return 2
}

// renew makes the programs count in empty banks where they have counted for a time that is
// unknown, or too long for their counts to be judged: the watcher has not looked meanwhile. It
// reports whether it has.
func (t *tracker) renew(i int, clock func() time.Duration, on interfaces) (renewed bool) {
	if len(on) == 0 {
		return false
	}
	at, now := on.began(i), clock()
	if 0 < at && at <= now && now-at <= t.longest() {
		return false
	}
	if 0 < at && at <= now && t.started {
		t.discard(now - at)
	}
	for _, b := range on.idle(i) {
		b.Reset()
		t.admit(b, on.cpus())
	}
	t.turn(i, clock, on)
	t.empty, t.read, t.known = contents{}, false, false
	return true
}

// turn makes the programs count in the idle banks, which are prepared.
func (t *tracker) turn(i int, clock func() time.Duration, on interfaces) {
	next := 1 - on[0].Active(i)
	if p := on[0].Pairs(i, next); p != nil {
		p.Clear()
	}
	at := clock() // before they do: a bank has counted for no longer than it says
	for _, b := range on[0].Banks(i, next) {
		b.Begin(at)
	}
	on[0].SetActive(i, next)
}

// longest returns the maximum time over which counts are judged. A watcher that looks each
// [Tick] exceeds it only if it is held up.
func (w Watched) longest() time.Duration {
	if w.Role != Hitters {
		return time.Hour // it punishes no flow, and its reports say their time
	}
	return time.Duration(w.Interval) + max(time.Duration(w.Interval)/2, 2*Tick)
}

// sofar returns the flows that may have enough in the current interval to be punished, the
// units from which on they are heavy already, and until when they were counted. By a share
// they are heavy by the traffic of the previous interval, if that was more.
func (t *tracker) sofar(i int, clock func() time.Duration, on interfaces) (flows []sketch.Flow, heavy uint64, now time.Duration) {
	if t.Threshold.Share > 0 && !t.known {
		return nil, 0, clock() // a share of a part of an interval is no share of the interval
	}
	var banks []*sketch.Bank
	if !t.isEmpty() || total(on.active(i)) > 0 {
		banks = on.active(i)
	}
	heavy = t.threshold(0).Heavy(max(total(banks), t.previous), t.previous)
	// One of C banks has counted a C-th of the units that a flow has to have.
	least := uint64(hysteresis*float64(heavy)) / uint64(max(1, on.cpus()))
	flows = sketch.MergeFrom(least, banks...)
	// The clock is read last: they have counted for no longer than it says.
	units, now := total(banks), clock()
	if now-t.began > t.longest() {
		return nil, 0, now
	}
	return flows, t.threshold(now-t.began).Heavy(max(units, t.previous), t.previous), now
}

func total(banks []*sketch.Bank) (units uint64) {
	for _, b := range banks {
		units += b.Total()
	}
	return units
}

// exchange prepares the idle banks, with the flows that last, and makes the programs
// count in them.
func (t *tracker) exchange(i int, clock func() time.Duration, on interfaces) {
	var banks, idle []*sketch.Bank
	if t.exchanged = t.begin(i, clock, on); t.exchanged {
		banks, idle = on.active(i), on.idle(i)
	}
	units, over := total(banks), clock()-t.began
	heavy := t.threshold(over).Heavy(units, t.previous)
	t.adapt(banks)
	heavy = min(heavy, 2*t.spare)
	lasting := make(map[uint64]bool)
	for _, f := range sketch.Merge(banks...) {
		lasting[f.Hash] = f.Lasts(t.Counts(), heavy)
	}
	if nominal := time.Duration(t.Interval); over > nominal {
		units = uint64(float64(units) * float64(nominal) / float64(over))
	}
	t.before, t.previous, t.known = t.previous, units, len(on) > 0
	kept := 0
	for j, b := range idle {
		b.Reset()
		t.admit(b, on.cpus())
		for f := range banks[j].Flows() {
			if lasting[f.Hash] {
				b.Keep(f) // without room, it passes the sketch again
				kept++
			}
		}
	}
	if t.exchanged {
		t.turn(i, clock, on)
		t.empty = contents{begunEmpty: kept == 0, beforeEmpty: t.empty.begunEmpty}
	}
	if t.isEmpty() {
		for _, b := range on.active(i) {
			t.admit(b, on.cpus())
		}
	}
}

// maxKept bounds the flows of all banks together, which are merged at each
// interval. Those of learning are bounded by their memory.
const maxKept = 2048

// roomy is the memory from which on a scan detector's flow memory has room for all sources that begin
// a few conversations, in an interval of usual traffic.
const roomy = 128 << 10

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
	case full > 0.6 || len(kept) > maxKept:
		slices.Sort(kept)
		t.spare = max(t.spare, kept[len(kept)/2])
	case full < 0.25 && len(kept) < maxKept/4:
		t.spare = max(t.spare/2, t.leastSpare())
	}
}

// report reads the banks that have stopped counting, at the latest now. It returns nil if
// they may have counted for too long.
func (t *tracker) report(now time.Duration, i int, on interfaces) *Report {
	r := &Report{Spec: t.Spec, Role: t.Role, Interval: now - t.began, Full: t.early}
	t.began = now // which the banks say, if there are any
	if t.read = r.Interval <= t.longest(); !t.read {
		t.discard(r.Interval)
		return nil
	}
	var banks []*sketch.Bank
	if t.exchanged {
		banks = on.idle(i)
		t.empty.idleEmpty = total(banks) == 0
	}
	for _, b := range banks {
		r.Packets += b.Packets()
		r.Bytes += b.Bytes()
		r.Denied += b.Denied()
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
	r.Heavy = t.threshold(r.Interval).Heavy(units, t.before)
	for i := range r.Flows {
		n := r.Flows[i].Estimate(t.Counts())
		if t.CountsPairs() { // the noise of a flood is no scan
			n = r.Flows[i].Exact(t.Counts())
		}
		r.Flows[i].Heavy = n >= r.Heavy
	}
	slices.SortFunc(r.Flows, func(a, b Flow) int {
		return cmp.Or(cmp.Compare(b.Estimate(t.Counts()), a.Estimate(t.Counts())), cmp.Compare(a.Hash, b.Hash))
	})
	if !t.CountsPairs() && units > 0 {
		var largest uint64
		for _, f := range r.Flows[:min(len(r.Flows), api.MaxTop)] {
			largest += f.Exact(t.Counts())
		}
		if largest < units/3 {
			r.Spread = sketch.Distinct(banks...)
		}
	}
	return r
}

// Counted returns the flows as they were counted.
func (r *Report) Counted() []sketch.Flow {
	flows := make([]sketch.Flow, len(r.Flows))
	for i, f := range r.Flows {
		flows[i] = f.Flow
	}
	return flows
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
			if x, ok := t.sentence(p, now); ok {
				all = append(all, verdict.Penalty{Flow: p.Key, Penalty: x})
			}
		}
		ordered.By(all[first:], func(a, b verdict.Penalty) int { return compareFlows(a.Flow, b.Flow) })
	}
	return all
}
