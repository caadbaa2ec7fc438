package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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

// hubClock estimates the hub's clock from its catalogs. Entries expire by it. After the first
// catalog it advances with the monotonic clock, so that a step of the local clock does not
// change it.
type hubClock struct {
	local func() time.Time          // [time.Now], but in tests
	begin atomic.Pointer[time.Time] // when the hub was first heard; nil: not yet
	ahead atomic.Int64              // of the hub's clock, the local one; 0: they agree, or the hub was not heard yet
	last  []time.Duration           // the last differences; those of one goroutine
	saved time.Duration             // ahead as it is in the file; that goroutine's
}

// loadClock takes in how far the steady clock was ahead of the hub's when that was last heard, so that entries
// expire by the hub's clock before the hub is heard, too, however the wall clock is set.
func (n *Node) loadClock() {
	if n.c.Clock == nil {
		return
	}
	text, err := os.ReadFile(n.clockPath())
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		n.clock.saved, err = time.ParseDuration(string(text))
	}
	if err != nil {
		n.log.Error("what has a TTL may end early or late until the hub is heard: " + err.Error())
	}
	n.clock.ahead.Store(int64(n.clock.saved))
}

// saveClock saves what loadClock takes in, where it has changed.
func (n *Node) saveClock() {
	ahead := time.Duration(n.clock.ahead.Load())
	if n.c.Clock == nil || n.dir == "" || n.c.ReadOnly || ahead == n.clock.saved {
		return
	}
	if err := writeFile(n.clockPath(), []byte(ahead.String())); err == nil { // else the next catalog does; saveCatalog says why
		n.clock.saved = ahead
	}
}

func (n *Node) clockPath() string { return filepath.Join(n.dir, "clock") }

// steady returns the time by the local clock as it was when the hub was first heard.
func (c *hubClock) steady() time.Time {
	now, begin := c.local(), c.begin.Load()
	if begin == nil {
		return now
	}
	return begin.Round(0).Add(now.Sub(*begin)) // monotonic
}

// now returns the time by the hub's clock.
func (c *hubClock) now() time.Time { return c.steady().Add(-time.Duration(c.ahead.Load())) }

// here returns a time of the hub by the wall clock of this host as it is set now; zero: zero.
func (c *hubClock) here(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(time.Now().Round(0).Sub(c.now().Round(0)).Round(time.Millisecond))
}

// hear takes in that what was issued at a time has just come. It reports whether the time
// has changed, as it may have with the first one: the local clock could be set before.
func (c *hubClock) hear(issued time.Time) bool {
	first := c.begin.Load() == nil
	if first {
		begin := c.local()
		c.begin.Store(&begin)
	}
	c.last = append(c.last, c.steady().Sub(issued))
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
	return first || ahead != before
}
