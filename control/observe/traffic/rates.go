package traffic

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"weir/filter/verdict"
	"weir/loader"
)

// Rates has the packets of all interfaces together in an interval, and
// since weir began.
type Rates struct {
	Interval time.Duration
	Packets  float64            // per second
	Bytes    float64            // per second
	Dropped  float64            // packets per second
	Reasons  map[string]float64 // packets per second, of the reasons that have any
	Monitor  bool               // nothing is dropped
	Total    loader.Counter
	Blocked  loader.Counter // dropped because they are listed; in monitor mode, what would have been

	Grown, All Counters // in the interval, and since weir began

	Out OutRates // of outgoing packets; all others are of incoming ones
}

// OutRates has the packets sent through all interfaces together in an interval, per second.
type OutRates struct {
	Packets, Bytes, Dropped float64
	Grown, All              Counters // in the interval, and since weir began
}

// Top returns the reasons in the interval, the most frequent first.
func (r Rates) Top() []string {
	return slices.SortedFunc(maps.Keys(r.Reasons), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.Reasons[b], r.Reasons[a]), cmp.Compare(a, b))
	})
}

// Intervals turns a meter's counters into rates.
type Intervals struct {
	meter       *Meter
	at          time.Time
	first, last Counters

	firstOut, lastOut Counters
}

// NewIntervals returns intervals of which the first begins now.
func NewIntervals(m *Meter) *Intervals {
	now, _ := m.Counters()
	out := m.Outgoing()
	return &Intervals{meter: m, at: time.Now(), first: now, last: now, firstOut: out, lastOut: out}
}

// Next ends an interval, in which a policy was active.
func (v *Intervals) Next(now time.Time, p *verdict.Policy) Rates {
	all, _ := v.meter.Counters()
	r := Rates{Interval: now.Sub(v.at), Reasons: make(map[string]float64), Monitor: p.Monitor}
	v.at = now
	seconds := max(r.Interval.Seconds(), 1e-3)
	for i := range all {
		reason := verdict.Reason(i)
		r.Grown[i], r.All[i] = sub(all[i], v.last[i]), sub(all[i], v.first[i])
		rate := float64(r.Grown[i].Packets) / seconds
		r.Packets += rate
		r.Bytes += float64(r.Grown[i].Bytes) / seconds
		if r.Grown[i].Packets > 0 {
			r.Reasons[reason.String()] = rate
		}
		if p.Action(reason) == verdict.Drop {
			r.Dropped += rate
		}
		r.Total = sum(r.Total, r.All[i])
		if reason == verdict.Blocked || reason == verdict.WouldBlock {
			r.Blocked = sum(r.Blocked, r.All[i])
		}
	}
	v.last = all
	out := v.meter.Outgoing()
	for i := range out {
		grown := sub(out[i], v.lastOut[i])
		r.Out.Grown[i], r.Out.All[i] = grown, sub(out[i], v.firstOut[i])
		r.Out.Packets += float64(grown.Packets) / seconds
		r.Out.Bytes += float64(grown.Bytes) / seconds
		if p.Action(verdict.Reason(i)) == verdict.Drop {
			r.Out.Dropped += float64(grown.Packets) / seconds
		}
	}
	v.lastOut = out
	return r
}

func sub(a, b loader.Counter) loader.Counter {
	return loader.Counter{Packets: a.Packets - b.Packets, Bytes: a.Bytes - b.Bytes}
}
