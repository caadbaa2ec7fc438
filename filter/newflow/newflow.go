// Package newflow counts the flows that packets begin, and chooses those that have an event.
// bpf/first.h is the twin.
package newflow

import (
	"weir/filter/packet"
	"weir/filter/sketch"
	"weir/filter/verdict"
)

// Importance is the importance of a new flow: from 1 to MaxImportance.
type Importance uint8

// MaxImportance is the highest importance, FIRST_LEVELS in bpf/first.h.
const MaxImportance Importance = 7

// sizeStep is the number of bytes from one importance to the next: FIRST_SIZE.
const sizeStep = 220

// Watcher counts the flows that were not seen lately, and says which of them have an
// event: as many as a budget has room for, the important ones first. It sees all packets
// with addresses but those that pass before any list, whatever their verdict: it is a
// [verdict.Watcher]. bpf/first.h is its twin.
type Watcher struct {
	Flow  sketch.Tracker // of which the keys and the secret are used
	Known Memory

	// What makes a flow important, by its first packet.
	BySize bool
	Lists  []Importance           // by the number of the block list that matches; nil: no list does
	Ports  []verdict.FailsafePort // of destinations

	Gap uint64 // ns of the budget that an event takes; 0: there are no events
	Now func() uint64

	Counts
}

// Memory remembers flows by their hashes: the filters of package recent do.
type Memory interface {
	// Observe remembers a flow of an importance. It reports whether it was remembered
	// before, and whether it was entered now.
	Observe(h uint64, level int) (known, entered bool)
	Turn() // ends a window
	Words() [2][]uint64
}

// Counts are the counts of a CPU.
type Counts struct {
	Spent      uint64                    // when the budget of events is whole again
	Entered    uint64                    // flows into a generation, or cells
	Flows      [MaxImportance + 1]uint64 // new ones, by importance
	Events     [MaxImportance + 1]uint64
	Suppressed [MaxImportance + 1]uint64 // events for which the budget had no room
}

// share is the part of a second's budget that each importance has beyond the one below.
const share = 1e9 / uint64(MaxImportance)

// Observe remembers the flow of a packet that leaves.
func (w *Watcher) Observe(p packet.Packet, o verdict.Outcome, length int) {
	switch o.Reason {
	case verdict.ND, verdict.DHCP, verdict.Failsafe:
		return
	}
	level := w.importance(p, o, length)
	known, entered := w.Known.Observe(w.Flow.Key(p.Tuple).Hash(w.Flow.Secret), int(level))
	if entered {
		w.Entered++
	}
	if known {
		return
	}
	w.Flows[level]++
	if w.Gap == 0 {
		return
	}
	if w.pay(level, w.Now()) {
		w.Events[level]++
	} else {
		w.Suppressed[level]++
	}
}

func (w *Watcher) importance(p packet.Packet, o verdict.Outcome, length int) Importance {
	level := Importance(1)
	if w.BySize {
		level = Importance(min(1+length/sizeStep, int(MaxImportance)))
	}
	if (o.Reason == verdict.Blocked || o.Reason == verdict.WouldBlock) && 0 < o.List && o.List < len(w.Lists) {
		level = max(level, w.Lists[o.List])
	}
	for _, port := range w.Ports {
		if p.HasPorts && p.Proto == port.Proto && p.DstPort == port.Port {
			level = MaxImportance
		}
	}
	return level
}

// pay reports whether the budget has room for an event, which takes it.
func (w *Watcher) pay(level Importance, now uint64) bool {
	spent := max(w.Spent, now)
	if spent-now >= uint64(level)*share {
		return false
	}
	w.Spent = spent + w.Gap
	return true
}
