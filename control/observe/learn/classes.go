package learn

import (
	"slices"
	"time"

	"weir/filter/key"
	"weir/filter/membership"
)

// classes estimates how many unlisted elements each class of networks sends, by those that were found
// because a set passes them. Where a set passes few, as in classes with many bits, few are found, and what
// was known before stays.
type classes struct {
	all     int                    // that were found
	found   membership.ClassCounts // of each class
	exposed membership.ClassCounts // seconds, times the rate at which sets passed elements of the class
	since   time.Duration          // until when that is known
}

// Of less than leastFound elements, chance decides which classes have some. After mostFound, what was
// before counts half.
const (
	leastFound = 512
	mostFound  = 1 << 16
)

// add counts an element that was found, once.
func (c *classes) add(k key.Key) {
	c.found.Add(k, 1)
	if c.all++; c.all < mostFound {
		return
	}
	c.all /= 2
	for i := range c.found {
		c.found[i] /= 2
		c.exposed[i] /= 2
	}
}

// expose takes in that the set, nil for none, has passed elements up to now.
func (c *classes) expose(s *membership.Set, now time.Duration) {
	seconds := (now - c.since).Seconds()
	c.since = now
	if s == nil || s.Mode != membership.Approximate || seconds <= 0 {
		return
	}
	var rates [membership.MaxExtra + 1]float64
	for i := range c.exposed {
		extra := 0
		if s.Classes != nil {
			extra = int(s.Classes[i])
		}
		if rates[extra] == 0 {
			rates[extra] = s.HotFalsePositiveRate(s.Len(), extra)
		}
		c.exposed[i] += seconds * rates[extra]
	}
}

// elements returns how many elements would have been found of each class if sets had passed those of all at
// one rate; nil where too few were found.
func (c *classes) elements() *membership.ClassCounts {
	if c.all < leastFound {
		return nil
	}
	var all membership.ClassCounts
	most := slices.Max(c.exposed[:])
	for i, n := range c.found {
		if c.exposed[i] > 0 {
			all[i] = n * most / c.exposed[i]
		}
	}
	return &all
}
