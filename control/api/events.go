package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"weir/control/capture"
	"weir/control/observe/events"
	"weir/filter/key"
)

// Events selects the packets that a client wants: GET /v1/events.
type Events struct {
	Reasons []events.Reason // some of events.Reasons; none: all of them
	Frames  bool            // include the beginnings of frames
	Follow  bool            // until the client disconnects; otherwise for a second

	FirstSeen bool // the first packets of flows that were not seen lately, instead of what is dropped
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
	Proto     string    `json:"proto,omitempty"`   // as in lists; "": no addresses were found
	Src       string    `json:"src,omitempty"`
	SrcPort   *int      `json:"src_port,omitempty"`
	Dst       string    `json:"dst,omitempty"`
	DstPort   *int      `json:"dst_port,omitempty"`
	Inner     bool      `json:"inner,omitempty"`  // protocol, addresses and ports are those of a header in a tunnel
	Length    int       `json:"length,omitempty"` // bytes on the wire
	OneIn     uint32    `json:"one_in,omitempty"` // sampling rate: number of packets that the event stands for
	Frame     []byte    `json:"frame,omitempty"`  // beginning of the frame, in base64
	Lost      uint64    `json:"lost,omitempty"`

	// Importance is that of a flow that was not seen lately, from 1 to 7.
	Importance int `json:"importance,omitempty"`

	// FirstTTL and TTL are those of a packet that seems to run in a loop, when it
	// was first and last seen.
	FirstTTL int `json:"first_ttl,omitempty"`
	TTL      int `json:"ttl,omitempty"`
}

// Drops reports whether the packet was dropped.
func (e *Event) Drops() bool { return e.Verdict == "drop" }

// Captured returns what a capture has of the event.
func (e *Event) Captured() (capture.Packet, capture.Note) {
	n := capture.Note{Interface: e.Interface, Out: e.Direction == "out", Dropped: e.Drops(), Comment: e.Reason}
	if e.Netns != "" {
		n.Interface += " in namespace " + e.Netns
	}
	if e.List != "" {
		n.Comment += ", list " + e.List
	}
	if e.OneIn > 1 {
		n.Comment += fmt.Sprintf(", 1 of %d", e.OneIn)
	}
	return capture.Packet{Time: e.Time, Data: e.Frame, Length: e.Length}, n
}

// NewEvent returns the form of an event that clients see.
func NewEvent(e events.Event) Event {
	if e.Lost != 0 {
		return Event{Time: e.Time, Lost: e.Lost}
	}
	event := Event{
		Time: e.Time, Interface: e.Iface, Netns: e.Netns, Direction: e.Direction(), Reason: e.Reason.String(), Verdict: "pass",
		List: e.List, Inner: e.Inner, Length: e.Length, OneIn: e.OneIn, Frame: e.Frame,
		FirstTTL: int(e.FirstTTL), TTL: int(e.TTL), Importance: e.Importance,
	}
	if e.Dropped {
		event.Verdict = "drop"
	}
	if t := e.Tuple; t.Src.IsValid() {
		event.Proto, event.Src, event.Dst = key.ProtoName(t.Proto), t.Src.String(), t.Dst.String()
		if t.HasPorts {
			event.SrcPort, event.DstPort = new(int(t.SrcPort)), new(int(t.DstPort))
		}
	}
	return event
}

// stream is an answer that writes itself to the response.
type stream func(http.ResponseWriter, *http.Request)

// eventsRoute streams events.
func eventsRoute(s Daemon) route {
	return route{http.MethodGet, eventsPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
		asked, err := readEvents(q.URL.Query())
		if err == nil && asked.FirstSeen && !s.Status().FirstSeen {
			err = fault{http.StatusNotFound, errors.New("this daemon does not look for new flows: first_seen in weir.yaml does")}
		}
		return stream(func(w http.ResponseWriter, q *http.Request) { asked.answer(w, q, s) }), err
	}}
}

// The parameters of GET /v1/events.
const (
	reasonParameter = "reason"     // may be repeated, or contain several, separated by commas
	framesParameter = "frames"     // 0 (the default) or 1
	followParameter = "follow"     // 0 (the default) or 1
	firstParameter  = "first_seen" // 0 (the default) or 1
)

// readEvents parses the parameters.
func readEvents(query url.Values) (asked Events, err error) {
	bad := func(format string, args ...any) (Events, error) {
		return Events{}, &BadRequest{Err: fmt.Errorf(format, args...)}
	}
	for name, values := range query {
		for _, value := range values {
			switch name {
			case reasonParameter:
				for word := range strings.SplitSeq(value, ",") {
					r, err := events.ParseReason(word)
					if err != nil {
						return bad("%w", err)
					}
					asked.Reasons = append(asked.Reasons, r)
				}
			case framesParameter, followParameter, firstParameter:
				if value != "0" && value != "1" {
					return bad("%s=%q: want 0 or 1", name, value)
				}
				*map[string]*bool{
					framesParameter: &asked.Frames, followParameter: &asked.Follow, firstParameter: &asked.FirstSeen,
				}[name] = value == "1"
			default:
				return bad("%s has no parameter %q: there are %s, %s, %s, %s",
					eventsPath, name, reasonParameter, framesParameter, followParameter, firstParameter)
			}
		}
	}
	return asked, nil
}

// query is the inverse of readEvents.
func (e Events) query() string {
	q := url.Values{}
	for _, r := range e.Reasons {
		q.Add(reasonParameter, r.String())
	}
	if e.Frames {
		q.Set(framesParameter, "1")
	}
	if e.Follow {
		q.Set(followParameter, "1")
	}
	if e.FirstSeen {
		q.Set(firstParameter, "1")
	}
	return q.Encode()
}

// glance is how long events are sent to a client that does not follow them.
const glance = time.Second

// answer sends events, a line each, until the client disconnects or the daemon stops.
func (e Events) answer(w http.ResponseWriter, q *http.Request, s Daemon) {
	all, end := s.Events(events.Want{Reasons: e.Reasons, Frames: e.Frames, FirstSeen: e.FirstSeen})
	defer end()
	connection := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	if connection.Flush() != nil {
		return
	}
	var over <-chan time.Time
	if !e.Follow {
		over = time.After(glance)
	}
	lines := json.NewEncoder(w)
	for {
		select {
		case event, ok := <-all:
			if !ok {
				return
			}
			_ = connection.SetWriteDeadline(time.Now().Add(answerTimeout)) // fails in tests only
			if lines.Encode(NewEvent(event)) != nil || len(all) == 0 && connection.Flush() != nil {
				return
			}
		case <-over:
			return
		case <-q.Context().Done():
			return
		}
	}
}

// errStopped is the error of events that were followed when the daemon stopped.
var errStopped = errors.New("weir has stopped")

// Events returns events, to be ranged over once. They end after a second, or if they
// are followed, with an error, such as that of the context.
func (c *Client) Events(ctx context.Context, asked Events) (iter.Seq2[*Event, error], error) {
	asking, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(patience, func() {
		cancel(fmt.Errorf("the daemon at %s does not answer within %v", c.path, patience))
	})
	r, err := c.send(asking, http.MethodGet, eventsPath+"?"+asked.query(), nil)
	late.Stop()
	if err != nil {
		cancel(nil)
		return nil, err
	}
	return func(yield func(*Event, error) bool) {
		defer cancel(nil)
		defer r.Body.Close()
		lines := json.NewDecoder(r.Body)
		for {
			e := new(Event)
			err := lines.Decode(e)
			switch {
			case err == io.EOF && !asked.Follow:
				return
			case err != nil && ctx.Err() != nil:
				err = context.Cause(ctx)
			case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF):
				err = errStopped
			case err != nil:
				err = fmt.Errorf("events of the daemon at %s: %w", c.path, err)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}, nil
}
