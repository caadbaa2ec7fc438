package daemon

import (
	"log/slog"
	"time"
)

// leastStep is the shortest step of the clock that is logged: synchronisation makes smaller ones.
const leastStep = 10 * time.Second

// wallClock detects steps of the wall clock, which decides when entries expire.
type wallClock struct {
	last time.Time // with the monotonic clock; zero: unknown
	log  *slog.Logger
}

// follow logs by how much the clock was set since the last call.
func (c *wallClock) follow(now time.Time) {
	last := c.last
	if c.last = now; !last.IsZero() {
		c.passed(now.Round(0).Sub(last.Round(0)), now.Sub(last))
	}
}

// passed logs that more or less time has passed by the wall clock than really.
func (c *wallClock) passed(wall, real time.Duration) {
	switch step := (wall - real).Round(time.Second); {
	case step >= leastStep:
		c.log.Warn("the clock was set forward, or the host has slept: entries with a TTL expire by the new time", "by", step.String())
	case step <= -leastStep:
		c.log.Warn("the clock was set back: entries with a TTL expire later by that, unless it is set again", "by", (-step).String())
	}
}
