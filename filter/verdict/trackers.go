package verdict

import (
	"net/netip"
	"time"

	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/penalty"
	"weir/filter/sketch"
)

// Trackers is the stage that counts the packets of flows and enforces their
// penalties. It precedes the lists, so that packets that a list would drop are
// counted as well and a false positive shows up as a heavy hitter.
type Trackers struct {
	Banks     []*sketch.Bank       // for each tracker, the bank in use
	Penalties []*penalty.Table     // for each tracker: nil if its flows are only counted
	Unexempt  []bool               // for each tracker: it does not count what is exempt; nil: all do
	Detectors []*ScanDetector      // for each tracker: what makes it count pairs; nil: it counts packets
	Now       func() time.Duration // monotonic clock of the penalties

	// The packet that lifts a flow over the threshold of a tracker imposes its penalty. Nil:
	// none does.
	Windows    *penalty.Windows
	Thresholds []Threshold // for each tracker

	Drops *sketch.Bank // of packets that are dropped, or would be without monitor mode; may be nil
}

// Threshold is a threshold of a tracker, and the penalty of flows that exceed it.
type Threshold struct {
	penalty.Threshold
	Penalty penalty.Penalty // Until counts from when the threshold is exceeded
	Secret  *hash.Secret    // of the tracker's hashes
}

// report adds units of a packet's flow to its window, and imposes a penalty on the flow if it
// exceeds the threshold.
func (ts *Trackers) report(tracker int, h, units uint64, pkt packet.Packet) {
	t := ts.Thresholds[tracker]
	now := ts.Now()
	if t.Units == 0 || !ts.Windows.Add(t.Threshold, h, units, now) || ts.Windows.Spares(SourceHash(pkt.Src, t.Secret)) {
		return
	}
	imposed := t.Penalty
	imposed.Until += now
	ts.Penalties[tracker].Impose(h, imposed, now)
}

// SourceHash returns the hash under which a tracker with this secret spares a source,
// whatever the flow.
func SourceHash(src netip.Addr, s *hash.Secret) uint64 {
	return max(1, key.Source(netip.PrefixFrom(src, src.BitLen())).Hash(s))
}

// punishments are the reasons to drop a packet for a penalty.
var punishments = [...]Reason{penalty.None: Clean, penalty.Limited: RateLimited, penalty.Blocked: Heavy}

// count counts a packet in every tracker. It returns the reason to drop it by
// the first penalty that applies to one of its flows, or Clean. None applies to a
// packet that is exempt.
func (ts *Trackers) count(frame []byte, pkt packet.Packet, exempt bool) Reason {
	if ts == nil {
		return Clean
	}
	punished := Clean
	for i, b := range ts.Banks {
		if exempt && ts.Unexempt != nil && ts.Unexempt[i] {
			continue
		}
		k := b.Key(pkt.Tuple)
		h, length := b.Hash(k), uint64(len(frame))
		if ts.Detectors == nil || ts.Detectors[i] == nil || ts.Detectors[i].isNew(frame, pkt) {
			units := b.CountKey(k, h, length)
			if units > 0 && ts.Windows != nil && ts.Penalties[i] != nil && !exempt {
				ts.report(i, h, units, pkt)
			}
		}
		if ts.Penalties[i] == nil || punished != Clean || exempt {
			continue // a dropped packet is not charged to other rates
		}
		units := uint64(1)
		if b.Unit == sketch.Bytes {
			units = length
		}
		punished = punishments[ts.Penalties[i].Check(h, units, ts.Now())]
	}
	return punished
}

// drop counts a packet that is dropped, or would be without monitor mode.
func (ts *Trackers) drop(t key.Tuple, length int, c sketch.Cause) {
	if ts != nil && ts.Drops != nil {
		ts.Drops.CountDropped(t, uint64(length), c)
	}
}
