// Package learn finds the hot elements of the traffic and assigns weights to
// them: additional bits of the cascade that are tested for them only, so that
// the filter's false positives avoid the flows that the host really carries.
//
// An element is a key that a set can list, derived from a packet by a shape in
// use. The trackers count the packets of heavy hitters in each interval. Learner
// maps the flows to elements, smooths their rates, and assigns each a k_e as in
// the weighted Bloom filter (package weighted); Publish writes these to the set
// that the data plane uses.
package learn

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"time"

	"weir/filter/key"
	"weir/filter/membership"
)

// Defaults of a Config.
const (
	// DefaultHalfLife is short enough to follow a change of the traffic within
	// a minute or two, and long enough to count a hundred packets of a flow
	// with a few per second.
	DefaultHalfLife = 30 * time.Second
	// DefaultElements takes a hot table of 1 MiB.
	DefaultElements = 1 << 16
)

// Config configures a Learner.
type Config struct {
	HalfLife time.Duration // of the smoothed rates; 0: DefaultHalfLife
	Elements int           // maximum number with weights, in all shapes together; 0: DefaultElements
	Trackers []key.Shape   // the keys by which flows are observed, of both families
}

// Interval is what the trackers counted in a period of time.
type Interval struct {
	Length   time.Duration // above 0
	Packets  uint64        // of all flows
	Flows    []Flow        // the heavy ones, once for each tracker
	Distinct float64       // estimated number of distinct flows, 0: unknown
}

// Flow is a flow that a tracker has observed.
type Flow struct {
	Key     key.Key // of one of the trackers' shapes; ports are 0 where packets have none
	Packets uint64  // in the interval
}

// Learner learns from interval to interval. It remembers twice as many elements
// as have weights, so that one near the threshold does not start from zero each
// time. It is not safe for concurrent use.
type Learner struct {
	Config
	// seen is the total weight of all intervals so far, which approaches 1.
	// Rates are relative to it; otherwise they would take several half-lives to
	// approach the truth.
	seen     float64
	packets  float64    // of all traffic, per second; smoothed like the others
	observed [2]float64 // of the flows observed, IPv4 and IPv6
	distinct float64    // as of the last interval
	elements map[key.Key]*element
	hottest  []*element // the same, by rate
}

// element is a key that a shape in use derives from observed flows.
type element struct {
	key     key.Key
	rate    float64 // packets per second
	packets uint64  // of this interval, not in the rate yet
}

// New returns a Learner without observations.
func New(c Config) *Learner {
	c.HalfLife = cmp.Or(c.HalfLife, DefaultHalfLife)
	c.Elements = cmp.Or(c.Elements, DefaultElements)
	return &Learner{Config: c, elements: make(map[key.Key]*element)}
}

// Learn adds an interval, and returns the weights of the hottest elements of
// the shapes that the set has in use. The set must not be changed meanwhile; an
// approximate one needs its Listed.
//
// Rates are smoothed exponentially in time: an observation counts half after a
// half-life, whatever the number of intervals.
func (l *Learner) Learn(i Interval, s *membership.Set) Weights {
	if i.Length > 0 {
		l.observe(i, shapes(s))
	}
	return l.weigh(s)
}

func (l *Learner) observe(i Interval, shapes []key.Shape) {
	keep := math.Exp2(-float64(i.Length) / float64(l.HalfLife))
	// The contribution of one packet of this interval to a smoothed rate.
	scale := (1 - keep) / i.Length.Seconds()

	l.seen = l.seen*keep + 1 - keep
	l.packets = l.packets*keep + float64(i.Packets)*scale
	l.distinct = i.Distinct
	var observed [2]uint64
	for _, f := range i.Flows {
		observed[family(f.Key.Shape)] += f.Packets
	}
	for f := range observed {
		l.observed[f] = l.observed[f]*keep + float64(observed[f])*scale
	}
	for _, e := range l.hottest {
		e.rate *= keep
	}
	inUse := make(map[key.Shape]bool)
	for _, s := range shapes {
		inUse[s] = true
		if tracker, ok := l.tracker(s); ok {
			l.count(s, tracker, i.Flows)
		}
		if len(l.hottest) > 2*l.Elements {
			l.sort(scale)
			l.cut()
		}
	}
	l.sort(scale)
	l.forget(inUse)
}

// count adds the packets of a tracker's flows to their elements of shape s.
func (l *Learner) count(s, tracker key.Shape, flows []Flow) {
	for _, f := range flows {
		if f.Key.Shape != tracker {
			continue
		}
		k, ok := s.Of(packet(f.Key))
		if !ok {
			continue
		}
		e := l.elements[k]
		if e == nil {
			e = &element{key: k}
			l.elements[k] = e
			l.hottest = append(l.hottest, e)
		}
		e.packets += f.Packets
	}
}

// sort updates the rates with the counts, and orders the elements by rate; ties
// in a deterministic order.
func (l *Learner) sort(scale float64) {
	for _, e := range l.hottest {
		e.rate += float64(e.packets) * scale
		e.packets = 0
	}
	slices.SortFunc(l.hottest, func(a, b *element) int {
		if a.rate != b.rate {
			return cmp.Compare(b.rate, a.rate)
		}
		var left, right [key.MaxLen]byte
		return bytes.Compare(a.key.Append(left[:0]), b.key.Append(right[:0]))
	})
}

// cut drops the coolest elements beyond those that are remembered.
func (l *Learner) cut() {
	most := 2 * l.Elements
	for _, e := range l.hottest[most:] {
		delete(l.elements, e.key)
	}
	clear(l.hottest[most:])
	l.hottest = l.hottest[:most]
}

// forget drops the elements of shapes that are no longer in use, and those that
// have cooled down to less than one packet per half-life.
func (l *Learner) forget(inUse map[key.Shape]bool) {
	least := l.seen / l.HalfLife.Seconds()
	l.hottest = slices.DeleteFunc(l.hottest, func(e *element) bool {
		gone := e.rate < least || !inUse[e.key.Shape]
		if gone {
			delete(l.elements, e.key)
		}
		return gone
	})
}

// tracker returns the shape of the trackers' keys that determines the keys of
// shape s: among several, the one with the fewest distinct flows. It knows most
// of an element's flows; using all would count packets twice.
func (l *Learner) tracker(s key.Shape) (best key.Shape, ok bool) {
	for _, t := range l.Trackers {
		if t.V6() == s.V6() && t.SrcBits >= s.SrcBits && t.DstBits >= s.DstBits && s.Fields&^t.Fields == 0 &&
			(!ok || bits(t) < bits(best)) {
			best, ok = t, true
		}
	}
	return best, ok
}

// packet returns a packet of a flow, as far as its key determines it. A flow
// whose ports are both 0 has none: its protocol has no ports, or its packets
// are later fragments. A shape with ports matches none of its packets, and so
// has no element for it.
func packet(k key.Key) key.Tuple {
	return key.Tuple{
		Src: k.Src, Dst: k.Dst, Proto: k.Proto,
		HasPorts: k.SrcPort != 0 || k.DstPort != 0, SrcPort: k.SrcPort, DstPort: k.DstPort,
	}
}

// shapes returns the shapes of a set whose keys can have weights.
func shapes(s *membership.Set) []key.Shape {
	var all []key.Shape
	for _, kind := range [][]membership.GatedShape{s.V4, s.V4Flow, s.V6, s.V6Flow} {
		for _, g := range kind {
			if s.Hashed(g.Shape) {
				all = append(all, g.Shape)
			}
		}
	}
	return all
}

// bits returns the number of bits that a shape matches.
func bits(s key.Shape) int {
	n := int(s.SrcBits) + int(s.DstBits)
	if s.Fields&key.FieldSrcPort != 0 {
		n += 16
	}
	if s.Fields&key.FieldDstPort != 0 {
		n += 16
	}
	if s.Fields&key.FieldProto != 0 {
		n += 8
	}
	return n
}

// family returns 0 for IPv4, 1 for IPv6.
func family(s key.Shape) int {
	if s.V6() {
		return 1
	}
	return 0
}
