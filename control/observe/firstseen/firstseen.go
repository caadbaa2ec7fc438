// Package firstseen ends the windows in which programs look for flows that are new, and
// keeps their memory from filling up.
package firstseen

import (
	"time"

	"weir/control/engine"
	"weir/filter/recent"
	"weir/loader"
)

// Tick ends the window of each interface whose time has come by the kernel's monotonic
// clock, or whose generation, of this many lines, is full. Cells that are full sink: they do
// so by themselves only as flows find cells below half of their value.
func Tick(now, window time.Duration, lines uint32, g *engine.Generation, stats []*loader.Stats) {
	for _, s := range stats {
		m, err := g.OpenFirst(s)
		if err != nil {
			continue // the next program has the memory
		}
		cells := m.Cells()
		full := cells == nil && m.Counts().EnteredNow >= recent.Full*uint64(lines)
		if cells != nil && recent.Missed(cells) > recent.FullCells {
			recent.Sink(cells)
			m.CountFull()
		}
		switch began := m.Began(); {
		case began == 0 || began > now: // the memory is new
			m.Begin(now)
		case full || now-began >= window:
			m.Turn(now, full)
		}
		m.Close() // if it fails, the memory leaks
	}
}
