package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"weir/control/fleet/wire"
)

const rolloutsPath = "/v1/fleet/rollouts"

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
	State  string     `json:"state"`
	Reason string     `json:"reason,omitempty"` // why it halted
	From   wire.Place `json:"from"`             // what other nodes have
	To     wire.Place `json:"to"`

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
	wire.Affected
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

func rollRoute(h Hub) route {
	return route{http.MethodPost, rolloutsPath, func(w http.ResponseWriter, q *http.Request) (any, error) {
		var asked FleetRoll
		if err := readBody(w, q, 1<<20, &asked); err != nil {
			return nil, err
		}
		switch {
		case asked.Do == RollPause, asked.Do == RollResume:
		case asked.Do != RollForward && asked.Do != RollRollback:
			return nil, &BadRequest{Err: fmt.Errorf("do: %.20q: want pause, resume, forward or rollback", asked.Do)}
		case asked.List == "":
			return nil, &BadRequest{Err: fmt.Errorf("do: %s: list is missing", asked.Do)}
		}
		r, err := h.Roll(q.Context(), asked)
		r.Lists = list(r.Lists)
		return r, err
	}}
}

// Roll changes the course of rollouts at a hub.
func (c *Client) Roll(ctx context.Context, asked FleetRoll) (*FleetRolled, error) {
	body, err := json.Marshal(asked)
	if err != nil {
		return nil, err
	}
	return ask[FleetRolled](ctx, c, http.MethodPost, rolloutsPath, body)
}
