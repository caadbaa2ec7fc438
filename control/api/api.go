// Package api is how a running weir is asked what it does, and told what to do:
// HTTP with JSON, over a Unix socket, or over TCP between certificates. Paths
// begin with a version; within one, names stay and new ones may be added.
// docs/api/openapi.yaml describes it to others; a test holds it to the types
// and routes here.
package api

import "time"

// DefaultSocket is where weir listens unless it is told otherwise.
const DefaultSocket = "/run/weir/weir.sock"

// The paths.
const (
	topPath         = "/v1/top"
	weightsPath     = "/v1/weights"
	eventsPath      = "/v1/events"
	entriesPath     = "/v1/entries"
	listsPath       = "/v1/lists"
	refreshPath     = "/v1/refresh"
	refreshListPath = "/v1/lists/{list}/refresh"
	reloadPath      = "/v1/reload"
	explainPath     = "/v1/explain"
	tracePath       = "/v1/trace"
)

// Top is what goes through weir at the moment: GET /v1/top. Rates are those of
// the last interval, on all interfaces together.
type Top struct {
	Time       time.Time `json:"time"`    // the end of the interval
	Version    string    `json:"version"` // weir's
	Interfaces []string  `json:"interfaces"`
	Uptime     float64   `json:"uptime_seconds"`
	Interval   float64   `json:"interval_seconds"`

	Packets float64 `json:"packets_per_second"`
	Bytes   float64 `json:"bytes_per_second"`
	Dropped float64 `json:"dropped_per_second"` // packets

	Reasons  []ReasonRate `json:"reasons"`
	Trackers []Tracker    `json:"trackers"`
	Filter   Filter       `json:"filter"`
}

// ReasonRate is how many packets leave for a reason.
type ReasonRate struct {
	Reason  string  `json:"reason"`
	Packets float64 `json:"packets_per_second"`
	Bytes   float64 `json:"bytes_per_second"`
	Total   uint64  `json:"total_packets"` // since weir began to count
	Drops   bool    `json:"drops"`         // they are dropped
}

// Tracker is what a heavy-hitter tracker has found in its last interval.
type Tracker struct {
	Key       string  `json:"key"`  // what makes a flow: "src", "dst", "flow", or a prefix as in "src/24"
	Unit      string  `json:"unit"` // what the threshold is about: "packets" or "bytes"
	Interval  float64 `json:"interval_seconds"`
	Threshold string  `json:"threshold"`          // as configured
	Action    string  `json:"action"`             // on flows over the threshold, as configured
	Packets   float64 `json:"packets_per_second"` // of all flows, also those not listed here
	Bytes     float64 `json:"bytes_per_second"`
	Denied    uint64  `json:"denied_packets"` // whose flow found the flow memory full
	Flows     []Flow  `json:"flows"`
}

// Flow is a flow that a tracker has in its memory.
type Flow struct {
	Key     string     `json:"key"` // in the format of lists
	Packets float64    `json:"packets_per_second"`
	Bytes   float64    `json:"bytes_per_second"`
	Share   float64    `json:"share"` // of the tracker's whole, in its unit: 0 … 1
	Heavy   bool       `json:"heavy"` // over the threshold
	State   string     `json:"state"` // "", Limited or Blocked
	Until   *time.Time `json:"until,omitempty"`
}

// What a tracker's action may make of a flow.
const (
	Limited = "limited"
	Blocked = "blocked"
)

// Filter is the state of the filter itself. Rates of false positives are shares
// of the unlisted packets, 0 … 1.
type Filter struct {
	Entries     int    `json:"entries"` // of all lists
	Mode        string `json:"mode"`
	Generation  int    `json:"generation"` // 1 for the first since weir began
	KernelBytes int    `json:"kernel_bytes"`
	Hot         int    `json:"hot_elements"` // that have bits of their own

	FalsePositiveRate float64  `json:"false_positive_rate"` // predicted, as if no element were hot
	WeightedPredicted *float64 `json:"weighted_false_positive_rate,omitempty"`
	Measured          *float64 `json:"measured_false_positive_rate,omitempty"`

	Lists []ListRate `json:"lists"`
}

// ListRate is how many packets a block list catches.
type ListRate struct {
	Name    string  `json:"name"`
	Packets float64 `json:"packets_per_second"`
	Total   uint64  `json:"total_packets"`
}

// ByCommand follows the name of a list that has sources where what was added to it
// by command is told apart.
const ByCommand = " (by command)"

// Weights is what weir has learned of the traffic, and how many bits that gives
// to an element: GET /v1/weights. Rates of false positives are shares of the
// unlisted packets, 0 … 1.
type Weights struct {
	Base     int     `json:"base"`              // k, the bits of an element that is not hot
	HalfLife float64 `json:"half_life_seconds"` // of what was learned

	Predicted       float64  `json:"predicted"`          // rate of false positives, with these weights
	Uniform         float64  `json:"uniform"`            // the same with k bits for all
	Measured        *float64 `json:"measured,omitempty"` // none until there are packets to tell by
	MeasuredPackets uint64   `json:"measured_packets"`   // unlisted packets that it was told by

	Elements []Weight `json:"elements"`
}

// Weight is what one hot element is given.
type Weight struct {
	Element      string  `json:"element"` // in the format of lists
	Rate         float64 `json:"packets_per_second"`
	Share        float64 `json:"share"` // of all packets: 0 … 1
	K            int     `json:"k"`     // k_e, its bits
	Listed       bool    `json:"listed"`
	Contribution float64 `json:"contribution"` // to Predicted; 0 for a listed one
}
