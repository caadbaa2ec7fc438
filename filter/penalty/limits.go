package penalty

import (
	"net/netip"
	"time"
)

// MaxLimits is the maximum number of limits.
const MaxLimits = 1024

// Limit is the rate to which the packets of a source, or of a network of them, are held together.
type Limit struct {
	Penalty
	Bytes bool // units are bytes, not packets
}

// Limits are the limits of sources. The longest prefix that has one decides. They are the twin of
// bpf/limit.h.
type Limits struct {
	Now func() time.Duration // by the kernel's monotonic clock

	all map[netip.Prefix]*Meter
}

// Meter holds packets to a limit.
type Meter struct {
	entry [entryWords]uint64
	bytes bool
}

// NewMeter returns the meter of a limit.
func NewMeter(l Limit) *Meter {
	cost, burst := l.Words()
	return &Meter{[entryWords]uint64{uint64(l.Until), cost, burst}, l.Bytes}
}

// Check returns what happens to a packet of a length, and charges it to the rate if it passes.
func (m *Meter) Check(length uint64, now time.Duration) Verdict {
	units := uint64(1)
	if m.bytes {
		units = length
	}
	return meter(m.entry[:], units, now)
}

// Set limits the sources of a masked prefix.
func (l *Limits) Set(p netip.Prefix, to Limit) {
	if l.all == nil {
		l.all = make(map[netip.Prefix]*Meter)
	}
	l.all[p] = NewMeter(to)
}

// Check returns what happens to a packet of a source and a length, and charges it to the rate
// if it passes.
func (l *Limits) Check(src netip.Addr, length uint64) Verdict {
	for bits := src.BitLen(); bits >= 0; bits-- {
		p, _ := src.Prefix(bits) // never fails
		if of := l.all[p]; of != nil {
			return of.Check(length, l.Now())
		}
	}
	return None
}
