package learn

import (
	"log/slog"
	"math"
	"time"

	"weir/control/engine"
	"weir/control/observe/events"
	"weir/filter/flood"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/verdict"
	"weir/loader"
)

// Observer learns weights from the packets that are dropped by mistake, in the engine
// that filters, and measures their rate. It is not safe for concurrent use.
type Observer struct {
	learner *Learner
	hub     *events.Hub
	log     *slog.Logger
	failed  bool // to publish, which was logged

	all     Mistakes // since the observer began
	counted Counted  // as last read
	judging bool     // they have been read
	tidied  time.Duration

	set   *membership.Set // of which built counts
	built Mistakes        // since the observer first judged it
	from  Counted         // then
	seen  float64         // packets that matched since then, by their events
	drift drift           // since then

	judged <-chan events.Event // dropped packets; nil: not subscribed yet
	wake   chan<- struct{}     // is sent to when there are some
	early  float64             // packets that were found to be mistakes since Judge was called
	end    func()
}

// Counted are counters of all programs: packets that no list has, packets that a weight has spared, and
// packets that were taken for listed ones.
type Counted struct{ Clean, Spared, Matched uint64 }

// Mistakes are packets that no list has.
type Mistakes struct {
	Dropped float64 // by mistake
	Spared  float64 // that would have been dropped without weights
	Passed  float64 // all that passed, the spared ones among them
}

func (m *Mistakes) add(n Mistakes) {
	m.Dropped += n.Dropped
	m.Spared += n.Spared
	m.Passed += n.Passed
}

// Rate is the share of the unlisted packets that were dropped by mistake, as counted, with the bounds of its
// 95 % interval.
type Rate struct {
	Share, Low, High float64
	Without          float64 // the share, had there been no weights
	Packets          float64 // that were counted
}

const (
	// tidyPeriod is how often elements are looked at that may need no weight any more.
	tidyPeriod = 5 * time.Second

	// judgeRoom is the number of events between two calls of Judge, at events.Limit.
	judgeRoom = 2048
)

// NewObserver returns an observer that knows nothing yet. wake is sent to when Learn has something to
// learn from.
func NewObserver(c Config, hub *events.Hub, wake chan<- struct{}, log *slog.Logger) *Observer {
	return &Observer{learner: New(c), hub: hub, wake: wake, log: log}
}

// Configure changes the half-life and the number of elements with weights; what
// was learned stays.
func (o *Observer) Configure(c Config) {
	o.learner.HalfLife, o.learner.Elements = c.HalfLife, c.Elements
}

// HalfLife returns the half-life of the learned rates.
func (o *Observer) HalfLife() time.Duration { return o.learner.HalfLife }

// Weights returns the current weights.
func (o *Observer) Weights() Weights { return o.learner.Weights() }

// Hot returns the number of elements that have bits of their own.
func (o *Observer) Hot() int { return o.learner.Hot() }

// Demand returns the demand by which the next engine plans its weights.
func (o *Observer) Demand(at time.Duration) membership.Demand { return o.learner.Demand(at) }

// Follow brings the known elements to the next engine.
func (o *Observer) Follow(e *engine.Generation, at time.Duration) {
	o.report(o.learner.Follow(e.Block, at))
}

func (o *Observer) report(err error) {
	if err != nil && !o.failed {
		o.failed = true
		o.log.Error("the weights are not active: " + err.Error())
	}
}

// All returns the mistakes since the observer began.
func (o *Observer) All() Mistakes { return o.all }

// Counted returns the rate of mistakes since the present filter was built, false if there were no packets yet.
func (o *Observer) Counted() (Rate, bool) {
	c := o.count()
	if c.packets < 1 {
		return Rate{}, false
	}
	r := Rate{Share: c.dropped / c.packets, Without: (c.dropped + o.built.Spared) / c.packets, Packets: c.packets}
	r.Low, r.High = flood.Wilson(r.Share, c.packets/c.together)
	return r, true
}

// count counts unlisted packets since the present filter was built, and those of them that were dropped.
//
// Packets of an element are dropped together: n packets of which elements had d_1, d_2 … dropped say as much as
// n/(Σd²/Σd) independent ones (Kish, "Survey Sampling", 1965, 8.2). Programs count all packets that matched, and
// send events of a sample of them, which says how many were mistakes.
func (o *Observer) count() (c count) {
	matched, scale := float64(o.counted.Matched-min(o.counted.Matched, o.from.Matched)), 1.
	if o.seen > 0 {
		scale = matched / o.seen
	}
	c.dropped = o.built.Dropped * scale
	c.packets = c.dropped + o.built.Passed
	c.together = max(1, scale)
	if t := o.learner.tally; t.packets > 0 {
		c.together *= max(1, t.squares/t.packets)
	}
	return c
}

// count is a number of unlisted packets, how many of them were dropped, and how many say as much as one that is
// independent of the others.
type count struct{ dropped, packets, together float64 }

// drift is a sum that grows while more packets are dropped than expected, and ends at zero otherwise: Page's ("Continuous
// Inspection Schemes", Biometrika 1954), of logarithms of likelihood ratios. What was counted in the days before a
// change does not count.
type drift struct {
	sum  float64
	from count // when it was zero
	last count
}

const (
	worseBy = 1.25 // times as many as expected, which the sum finds soonest

	// surely is the sum that a rate as expected reaches once in 10,000 mistakes or less. It takes 41 mistakes or more.
	surely = 9.2
)

// add adds what was counted since the last call, of which a share was expected.
func (d *drift) add(c count, expected float64) {
	dropped, packets := c.dropped-d.last.dropped, max(0, c.packets-d.last.packets)
	d.last = c
	d.sum += (dropped*math.Log(worseBy) - packets*expected*(worseBy-1)) / c.together
	if d.sum <= 0 {
		d.sum, d.from = 0, c
	}
}

// Worse reports whether a filter whose networks differ in their bits makes more mistakes now, since it was last
// asked or before, than predicted for one in which they do not, and these rates: the traffic is other than what was
// learned. It is asked again and again.
func (o *Observer) Worse(s *membership.Set) (counted, equal float64, worse bool) {
	if s.Classes == nil || o.set != s {
		return 0, 0, false
	}
	c := o.count()
	equal = o.learner.predict().equal
	o.drift.add(c, equal)
	if o.drift.sum < surely {
		return 0, 0, false
	}
	return (c.dropped - o.drift.from.dropped) / (c.packets - o.drift.from.packets), equal, true
}

// Forget forgets which networks send.
func (o *Observer) Forget(at time.Duration) { o.learner.classes.forget(at) }

// Predicted returns the predicted share of unlisted packets that are dropped: that without
// weights, of which weights spare as many as they did since the filter was built.
func (o *Observer) Predicted() float64 {
	w := o.learner.predict().uniform
	if sum := o.built.Dropped + o.built.Spared; sum > 0 {
		w *= o.built.Dropped / sum
	}
	return w
}

// Judge looks up the packets in the lists that were dropped since it was last called, a
// sample if they are many, and sets weights by the mistakes among them. loaded is when the engine
// was loaded.
func (o *Observer) Judge(e *engine.Generation, c Counted, at time.Duration, loaded time.Time) {
	o.Follow(e, at)
	now := Mistakes{Dropped: o.early + o.misjudged(e, at, loaded)}
	o.early = 0
	if o.judging { // what was counted before is not to be judged
		now.Spared = float64(c.Spared - min(c.Spared, o.counted.Spared))
		now.Passed = float64(c.Clean - min(c.Clean, o.counted.Clean))
	}
	o.counted, o.judging = c, true
	o.all.add(now)
	if o.set == e.Block {
		o.built.add(now)
	} else { // packets of the last filter are among these
		o.set, o.built, o.from, o.seen, o.drift = e.Block, Mistakes{}, c, 0, drift{}
		o.learner.recount()
	}
	if at-o.tidied >= tidyPeriod {
		o.tidied = at
		o.learner.Tidy(at, loader.Grace)
	}
}

// Learn looks up the packets in the lists that were dropped since the last call of Learn or Judge, and sets
// weights. It takes less time than Judge, and counts nothing.
func (o *Observer) Learn(e *engine.Generation, at time.Duration, loaded time.Time) {
	o.Follow(e, at)
	o.early += o.misjudged(e, at, loaded)
}

// misjudged returns the number of packets, since it was last called, that were
// taken for listed ones and are not.
func (o *Observer) misjudged(e *engine.Generation, at time.Duration, loaded time.Time) (wrong float64) {
	if o.judged == nil {
		// As many as there may be: the first packet of an element that is seen is the last
		// that is dropped.
		o.judged, o.end = o.hub.Subscribe(events.Want{
			Reasons: []verdict.Reason{verdict.Blocked, verdict.WouldBlock}, Room: judgeRoom, Wake: o.wake,
		})
	}
	for {
		select {
		case p, ok := <-o.judged:
			if !ok {
				return wrong // the hub has ended
			}
			// The lists of an earlier engine are gone, and outgoing packets have no weights.
			if p.Lost != 0 || p.Out || !p.Time.After(loaded) {
				continue
			}
			if o.seen += float64(p.OneIn); e.Blocks(p.Tuple) {
				continue
			}
			// If the cascade does not pass it, a penalty or a limit would have dropped it, in monitor
			// mode, or its entry has been removed since.
			passed := false
			mistaken(e.Block, p.Tuple, func(k key.Key) {
				passed = true
				o.report(o.learner.Mistake(k, float64(p.OneIn), at))
			})
			if passed {
				wrong += float64(p.OneIn)
			}
		default:
			return wrong
		}
	}
}

// Close ends the observer.
func (o *Observer) Close() {
	if o.judged != nil {
		o.end()
		o.judged = nil
	}
}
