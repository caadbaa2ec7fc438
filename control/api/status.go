package api

import (
	"fmt"
	"time"
)

// Status describes the daemon and its filters: GET /v1/status.
type Status struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"` // the process
	Pins    string    `json:"pins"`    // the directory of its pins
	Entries int       `json:"entries"`
	Mode    string    `json:"mode"`
	Monitor bool      `json:"monitor"` // nothing is dropped
	FalsePositives
	Interfaces []InterfaceStatus `json:"interfaces"` // those configured, and those that match a pattern

	ConfirmUntil *time.Time `json:"confirm_until,omitempty"` // when the configuration is rolled back, unless it is confirmed
	RolledBack   bool       `json:"rolled_back"`             // the previous configuration is active, since the last one was not confirmed

	FirstSeen bool `json:"first_seen"` // new flows are looked for

	// Protected are the packets that must not be dropped, as far as the daemon knows; nil: it
	// has yet to look.
	Protected []Protected `json:"protected,omitzero"`

	// Of all interfaces, since the daemon started.
	PenaltiesRefused  uint64 `json:"total_penalties_refused,omitempty"`  // heavy hitters for whose penalty there was no room at once
	PenaltiesReplaced uint64 `json:"total_penalties_replaced,omitempty"` // that made room for those of others

	// Spared are the heavy hitters whose penalties would cut off something: at most MaxSpared
	// of them. They are not blocked, or rate-limited less.
	Spared     []Spared `json:"spared,omitempty"`
	SparedMore int      `json:"spared_more,omitempty"` // others

	// Busy describes the work that has gone on for a second or longer; nil: there is none.
	Busy *Busy `json:"busy,omitempty"`

	// NotReady are the sources of lists that have nothing to filter by yet.
	NotReady []NotReady `json:"not_ready,omitempty"`

	// Unavailable has a line for each address or socket where the daemon cannot listen, which it
	// tries again, as in "metrics listener: listen tcp 127.0.0.1:9100: bind: address already in use".
	Unavailable []string `json:"unavailable,omitempty"`

	// Unsaved is why a restart would forget manual entries or modes; "": it would not.
	Unsaved string `json:"unsaved,omitempty"`

	// Damaged says which manual entries the daemon could not read when it started; "": it read all.
	Damaged string `json:"damaged,omitempty"`

	// Trials are the lists that the configuration or a command has put on trial, and those
	// whose trial a command has ended.
	Trials []TrialList `json:"trials,omitempty"`

	// Policed are the limits of interfaces and of sources that commands have set.
	Policed []PoliceOverride `json:"police_overrides,omitempty"`

	// Reverted is of the weights: see there.
	Reverted *Reverted `json:"weights_reverted,omitempty"`

	// Clock is how the wall clock was set.
	Clock *Clock `json:"clock,omitempty"`

	MonitorOverride *MonitorOverride `json:"monitor_override,omitempty"` // nil: Monitor is as configured
	Fleet           *Fleet           `json:"fleet,omitempty"`            // nil: this host is in none
}

// Clock is the wall clock of a host. Nothing with a TTL ends by it.
type Clock struct {
	Synchronized bool           `json:"synchronized"`       // by a time server, as the kernel knows
	Settings     []ClockSetting `json:"settings,omitempty"` // since the first start, the last 16, the latest last
}

// ClockSetting is a step of the wall clock.
type ClockSetting struct {
	At time.Time `json:"at"`         // by the wall clock as it is now
	By float64   `json:"by_seconds"` // above 0: forward
}

// Busy is work that commands wait for, or other lists and reloads only.
type Busy struct {
	What   string    `json:"what"`           // as in "what was read of a list is activated"
	List   string    `json:"list,omitempty"` // "": of no list
	Since  time.Time `json:"since"`
	Beside bool      `json:"beside,omitempty"` // commands are carried out meanwhile
}

// String names the work, and its list.
func (b Busy) String() string {
	if b.List == "" {
		return b.What
	}
	return b.What + " (list " + b.List + ")"
}

// NotReady is a source that has not been read, or was refused, and of which nothing was
// saved.
type NotReady struct {
	List    string `json:"list"` // "": it has the manual entries of all lists
	Source  string `json:"source"`
	Problem string `json:"problem"`
}

// Protected is packets that must not be dropped, as they would cut off the host or its
// operator.
type Protected struct {
	What  string `json:"what"`  // as in "the gateway 192.0.2.1"
	Entry string `json:"entry"` // that matches the packets, in the format of lists
}

// MaxSpared bounds Status.Spared.
const MaxSpared = 10

// Spared is a heavy hitter whose penalty would cut off something.
type Spared struct {
	Flow    string `json:"flow"`          // in the format of lists
	Tracker string `json:"tracker"`       // its key, as in src
	Action  string `json:"action"`        // that its penalty would be: limit or block
	CutsOff string `json:"would_cut_off"` // as in "the gateway 192.0.2.1"
}

// String says what would become of the flow, and why it does not.
func (s Spared) String() string {
	would := map[string]string{"limit": "rate-limited more", "block": "blocked"}[s.Action]
	return fmt.Sprintf("%s would be %s (tracker %s), but that would cut off %s", s.Flow, would, s.Tracker, s.CutsOff)
}

// Fleet is the state of a node of a fleet.
type Fleet struct {
	Node      string     `json:"node"`
	Connected bool       `json:"connected"`
	Confirmed *time.Time `json:"confirmed,omitempty"` // when the hub last said what the node is to have; nil: never
	Stale     bool       `json:"stale"`               // that is too long ago
	Problem   string     `json:"problem,omitempty"`   // why, if so
	Refused   uint64     `json:"refused_messages"`    // forged, replayed or damaged
	Twice     []string   `json:"twice,omitempty"`     // lists that are configured on the node, too
	Denied    bool       `json:"denied,omitempty"`    // the hub lets the node in no more, as one that is revoked

	// Expires is until when the node's certificate is valid, if it should have been renewed. RenewalFails is since when
	// that fails, and RenewalProblem why.
	Expires        *time.Time `json:"certificate_expires,omitempty"`
	RenewalFails   *time.Time `json:"renewal_fails_since,omitempty"`
	RenewalProblem string     `json:"renewal_problem,omitempty"`
}

// InterfaceStatus is the state of an interface.
type InterfaceStatus struct {
	Interface string `json:"interface"`
	Netns     string `json:"netns"`     // "": the daemon's own
	Direction string `json:"direction"` // of the packets: in or out
	State     string `json:"state"`     // Filtered, Unpinned, Absent, Gone, Unfiltered or Detached
	XDP       string `json:"xdp"`       // as configured, as a hooks.Hook; tc for outgoing packets
	Problem   string `json:"problem,omitempty"`
	Packets   uint64 `json:"total_packets"` // since the daemon started
	Dropped   uint64 `json:"total_dropped"`

	// Penalties are the heavy hitters that are rate-limited or blocked; nil: no tracker may.
	Penalties    *int `json:"penalties,omitempty"`
	MaxPenalties int  `json:"max_penalties,omitempty"`
}

// The states of an interface.
const (
	Filtered   = "filtered"
	Unpinned   = "unpinned"   // it is filtered, but only until the daemon ends: its pins are lost, and cannot be made again
	Absent     = "absent"     // it has not been there since weir began, and is waited for
	Gone       = "gone"       // it no longer exists, and is waited for
	Unfiltered = "unfiltered" // it exists, but attaching fails and is retried
	Detached   = "detached"   // or taken over, by others: it is left alone until a reload
)

// Complete reports whether everything configured is filtered, by all lists.
func (s *Status) Complete() bool {
	if len(s.NotReady) > 0 {
		return false
	}
	for _, i := range s.Interfaces {
		if i.State != Filtered {
			return false
		}
	}
	return len(s.Interfaces) > 0
}
