package sketch

import (
	"net/netip"

	"weir/filter/key"
)

// Flow is an entry of the flow memory, or the merged entries of several banks.
type Flow struct {
	Key  key.Key
	Hash uint64 // the tracker's, of Key and Cause

	// Of dropped packets, their cause and the destination of the first of them that
	// was counted here.
	Cause Cause
	Dst   netip.Addr

	// Before is the sketch's estimate, in the tracker's units, of the part of
	// this interval before the flow entered the memory. It is never too small.
	// Entries kept from the last interval have 0.
	Before uint64

	// Packets and Bytes are exact, counted since the flow entered or, for a
	// kept entry, since the interval began.
	Packets, Bytes uint64
}

// Exact returns the units that the flow is known to have had in this interval:
// a lower bound, and exact if Before is 0. Rate limits and blocks use this
// figure, which no collision in the sketch can raise.
func (f Flow) Exact(u Unit) uint64 { return u.of(f.Packets, f.Bytes) }

// Estimate returns an upper bound of the flow's units in this interval.
func (f Flow) Estimate(u Unit) uint64 { return f.Before + f.Exact(u) }

// Whole returns the packets and bytes of a flow, with those before it entered the
// flow memory, of which only one is known.
func (f Flow) Whole(unit Unit) (packets, bytes float64) {
	packets, bytes = float64(f.Packets), float64(f.Bytes)
	if exact := float64(f.Exact(unit)); exact > 0 {
		more := 1 + float64(f.Before)/exact
		return packets * more, bytes * more
	}
	if unit == Packets {
		packets = float64(f.Before)
	} else {
		bytes = float64(f.Before)
	}
	return packets, bytes
}

// Lasts reports whether the flow's entry is preserved into the next interval
// (Estan and Varghese, section 3.3.1): if it had at least heavy units on exact
// counts, or entered in this interval and had half as many since, in which case
// it may be a heavy hitter that began late. A preserved entry counts exactly from
// the first packet on.
func (f Flow) Lasts(u Unit, heavy uint64) bool {
	n := f.Exact(u)
	return n >= heavy || f.Before > 0 && n >= heavy/2
}

// Merge combines the counts of several banks of one tracker, those of the CPUs
// and interfaces that count it, for each flow that is in the memory of any.
// Packets and Bytes are the sums of the exact counts; Before is the sum of the
// banks' Before and, for banks with the flow in their sketch only, of its
// estimates there. So Estimate is again an upper bound, and Exact a lower one.
func Merge(banks ...*Bank) []Flow { return MergeFrom(0, banks...) }

// MergeFrom is [Merge] for the flows that have, on exact counts, at least this many
// units in one of the banks.
func MergeFrom(units uint64, banks ...*Bank) []Flow {
	seen := make(map[uint64]struct{})
	var flows []Flow
	for _, b := range banks {
		for f := range b.Flows() {
			if _, ok := seen[f.Hash]; !ok && f.Exact(b.Unit) >= units {
				seen[f.Hash] = struct{}{}
				flows = append(flows, Flow{Key: f.Key, Hash: f.Hash, Cause: f.Cause, Dst: f.Dst})
			}
		}
	}
	Sum(flows, banks...)
	return flows
}

// Sum adds to flows what banks have counted of them, which [Merge] finds itself: those
// may be in no bank's memory. Each has its Key and Hash.
func Sum(flows []Flow, banks ...*Bank) {
	// Bank by bank, so that only one at a time needs to be in the cache.
	for _, b := range banks {
		for i := range flows {
			f := &flows[i]
			if g, ok := b.Lookup(f.Hash); ok {
				f.Before += g.Before
				f.Packets += g.Packets
				f.Bytes += g.Bytes
			} else {
				f.Before += b.Estimate(*f)
			}
		}
	}
}
