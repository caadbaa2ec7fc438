package learn

import (
	"errors"
	"slices"

	"weir/filter/membership"
)

// Published is the result of Publish.
type Published struct {
	Changed int // elements whose weight changed, including removed ones
	Refused int // elements without room in the hot table, the coolest of their buckets
}

// Publish writes the weights that were learned for a set to its hot table:
// first it removes elements, then it sets the weights of the others, the
// hottest first. It takes a few operations for each element and each slot of
// the table.
//
// Bits that listed elements no longer need are cleared after a grace period:
// wait must return when every program has ended that was running when it was
// called. It is called only if there are such bits. The set may be changed
// meanwhile, but not by Publish.
//
// An error means that the set cannot have weights; see
// [membership.Set.SetWeight].
func Publish(s *membership.Set, w Weights, wait func()) (p Published, err error) {
	hashes := make([]uint64, len(w.Elements))
	hot := make(map[uint64]bool, len(w.Elements))
	order := make([]int, len(w.Elements))
	for i, e := range w.Elements {
		hashes[i], order[i] = e.Key.Hash(s.Secret), i
	}
	// Of a bucket, those of the most bits come first, then the hottest.
	slices.SortStableFunc(order, func(i, j int) int { return w.Elements[j].K - w.Elements[i].K })
	inBucket := make(map[int]int)
	for _, i := range order {
		bucket := s.WeightBucket(hashes[i])
		if w.Elements[i].K > w.Base && inBucket[bucket] < membership.BucketSlots {
			inBucket[bucket]++
			hot[hashes[i]] = true
		}
	}
	for h := range s.Weights() {
		if !hot[h] {
			s.Cool(h)
			p.Changed++
		}
	}
	for i, e := range w.Elements {
		extra := e.K - w.Base
		if s.Weight(hashes[i]) == extra {
			continue
		}
		if extra > 0 && !hot[hashes[i]] {
			p.Refused++
			continue
		}
		if err = s.SetWeight(e.Key, extra); err == nil {
			p.Changed++
		} else if errors.Is(err, membership.ErrHotFull) {
			p.Refused++
			err = nil
		} else {
			break
		}
	}
	if s.Unsettled() {
		wait()
		s.Settle()
	}
	return p, err
}
