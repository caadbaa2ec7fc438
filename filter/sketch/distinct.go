package sketch

import (
	"math"
	"sync/atomic"
)

// Distinct estimates how many flows the banks of one tracker have counted. A
// flow that several of them have seen counts once.
//
// It is linear counting (Whang, Vander-Zanden and Taylor, "A linear-time
// probabilistic counting algorithm for database applications", 1990): a flow
// has one of the V counters of each row, so that after n flows e^(−n/V) of the
// counters are zero. All banks hash alike, and a counter is zero if it is in
// all of them. Flows that are in the memory, and may have never raised the
// sketch, are thought to have raised it: what their counters say is then the
// same, whether they did or not.
//
// The standard deviation is below V^(−1/2)·e^(t/2)/t of the estimate, t being
// n/V: a percent for a sketch of some thousands of lines and a flow for each
// counter. Where no counter is zero any more, from some V·ln V flows on, the
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
				continue // kept, and not seen again
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
