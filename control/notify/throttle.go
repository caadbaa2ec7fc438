package notify

import "time"

// Throttle lets a number of events through at once, and then one at each interval.
// What is left out is said with the next one.
type Throttle struct {
	Most   float64       // at once
	Refill time.Duration // between events later on
	More   int           // events that were left out since the last one that passed

	used float64
	last time.Time
}

// Pass reports whether an event may be sent, and how many before it were not.
func (t *Throttle) Pass(now time.Time) (more int, ok bool) {
	t.used = max(0, t.used-float64(now.Sub(t.last))/float64(t.Refill))
	t.last = now
	if t.used+1 > t.Most {
		t.More++
		return 0, false
	}
	t.used++
	more, t.More = t.More, 0
	return more, true
}
