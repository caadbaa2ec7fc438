package run

import (
	"slices"
	"time"

	"weir/filter/verdict"
	"weir/loader"
)

// Rates are what went through all interfaces together in an interval, and
// since the filter began.
type Rates struct {
	Interval time.Duration
	Packets  float64            // a second
	Bytes    float64            // a second
	Dropped  float64            // packets a second
	Reasons  map[string]float64 // packets a second, of those reasons that have any
	Monitor  bool               // what is blocked passes, and is counted as monitored
	Total    loader.Counter
	Blocked  loader.Counter // dropped because it is listed; in monitor mode, what would have been

	grown, all Counters // of the interval, and since the filter began
}

// Top are the reasons in the interval, the most frequent first.
func (r Rates) Top() []string {
	var names []string
	for name := range r.Reasons {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		switch {
		case r.Reasons[a] > r.Reasons[b]:
			return -1
		case r.Reasons[a] < r.Reasons[b]:
			return 1
		}
		return 0
	})
	return names
}

// meter makes rates of counters. It adds up increments, since the counters of
// an interface that comes back begin anew.
type meter struct {
	at    time.Time
	last  map[*loader.Stats]Counters
	total Counters
}

func newMeter(f *Filter) *meter {
	m := &meter{at: time.Now(), last: make(map[*loader.Stats]Counters)}
	m.advance(f) // what was counted before is not of the first interval
	m.total = Counters{}
	return m
}

// advance adds what has been counted since the last time, and returns it.
func (m *meter) advance(f *Filter) Counters {
	var grown Counters
	var buf []loader.Counter
	before := m.last
	m.last = make(map[*loader.Stats]Counters)
	for _, h := range f.holds {
		if h.Attachment == nil {
			continue
		}
		buf = h.Stats().Reasons(buf)
		last := before[h.Stats()]
		now := last
		copy(now[:], buf)
		for i := range now {
			if now[i].Packets >= last[i].Packets { // else it began anew, unnoticed
				grown[i].Packets += now[i].Packets - last[i].Packets
				grown[i].Bytes += now[i].Bytes - last[i].Bytes
			}
		}
		m.last[h.Stats()] = now
	}
	for i, c := range grown {
		m.total[i].Packets += c.Packets
		m.total[i].Bytes += c.Bytes
	}
	return grown
}

func (m *meter) measure(f *Filter, now time.Time) Rates {
	grown := m.advance(f)
	r := Rates{Interval: now.Sub(m.at), Reasons: make(map[string]float64), Monitor: f.o.Rules.Monitor, grown: grown, all: m.total}
	m.at = now
	seconds := max(r.Interval.Seconds(), 1e-3)
	for i, c := range grown {
		reason := verdict.Reason(i)
		rate := float64(c.Packets) / seconds
		r.Packets += rate
		r.Bytes += float64(c.Bytes) / seconds
		if c.Packets > 0 {
			r.Reasons[reason.String()] = rate
		}
		if f.description.Drops(reason) {
			r.Dropped += rate
		}
	}
	for i, c := range m.total {
		r.Total.Packets += c.Packets
		r.Total.Bytes += c.Bytes
		if reason := verdict.Reason(i); reason == verdict.Blocked || reason == verdict.Monitored {
			r.Blocked.Packets += c.Packets
			r.Blocked.Bytes += c.Bytes
		}
	}
	return r
}
