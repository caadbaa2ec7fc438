package events

import (
	"maps"
	"net/netip"
	"time"
)

// Loops remembers which loops were reported. A loop, identified by its
// addresses, is reported once in loopsAgain, and at most mostLoops of them in
// that time: counters include the others. The zero value has reported none.
type Loops struct{ reported map[[2]netip.Addr]time.Time }

// Limits of reporting loops.
const (
	loopsAgain = time.Minute
	mostLoops  = 16
)

// Report returns whether to report a loop now, and remembers that it was.
func (l *Loops) Report(src, dst netip.Addr, now time.Time) bool {
	maps.DeleteFunc(l.reported, func(_ [2]netip.Addr, at time.Time) bool { return now.Sub(at) >= loopsAgain })
	loop := [2]netip.Addr{src, dst}
	if _, known := l.reported[loop]; known || len(l.reported) >= mostLoops {
		return false
	}
	if l.reported == nil {
		l.reported = make(map[[2]netip.Addr]time.Time)
	}
	l.reported[loop] = now
	return true
}
