// Package predict predicts how many packets a filter with weights drops by mistake.
package predict

import (
	"math"
	"math/rand/v2"

	"weir/filter/membership"
)

// Dropped returns the share of packets that are dropped by mistake after a number of unlisted packets
// from which weights were learned, given the shares of all elements in the traffic, the rate of a
// filter without weights, and the buckets of its hot table. It runs a model once, which has the
// learner's rules and nothing else of weir: callers take the mean of several runs.
//
// The filter passes an element whatever its share is, and its packets are a Poisson process. Each
// that is dropped is seen. The element gets its weight then if its bucket has room, or it is certain
// to have more packets than one that is there: the packets of an element with a weight are not seen.
func Dropped(r *rand.Rand, shares []float64, rate float64, buckets int, packets float64) (dropped float64) {
	var next Arrivals[*element]
	for i := skip(r, rate); i < len(shares); i += 1 + skip(r, rate) {
		e := &element{share: shares[i]}
		if buckets > 0 {
			e.bucket = r.IntN(buckets)
		}
		dropped += e.share
		next.Add(r.ExpFloat64()/e.share, e)
	}
	if buckets == 0 {
		return dropped
	}
	table := make([][]*element, buckets)
	for e, now := range next.Until(packets) {
		e.seen++
		in := table[e.bucket]
		if len(in) == membership.BucketSlots {
			lowest := 0
			for i := range in {
				if in[i].rate(now) < in[lowest].rate(now) {
					lowest = i
				}
			}
			if in[lowest].rate(now) >= e.rate(now) {
				next.Add(now+r.ExpFloat64()/e.share, e)
				continue
			}
			out := in[lowest]
			out.hot, out.since = false, now
			dropped += out.share
			next.Add(now+r.ExpFloat64()/out.share, out)
			in[lowest] = e
		} else {
			table[e.bucket] = append(in, e)
		}
		e.exposed += now - e.since
		e.hot = true
		dropped -= e.share
	}
	return dropped
}

// Mean returns the mean of n runs of Dropped, and its standard deviation.
func Mean(n int, run func() float64) (mean, deviation float64) {
	var sum, squares float64
	for range n {
		x := run()
		sum += x
		squares += x * x
	}
	mean = sum / float64(n)
	return mean, math.Sqrt(max(squares/float64(n)-mean*mean, 0))
}

// skip returns how many elements the filter does not pass before the next one that it does.
func skip(r *rand.Rand, rate float64) int {
	return int(min(-r.ExpFloat64()/math.Log1p(-rate), math.MaxInt32))
}

// element is one that the filter passes. Times are counted in packets of all elements.
type element struct {
	share   float64
	bucket  int
	seen    int     // packets that were dropped
	exposed float64 // the time that it has had no weight, up to since
	since   float64 // when it got its weight, or lost it
	hot     bool
}

// rate estimates an element's share: a standard deviation below the most likely one.
func (e *element) rate(now float64) float64 {
	exposed := e.exposed
	if !e.hot {
		exposed += now - e.since
	}
	n := float64(e.seen)
	return (n - math.Sqrt(n)) / max(exposed, 1)
}
