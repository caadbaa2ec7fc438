package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Limits on what is traced at once.
const (
	MaxTraced  = 256
	maxPacket  = 64 << 10 // bytes of a packet
	maxTracing = 4 << 20  // bytes of a question
)

// TraceQuestion asks where and when packets have passed: POST /v1/trace.
type TraceQuestion struct {
	Packets []TraceAbout `json:"packets"` // at most MaxTraced
}

// TraceAbout is a packet that is traced.
type TraceAbout struct {
	// Data is the IP packet, or its beginning: the headers and 8 bytes behind
	// those of IPv4, 20 behind those of IPv6. In base64.
	Data []byte `json:"data"`

	// When it is looked for, both ends included.
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// Traced says what a weir has seen of packets.
type Traced struct {
	Host       string            `json:"host"` // where it runs
	Interfaces []TracedInterface `json:"interfaces"`
}

// TracedInterface is what an interface has seen of the packets, in their order.
type TracedInterface struct {
	Name    string         `json:"name"`
	Netns   string         `json:"netns,omitempty"` // "": weir's own
	Since   *time.Time     `json:"since,omitempty"` // what was before is forgotten; none: nothing passed
	Packets []TracedPacket `json:"packets"`
}

// TracedPacket says when a packet may have passed.
type TracedPacket struct {
	Slices []TracedSlice `json:"slices"` // of time, in their order

	// Chance is the probability, 0 … 1, that a packet which did not pass would
	// match any slice of the window.
	Chance float64 `json:"chance"`
}

// TracedSlice is a slice of time in which a packet may have passed.
type TracedSlice struct {
	Start  time.Time `json:"start"`
	Length float64   `json:"length_seconds"`
	Chance float64   `json:"chance"` // that a packet which did not pass would match this slice
}

// ErrNoDigests says that nothing is recorded that packets could be traced by.
var ErrNoDigests = errors.New("this weir records no digests of packets: set digest.rate in its configuration")

// traceRoute answers where packets passed.
func traceRoute(s Daemon) route {
	return route{http.MethodPost, tracePath, func(w http.ResponseWriter, q *http.Request) (any, error) {
		var asked TraceQuestion
		if err := readBody(w, q, maxTracing, &asked); err != nil {
			return nil, err
		}
		if err := asked.check(); err != nil {
			return nil, &BadRequest{Err: err}
		}
		t, err := s.Trace(q.Context(), asked)
		if err != nil {
			return nil, err
		}
		answer := *t // the source's own must not change
		answer.Interfaces = list(t.Interfaces)
		return answer, nil
	}}
}

// check says what is wrong with a question.
func (t *TraceQuestion) check() error {
	if n := len(t.Packets); n == 0 || n > MaxTraced {
		return fmt.Errorf("%d packets: want 1 to %d", n, MaxTraced)
	}
	for i, p := range t.Packets {
		switch {
		case len(p.Data) > maxPacket:
			return fmt.Errorf("packet %d: %d bytes: the most are %d", i+1, len(p.Data), maxPacket)
		case p.From.IsZero() || p.To.Before(p.From):
			return fmt.Errorf("packet %d: it is looked for from %v to %v", i+1, p.From, p.To)
		}
	}
	return nil
}

// Trace asks where and when packets have passed. It fails with a [*BadRequest] for
// a packet that has no digest.
func (c *Client) Trace(ctx context.Context, asked TraceQuestion) (*Traced, error) {
	body, err := json.Marshal(asked)
	if err != nil {
		return nil, err
	}
	return ask[Traced](ctx, c, http.MethodPost, tracePath, body)
}
