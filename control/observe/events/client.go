package events

import (
	"context"

	"weir/control/api"
	"weir/filter/key"
)

// API returns the event as clients of the daemon see it.
func (e Event) API() api.Event {
	if e.Lost != 0 {
		return api.Event{Time: e.Time, Lost: e.Lost}
	}
	event := api.Event{
		Time: e.Time, Interface: e.Iface, Netns: e.Netns, Direction: e.Direction(), Reason: e.Reason.String(), Verdict: "pass",
		List: e.List, Pattern: e.Pattern, Inner: e.Inner, Length: e.Length, OneIn: e.OneIn, Frame: e.Frame,
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

// Subscription has the events of a subscriber in the form that clients see.
type Subscription struct {
	all <-chan Event
	end func()
}

// Subscription subscribes to what a client asks for.
func (h *Hub) Subscription(asked api.Events) (*Subscription, error) {
	want := Want{Frames: asked.Frames, NewFlows: asked.FirstSeen}
	for _, name := range asked.Reasons {
		r, err := ParseReason(name)
		if err != nil {
			return nil, &api.BadRequest{Err: err}
		}
		want.Reasons = append(want.Reasons, r)
	}
	all, end := h.Subscribe(want)
	return &Subscription{all, end}, nil
}

// Next waits for an event. It is false at the end, and when ctx is done.
func (s *Subscription) Next(ctx context.Context) (api.Event, bool) {
	select {
	case e, ok := <-s.all:
		return e.API(), ok
	case <-ctx.Done():
		return api.Event{}, false
	}
}

// Ready reports whether Next would return an event at once.
func (s *Subscription) Ready() bool { return len(s.all) > 0 }

// Close ends the subscription.
func (s *Subscription) Close() { s.end() }
