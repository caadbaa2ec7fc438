// Package events reports packets as they leave: those that are dropped, or
// would be if not for an allow list, monitor mode or leniency towards malformed
// packets.
//
// A [Hub] reads the events of the programs on all interfaces, and passes each
// subscriber those that it wants. At run time it sets the programs' sampling
// rate: all packets, as long as those are not too many, and none without
// subscribers. Events are samples; lost ones are counted.
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
	"weir/loader/netif"
)

// Reason is the reason under which a packet was counted.
type Reason = verdict.Reason

// Event is a packet that has left. One with only Time and Lost reports missing
// events.
type Event struct {
	Time time.Time
	netif.Target
	Index   int // of the interface in its namespace
	Reason  Reason
	Dropped bool
	List    string    // that blocks or allows the packet; "" if none does or it is unknown
	Pattern string    // that drops it, the same
	Tuple   key.Tuple // without addresses if the program found none
	Length  int       // bytes on the wire
	OneIn   uint32    // the sampling rate: one of this number of packets
	Inner   bool      // the tuple belongs to a header in a tunnel
	Frame   []byte    // at most FrameSize bytes, if wanted; read-only
	Lost    uint64

	// Importance is not 0 if the flow of the packet was not seen lately: from 1 to
	// newflow.MaxImportance.
	Importance int

	// FirstTTL is not 0 if the loop was found without a filter in the packet: the
	// packet came again, and its TTL decreased from FirstTTL to TTL. It has
	// passed, whatever it was counted under, and there is no Frame.
	FirstTTL, TTL uint8
}

// FrameSize is the maximum number of bytes of a frame in an event.
const FrameSize = loader.EventFrame

// Reasons returns the reasons of events: all but those of packets that pass
// before any list or without any finding. Clean packets have events, too, where the
// program samples them; only those get them who ask for that reason.
func Reasons() []Reason {
	var all []Reason
	for r := verdict.Allowed; r < verdict.NumReasons; r++ {
		if r != verdict.Link {
			all = append(all, r)
		}
	}
	return all
}

// ParseReason returns the reason of events with the given name.
func ParseReason(name string) (Reason, error) {
	var names []string
	for _, r := range Reasons() {
		if r.String() == name {
			return r, nil
		}
		names = append(names, r.String())
	}
	for r := range verdict.NumReasons {
		if r.String() == name {
			return 0, fmt.Errorf("%s packets produce no events: use tcpdump", name)
		}
	}
	return 0, fmt.Errorf("unknown reason %q: want %s", name, strings.Join(names, ", "))
}

// Patterns names patterns by their numbers, "" where it is not known. It is safe for concurrent use.
type Patterns interface{ Name(number int) string }

// Interface is an interface on which programs report packets.
type Interface struct {
	netif.Target
	Stats    *loader.Stats
	Lists    []string        // their names, from list 1
	Patterns Patterns        // nil: there are none
	Policy   *verdict.Policy // decides whether a packet was dropped
}

// Event converts a program's event for subscribers. boot is the zero of the
// programs' clock.
func (i *Interface) Event(of *loader.Event, boot time.Time) Event {
	p := &of.Packet
	e := Event{
		Time: boot.Add(of.Time), Target: i.Target, Index: of.Interface, Reason: Reason(p.Reason),
		Length: int(p.Len), OneIn: of.OneIn, Importance: of.First, Inner: loader.InTunnel(p),
	}
	e.Dropped = i.Policy.Action(e.Reason) == verdict.Drop
	if p.Family != 0 {
		e.Tuple = engine.TupleOf(p)
	}
	switch n := int(p.List); {
	case e.Reason == verdict.Pattern:
		if i.Patterns != nil {
			e.Pattern = i.Patterns.Name(n)
		}
	case n > 0 && n <= len(i.Lists):
		e.List = i.Lists[n-1]
	}
	return e
}

// Want selects the events of a subscription.
type Want struct {
	Reasons []Reason // reasons of events; none: all of [Reasons]
	OneIn   uint32   // desired sampling rate, one of this power of two; 0: all if possible
	Frames  bool     // include the start of frames
	Room    int      // buffer size in events; 0: DefaultRoom

	// Wake, unless nil, has events read as they come, a millisecond after the last ones or a few, and not only
	// each Period. Something is sent to it if there is room when an event was sent to the subscriber.
	Wake chan<- struct{}

	// NewFlows selects, instead of samples, the first packets of flows that were not seen
	// lately, where programs look for them, within their budget. They may leave for any of
	// the reasons, without findings, too.
	NewFlows bool
}

// DefaultRoom is a tenth of a second of events.
const DefaultRoom = Limit / 10

// subscription is a subscriber's state.
type subscription struct {
	Want
	to   chan Event
	lost uint64 // not yet reported
}

func (s *subscription) wants(r Reason) bool {
	return !s.NewFlows && (len(s.Reasons) == 0 && r != verdict.Clean || slices.Contains(s.Reasons, r))
}

// wantsEvent is wants for an event, which may be that of a new flow.
func (s *subscription) wantsEvent(e *Event) bool {
	if e.Importance == 0 {
		return s.wants(e.Reason)
	}
	return s.NewFlows && (len(s.Reasons) == 0 || slices.Contains(s.Reasons, e.Reason))
}

// send sends an event, if there is room.
func (s *subscription) send(e Event) {
	if !s.Frames {
		e.Frame = nil
	}
	select {
	case s.to <- e:
	default:
		s.lost++
	}
	select {
	case s.Wake <- struct{}{}:
	default: // nil, or it has yet to look
	}
}

// sendLost reports the number of missing events, if there is room.
func (s *subscription) sendLost(now time.Time) {
	if s.lost == 0 {
		return
	}
	select {
	case s.to <- Event{Time: now, Lost: s.lost}:
		s.lost = 0
	default:
	}
}
