// Package predict predicts how many packets a filter with weights drops by mistake.
package predict

import (
	"math"

	"weir/filter/membership"
)

// Dropped returns the share of packets that are dropped by mistake after a number of unlisted
// packets, given the shares of all elements in the traffic, the largest first, the rate of a
// filter without weights, and the buckets of its hot table. Each dropped packet was seen.
//
// The filter passes an element whatever its share is. An element with a share r has its
// weight unless none of the n packets was its own, which has the probability exp(−rn), or its
// bucket is full of elements that were seen and have larger shares.
func Dropped(shares []float64, rate float64, buckets int, packets float64) (dropped float64) {
	var larger float64 // seen elements with larger shares that the filter passes
	for _, r := range shares {
		seen := -math.Expm1(-r * packets)
		dropped += r * rate * (1 - seen*membership.HotRoom(larger, buckets))
		larger += rate * seen
	}
	return dropped
}
