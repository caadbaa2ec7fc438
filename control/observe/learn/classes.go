package learn

import (
	"slices"
	"time"

	"weir/filter/key"
	"weir/filter/membership"
)

// classes counts the unlisted elements of networks that were found: each once for a set. If
// one that is forgotten and found again counted again, networks would get bits for the sake of elements
// that the next set does not pass.
type classes struct {
	membership.Sightings
	began time.Duration // of the present period
	since time.Duration // until when they were exposed

	counted map[uint64]struct{} // elements of the present set, by their hashes
	recent  int                 // of these, since then
	full    bool                // no more count, from a time on
	until   time.Duration
}

const (
	// Of less than leastFound elements, chance decides which networks have some.
	leastFound = 512
	// periodTime is the least length of a period. Eight of them are long against the hours of a day.
	periodTime = 6 * time.Hour
	// leastInPeriod is how many elements a period has at least.
	leastInPeriod = leastFound / membership.MaxPeriods
	// mostRecent bounds how many elements count in a tidyPeriod: a flood of forged sources has any number.
	mostRecent = 1000
	// mostCounted bounds how many count for a set, and their memory.
	mostCounted = 1 << 15
)

// add counts an element that was found at a time, given its hash.
func (c *classes) add(k key.Key, h uint64, at time.Duration) {
	if _, again := c.counted[h]; again || c.full || !c.present().Add(k) {
		return
	}
	c.counted[h] = struct{}{}
	if c.recent++; c.recent == mostRecent || len(c.counted) == mostCounted || c.present().IsFull() {
		c.full, c.until = true, at
	}
}

// present returns the present period.
func (c *classes) present() *membership.Period {
	if len(c.Periods) == 0 {
		c.Periods = make([]membership.Period, 1)
	}
	return &c.Periods[len(c.Periods)-1]
}

// follow takes in that another set passes elements from now on than the last one, nil for none. What
// a process before this one had found when it planned the set counts, if this one has found nothing.
func (c *classes) follow(last, next *membership.Set, now time.Duration) {
	c.expose(last, now)
	c.counted, c.full = make(map[uint64]struct{}), false
	if next.Sightings != nil && c.found() == 0 {
		c.Sightings, c.began = next.Sightings.Copy(), now
	}
}

// expose takes in that the set, nil for none, has passed elements up to now, or as long as they counted.
func (c *classes) expose(s *membership.Set, now time.Duration) {
	passed, seconds := now-c.since, (now - c.since).Seconds()
	if c.full {
		seconds = (c.until - c.since).Seconds()
	}
	c.since, c.recent = now, 0
	if s != nil && s.Mode == membership.Approximate && passed > 0 {
		p := c.present()
		p.Expose(&s.Layout, s.Len(), max(seconds, 0))
		if now-c.began >= periodTime && p.Found() >= leastInPeriod {
			c.began = now
			c.Periods = append(c.Periods, membership.Period{})
			c.Periods = slices.Delete(c.Periods, 0, max(len(c.Periods)-membership.MaxPeriods-1, 0))
		}
	}
	c.full = len(c.counted) >= mostCounted || c.present().IsFull()
	c.until = now
}

// forget begins the first period anew.
func (c *classes) forget(at time.Duration) {
	c.Sightings, c.began, c.since = membership.Sightings{}, at, at
	c.full = len(c.counted) >= mostCounted
}

func (c *classes) found() (n float64) {
	for i := range c.Periods {
		n += c.Periods[i].Found()
	}
	return n
}

// known returns what was found, nil where that is too little. The present period counts until there are
// enough others: it has few elements at first, and they would say little.
func (c *classes) known() *membership.Sightings {
	if c.found() < leastFound {
		return nil
	}
	s := membership.Sightings{Periods: c.Periods[:min(len(c.Periods), membership.MaxPeriods)]}.Copy()
	return &s
}
