package learn

import (
	"log/slog"
	"math"
	"time"

	"weir/control/engine"
	"weir/control/observe/events"
	"weir/filter/membership"
	"weir/filter/verdict"
	"weir/loader"
)

// Observer learns weights from a tracker's reports, publishes them to the engine
// that filters, and measures the rate of false positives. It is not safe for
// concurrent use.
type Observer struct {
	learner *Learner
	weights Weights
	hub     *events.Hub
	log     *slog.Logger

	// wrong is the number of packets that are on no list and that the cascade
	// took for listed ones, unlisted the number of packets on no list. Old counts
	// fade.
	wrong, unlisted float64
	refuted, clean  uint64 // counters as last read
	judging         bool   // they have been read

	judged <-chan events.Event // listed packets; nil where the table judges
	end    func()
}

// measuredHalfLife is long against the time between two false positives.
const measuredHalfLife = 5 * time.Minute

// NewObserver returns an observer that knows nothing yet.
func NewObserver(c Config, hub *events.Hub, log *slog.Logger) *Observer {
	return &Observer{learner: New(c), hub: hub, log: log}
}

// Configure changes the half-life and the number of elements with weights; what
// was learned stays.
func (o *Observer) Configure(c Config) {
	o.learner.HalfLife, o.learner.Elements = c.HalfLife, c.Elements
}

// HalfLife returns the half-life of what is learned.
func (o *Observer) HalfLife() time.Duration { return o.learner.HalfLife }

// Weights returns the current weights.
func (o *Observer) Weights() Weights { return o.weights }

// Hot returns the number of elements that have bits of their own.
func (o *Observer) Hot() (n int) {
	for _, e := range o.weights.Elements {
		if e.K > o.weights.Base {
			n++
		}
	}
	return n
}

// Learn takes in an interval, and publishes the weights that follow to an engine.
// The zero interval brings what was learned before to the next engine.
func (o *Observer) Learn(i Interval, e *engine.Generation) {
	o.weights = o.learner.Learn(i, e.Block)
	if _, err := Publish(e.Block, o.weights, loader.Grace); err != nil {
		o.log.Error("the weights are not active: " + err.Error())
	}
}

// Measured returns the share of packets on no list that the cascade takes for
// listed ones, and of how many packets; nil while there were none.
func (o *Observer) Measured() (rate *float64, packets float64) {
	if o.unlisted < 1 {
		return nil, o.unlisted
	}
	return new(o.wrong / o.unlisted), o.unlisted
}

// Judges reports whether Judge has to be called often, lest events are missed.
func (o *Observer) Judges(e *engine.Generation) bool { return e.Block.Mode != membership.Exact }

// Judge counts the false positives since it was last called. In exact mode, the
// table refutes them; in approximate mode a sample of the dropped packets is
// looked up in the lists. clean and refuted are the programs' counters, elapsed
// the time since the last call, and loaded when the engine was loaded.
func (o *Observer) Judge(e *engine.Generation, clean, refuted uint64, elapsed time.Duration, loaded time.Time) {
	exact := e.Block.Mode == membership.Exact
	var wrong, passed float64
	if !exact {
		wrong = o.misjudged(e, loaded)
	} else {
		o.Close()
	}
	passed = float64(clean - o.clean)
	if exact {
		wrong = float64(refuted - o.refuted)
	} else {
		passed += wrong
	}
	if !o.judging { // what was counted before is not to be judged
		wrong, passed = 0, 0
	}
	o.clean, o.refuted, o.judging = clean, refuted, true
	fade := math.Exp2(-float64(elapsed) / float64(measuredHalfLife))
	o.wrong, o.unlisted = o.wrong*fade+wrong, o.unlisted*fade+passed
}

// judgeOneIn is the sampling rate of listed packets in approximate mode.
const judgeOneIn = 256

// misjudged returns the number of packets, since it was last called, that were
// taken for listed ones and are not.
func (o *Observer) misjudged(e *engine.Generation, loaded time.Time) (wrong float64) {
	if o.judged == nil {
		o.judged, o.end = o.hub.Subscribe(events.Want{
			Reasons: []verdict.Reason{verdict.Blocked, verdict.WouldBlock}, OneIn: judgeOneIn,
		})
	}
	for {
		select {
		case p, ok := <-o.judged:
			if !ok {
				return wrong // the hub has ended
			}
			// The lists of an earlier engine are gone.
			if p.Lost == 0 && p.Time.After(loaded) && !e.Blocks(p.Tuple) {
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
