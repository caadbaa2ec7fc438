package verdict

import (
	"time"

	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/penalty"
	"weir/filter/sketch"
)

// Policer is the stage that counts the packets of flows and enforces their
// penalties. It precedes the lists, so that packets that a list would drop are
// counted as well and a false positive shows up as a heavy hitter.
type Policer struct {
	Banks     []*sketch.Bank       // for each tracker, the bank in use
	Penalties []*penalty.Table     // for each tracker: nil if its flows are only counted
	Unexempt  []bool               // for each tracker: it does not count what is exempt; nil: all do
	Guards    []*Guard             // for each tracker: what makes it count pairs; nil: it counts packets
	Now       func() time.Duration // monotonic clock of the penalties

	Drops *sketch.Bank // of what is dropped, or would be without monitor mode; may be nil
}

// count counts a packet in every tracker. It returns the reason to drop it by
// the first penalty that applies to one of its flows, or Clean. None applies to a
// packet that is exempt.
func (p *Policer) count(frame []byte, pkt packet.Packet, exempt bool) Reason {
	if p == nil {
		return Clean
	}
	punished := Clean
	for i, b := range p.Banks {
		if exempt && p.Unexempt != nil && p.Unexempt[i] {
			continue
		}
		k := b.Key(pkt.Tuple)
		h, length := b.Hash(k), uint64(len(frame))
		if p.Guards == nil || p.Guards[i] == nil || p.Guards[i].isNew(frame, pkt) {
			b.CountKey(k, h, length)
		}
		if p.Penalties[i] == nil || punished != Clean || exempt {
			continue // a dropped packet is not charged to other rates
		}
		units := uint64(1)
		if b.Unit == sketch.Bytes {
			units = length
		}
		punished = [...]Reason{penalty.None: Clean, penalty.Limited: RateLimited, penalty.Blocked: Heavy}[p.Penalties[i].Check(h, units, p.Now())]
	}
	return punished
}

// drop counts a packet that is dropped, or would be without monitor mode.
func (p *Policer) drop(t key.Tuple, length int, c sketch.Cause) {
	if p != nil && p.Drops != nil {
		p.Drops.CountDropped(t, uint64(length), c)
	}
}
