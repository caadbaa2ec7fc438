package api

import (
	"context"
	"time"
)

// Status is what the daemon filters: GET /v1/status.
type Status struct {
	Version    string            `json:"version"`
	PID        int               `json:"pid"`
	Started    time.Time         `json:"started"` // the process
	Pins       string            `json:"pins"`    // the directory of its pins
	Entries    int               `json:"entries"`
	Mode       string            `json:"mode"`
	Monitor    bool              `json:"monitor"`    // nothing is dropped
	Interfaces []InterfaceStatus `json:"interfaces"` // those configured, and those that match a pattern

	ConfirmUntil *time.Time `json:"confirm_until,omitempty"` // when the configuration is rolled back, unless it is confirmed
	RolledBack   bool       `json:"rolled_back"`             // the previous configuration is active, since the last one was not confirmed

	FirstSeen bool `json:"first_seen"` // new flows are looked for

	// Protected are the packets that must not be dropped, as far as the daemon knows; nil: it
	// has yet to look.
	Protected []Protected `json:"protected,omitzero"`

	MonitorOverride *MonitorOverride `json:"monitor_override,omitempty"` // nil: Monitor is as configured
	Fleet           *Fleet           `json:"fleet,omitempty"`            // nil: this host is in none
}

// Protected is packets that must not be dropped, as they would cut off the host or its
// operator.
type Protected struct {
	What  string `json:"what"`  // as in "the gateway 192.0.2.1"
	Entry string `json:"entry"` // that matches the packets, in the format of lists
}

// Fleet is the state of a node of a fleet.
type Fleet struct {
	Node      string     `json:"node"`
	Connected bool       `json:"connected"`
	Confirmed *time.Time `json:"confirmed,omitempty"` // when the hub last said what the node is to have; nil: never
	Stale     bool       `json:"stale"`               // that is too long ago
	Problem   string     `json:"problem,omitempty"`   // why, if so
	Refused   uint64     `json:"refused_messages"`    // forged, replayed or damaged
}

// InterfaceStatus is the state of an interface.
type InterfaceStatus struct {
	Interface string `json:"interface"`
	Netns     string `json:"netns"`     // "": the daemon's own
	Direction string `json:"direction"` // of the packets: in or out
	State     string `json:"state"`     // Filtered, Gone, Unfiltered or Detached
	XDP       string `json:"xdp"`       // as configured, as a loader.Hook; tc for outgoing packets
	Problem   string `json:"problem,omitempty"`
	Packets   uint64 `json:"total_packets"` // since the daemon started
	Dropped   uint64 `json:"total_dropped"`
}

// The states of an interface.
const (
	Filtered   = "filtered"
	Gone       = "gone"       // it does not exist, and is waited for
	Unfiltered = "unfiltered" // it exists, but attaching fails and is retried
	Detached   = "detached"   // or taken over, by others: it is left alone until a reload
)

// Complete reports whether everything configured is filtered.
func (s *Status) Complete() bool {
	for _, i := range s.Interfaces {
		if i.State != Filtered {
			return false
		}
	}
	return len(s.Interfaces) > 0
}

// Status returns the states of all interfaces.
func (c *Client) Status(ctx context.Context) (*Status, error) { return get[Status](ctx, c, statusPath) }
