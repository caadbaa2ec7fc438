package verdict

import (
	"weir/filter/packet"
	"weir/filter/sketch"
)

// Importance is the importance of a new flow: from 1 to MaxImportance.
type Importance uint8

// MaxImportance is the highest importance, FIRST_LEVELS in bpf/first.h.
const MaxImportance Importance = 7

// sizeStep is the number of bytes from one importance to the next: FIRST_SIZE.
const sizeStep = 220

// FirstSeen counts the flows that were not seen lately, and says which of them have an
// event: as many as a budget has room for, the important ones first. It sees all packets
// with addresses but those that pass before any list, whatever their verdict. bpf/first.h
// is its twin.
type FirstSeen struct {
	Flow  sketch.Tracker // of which the keys and the secret are used
	Known FlowMemory

	// What makes a flow important, by its first packet.
	BySize bool
	Lists  []Importance   // by the number of the block list that matches; nil: no list does
	Ports  []FailsafePort // of destinations

	Gap uint64 // ns of the budget that an event takes; 0: there are no events
	Now func() uint64

	FirstSeenCounts
}

// FlowMemory remembers flows by their hashes: those of package recent.
type FlowMemory interface {
	// Observe remembers a flow of an importance. It reports whether it was remembered
	// before, and whether it was entered now.
	Observe(h uint64, level int) (known, entered bool)
	Turn() // ends a window
	Words() [2][]uint64
}

// FirstSeenCounts are the counts of a CPU.
type FirstSeenCounts struct {
	Spent      uint64                    // when the budget of events is whole again
	Entered    uint64                    // flows into a generation, or cells
	Flows      [MaxImportance + 1]uint64 // new ones, by importance
	Events     [MaxImportance + 1]uint64
	Suppressed [MaxImportance + 1]uint64 // events for which the budget had no room
}

// share is the part of a second's budget that each importance has beyond the one below.
const share = 1e9 / uint64(MaxImportance)

// observe remembers the flow of a packet that leaves.
func (f *FirstSeen) observe(p packet.Packet, o Outcome, length int) {
	if f == nil {
		return
	}
	switch o.Reason {
	case ND, DHCP, Failsafe:
		return
	}
	level := f.importance(p, o, length)
	known, entered := f.Known.Observe(f.Flow.Key(p.Tuple).Hash(f.Flow.Secret), int(level))
	if entered {
		f.Entered++
	}
	if known {
		return
	}
	f.Flows[level]++
	if f.Gap == 0 {
		return
	}
	if f.pay(level, f.Now()) {
		f.Events[level]++
	} else {
		f.Suppressed[level]++
	}
}

func (f *FirstSeen) importance(p packet.Packet, o Outcome, length int) Importance {
	level := Importance(1)
	if f.BySize {
		level = Importance(min(1+length/sizeStep, int(MaxImportance)))
	}
	if (o.Reason == Blocked || o.Reason == WouldBlock) && 0 < o.List && o.List < len(f.Lists) {
		level = max(level, f.Lists[o.List])
	}
	for _, port := range f.Ports {
		if p.HasPorts && p.Proto == port.Proto && p.DstPort == port.Port {
			level = MaxImportance
		}
	}
	return level
}

// pay reports whether the budget has room for an event, which takes it.
func (f *FirstSeen) pay(level Importance, now uint64) bool {
	spent := max(f.Spent, now)
	if spent-now >= uint64(level)*share {
		return false
	}
	f.Spent = spent + f.Gap
	return true
}
