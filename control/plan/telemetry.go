package plan

import (
	"fmt"
	"math"

	"weir/filter/digest"
	"weir/filter/fpr"
	"weir/filter/multicast"
	"weir/filter/sfb"
)

// Digests is a planned filter of a slice of digests.
type Digests struct {
	Bytes         int     `json:"bytes"` // of a slice in memory
	Lines         uint32  `json:"lines"` // of 64 bytes
	Bits          int     `json:"bits"`  // that a packet sets
	Rate          float64 `json:"rate"`  // exact false-positive rate when the slice is full
	BitsPerPacket float64 `json:"bits_per_packet"`
	Standard      float64 `json:"standard"` // the same of a filter whose bits may lie anywhere
}

// DigestsFor plans the filter of a slice for packets at a false-positive rate. It fails
// with an InvalidError for no packets and for rates outside of 0…1.
func DigestsFor(packets int, rate float64) (Digests, error) {
	if packets < 1 || packets > math.MaxInt32 || !(rate > 0 && rate < 1) {
		return Digests{}, invalid("plan digest: no filter has n=%d and rate %v", packets, rate)
	}
	g, err := digest.Smallest(float64(packets), rate)
	if err != nil {
		return Digests{}, fmt.Errorf("plan %w", err)
	}
	m, _ := fpr.Smallest(packets, rate)
	return Digests{
		Bytes: g.Bytes(), Lines: g.Lines, Bits: g.Bits, Rate: g.FalsePositiveRate(packets),
		BitsPerPacket: 8 * float64(g.Bytes()) / float64(packets), Standard: float64(m) / float64(packets),
	}, nil
}

// Multicast is a planned set of filters of groups.
type Multicast struct {
	Bytes int     `json:"bytes"` // of the kernel, for all ports
	Lines uint32  `json:"lines"` // of a port's filter, of 64 bytes
	Rate  float64 `json:"rate"`  // at which a port gets packets to groups that it does not want
}

// MulticastFor plans the filters of ports for groups. It fails with an InvalidError for
// none.
func MulticastFor(ports, groups int) (Multicast, error) {
	if ports < 1 || ports > 1<<12 || groups < 1 || groups > 1<<20 {
		return Multicast{}, invalid("plan multicast: %d ports and %d groups, want 1 to %d and %d", ports, groups, 1<<12, 1<<20)
	}
	l := multicast.Plan(ports, groups)
	return Multicast{Bytes: 8 * l.Words(), Lines: l.Lines, Rate: l.Rate()}, nil
}

// Police has the cost of flows that do not respond to others at a policer.
type Police struct {
	Levels   int     `json:"levels"`
	Bins     int     `json:"bins"`     // of a level
	Punished float64 `json:"punished"` // probability that a flow is punished for others
	Guarded  bool    `json:"guarded"`  // so many bins would be in the penalty box that none is
}

// PoliceFor plans for flows that do not respond at the same time. It fails with an
// InvalidError for a negative number.
func PoliceFor(flows int) (Police, error) {
	if flows < 0 {
		return Police{}, invalid("plan police: %d flows", flows)
	}
	p := Police{Levels: sfb.PolicerLevels, Bins: sfb.PolicerBins, Punished: sfb.FalsePunish(sfb.PolicerLevels, sfb.PolicerBins, flows)}
	// A flow is in one bin of each level, so that all levels have the same share.
	p.Guarded = sfb.FalsePunish(1, sfb.PolicerBins, flows) > 0.25
	return p, nil
}
