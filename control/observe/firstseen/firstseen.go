// Package firstseen turns the memory of the flows that programs know: what was not seen
// in the last one to two windows is new.
package firstseen

import (
	"time"

	"weir/control/engine"
	"weir/filter/recent"
	"weir/loader"
)

// Tick turns the memory of each interface whose window has ended at this time of the
// kernel's monotonic clock, or that is full. lines is the size of a generation.
func Tick(now, window time.Duration, lines uint32, g *engine.Generation, stats []*loader.Stats) {
	for _, s := range stats {
		m, err := g.OpenFirst(s)
		if err != nil {
			continue // the next program has the memory
		}
		full := m.Counts().EnteredNow >= recent.Full*uint64(lines)
		switch began := m.Began(); {
		case began == 0 || began > now: // the memory is new
			m.Begin(now)
		case full || now-began >= window:
			m.Turn(now, full)
		}
		m.Close() // if it fails, the memory leaks
	}
}
