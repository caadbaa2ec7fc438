package learn

import (
	"time"

	"weir/filter/key"
	"weir/filter/membership"
)

// classes counts the unlisted elements of each class of networks that were found.
type classes struct {
	membership.Sightings
	all   int           // that were found, of a class
	since time.Duration // until when they were exposed
}

// Of less than leastFound elements, chance decides which classes have some. After mostFound, what was
// before counts half.
const (
	leastFound = 512
	mostFound  = 1 << 16
)

// add counts an element that was found, once.
func (c *classes) add(k key.Key) {
	if !c.Found.Add(k) {
		return
	}
	if c.all++; c.all < mostFound {
		return
	}
	c.all /= 2
	for i := range c.Found {
		c.Found[i] /= 2
		c.Exposed[i] /= 2
	}
}

// follow takes in that another set passes elements from now on than the last one, nil for none. What
// a process before this one has found stays, if the set has been planned by it.
func (c *classes) follow(last, next *membership.Set, now time.Duration) {
	c.expose(last, now)
	if next.Sightings == nil || c.all > 0 {
		return
	}
	c.Sightings = *next.Sightings
	for _, n := range c.Found {
		c.all += int(n)
	}
}

// expose takes in that the set, nil for none, has passed elements up to now.
func (c *classes) expose(s *membership.Set, now time.Duration) {
	seconds := (now - c.since).Seconds()
	c.since = now
	if s == nil || s.Mode != membership.Approximate || seconds <= 0 {
		return
	}
	rates := s.ClassRates(s.Len())
	for i := range c.Exposed {
		extra := 0
		if s.Classes != nil {
			extra = int(s.Classes[i])
		}
		c.Exposed[i] += seconds * rates[extra]
	}
}

// known returns what was found, nil where that is too little.
func (c *classes) known() *membership.Sightings {
	if c.all < leastFound {
		return nil
	}
	s := c.Sightings
	return &s
}
