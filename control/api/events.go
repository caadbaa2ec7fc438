package api

import (
	"fmt"
	"net/url"
	"strings"
	"time"
)

// Events selects the packets that a client wants: GET /v1/events.
type Events struct {
	Reasons []string // by their names; none: all of those that drop, or would
	Frames  bool     // include the beginnings of frames
	Follow  bool     // until the client disconnects; otherwise for a second

	FirstSeen bool // the first packets of flows that were not seen lately, instead of dropped packets
}

// eventFlags are the parameters that are 0, which is the default, or 1.
var eventFlags = []string{"frames", "follow", "first_seen"}

// flag returns the value of such a parameter, nil for another one.
func (e *Events) flag(name string) *bool {
	switch name {
	case "frames":
		return &e.Frames
	case "follow":
		return &e.Follow
	case "first_seen":
		return &e.FirstSeen
	}
	return nil
}

// ReasonParameter may be repeated, and have several reasons, separated by commas.
const ReasonParameter = "reason"

// Query returns the parameters of the request.
func (e Events) Query() url.Values {
	q := url.Values{}
	for _, r := range e.Reasons {
		q.Add(ReasonParameter, r)
	}
	for _, name := range eventFlags {
		if *e.flag(name) {
			q.Set(name, "1")
		}
	}
	return q
}

// ParseEvents reads what [Events.Query] returns. It fails with a [*BadRequest].
func ParseEvents(query url.Values) (e Events, err error) {
	for name, values := range query {
		for _, value := range values {
			switch set := e.flag(name); {
			case name == ReasonParameter:
				e.Reasons = append(e.Reasons, strings.Split(value, ",")...)
			case set == nil:
				return Events{}, &BadRequest{Err: fmt.Errorf("/v1/events has no parameter %q: there are %s, %s", name, ReasonParameter, strings.Join(eventFlags, ", "))}
			case value != "0" && value != "1":
				return Events{}, &BadRequest{Err: fmt.Errorf("%s=%q: want 0 or 1", name, value)}
			default:
				*set = value == "1"
			}
		}
	}
	return e, nil
}

// Event is a packet that was decided on: a line of the answer to GET /v1/events. With
// Time and Lost alone, it is the number of events missing there.
type Event struct {
	Time      time.Time `json:"time"`
	Interface string    `json:"interface,omitempty"`
	Netns     string    `json:"netns,omitempty"`     // "": the daemon's own
	Direction string    `json:"direction,omitempty"` // of the packet: in or out
	Reason    string    `json:"reason,omitempty"`
	Verdict   string    `json:"verdict,omitempty"` // pass or drop
	List      string    `json:"list,omitempty"`    // that blocks or allows it; "": unknown
	Pattern   string    `json:"pattern,omitempty"` // that drops it; "": none, or unknown
	Proto     string    `json:"proto,omitempty"`   // as in lists; "": no addresses were found
	Src       string    `json:"src,omitempty"`
	SrcPort   *int      `json:"src_port,omitempty"`
	Dst       string    `json:"dst,omitempty"`
	DstPort   *int      `json:"dst_port,omitempty"`
	Inner     bool      `json:"inner,omitempty"`  // protocol, addresses and ports are from a header in a tunnel
	Length    int       `json:"length,omitempty"` // bytes on the wire
	OneIn     uint32    `json:"one_in,omitempty"` // sampling rate: number of packets that the event stands for
	Frame     []byte    `json:"frame,omitempty"`  // beginning of the frame, in base64
	Lost      uint64    `json:"lost,omitempty"`

	// Importance of the flow, which was not seen lately, from 1 to 7.
	Importance int `json:"importance,omitempty"`

	// FirstTTL and TTL belong to a packet that seems to run in a loop, when it
	// was first and last seen.
	FirstTTL int `json:"first_ttl,omitempty"`
	TTL      int `json:"ttl,omitempty"`
}

// Drops reports whether the packet was dropped.
func (e *Event) Drops() bool { return e.Verdict == "drop" }

// Missing returns why a daemon with a status has no such events, nil if it has.
func (e Events) Missing(s Status) error {
	if e.FirstSeen && !s.FirstSeen {
		return ErrNoFirstSeen
	}
	return nil
}

// ErrNoFirstSeen says that the daemon does not look for new flows.
var ErrNoFirstSeen error = AbsentError("this daemon does not look for new flows: first_seen in weir.yaml does")
