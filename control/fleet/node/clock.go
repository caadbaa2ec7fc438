package node

import (
	"slices"
	"sync/atomic"
	"time"
)

const (
	// leastDifference is a difference of clocks that cannot be distinguished from a delay on the way.
	leastDifference = 10 * time.Second

	// lastCatalogs are how many catalogs the difference is the least of.
	lastCatalogs = 3
)

// clock is the clock of the hub, by which entries expire, as estimated from catalogs that come live.
type clock struct {
	local func() time.Time // [time.Now], but in tests
	ahead atomic.Int64     // of the hub's clock, the local one; 0: they agree, or the hub was not heard yet
	last  []time.Duration  // the last differences; those of one goroutine
}

// now returns the time by the hub's clock.
func (c *clock) now() time.Time { return c.local().Add(-time.Duration(c.ahead.Load())) }

// hear takes in that what was issued at a time has just come. It reports whether the time
// has changed.
func (c *clock) hear(issued time.Time) bool {
	c.last = append(c.last, c.local().Sub(issued))
	c.last = c.last[max(0, len(c.last)-lastCatalogs):]
	ahead := slices.Min(c.last) // the others were longer on their way
	if newest := c.last[len(c.last)-1]; newest > ahead+leastDifference && len(c.last) < lastCatalogs {
		return false
	}
	before := time.Duration(c.ahead.Load())
	switch {
	case ahead.Abs() < leastDifference:
		ahead = 0
	case (ahead - before).Abs() < leastDifference/2:
		return false
	}
	c.ahead.Store(int64(ahead))
	return ahead != before
}
