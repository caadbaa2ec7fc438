package learn

import (
	"math"
	"slices"

	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/weighted"
)

// Weights are the learned weights, for the set at the time of learning.
//
// False-positive rates are weighted by packets: the share of all packets that
// are false positives of the cascade. A packet that is looked up in several
// shapes counts once for each: the rates of all shapes are added. Markers are
// not considered: what they reject never reaches the cascade.
type Weights struct {
	Base      int      // k, the bits of every element
	Elements  []Weight // the hottest first
	Predicted float64  // false-positive rate with the weights
	Uniform   float64  // and without: k bits for all
}

// Weight is the learned weight of one element.
type Weight struct {
	Key          key.Key
	Rate         float64 // packets per second, smoothed
	Share        float64 // of all packets, 0 … 1
	K            int     // k_e, the bits of the element: Base … 24
	Listed       bool
	Contribution float64 // to Weights.Predicted; 0 for listed elements
}

// weigh assigns k_e to the hottest elements. A listed element keeps k bits: its
// packets cannot be false positives, and its bits would fill the filter.
func (l *Learner) weigh(s *membership.Set) Weights {
	w := Weights{Base: s.First + s.Rest}
	if l.packets == 0 || s.Len() == 0 {
		return w
	}
	hot := l.hottest[:min(len(l.hottest), l.Elements)]
	inHot := make(map[key.Shape]float64) // packets per second
	var unlisted weighted.Universe
	for _, e := range hot {
		shape := e.key.Shape
		inHot[shape] += e.rate
		listed := s.Listed != nil && s.Listed(e.key)
		w.Elements = append(w.Elements, Weight{
			Key: e.key, Rate: e.rate / l.seen, Share: e.rate / l.packets, K: w.Base, Listed: listed,
		})
		if !listed {
			x := density(s.Keys(shape), possible(shape))
			unlisted = append(unlisted, weighted.Class{Count: 1, Frequency: e.rate, Likelihood: x})
		}
	}
	var cold, keys float64 // packets per second of no hot element, and possible keys
	used := shapes(s)
	for _, shape := range used {
		cold += max(0, l.packetsOf(shape)-inHot[shape])
		keys += possible(shape)
	}
	others := weighted.Class{Likelihood: density(s.Len(), keys)}
	if len(hot) > 0 {
		// Their number, which is rarely known, determines how cold they are. It
		// is at least such that none is hotter than the coolest hot element.
		coolest := hot[len(hot)-1].rate
		packets := max(cold, coolest)
		others.Count = max(l.distinct*float64(len(used)), packets/coolest)
		others.Frequency = packets / others.Count
	}
	extra := extraBits(unlisted, others)

	rates := make([]float64, weighted.Dropping.Most-w.Base+1) // by the number of extra bits
	for i := range rates {
		rates[i] = s.HotFalsePositiveRate(s.Len(), i)
	}
	round := weighted.Rounding{Most: len(rates) - 1}
	share := cold / l.packets
	w.Predicted = share * rates[0]
	for i := range w.Elements {
		e := &w.Elements[i]
		if e.Listed {
			continue
		}
		bits := round.Round(extra[0], 0)
		extra = extra[1:]
		e.K += bits
		e.Contribution = e.Share * rates[bits]
		w.Predicted += e.Contribution
		share += e.Share
	}
	w.Uniform = share * rates[0]
	return w
}

// extraBits returns the bits of hot elements beyond those of all others, by
// theorem 3.1 (Bruck, Gao and Jiang, equation 5). Each hot element is a class
// of its own; all others, in all shapes, are the cold class.
//
// The paper chooses all k_e, so that the bits of the members fill half of the
// filter. Here the layout has assigned k bits to every element, including the
// members and the cold class, and the theorem determines the differences: k_e
// is
//
//	k + (theorem's k_e − theorem's k_e of the cold class),
//
// rounded to integers and bounded to k … 24, or 1 … 24 in a filter without base
// bits. The filter's size cancels; it is set to one bit per member. Except for
// the factors 1 − x_e, the difference is log₂(f_e/f_cold).
func extraBits(hot weighted.Universe, cold weighted.Class) []float64 {
	if len(hot) == 0 {
		return nil
	}
	u := append(slices.Clip(hot), cold)
	k := u.Theorem(u.Members())
	for i := range k {
		k[i] -= k[len(hot)]
	}
	return k[:len(hot)]
}

// possible returns the number of all keys of a shape.
func possible(s key.Shape) float64 { return math.Ldexp(1, bits(s)) }

// density returns x_e, the fraction of possible keys that are listed: above 0,
// since keys of a shape in use may be added again, and below 1.
func density(listed int, possible float64) float64 {
	return min(max(1, float64(listed))/possible, math.Nextafter(1, 0))
}

// packetsOf returns the smoothed rate of packets per second for which a shape
// is looked up: those of its family. The trackers count both families together,
// so all packets are split in proportion to the observed flows. Packets without
// ports are counted for shapes with ports, too.
func (l *Learner) packetsOf(s key.Shape) float64 {
	sum := l.observed[0] + l.observed[1]
	if sum == 0 {
		return l.packets
	}
	return l.packets * l.observed[family(s)] / sum
}
