package events

import (
	"maps"
	"net/netip"
	"time"
)

// Loops remembers of which loops was told. A loop, by the addresses of its
// packets, is told of once in loopsAgain, and there are at most mostLoops of them
// in such a time: counters have the others. The zero value has told of none.
type Loops struct{ told map[[2]netip.Addr]time.Time }

// The bounds of what is told of loops.
const (
	loopsAgain = time.Minute
	mostLoops  = 16
)

// Tell reports whether a loop is to be told of now, which is then remembered.
func (l *Loops) Tell(src, dst netip.Addr, now time.Time) bool {
	maps.DeleteFunc(l.told, func(_ [2]netip.Addr, at time.Time) bool { return now.Sub(at) >= loopsAgain })
	loop := [2]netip.Addr{src, dst}
	if _, told := l.told[loop]; told || len(l.told) >= mostLoops {
		return false
	}
	if l.told == nil {
		l.told = make(map[[2]netip.Addr]time.Time)
	}
	l.told[loop] = now
	return true
}
