package membership

import (
	"math"
)

// Demand describes the unlisted elements that a cascade passes, as far as they are known.
type Demand struct {
	Elements int     // that are known
	Known    float64 // packets per second of those
	Others   float64 // of all others

	Sightings *Sightings // elements of each class of networks; nil: too few are known
}

// weightsCost bounds what the hot table costs where nothing is known of the traffic: with its
// memory in the cascade, the rate would be lower by this factor.
const weightsCost = 1.02

// PlanWeights reserves room for the weights of at most that many elements, possibly 0. Of all
// elements, only those get weights that the cascade passes.
//
// Without a demand the table stays so small that the set is never worse by more than 2 % than
// one of the same memory without weights. With one, it becomes larger as long as its next
// bytes save more there than in the cascade.
func (l *Layout) PlanWeights(most int, d Demand) {
	l.PlanHot(most)
	if l.Mode != Approximate || l.HotBuckets == 0 {
		return
	}
	largest, least := l.HotBuckets, math.Inf(1)
	for b := uint32(MinHotBuckets); b <= largest; b *= 2 {
		cost := l.hotCost(b)
		if b == MinHotBuckets || cost <= weightsCost {
			l.HotBuckets, least = b, d.left(b)*cost
		} else if left := d.left(b) * cost; left < least {
			l.HotBuckets, least = b, left
		}
	}
}

// hotCost returns how many times lower the rate would be with the memory of the buckets in the
// cascade.
func (l *Layout) hotCost(buckets uint32) float64 {
	larger := *l
	larger.Lines += buckets
	return l.FalsePositiveRate(l.Capacity) / larger.FalsePositiveRate(l.Capacity)
}

// left returns the share of the packets that are still dropped with n buckets.
func (d Demand) left(n uint32) float64 {
	all := d.Known + d.Others
	if all == 0 {
		return 1
	}
	return 1 - d.Known/all*HotRoom(float64(d.Elements), int(n))
}

// HotRoom returns the probability that an element finds room in its bucket beside others that
// come before it: their number there is a Poisson variable.
func HotRoom(others float64, buckets int) (p float64) {
	if buckets == 0 {
		return 0
	}
	mean := others / float64(buckets)
	term := math.Exp(-mean)
	for i := range BucketSlots {
		p += term
		term *= mean / float64(i+1)
	}
	return p
}
