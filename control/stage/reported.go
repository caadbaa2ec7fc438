package stage

import (
	"maps"
	"net/netip"
	"time"
)

// Reported remembers which pairs of addresses were reported. A pair is reported once in
// reportAgain, and at most mostReported of them in that time: counters include the others. The
// zero value has reported none.
type Reported struct{ pairs map[[2]netip.Addr]time.Time }

// Limits of reports.
const (
	reportAgain  = time.Minute
	mostReported = 16
)

// Report returns whether to report a pair now, and remembers that it was.
func (r *Reported) Report(src, dst netip.Addr, now time.Time) bool {
	maps.DeleteFunc(r.pairs, func(_ [2]netip.Addr, at time.Time) bool { return now.Sub(at) >= reportAgain })
	pair := [2]netip.Addr{src, dst}
	if _, known := r.pairs[pair]; known || len(r.pairs) >= mostReported {
		return false
	}
	if r.pairs == nil {
		r.pairs = make(map[[2]netip.Addr]time.Time)
	}
	r.pairs[pair] = now
	return true
}
