package sketch

import (
	"math"
	"sync/atomic"
)

// Distinct estimates the number of distinct flows that the banks of one tracker
// have counted together.
//
// It is linear counting (Whang, Vander-Zanden and Taylor, "A linear-time
// probabilistic counting algorithm for database applications", 1990): a flow
// has one of the V counters of each row, so that after n flows e^(−n/V) of the
// counters are zero. All banks use the same hash, and a counter is zero if it
// is in all of them. Flows in the memory may never have raised the sketch;
// their counters are treated as nonzero in any case.
//
// The standard deviation is below V^(−1/2)·e^(t/2)/t of the estimate, t being
// n/V: one percent for a sketch of a few thousand lines and one flow per
// counter. If no counter is zero any more, from about V·ln V flows on, the
// estimate is a lower bound.
func Distinct(banks ...*Bank) float64 {
	if len(banks) == 0 {
		return 0
	}
	raised := make([]bool, len(banks[0].sketch.counters))
	var buf [MaxRows]int
	for _, b := range banks {
		for i := range b.sketch.counters {
			raised[i] = raised[i] || atomic.LoadUint32(&b.sketch.counters[i]) != 0
		}
		for f := range b.Flows() {
			if f.Packets == 0 {
				continue // kept, but not seen in this interval
			}
			for _, i := range b.sketch.at(f.Hash, &buf) {
				raised[i] = true
			}
		}
	}
	zero := 0
	for _, r := range raised {
		if !r {
			zero++
		}
	}
	all := float64(len(raised))
	return all / sketchRows * math.Log(all/float64(max(zero, 1)))
}
