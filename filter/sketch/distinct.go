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
// A cold filter is a further row. It has all flows while it counts the first packets of each, and
// hardly any where its share is nothing, while the memory has room to spare. So the larger of the
// two estimates counts; in an interval in which that changes it is half of the truth at least. Its
// hash spreads keys that follow one another more evenly than chance does, as addresses in turn:
// of these up to twice as many are estimated.
//
// The standard deviation is below V^(−1/2)·e^(t/2)/t of the estimate, t being
// n/V: one percent for a sketch of a few thousand lines and one flow per
// counter. If no counter is zero any more, from about V·ln V flows on, the
// estimate is a lower bound.
func Distinct(banks ...*Bank) float64 {
	if len(banks) == 0 {
		return 0
	}
	raised, cold := make([]bool, len(banks[0].sketch.counters)), make([]bool, len(banks[0].cold))
	seen := make(map[uint64]bool) // whether a flow in a memory was seen in this interval: kept ones may not have been
	var buf [MaxRows]int
	for _, b := range banks {
		for i := range b.sketch.counters {
			raised[i] = raised[i] || atomic.LoadUint32(&b.sketch.counters[i]) != 0
		}
		for i, n := range b.cold {
			cold[i] = cold[i] || n != 0
		}
		for f := range b.Flows() {
			seen[f.Hash] = seen[f.Hash] || f.Packets > 0
			if f.Packets == 0 {
				continue
			}
			for _, i := range b.sketch.at(f.Hash, &buf) {
				raised[i] = true
			}
		}
	}
	unseen := 0.
	for _, is := range seen {
		if !is {
			unseen++
		}
	}
	return max(linear(raised)/sketchRows, linear(cold)-unseen)
}

// linear returns the number of things each of which has raised one counter.
func linear(raised []bool) float64 {
	zero := 0
	for _, r := range raised {
		if !r {
			zero++
		}
	}
	all := float64(len(raised))
	return all * math.Log(max(all, 1)/float64(max(zero, 1)))
}
