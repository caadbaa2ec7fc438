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
