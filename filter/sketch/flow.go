package sketch

import "weir/filter/key"

// Flow is an entry of the flow memory, or of several banks' memories together.
type Flow struct {
	Key  key.Key
	Hash uint64 // the tracker's, of Key

	// Before is the sketch's estimate, in units of the tracker, of what the
	// flow had in this interval when it entered the memory. It is never below
	// the truth. Entries kept from the last interval have 0.
	Before uint64

	// Packets and Bytes are exact, counted since the flow entered or, for a
	// kept entry, since the interval began.
	Packets, Bytes uint64
}

// Exact is what the flow is known to have had in this interval, in the unit: a
// lower bound, and the truth if Before is 0. Limits and blocks go by this
// figure, which no collision in the sketch can raise.
func (f Flow) Exact(u Unit) uint64 { return u.of(f.Packets, f.Bytes) }

// Estimate is what the flow had at most, in the tracker's unit.
func (f Flow) Estimate(u Unit) uint64 { return f.Before + f.Exact(u) }

// Lasts says whether the flow's entry is preserved into the next interval
// (Estan and Varghese, section 3.3.1): if it had the heavy number of units on
// exact counts, or entered in this interval and had half as many since. The
// latter may be a heavy flow that began late. A preserved entry counts exactly
// from the first packet on.
func (f Flow) Lasts(u Unit, heavy uint64) bool {
	n := f.Exact(u)
	return n >= heavy || f.Before > 0 && n >= heavy/2
}

// Merge gives what several banks of one tracker, of the CPUs and interfaces
// that count it, know of each flow that is in the memory of any: the exact
// counts together, and as Before the sum of the banks' Before and, of those
// that have the flow in their sketch alone, its estimate there. So Estimate is
// an upper bound again, and Exact a lower one.
func Merge(banks ...*Bank) []Flow {
	seen := make(map[uint64]struct{})
	var flows []Flow
	for _, b := range banks {
		for f := range b.Flows() {
			if _, ok := seen[f.Hash]; !ok {
				seen[f.Hash] = struct{}{}
				flows = append(flows, Flow{Key: f.Key, Hash: f.Hash})
			}
		}
	}
	// Bank by bank, so that one bank at a time has to stay in the cache.
	for _, b := range banks {
		for i := range flows {
			f := &flows[i]
			if g, ok := b.Find(f.Hash); ok {
				f.Before += g.Before
				f.Packets += g.Packets
				f.Bytes += g.Bytes
			} else {
				f.Before += b.Estimate(f.Hash)
			}
		}
	}
	return flows
}
