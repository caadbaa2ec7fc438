package api

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

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

	// MaxConversed bounds the addresses with which a node has conversed; nil: any number.
	MaxConversed *int `json:"max_conversed,omitempty"`

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

	// Collateral counts what the version drops in addition, by the wave's nodes that have it, or
	// rehearse it.
	Collateral FleetCollateral `json:"collateral"`

	Newer bool `json:"newer"` // there are newer contents, which go out after this
}

// Active reports whether the rollout has not ended.
func (r *FleetRollout) Active() bool {
	return r.State == RolloutRunning || r.State == RolloutPaused || r.State == RolloutHalted
}

// FleetWave is a wave of a rollout.
type FleetWave struct {
	Labels []string `json:"labels"` // none: all nodes
	Mode   string   `json:"mode"`   // rehearse or enforce
	For    float64  `json:"for_seconds"`
}

// FleetCollateral says which nodes have conversed in the last 24 hours with addresses that a list
// would drop.
type FleetCollateral struct {
	Measured   int              `json:"measured"`       // nodes that say it
	Unmeasured int              `json:"not_measured"`   // nodes that do not: without collateral in weir.yaml, or of earlier versions
	Conversed  int              `json:"conversed"`      // nodes with any
	Most       []FleetConversed `json:"most,omitempty"` // of these, those with most, at most MaxConversing
}

// MaxConversing bounds the nodes that are named with whom they have conversed.
const MaxConversing = 5

// String says which nodes have conversed, and with whom, as far as that is known.
func (c *FleetCollateral) String() string {
	var texts []string
	for _, n := range c.Most {
		texts = append(texts, n.Node+" with "+n.Conversed.String())
	}
	if more := c.Conversed - len(c.Most); more > 0 {
		texts = append(texts, fmt.Sprintf("%d more nodes", more))
	}
	text := strings.Join(texts, "; ")
	switch {
	case c.Measured == 0:
		text = "not measured"
	case c.Conversed == 0:
		text = "none"
	}
	if c.Measured > 0 && c.Unmeasured > 0 {
		text += fmt.Sprintf(" (not measured by %d of %d nodes)", c.Unmeasured, c.Measured+c.Unmeasured)
	}
	return text
}

// Largest returns the number of addresses of the node with most.
func (c *FleetCollateral) Largest() int {
	if len(c.Most) == 0 {
		return 0
	}
	return c.Most[0].Addresses
}

// Add adds what a node says, nil where it does not.
func (c *FleetCollateral) Add(node string, of *Conversed) {
	if of == nil {
		c.Unmeasured++
		return
	}
	c.Measured++
	if of.Addresses == 0 {
		return
	}
	c.Conversed++
	at, _ := slices.BinarySearchFunc(c.Most, FleetConversed{node, *of}, func(a, b FleetConversed) int {
		return cmp.Or(cmp.Compare(b.Addresses, a.Addresses), strings.Compare(a.Node, b.Node))
	})
	if at < MaxConversing {
		c.Most = slices.Insert(c.Most, at, FleetConversed{node, *of})
		c.Most = c.Most[:min(len(c.Most), MaxConversing)]
	}
}

// FleetConversed says with how many addresses that a list would drop a node has conversed.
type FleetConversed struct {
	Node string `json:"node"`
	Conversed
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
	Published bool     `json:"published"` // false: nodes get it once the broker can be reached, and a hub of an older state has asked nodes
}
