package api

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
}

// NodeFloods is what a node knows of floods.
type NodeFloods struct {
	Node    string  `json:"node"`
	Problem string  `json:"problem,omitempty"` // why there is no answer
	Floods  *Floods `json:"floods,omitempty"`  // without those that are over; nil: there is no answer
}

// FleetFloodRule is a rule that nodes have found, each for itself.
type FleetFloodRule struct {
	// Rates and sources are added up, and of the rest the largest counts: of packets and
	// conversations, what is hit at the node where it is worst. It is proposed only if no node is sure.
	FloodRule
	Nodes []string `json:"nodes"` // that see it
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

// Do says what to do about the floods.
func (f *FleetFloods) Do() string {
	for _, n := range f.Flooded() {
		if x := n.Floods.Now; len(x.Rules) == 0 || x.Dropped < drops {
			return "weir flood says at " + n.Node + ": " + x.Do()
		}
	}
	return "nothing: weir drops it"
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
