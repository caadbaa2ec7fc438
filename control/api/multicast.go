package api

import "time"

// MulticastPath is the path of multicast forwarding.
const MulticastPath = "/v1/multicast"

// Multicast is the state of multicast forwarding: GET /v1/multicast. Packets and
// bytes are counted from the daemon's start.
type Multicast struct {
	Groups    int     `json:"groups"` // wanted by at least one interface
	MaxGroups int     `json:"max_groups"`
	Planned   float64 `json:"planned_false_positive_rate"` // of a filter with MaxGroups groups

	Copied      uint64 `json:"copied_packets"` // to the interfaces, before their filters
	CopiedBytes uint64 `json:"copied_bytes"`
	Left        uint64 `json:"left_packets"` // to the network stack, because no interface wants their group
	LeftBytes   uint64 `json:"left_bytes"`

	Interfaces []MulticastInterface `json:"interfaces"`
}

// MulticastInterface is an interface to which packets are copied.
type MulticastInterface struct {
	Name       string `json:"name"`
	Configured bool   `json:"configured"` // false: it gets no packets, and its groups were added before it was removed
	Present    bool   `json:"present"`

	// FalsePositiveRate is the share of the unwanted groups, 0 … 1, that the
	// interface's filter matches by mistake, computed from the bits that are set.
	FalsePositiveRate float64 `json:"false_positive_rate"`

	Sent         uint64 `json:"sent_packets"`
	SentBytes    uint64 `json:"sent_bytes"`
	Dropped      uint64 `json:"dropped_packets"` // copies to groups that its filter does not contain
	DroppedBytes uint64 `json:"dropped_bytes"`

	Groups []MulticastGroup `json:"groups"`
}

// MulticastGroup is a group that an interface wants.
type MulticastGroup struct {
	Group      string     `json:"group"`
	Configured bool       `json:"configured"`      // in the configuration
	Added      *time.Time `json:"added,omitempty"` // manually
	UID        *uint32    `json:"uid,omitempty"`   // of the user who added it
}

// MulticastChange is a request to add groups to those that an interface wants, or to
// remove them: POST or DELETE /v1/multicast.
type MulticastChange struct {
	Remove bool `json:"-"` // DELETE

	Interface string   `json:"interface"`
	Groups    []string `json:"groups"`

	UID uint32 `json:"-"` // of the caller, from the kernel; or NoUID
}

// MulticastChanged is the result of a change, as numbers of groups.
type MulticastChanged struct {
	Interface string `json:"interface"`
	Added     int    `json:"added"`
	Removed   int    `json:"removed"`
	Unchanged int    `json:"unchanged"` // added but already wanted, or removed but not wanted
}
