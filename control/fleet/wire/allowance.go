package wire

import "time"

// What the hub takes of a node's reports: a burst, and then one each ReportEvery on average.
// Nodes keep to less, since reports that are held up on the way arrive together, and a node
// that starts again does not know what it has used up.
const (
	ReportEvery = time.Second
	ReportBurst = 20
	NodeBurst   = ReportBurst / 2
	NodeEvery   = ReportEvery + ReportEvery/20
)

// Allowance is a token bucket for messages: a burst, then one each interval. It is full at
// first.
type Allowance struct {
	credit  float64
	counted time.Time
}

// Take reports whether one more is allowed.
func (a *Allowance) Take(burst float64, every time.Duration, now time.Time) bool {
	if a.Wait(burst, every, now) > 0 {
		return false
	}
	a.credit--
	return true
}

// Wait returns in what time one more is allowed.
func (a *Allowance) Wait(burst float64, every time.Duration, now time.Time) time.Duration {
	if a.counted.IsZero() {
		a.credit = burst
	} else {
		a.credit = min(burst, a.credit+max(0, now.Sub(a.counted).Seconds())/every.Seconds())
	}
	a.counted = now
	if a.credit >= 1 {
		return 0
	}
	return max(1, time.Duration((1-a.credit)*float64(every)))
}
