package api

import "time"

// The states of a rollout.
const (
	RolloutRunning    = "running"
	RolloutPaused     = "paused" // by a command
	RolloutHalted     = "halted" // by its limit, or because nodes refuse the version
	RolloutDone       = "done"   // all nodes are to have the version
	RolloutRolledBack = "rolled back"
)

// FleetRollout is how a version of a list reaches the nodes.
type FleetRollout struct {
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"` // why it halted
	From   Place  `json:"from"`             // what other nodes have
	To     Place  `json:"to"`

	Wave  int         `json:"wave"` // from 1; after the last one come all nodes
	Waves []FleetWave `json:"waves"`
	Limit float64     `json:"limit"` // the share of the packets that pass

	Began   time.Time `json:"began"`
	Entered time.Time `json:"entered"` // the wave

	// Of the wave.
	Nodes     int             `json:"nodes"`
	Confirmed int             `json:"confirmed"`
	Needed    int             `json:"needed"`
	Absent    int             `json:"absent"` // nodes that are not waited for: they were silent when the wave began
	Looked    uint64          `json:"looked_at_packets"`
	Passed    uint64          `json:"passed_packets"`
	WouldDrop uint64          `json:"would_drop_packets"`
	Top       []FleetAffected `json:"top"`
	WaitsFor  string          `json:"waits_for,omitempty"`

	Newer bool `json:"newer"` // there are newer contents, which go out after this
}

// FleetWave is a wave of a rollout.
type FleetWave struct {
	Labels []string `json:"labels"` // none: all nodes
	Mode   string   `json:"mode"`   // rehearse or enforce
	For    float64  `json:"for_seconds"`
}

// FleetAffected is a source of packets that a version would drop on a node.
type FleetAffected struct {
	Node string `json:"node"`
	Affected
}

// What is done to rollouts.
const (
	RollPause    = "pause"
	RollResume   = "resume"
	RollForward  = "forward" // to all nodes, whatever waves are left
	RollRollback = "rollback"
)

// FleetRoll asks for that: POST /v1/fleet/rollouts.
type FleetRoll struct {
	Do   string `json:"do"`
	List string `json:"list,omitempty"` // "": pause all that run, or resume all that are paused
}

// FleetRolled is the result.
type FleetRolled struct {
	Lists     []string `json:"lists"`
	Published bool     `json:"published"` // false: it will be, when the broker can be reached
}
