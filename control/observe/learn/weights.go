package learn

import (
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
//
// Of an unlisted one that is known, x_e is 0: no bit of it is set, so that its bits cost
// the filter nothing, and the optimum is as many as the bound allows (Bruck, Gao and
// Jiang, equation 4; [weighted.Universe.Optimal]). So the filter is one for the cold
// elements, for which the layout has chosen k as the best.
func (l *Learner) weigh(s *membership.Set) Weights {
	w := Weights{Base: s.First + s.Rest}
	if l.packets == 0 || s.Len() == 0 {
		return w
	}
	most := max(w.Base, weighted.Dropping.Most)
	base, hot := s.HotFalsePositiveRate(s.Len(), 0), s.HotFalsePositiveRate(s.Len(), most-w.Base)
	inHot := make(map[key.Shape]float64) // packets per second
	var share float64                    // of the packets of unlisted elements
	for _, e := range l.hottest[:min(len(l.hottest), l.Elements)] {
		inHot[e.key.Shape] += e.rate
		of := Weight{Key: e.key, Rate: e.rate / l.seen, Share: e.rate / l.packets, K: w.Base}
		if of.Listed = s.Listed != nil && s.Listed(e.key); !of.Listed {
			of.K, of.Contribution = most, of.Share*hot
			w.Predicted += of.Contribution
			share += of.Share
		}
		w.Elements = append(w.Elements, of)
	}
	var cold float64 // packets per second of no hot element
	for _, shape := range shapes(s) {
		cold += max(0, l.packetsOf(shape)-inHot[shape])
	}
	w.Predicted += cold / l.packets * base
	w.Uniform = (share + cold/l.packets) * base
	return w
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
