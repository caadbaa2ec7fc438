package api

import (
	"fmt"
	"time"
)

// Limits on a request.
const (
	MaxTraced = 256
	maxPacket = 64 << 10 // bytes of a packet
)

// TraceQuestion is a request for where and when packets passed: POST /v1/trace.
type TraceQuestion struct {
	Packets []TraceAbout `json:"packets"` // at most MaxTraced
}

// TraceAbout is a packet to trace.
type TraceAbout struct {
	// Data is the IP packet in base64, or its beginning: the headers, and 8 more
	// bytes of IPv4 or 20 of IPv6.
	Data []byte `json:"data"`

	// The window in which the packet is searched, both ends included.
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// Traced is where and when packets may have passed a host.
type Traced struct {
	Host       string            `json:"host"`              // name of the daemon's host
	Version    int               `json:"version,omitempty"` // of the digests; 0: before 3
	Interfaces []TracedInterface `json:"interfaces"`
}

// TracedInterface is when packets may have passed an interface, in the order of the
// request.
type TracedInterface struct {
	Name    string         `json:"name"`
	Netns   string         `json:"netns,omitempty"` // "": the daemon's own
	Since   *time.Time     `json:"since,omitempty"` // start of the oldest digests; nil: nothing has passed
	Packets []TracedPacket `json:"packets"`
}

// TracedPacket says when a packet may have passed.
type TracedPacket struct {
	Slices []TracedSlice `json:"slices"` // of time, in order

	// Chance is the probability, 0 … 1, that a packet that did not pass matches
	// any slice of the window.
	Chance float64 `json:"chance"`
}

// TracedSlice is a slice of time in which a packet may have passed.
type TracedSlice struct {
	Start  time.Time `json:"start"`
	Length float64   `json:"length_seconds"`
	Chance float64   `json:"chance"` // probability that a packet that did not pass matches this slice
}

// ErrNoDigests says that the daemon records no digests.
var ErrNoDigests error = AbsentError("this daemon records no digests of packets: set digest.rate in its configuration")

// Check returns what is wrong with a request.
func (t *TraceQuestion) Check() error {
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
