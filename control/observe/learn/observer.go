package learn

import (
	"log/slog"
	"math"
	"time"

	"weir/control/engine"
	"weir/control/observe/events"
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

	recent, all Mistakes // those before count less and less in recent
	counted     Counted  // as last read
	judging     bool     // they have been read
	tidied      time.Duration

	judged <-chan events.Event // dropped packets; nil: not subscribed yet
	wake   chan<- struct{}     // is sent to when there are some
	early  float64             // packets that were found to be mistakes since Judge was called
	end    func()
}

// Counted are counters of all programs: packets that no list has, and packets that a
// weight has spared.
type Counted struct{ Clean, Spared uint64 }

// Mistakes are packets that no list has.
type Mistakes struct {
	Dropped float64 // by mistake
	Spared  float64 // that would have been dropped without weights
	Passed  float64 // all that passed, the spared ones among them
}

// Rate returns the share that is dropped, and the share that would be without weights.
func (m Mistakes) Rate() (with, without float64) {
	all := m.Dropped + m.Passed
	if all < 1 {
		return 0, 0
	}
	return m.Dropped / all, (m.Dropped + m.Spared) / all
}

// Packets returns the number of packets.
func (m Mistakes) Packets() float64 { return m.Dropped + m.Passed }

func (m *Mistakes) add(n Mistakes, fade float64) {
	m.Dropped = m.Dropped*fade + n.Dropped
	m.Spared = m.Spared*fade + n.Spared
	m.Passed = m.Passed*fade + n.Passed
}

const (
	// measuredHalfLife is long against the time between two false positives.
	measuredHalfLife = 5 * time.Minute

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

// Measured returns the recent mistakes, and all since the observer began.
func (o *Observer) Measured() (recent, all Mistakes) { return o.recent, o.all }

// Predicted returns the predicted share of unlisted packets that are dropped: that without
// weights, of which weights spare as many as they did lately.
func (o *Observer) Predicted() float64 {
	w := o.learner.predict().uniform
	if sum := o.recent.Dropped + o.recent.Spared; sum > 0 {
		w *= o.recent.Dropped / sum
	}
	return w
}

// Judge looks up the packets in the lists that were dropped since it was last called, a
// sample if they are many, and sets weights by the mistakes among them. elapsed is the time
// since the last call, and loaded when the engine was loaded.
func (o *Observer) Judge(e *engine.Generation, c Counted, at, elapsed time.Duration, loaded time.Time) {
	o.Follow(e, at)
	now := Mistakes{Dropped: o.early + o.misjudged(e, at, loaded)}
	o.early = 0
	if o.judging { // what was counted before is not to be judged
		now.Spared = float64(c.Spared - min(c.Spared, o.counted.Spared))
		now.Passed = float64(c.Clean - min(c.Clean, o.counted.Clean))
	}
	o.counted, o.judging = c, true
	o.recent.add(now, math.Exp2(-float64(elapsed)/float64(measuredHalfLife)))
	o.all.add(now, 1)
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
			if p.Lost != 0 || p.Out || !p.Time.After(loaded) || e.Blocks(p.Tuple) {
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
