package api

import (
	"strings"
	"time"
)

// DefaultHubSocket is the default path of the socket of a hub.
const DefaultHubSocket = "/run/weir-hub/hub.sock"

// FleetReloaded lists what has changed in the configuration: POST /v1/reload of a hub.
type FleetReloaded struct {
	Changes   []string `json:"changes"`   // a line for each
	Published bool     `json:"published"` // false: nodes get it once the broker can be reached, and a hub of an older state has asked nodes
}

// MaxPlan bounds a configuration that is planned, in bytes.
const MaxPlan = 1 << 20

// FleetPlanQuestion asks what a reload would change: POST /v1/fleet/plan of a hub.
type FleetPlanQuestion struct {
	File string `json:"file,omitempty"` // its name in errors
	Text string `json:"text,omitempty"` // of another configuration; "": of that which a reload reads
}

// FleetPlan has the changes that a reload would make, and the nodes that they concern.
type FleetPlan struct {
	Changes  []string      `json:"changes"`  // a line for each, as of a reload
	Restart  []string      `json:"restart"`  // those of them that need a restart: a reload refuses all
	Lists    []PlannedList `json:"lists"`    // that would be added, changed or removed
	Warnings []string      `json:"warnings"` // waves and lists without a node
}

// PlannedList is a list before and after a reload.
type PlannedList struct {
	Name    string        `json:"name"`
	Before  *PlannedNodes `json:"before,omitempty"` // nil: there is no such list
	After   *PlannedNodes `json:"after,omitempty"`  // nil: it is removed
	Entries int           `json:"entries"`          // that it has now; its sources are read after a reload
	Gain    []string      `json:"gain"`             // nodes that get the list
	Lose    []string      `json:"lose"`             // nodes that drop it
}

// PlannedNodes counts the nodes of a list, all and those of each wave, by the labels of enrolled nodes.
type PlannedNodes struct {
	Nodes int           `json:"nodes"`
	Waves []PlannedWave `json:"waves"` // of changes by its sources; none: they reach all nodes at once
}

// PlannedWave is a wave of a list.
type PlannedWave struct {
	Labels []string `json:"labels"`
	Mode   string   `json:"mode"`
	Nodes  int      `json:"nodes"`
}

// FleetReload is an attempt to reload the configuration.
type FleetReload struct {
	Time  time.Time `json:"time"`
	Error string    `json:"error,omitempty"` // why the configuration before stays
}

// FleetChanged is the result of a change: POST or DELETE /v1/entries of a hub.
type FleetChanged struct {
	Changed
	Version   Place    `json:"version"`   // of the list, which has the change
	Published bool     `json:"published"` // false: nodes get it once the broker can be reached, and a hub of an older state has asked nodes
	Warnings  []string `json:"warnings,omitempty"`

	// Nodes counts the nodes that are enrolled, Enforcing those of them that report, and have said
	// so far that they have the change, and filter by it.
	Nodes     int `json:"nodes"`
	Enforcing int `json:"enforcing_nodes"`
}

// FleetEnforced is the result of an EnforceChange: POST /v1/lists/{list}/enforce of a hub.
type FleetEnforced struct {
	Enforced
	Published bool     `json:"published"` // false: nodes get it once the broker can be reached, and a hub of an older state has asked nodes
	Warnings  []string `json:"warnings,omitempty"`
}

// FleetTakenOver is the result of POST /v1/fleet/take-over.
type FleetTakenOver struct {
	From      string `json:"from"`      // where the other hub is
	Published bool   `json:"published"` // false: nodes get it once the broker can be reached, and a hub of an older state has asked nodes
}

// FleetLost lists the changes that are known to be lost: GET /v1/fleet/lost.
type FleetLost struct {
	Lost []LostChanges `json:"lost"` // the latest last
}

// LostChanges are changes by commands that a hub's state had lost, and could not take back from a node.
type LostChanges struct {
	Time    time.Time `json:"time"` // when the hub noticed
	List    string    `json:"list"`
	Node    string    `json:"node"`              // from which they are known
	Version Place     `json:"version"`           // which that node has
	Added   []string  `json:"added,omitempty"`   // entries that the list has not now
	Removed []string  `json:"removed,omitempty"` // entries that it has
	More    int       `json:"more,omitempty"`    // entries that are not written out
	Why     string    `json:"why"`               // they were not taken back
}

// HubStatus is the state of a fleet: GET /v1/fleet.
type HubStatus struct {
	Time      time.Time   `json:"time"`
	Version   string      `json:"version"`           // of the hub
	Connected bool        `json:"connected"`         // to the broker
	Catalog   *time.Time  `json:"catalog,omitempty"` // the last one that was published; nil: none yet
	Problems  []string    `json:"problems"`          // a line each
	Lists     []FleetList `json:"lists"`
	Nodes     []FleetNode `json:"nodes"`
	Ignored   uint64      `json:"ignored_reports"` // of nodes: too many, or none that the hub understands
	Patterns  int         `json:"patterns"`        // published by weir fleet flood, and neither over nor ended: it says what nodes do with them

	Reload *FleetReload `json:"reload,omitempty"` // the last one; nil: none since the start
}

// FleetList is a list of a fleet.
type FleetList struct {
	Name      string       `json:"name"`
	Action    string       `json:"action"`
	Direction string       `json:"direction"`
	Priority  int          `json:"priority"`
	Trial     bool         `json:"trial,omitempty"`    // it drops nothing
	Decision  *Trial       `json:"decision,omitempty"` // what the configuration or a command says of that; nil: it is enforced, as configured
	For       string       `json:"for,omitempty"`      // the packets that it is for; "": all
	Labels    []string     `json:"labels,omitempty"`   // of the nodes that have it; none: all nodes
	Version   Place        `json:"version"`
	Published Place        `json:"published"`
	Entries   int          `json:"entries"`
	Manual    int          `json:"manual_entries"`
	Feeds     []FeedSource `json:"feeds"`

	// Of the nodes that are enrolled: how many are to have which versions, and how many have
	// them that have reported; at most MaxShares, those of most nodes.
	Wanted []FleetShare `json:"wanted"`
	Have   []FleetShare `json:"have"`

	// Collateral counts all that the list drops, or would drop; nil where it allows.
	Collateral *FleetCollateral `json:"collateral,omitempty"`

	// Rollout is the last one, nil if changes reach all nodes at once, or there was none.
	Rollout *FleetRollout `json:"rollout,omitempty"`
}

// Does returns the action with the packets and nodes that it is for, as in "block, on trial, for tcp/22, on nodes with
// web or mail".
func (l *FleetList) Does() string {
	text := l.Action
	if l.Trial {
		text += ", on trial"
	}
	if l.For != "" {
		text += ", for " + l.For
	}
	if len(l.Labels) > 0 {
		text += ", on nodes with " + strings.Join(l.Labels, " or ")
	}
	return text
}

// Drops says whether the list drops what its entries match.
func (l *FleetList) Drops() string {
	if l.Trial {
		return "would drop"
	}
	return "drops"
}

// MaxShares bounds the versions of a list that a status counts.
const MaxShares = 8

// FleetShare is how many nodes have a version.
type FleetShare struct {
	Version Place `json:"version"` // 0.0: nothing, or with those that are wanted, what they have
	Nodes   int   `json:"nodes"`
}

// The states of a node.
const (
	NodeUnseen  = "unseen"  // it was enrolled, and has not reported since the hub started
	NodeCurrent = "current" // it has the versions that it is to have
	NodeBehind  = "behind"
	NodeStale   = "stale" // by its own report, it does not hear the hub
	NodeSilent  = "silent"
	NodeRevoked = "revoked"
)

// Reports reports whether the last report of a node in a state still holds.
func Reports(state string) bool {
	return state == NodeCurrent || state == NodeBehind || state == NodeStale
}

// FleetNode is a node of a fleet.
type FleetNode struct {
	Name    string      `json:"node"`
	Labels  []string    `json:"labels"`
	State   string      `json:"state"`
	Seen    *time.Time  `json:"seen,omitempty"`
	Report  *NodeStatus `json:"report,omitempty"` // the last one
	Ignored uint64      `json:"ignored_reports"`  // too many, or none that the hub understands

	// NotEnforcing says why the node does not drop what its lists have, by its last report; "": it does.
	NotEnforcing string `json:"not_enforcing,omitempty"`

	// Violations counts what the node tried at the server inside the hub that it may not do.
	Violations uint64 `json:"violations"`
}
