// Package learn finds the elements of unlisted traffic that the filter of approximate
// mode takes for listed ones, and gives them weights: additional bits of the cascade that
// are tested for them only, so that their packets are no longer dropped.
//
// An element is a key that a set can list, derived from a packet by a shape in use. It is
// found by its own packets: programs report a sample of the dropped ones, and some are on no
// list. So the hot table has no others than elements that the cascade
// passes, a hundredth or less of all, and the hottest come first, since they have the most
// packets to be found by. Package weighted has the mathematics of weights.
//
// An unlisted element gets a k_e by the weighted Bloom filter papers: no bit of it is set, so that
// its queries can test as many as there may be, 24, at no cost. The hot table is sized by what its
// bytes save (membership.Layout.PlanWeights). Where buckets are full, elements that were dropped
// again and again replace others. Programs count the packets that weights save, and the prediction
// is compared with that. Of cold elements, the class of their network has a k_e, by theorem 3.1
// from the entries in it and the elements that were found (membership.Layout.PlanClasses): a
// constant of the program, chosen when an engine is built. Another is built for it where that
// would halve the mistakes.
package learn

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"time"

	"weir/filter/fpr"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/weighted"
)

// Defaults of a Config.
const (
	// DefaultHalfLife is long against the pauses of a host that is still there.
	DefaultHalfLife = 10 * time.Minute
	// DefaultElements does not limit a set of less than some hundred million entries:
	// [membership.Layout.PlanWeights] does.
	DefaultElements = 1 << 16
)

// Config configures a Learner.
type Config struct {
	HalfLife time.Duration // of an element's rate, by which it competes for room; 0: DefaultHalfLife
	Elements int           // maximum number with weights; 0: DefaultElements
}

// Learner knows the elements of a set that have weights, and others that have found no
// room. It is not safe for concurrent use.
type Learner struct {
	Config
	set      *membership.Set // that has the weights; nil: none yet
	began    time.Duration   // when the learner began to follow it
	elements map[key.Key]*element
	hot      map[int][]*element // those with weights, by the bucket of the hot table
	refused  uint64             // packets of elements that had no room
	classes  classes
	rates    rates
	tally    tally
}

// tally counts mistakes since recount was called.
type tally struct {
	packets float64
	squares float64 // of the packets of each element, their sum
}

// rates are predictions, which take some milliseconds to compute.
type rates struct {
	keys           int // that the set had
	uniform, equal float64
}

// element is an unlisted key with packets that were dropped.
type element struct {
	key     key.Key
	packets float64 // that were dropped
	lately  float64 // of these, since the learner's tally began
	times   int     // that it was seen to be dropped
	found   time.Duration
	seen    time.Duration // when it was dropped last
	exposed time.Duration // for how long it has had no weight, up to since
	since   time.Duration // when it last lost its weight, or got it
	hot     bool
}

// rate estimates an element's packets per second: the number of dropped ones, divided by the time
// without a weight. For a new element that begins when the set was first known, at most a half-life
// ago. With a weight an element has no packets to count, and its rate halves after each half-life.
//
// Elements are compared by it, and of many with few packets, some were seen often by chance. So
// the estimate is one standard deviation below the most likely one: that of n events of a Poisson
// process is √n. An element that was seen once has a rate of 0. It comes back with its next
// packets, if it has any.
func (l *Learner) rate(e *element, at time.Duration) float64 {
	exposed := e.exposed
	if !e.hot {
		exposed += at - e.since
	}
	certain := 1 - 1/math.Sqrt(float64(e.times))
	return certain * e.packets / max(exposed, time.Millisecond).Seconds() * e.fade(at, l.HalfLife)
}

// beganOrLater returns when the set was first known, or the last half-life began.
func (l *Learner) beganOrLater(at time.Duration) time.Duration { return max(l.began, at-l.HalfLife) }

func (e *element) fade(at, halfLife time.Duration) float64 {
	return math.Exp2(-float64(at-e.seen) / float64(halfLife))
}

// setHot says since when the element has its weight, or none.
func (e *element) setHot(hot bool, at time.Duration) {
	if e.hot != hot {
		if hot {
			e.exposed += at - e.since
		}
		e.hot, e.since = hot, at
	}
}

// New returns a Learner that knows nothing.
func New(c Config) *Learner {
	c.HalfLife = cmp.Or(c.HalfLife, DefaultHalfLife)
	c.Elements = cmp.Or(c.Elements, DefaultElements)
	return &Learner{Config: c, elements: make(map[key.Key]*element), hot: make(map[int][]*element)}
}

// Follow makes the learner learn for a set, which must not be changed meanwhile; an
// approximate one needs its Listed. Elements that are known from an earlier set get
// weights in this one if its cascade passes them, too.
func (l *Learner) Follow(s *membership.Set, at time.Duration) error {
	if l.set == s {
		return nil
	}
	l.classes.follow(l.set, s, at)
	l.set, l.began, l.rates = s, at, rates{}
	clear(l.hot)
	order := make([]*element, 0, len(l.elements))
	for _, e := range l.elements {
		e.setHot(false, at)
		order = append(order, e)
	}
	l.sort(order, at)
	for h := range s.Weights() { // of elements that may have been forgotten since
		s.Cool(h)
	}
	for _, e := range order {
		if s.Passes(e.key) && !l.isListed(e.key) {
			if err := l.heat(e, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// sort orders elements, those with the highest rates first, and of equal ones those that were seen last.
func (l *Learner) sort(all []*element, at time.Duration) {
	rates := make(map[*element]float64, len(all))
	for _, e := range all {
		rates[e] = l.rate(e, at)
	}
	slices.SortFunc(all, func(a, b *element) int {
		return cmp.Or(cmp.Compare(rates[b], rates[a]), cmp.Compare(b.seen, a.seen), a.key.Compare(b.key))
	})
}

func (l *Learner) isListed(k key.Key) bool { return l.set.Listed != nil && l.set.Listed(k) }

// Mistake takes in packets of an unlisted element of the set that were dropped: it gets
// its weight at once. Where its bucket is full, it replaces the one with the lowest rate, if its
// own is higher: a source with one packet, as in a flood of forged ones, replaces nothing.
func (l *Learner) Mistake(k key.Key, packets float64, at time.Duration) error {
	e := l.elements[k]
	if e == nil {
		if len(l.elements) >= l.room() {
			l.forget(at)
		}
		e = &element{key: k, found: at, since: l.beganOrLater(at)}
		l.elements[k] = e
		l.classes.add(k, l.set.Hash(k), at)
	}
	e.seen = at
	e.packets += packets
	l.tally.add(e, packets)
	e.times++
	if e.hot { // it was dropped before it had its weight
		return nil
	}
	err := l.heat(e, at)
	if !e.hot {
		l.refused += uint64(packets)
	}
	return err
}

// add counts packets of an element that were dropped.
func (t *tally) add(e *element, packets float64) {
	t.squares += packets * (2*e.lately + packets)
	e.lately += packets
	t.packets += packets
}

// recount begins the tally anew.
func (l *Learner) recount() {
	l.tally = tally{}
	for _, e := range l.elements {
		e.lately = 0
	}
}

// heat sets the weight of an element if there is room for it.
func (l *Learner) heat(e *element, at time.Duration) error {
	// Of an element that is known to be unlisted, x_e is 0: no bit of it is set, so that
	// its bits cost the filter nothing, and the optimum is as many as the bound allows
	// (Bruck, Gao and Jiang, equation 4; [weighted.Universe.Optimal]).
	extra := weighted.Dropping.Most - l.base()
	h := l.set.Hash(e.key)
	if extra <= l.set.Classes.Extra(h) {
		return nil // it has as many in any case
	}
	bucket := l.set.WeightBucket(h)
	in := l.hot[bucket]
	if len(in) == membership.BucketSlots {
		lowest := slices.MinFunc(in, func(a, b *element) int {
			return cmp.Compare(l.rate(a, at), l.rate(b, at))
		})
		if l.rate(lowest, at) >= l.rate(e, at) {
			return nil
		}
		l.cool(lowest, at)
		in = l.hot[bucket]
	}
	switch err := l.set.SetWeight(e.key, extra); {
	case errors.Is(err, membership.ErrHotFull): // there is no hot table
		return nil
	case err != nil:
		return err
	}
	e.setHot(true, at)
	l.hot[bucket] = append(in, e)
	return nil
}

// cool takes the weight from an element.
func (l *Learner) cool(e *element, at time.Duration) {
	h := l.set.Hash(e.key)
	l.set.Cool(h)
	e.setHot(false, at)
	bucket := l.set.WeightBucket(h)
	l.hot[bucket] = slices.DeleteFunc(l.hot[bucket], func(o *element) bool { return o == e })
}

func (l *Learner) base() int { return l.set.First + l.set.Rest }

// room is how many elements are remembered: more than can have weights, to know how many the
// next set should have room for.
func (l *Learner) room() int {
	return min(8*max(membership.MinHotBuckets, int(l.set.HotBuckets))*membership.BucketSlots, 2*max(l.Elements, 1024))
}

// Demand describes the elements that the set passes. A flood of forged sources,
// each with one packet, is among the others.
func (l *Learner) Demand(at time.Duration) (d membership.Demand) {
	half := (at - l.began) / 2
	for _, e := range l.elements {
		if e.times > 1 || e.hot {
			d.Elements++
			d.Known += l.rate(e, at)
		}
		if e.found > l.began+half {
			d.Others++
		}
	}
	d.Others /= max(half, time.Millisecond).Seconds()
	l.classes.expose(l.set, at)
	d.Sightings = l.classes.known()
	return d
}

// forget drops half of the elements without weights, those with the lowest rates.
func (l *Learner) forget(at time.Duration) {
	var cold []*element
	for _, e := range l.elements {
		if !e.hot {
			cold = append(cold, e)
		}
	}
	l.sort(cold, at)
	for _, e := range cold[len(cold)/2:] {
		delete(l.elements, e.key)
	}
}

// Tidy removes the weights of elements that have been listed or that the cascade passes no
// longer, and forgets elements without weights that have faded away.
//
// Bits that listed elements no longer need are cleared after a grace period: wait must
// return when every program has ended that was running when it was called. It is called
// only if there are such bits.
func (l *Learner) Tidy(at time.Duration, wait func()) {
	if l.set == nil {
		return
	}
	for k, e := range l.elements {
		switch {
		case e.hot && (!l.set.Passes(k) || l.isListed(k)):
			l.cool(e, at)
		case !e.hot && e.packets*e.fade(at, l.HalfLife) < 0.5:
			delete(l.elements, k)
		}
	}
	l.classes.expose(l.set, at)
	if l.set.Unsettled() {
		wait()
		l.set.Settle()
	}
}

// Weights are the weights of a set.
type Weights struct {
	Base     int      // k, the bits of every element
	Elements []Weight // the ones with the most packets that were dropped first

	// Uniform is the predicted share of unlisted packets that are dropped with k bits for
	// all, or those of their class, where a packet is looked up in all shapes of its family.
	Uniform float64
	Classes []membership.ClassShare // of networks, by their extra bits; nil: all have k bits
	Equal   float64                 // Uniform, if all had the same number of bits in the same memory
	Refused uint64                  // packets that were dropped of elements that had no room
}

// Weight is the weight of one element.
type Weight struct {
	Key     key.Key
	Dropped float64 // packets that were dropped before it had its weight
	K       int     // k_e, the bits of the element
	Found   time.Duration
}

// Weights returns the weights of the set.
func (l *Learner) Weights() Weights {
	if l.set == nil {
		return Weights{}
	}
	r := l.predict()
	w := Weights{Base: l.base(), Uniform: r.uniform, Equal: r.equal, Refused: l.refused, Classes: l.set.ClassShares}
	var order []*element
	for _, in := range l.hot {
		order = append(order, in...)
	}
	slices.SortFunc(order, func(a, b *element) int {
		return cmp.Or(cmp.Compare(b.packets, a.packets), a.key.Compare(b.key))
	})
	for _, e := range order {
		w.Elements = append(w.Elements, Weight{e.key, e.packets, max(w.Base, weighted.Dropping.Most), e.found})
	}
	return w
}

// Hot returns the number of elements with weights.
func (l *Learner) Hot() (n int) {
	for _, in := range l.hot {
		n += len(in)
	}
	return n
}

// predict returns the predictions for the set.
func (l *Learner) predict() rates {
	n := l.set.Len()
	if n == 0 {
		return rates{}
	}
	if n == l.rates.keys {
		return l.rates
	}
	s := l.set
	uniform := s.FalsePositiveRate(n)
	unclassed, equal := uniform, uniform
	if s.Classes != nil {
		unclassed = s.HotFalsePositiveRate(n, int(s.Classes[membership.NumClasses]))
		equal = fpr.BestCascade(n, s.Lines, fpr.MaxFurther).Rate(n)
	}
	l.rates = rates{n, inShapes(s, uniform, unclassed), inShapes(s, equal, equal)}
	return l.rates
}

// inShapes returns the share of packets of a family that are dropped if each shape mistakes keys at a
// rate, those with classes and others: of the family that has the larger one.
func inShapes(s *membership.Set, classed, unclassed float64) (share float64) {
	for _, shapes := range [][]membership.GatedShape{slices.Concat(s.V4, s.V4Flow), slices.Concat(s.V6, s.V6Flow)} {
		pass := 1.
		for _, g := range shapes {
			rate := classed
			if membership.ClassSide(g.Shape) == 0 {
				rate = unclassed
			}
			pass *= 1 - rate
		}
		share = max(share, 1-pass)
	}
	return share
}

// mistaken calls with each key of a packet that the set takes for a listed one.
func mistaken(s *membership.Set, t key.Tuple, with func(key.Key)) {
	all := [2][]membership.GatedShape{s.V4, s.V4Flow}
	if t.Src.Is6() {
		all = [2][]membership.GatedShape{s.V6, s.V6Flow}
	}
	for _, shapes := range all {
		for _, g := range shapes {
			if k, ok := g.Of(t); ok && s.Passes(k) {
				with(k)
			}
		}
	}
}
