package learn

import (
	"math"
	"time"

	"weir/filter/key"
	"weir/filter/membership"
)

// classes counts the unlisted elements of each class of networks that were found: each once for a set. If
// one that is forgotten and found again counted again, networks would get bits for the sake of elements
// that the next set does not pass.
type classes struct {
	membership.Sightings
	since time.Duration // until when they were exposed

	counted map[uint64]struct{} // elements of the present set, by their hashes
	recent  int                 // of these, since then
	full    bool                // no more count, from a time on
	until   time.Duration
}

const (
	// Of less than leastFound elements, chance decides which classes have some.
	leastFound = 512
	// sightingsHalfLife is long against the days of a host.
	sightingsHalfLife = 3 * 24 * time.Hour
	// mostRecent bounds how many elements count in a tidyPeriod: a flood of forged sources has any number.
	mostRecent = 1000
	// mostCounted bounds how many count for a set, and their memory.
	mostCounted = 1 << 15
)

// add counts an element that was found at a time, given its hash.
func (c *classes) add(k key.Key, h uint64, at time.Duration) {
	if _, again := c.counted[h]; again || c.full || !c.Found.Add(k) {
		return
	}
	c.counted[h] = struct{}{}
	if c.recent++; c.recent == mostRecent || len(c.counted) == mostCounted {
		c.full, c.until = true, at
	}
}

// follow takes in that another set passes elements from now on than the last one, nil for none. What
// a process before this one had found when it planned the set counts, if this one has found nothing.
func (c *classes) follow(last, next *membership.Set, now time.Duration) {
	c.expose(last, now)
	c.counted, c.full = make(map[uint64]struct{}), false
	if next.Sightings != nil && c.found() == 0 {
		c.Sightings = *next.Sightings
	}
}

// expose takes in that the set, nil for none, has passed elements up to now, or as long as they counted.
func (c *classes) expose(s *membership.Set, now time.Duration) {
	passed, seconds := now-c.since, (now - c.since).Seconds()
	if c.full {
		seconds = (c.until - c.since).Seconds()
	}
	c.since, c.recent, c.full = now, 0, len(c.counted) >= mostCounted
	if s == nil || s.Mode != membership.Approximate || passed <= 0 {
		return
	}
	rates := s.ClassRates(s.Len())
	fade := math.Exp2(-float64(passed) / float64(sightingsHalfLife))
	for i := range c.Exposed {
		extra := 0
		if s.Classes != nil {
			extra = int(s.Classes[i])
		}
		c.Found[i] *= fade
		c.Exposed[i] = c.Exposed[i]*fade + max(seconds, 0)*rates[extra]
	}
}

func (c *classes) found() (n float64) {
	for _, found := range c.Found {
		n += found
	}
	return n
}

// known returns what was found, nil where that is too little.
func (c *classes) known() *membership.Sightings {
	if c.found() < leastFound {
		return nil
	}
	s := c.Sightings
	return &s
}
