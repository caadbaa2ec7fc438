// Package events tells of packets as they leave: those that are dropped, or
// would be but for an allow list, monitor mode or leniency with the malformed.
//
// A [Hub] reads what the programs tell on all interfaces, and gives each
// subscriber what it wants to know. It sets, while the programs run, of how many
// packets they tell: of all, as long as that is not too much, and of none while
// nobody wants to know. Events are samples; what is lost is counted.
package events

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"weir/control/engine"
	"weir/filter/key"
	"weir/filter/verdict"
	"weir/loader"
)

// Reason says why a packet has left.
type Reason = verdict.Reason

// Event is a packet that has left. One that has but Time and Lost says that
// events are missing there.
type Event struct {
	Time time.Time
	loader.Target
	Reason  Reason
	Dropped bool
	List    string    // that blocks or allows the packet; "" if none does, or it is not known
	Tuple   key.Tuple // without addresses if the program found none
	Length  int       // bytes on the wire
	OneIn   uint32    // of so many packets this is one
	Frame   []byte    // at most FrameSize bytes, if they are wanted; not to be changed
	Lost    uint64

	// FirstTTL is not 0 where digests tell of the loop, and not a filter in the packet: its
	// TTL fell from the one to the other. It has passed, whatever it was counted under; no
	// frame is there.
	FirstTTL, TTL uint8
}

// FrameSize is how many bytes of a frame an event has at most.
const FrameSize = loader.EventFrame

// Reasons are those that events can have: what passes before any list, or
// because nothing is wrong with it, is none.
func Reasons() []Reason {
	var all []Reason
	for r := verdict.Allowed; r < verdict.NumReasons; r++ {
		all = append(all, r)
	}
	return all
}

// ParseReason finds a reason that events can have by its name.
func ParseReason(name string) (Reason, error) {
	var names []string
	for _, r := range Reasons() {
		if r.String() == name {
			return r, nil
		}
		names = append(names, r.String())
	}
	for r := range verdict.Allowed {
		if r.String() == name {
			return 0, fmt.Errorf("packets that leave as %s pass untouched, and are no events: tcpdump shows them", name)
		}
	}
	return 0, fmt.Errorf("%q is no reason: there are %s", name, strings.Join(names, ", "))
}

// Interface is one on which programs tell of packets.
type Interface struct {
	loader.Target
	Stats  *loader.Stats
	Lists  []string        // their names, from list 1
	Policy *verdict.Policy // says whether a packet was dropped
}

// event makes of what a program has told what is given to subscribers. boot is
// when the programs' clock began.
func (i *Interface) event(of *loader.Event, boot time.Time) Event {
	p := &of.Packet
	e := Event{
		Time: boot.Add(of.Time), Target: i.Target, Reason: Reason(p.Reason),
		Length: int(p.Len), OneIn: of.OneIn,
	}
	e.Dropped = i.Policy.Action(e.Reason) == verdict.Drop
	if p.Family != 0 {
		e.Tuple = engine.TupleOf(p)
	}
	switch e.Reason {
	case verdict.Allowed, verdict.Monitored, verdict.Blocked:
		// With the others it may be an earlier packet's.
		if n := int(p.List); n > 0 && n <= len(i.Lists) {
			e.List = i.Lists[n-1]
		}
	}
	return e
}

// Want says what a subscriber wants to know.
type Want struct {
	Reasons []Reason // some of those that events can have; none: all of them
	OneIn   uint32   // one packet in so many will do, a power of two; 0: all, if that can be
	Frames  bool     // with the frames' beginnings
	Room    int      // events that may wait; 0: DefaultRoom
}

// DefaultRoom is a tenth of a second of events.
const DefaultRoom = Limit / 10

// subscription is what a subscriber has.
type subscription struct {
	Want
	to   chan Event
	lost uint64 // not yet told
}

func (s *subscription) wants(r Reason) bool {
	return len(s.Reasons) == 0 || slices.Contains(s.Reasons, r)
}

// give gives an event, if there is room.
func (s *subscription) give(e Event) {
	if !s.Frames {
		e.Frame = nil
	}
	select {
	case s.to <- e:
	default:
		s.lost++
	}
}

// tellLost says how many events are missing, if there is room.
func (s *subscription) tellLost(now time.Time) {
	if s.lost == 0 {
		return
	}
	select {
	case s.to <- Event{Time: now, Lost: s.lost}:
		s.lost = 0
	default:
	}
}
