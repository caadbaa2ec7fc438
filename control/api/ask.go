package api

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// FleetExplanation says what becomes of packets at each node: GET /v1/fleet/explain.
type FleetExplanation struct {
	Question string            `json:"question"`
	Nodes    []NodeExplanation `json:"nodes"`
}

// NodeExplanation is the explanation of a node.
type NodeExplanation struct {
	Node        string       `json:"node"`
	Problem     string       `json:"problem,omitempty"`     // why there is no answer
	Explanation *Explanation `json:"explanation,omitempty"` // nil: there is none
}

// FleetTopQuestion says which flows are asked for.
type FleetTopQuestion struct {
	Key   string  // of the trackers, as in weir.yaml
	Unit  string  // that they count: packets or bytes
	Share float64 // of all that is counted, which a flow is to have: 0 … 1
}

// FleetTop are the largest flows of a fleet: GET /v1/fleet/top. Each node counts in
// intervals of its own, and the rates are of each node's last one.
type FleetTop struct {
	Key   string     `json:"key"`
	Unit  string     `json:"unit"`
	Share float64    `json:"share"` // that a flow is to have
	Nodes []NodeRate `json:"nodes"`
	Rate  float64    `json:"per_second"`      // of all flows of the nodes that have answered
	Rest  float64    `json:"rest_per_second"` // that no flow exceeds which is not in Flows
	Flows []FlowRate `json:"flows"`           // the largest first
}

// NodeRate is a node's count.
type NodeRate struct {
	Node     string  `json:"node"`
	Problem  string  `json:"problem,omitempty"` // why there is no answer, or only a part of it
	Interval float64 `json:"interval_seconds"`
	Rate     float64 `json:"per_second"`
	Denied   uint64  `json:"denied_packets"` // of flows that may be missing for lack of room
}

// FlowRate is a flow of several nodes together.
type FlowRate struct {
	Key   string  `json:"key"`            // in the format of lists
	Rate  float64 `json:"per_second"`     // never too small
	Least float64 `json:"min_per_second"` // never too large
	Share float64 `json:"share"`          // of all that is counted: 0 … 1
	Nodes int     `json:"nodes"`          // that have it among their largest
}

// FleetFloods are the floods that nodes see, beside each other: GET /v1/fleet/floods.
type FleetFloods struct {
	Nodes []NodeFloods     `json:"nodes"`
	Rules []FleetFloodRule `json:"rules"` // of all floods, the one with most packets first

	Patterns []FleetPattern `json:"patterns"` // that the hub has published, and that are not over
}

// NodeFloods has the floods that a node sees.
type NodeFloods struct {
	Node    string  `json:"node"`
	Problem string  `json:"problem,omitempty"` // why there is no answer
	Floods  *Floods `json:"floods,omitempty"`  // without those that are over; nil: there is no answer

	Unmeasured string `json:"unmeasured,omitempty"` // why it does not say what the rules match

	// Patterns are the ones that the hub has for the node.
	Patterns []NodePattern `json:"patterns,omitempty"`
}

// NodePattern says what a node does with a pattern of the hub.
type NodePattern struct {
	Node    string          `json:"node"`
	ID      string          `json:"id"` // of the hub's decision
	Pattern string          `json:"pattern"`
	State   string          `json:"state"`                  // PatternEnforced and others
	Why     string          `json:"why,omitempty"`          // it is not enforced, or by what else
	Held    uint64          `json:"held_packets,omitempty"` // that it has dropped
	Hits    *PatternPackets `json:"hits,omitempty"`
}

// The states of a pattern of the hub at a node.
const (
	PatternEnforced = "enforced"
	PatternOnTrial  = "on trial"
	PatternRefused  = "refused"
	PatternEnded    = "ended"
	PatternAwaited  = "awaited" // the node has not said anything of it
)

// FleetPattern is a pattern that the hub has published, and what has become of it at the nodes that it is for.
type FleetPattern struct {
	ID      string        `json:"id"`
	Pattern string        `json:"pattern"`
	Labels  []string      `json:"labels,omitempty"` // of the nodes; none: it is for all
	Until   time.Time     `json:"until"`
	Trial   float64       `json:"trial_seconds,omitempty"`
	Counts  bool          `json:"counts,omitempty"` // it drops nothing
	Ended   bool          `json:"ended,omitempty"`  // by a command, before its time
	Reason  string        `json:"reason,omitempty"`
	Nodes   []NodePattern `json:"nodes"`
}

// In returns how many of the nodes the pattern has a state at.
func (p *FleetPattern) In(state string) (n int) {
	for _, of := range p.Nodes {
		if of.State == state {
			n++
		}
	}
	return n
}

// FleetFloodsChange is a request to drop what patterns match at the nodes of a fleet, or to end that:
// POST /v1/fleet/floods. The nodes refuse what they would refuse as a PoliceChange.
type FleetFloodsChange struct {
	Patterns []string `json:"patterns,omitempty"` // none: all, where they end
	Labels   []string `json:"labels,omitempty"`   // of the nodes; none: all nodes
	For      float64  `json:"for_seconds,omitempty"`
	Trial    float64  `json:"trial_seconds,omitempty"` // as of a PoliceChange
	Off      bool     `json:"off,omitempty"`
	Reason   string   `json:"reason,omitempty"`
}

// Check returns what is wrong with a change by itself.
func (c *FleetFloodsChange) Check() error {
	if n := len(c.Patterns); n == 0 && !c.Off || n > MaxFleetPatterns || len(c.Labels) > MaxFleetPatterns {
		return &BadRequest{Err: fmt.Errorf("want 1 to %d patterns", MaxFleetPatterns)}
	}
	for _, text := range c.Patterns {
		one := PoliceChange{Pattern: text, For: c.For, Trial: c.Trial, Off: c.Off, Reason: c.Reason}
		if !c.Off {
			one.Rate = "0pps"
		}
		if err := one.Check(); err != nil {
			return err
		}
		if !c.Off && (c.For == 0 || c.Trial > c.For) {
			return &BadRequest{Err: errors.New("for_seconds: want a time after which the patterns end, no shorter than their trial")}
		}
	}
	return nil
}

// MaxFleetPatterns bounds the patterns of a fleet: nodes have room for as many.
const MaxFleetPatterns = 16

// FleetFloodsChanged is the result of a FleetFloodsChange.
type FleetFloodsChanged struct {
	Published bool           `json:"published"` // false: nodes get it as soon as the hub can publish it
	Patterns  []FleetPattern `json:"patterns"`  // that were changed
}

// FleetFloodRule is a rule that nodes have found, each for itself.
type FleetFloodRule struct {
	// Rates and sources are added up, and of the rest the largest counts: of packets and
	// conversations, what is hit at the node where it is worst. It is proposed if no node is sure, or if
	// it hits more than a rule may at one of them.
	FloodRule
	Nodes    []string `json:"nodes"`          // that see it
	Also     []string `json:"also,omitempty"` // patterns that nodes have found, for which it stands in
	Measured int      `json:"measured"`       // nodes that say what it matches
}

// Flooded returns the nodes at which there is a flood.
func (f *FleetFloods) Flooded() (all []NodeFloods) {
	for _, n := range f.Nodes {
		if n.Floods != nil && n.Floods.Now != nil {
			all = append(all, n)
		}
	}
	return all
}

// Dropped returns the share of the packets of all floods that nodes drop.
func (f *FleetFloods) Dropped() float64 {
	dropped, all := 0., 0.
	for _, n := range f.Flooded() {
		x := n.Floods.Now
		all += x.Rate
		dropped += x.Dropped * x.Rate
	}
	return dropped / max(all, 1)
}

// Applied reports whether a pattern is published, and drops packets until it is over.
func (f *FleetFloods) Applied(pattern string) bool {
	return slices.ContainsFunc(f.Patterns, func(p FleetPattern) bool { return p.Pattern == pattern && !p.Ended && !p.Counts })
}

// Do says what to do about the floods.
func (f *FleetFloods) Do() string {
	if f.Dropped() >= drops {
		return "nothing: weir drops it"
	}
	if slices.ContainsFunc(f.Rules, func(r FleetFloodRule) bool { return !r.Proposed && !f.Applied(r.Pattern) }) {
		return "weir fleet flood --apply all"
	}
	for _, n := range f.Flooded() {
		if x := n.Floods.Now; x.Dropped < drops {
			return "weir flood says at " + n.Node + ": " + x.Do()
		}
	}
	return "nothing: weir drops it"
}

// Everywhere reports whether all nodes that a change is for have made it: what they have is enforced, or on
// trial.
func (c *FleetFloodsChanged) Everywhere() bool {
	for _, p := range c.Patterns {
		done := p.In(PatternEnforced) + p.In(PatternOnTrial)
		if p.Ended {
			done = len(p.Nodes) - done
		}
		if done < len(p.Nodes) {
			return false
		}
	}
	return c.Published
}

// FleetTraced is where and when packets may have passed: POST /v1/fleet/trace.
type FleetTraced struct {
	Nodes []NodeTraced `json:"nodes"`
}

// NodeTraced is the answer of a node.
type NodeTraced struct {
	Node    string  `json:"node"`
	Problem string  `json:"problem,omitempty"` // why there is no answer
	Traced  *Traced `json:"traced,omitempty"`  // nil: there is none
}

// DefaultShare is the smallest share of traffic for which a query returns a flow.
const DefaultShare = 0.001
