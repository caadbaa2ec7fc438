// Package api has the types of the HTTP API of a running daemon, and of the hub of a fleet:
// JSON over a Unix socket, or over TCP with client certificates. Paths begin with a version;
// within one, names stay and new ones may be added. It has what client and server agree on beside the
// types, too: routes, paths, parameters, headers and limits. It imports nothing of weir.
package api

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// DefaultSocket is the default path of the socket.
const DefaultSocket = "/run/weir/weir.sock"

// AbsentError says that a server does not have what a client has asked it for.
type AbsentError string

func (e AbsentError) Error() string { return string(e) }

// MaxTop bounds the flows of each tracker and the dropped sources of [Top].
const MaxTop = 100

// Top is the current traffic: GET /v1/top. Rates cover the last interval and
// all interfaces together.
type Top struct {
	Time       time.Time `json:"time"` // end of the interval
	Version    string    `json:"version"`
	Interfaces []string  `json:"interfaces"`
	Uptime     float64   `json:"uptime_seconds"`
	Interval   float64   `json:"interval_seconds"`

	Packets float64 `json:"packets_per_second"`
	Bytes   float64 `json:"bytes_per_second"`
	Dropped float64 `json:"dropped_per_second"` // packets dropped

	// Out has the rates of sent packets; all others are of received packets. nil: it is not
	// filtered.
	Out *Sent `json:"out,omitempty"`

	Monitor         bool             `json:"monitor"`                    // nothing is dropped
	MonitorOverride *MonitorOverride `json:"monitor_override,omitempty"` // nil: Monitor is as configured
	Problems        []string         `json:"problems"`                   // a line each: interfaces and feeds that fail

	Reasons  []ReasonRate `json:"reasons"`
	Trackers []Tracker    `json:"trackers"`
	Sampled  []Tracker    `json:"sampled"`                   // the largest flows of the last seconds in a sample, of the keys that no tracker has
	Flood    *Flood       `json:"flood,omitempty"`           // the one that is under way, without its past
	Sources  *[]DropRate  `json:"dropped_sources,omitempty"` // the largest first; nil: they are not tracked
	Filter   Filter       `json:"filter"`
}

// Sent has the rates of the packets that interfaces with egress send.
type Sent struct {
	Packets float64      `json:"packets_per_second"`
	Bytes   float64      `json:"bytes_per_second"`
	Dropped float64      `json:"dropped_per_second"`
	Reasons []ReasonRate `json:"reasons"`
}

// DropRate is the rate of the packets from a source that are dropped for a reason, or
// would be without monitor mode.
type DropRate struct {
	Source    string  `json:"source"`    // of outgoing packets the destination
	Direction string  `json:"direction"` // of the packets: in or out
	Reason    string  `json:"reason"`
	List      string  `json:"list,omitempty"` // that matched
	Packets   float64 `json:"packets_per_second"`
	Least     float64 `json:"min_packets_per_second"` // a lower bound: packets_per_second may be too large, but never too small
	Bytes     float64 `json:"bytes_per_second"`
}

// ReasonRate is the rate of the packets with a reason.
type ReasonRate struct {
	Reason  string  `json:"reason"`
	Packets float64 `json:"packets_per_second"`
	Bytes   float64 `json:"bytes_per_second"`
	Total   uint64  `json:"total_packets"` // since counting began
	Drops   bool    `json:"drops"`         // whether such packets are dropped
}

// Tracker is the result of a heavy-hitter tracker in its last interval.
type Tracker struct {
	Key       string  `json:"key"`  // what makes a flow: "src", "dst", "flow", or a prefix as in "src/24"
	Unit      string  `json:"unit"` // of the threshold: "packets" or "bytes"; of a scan detector "ports" or "addresses", of which "packets" are then the new ones
	Interval  float64 `json:"interval_seconds"`
	Threshold string  `json:"threshold"`          // that is active, as in "100pps and 1% of packets"
	Action    string  `json:"action"`             // on flows above the threshold, as configured
	Packets   float64 `json:"packets_per_second"` // of all flows, including those not in Flows
	Bytes     float64 `json:"bytes_per_second"`
	Denied    uint64  `json:"denied_packets"` // not counted exactly, because the flow memory was full
	Full      bool    `json:"full,omitempty"` // a scan detector's window ended early, because its memory was full
	Heavy     int     `json:"heavy_flows"`    // above the threshold, also those that are not in Flows
	Flows     []Flow  `json:"flows"`          // the largest
	More      int     `json:"more_flows"`     // that are known, and not in Flows

	// Spread is about how many flows the traffic consists of, where the largest [MaxTop] carry
	// less than a third of it. None stands out then, as in a flood of forged sources, whose
	// largest sources are its victims. 0: some do.
	Spread float64 `json:"spread_over_flows,omitempty"`

	// Sample says that flows were not counted, but sampled: their rates are estimates, between
	// the bounds that they have with 95 %. nil: they were counted.
	Sample *Sample `json:"sample,omitempty"`
}

// Sample is how large a sample is.
type Sample struct {
	Packets int     `json:"packets"` // that were sampled in the interval
	OneIn   float64 `json:"one_in"`  // packets that one of them stands for
}

// Scattered says that no flow stands out, "" if some do.
func (t *Tracker) Scattered() string {
	if t.Spread == 0 || len(t.Flows) == 0 {
		return ""
	}
	name := t.Key
	switch name {
	case "src":
		name = "source"
	case "dst":
		name = "destination"
	}
	digits := math.Pow10(max(0, int(math.Log10(t.Spread))-1)) // two are meant
	return fmt.Sprintf("no %s stands out among about %.0f, the largest has %.1f %%", name, math.Round(t.Spread/digits)*digits, 100*t.Flows[0].Share)
}

// All returns the trackers, and what was sampled behind them.
func (t *Top) All() []Tracker { return slices.Concat(t.Trackers, t.Sampled) }

// About says which flows a tracker finds, or how large the sample is; "" if it is not known.
func (t *Tracker) About() string {
	switch {
	case t.Sample != nil && t.Sample.Packets == 0:
		return fmt.Sprintf("nothing in the last %.0f s", t.Interval)
	case t.Sample != nil && t.Sample.OneIn < 1.05:
		return fmt.Sprintf("all packets of the last %.0f s", t.Interval)
	case t.Sample != nil:
		return fmt.Sprintf("a sample, one packet in %.2g of the last %.0f s", t.Sample.OneIn, t.Interval)
	case t.Threshold != "":
		return "above " + t.Threshold + ": " + t.Action
	}
	return ""
}

// Label identifies a tracker: several may have the same key.
func (t *Tracker) Label() string { return t.Key + " " + t.Unit }

// Flow is a flow that a tracker has in its memory.
type Flow struct {
	Key      string  `json:"key"` // in the format of lists
	Packets  float64 `json:"packets_per_second"`
	Bytes    float64 `json:"bytes_per_second"`
	Estimate bool    `json:"estimate"` // the rates are estimates; that in the tracker's unit is never too small
	// Lower bounds of the rates, equal unless they are estimates.
	LeastPackets float64 `json:"min_packets_per_second"`
	LeastBytes   float64 `json:"min_bytes_per_second"`
	// MostPackets is the upper bound of the packets where they were sampled, otherwise 0.
	MostPackets float64 `json:"max_packets_per_second,omitempty"`

	// The part that is dropped, or would be without monitor mode; nil: unknown, as of a
	// destination.
	Dropped *float64 `json:"dropped_packets_per_second,omitempty"`
	Reasons []string `json:"reasons"` // for which
	Lists   []string `json:"lists"`   // that matched

	Share float64    `json:"share"`           // of all that the tracker counts, in its unit: 0 … 1
	Heavy bool       `json:"heavy"`           // above the threshold
	State string     `json:"state"`           // "", RateLimited or Blocked
	Until *time.Time `json:"until,omitempty"` // when that ends
}

// Within returns the half-width of the 95 % interval of a sampled flow's packets, as a share of the
// estimate: the larger half. It is 0 where packets were counted.
func (f *Flow) Within() float64 {
	if f.MostPackets == 0 || f.Packets == 0 {
		return 0
	}
	return max(f.MostPackets-f.Packets, f.Packets-f.LeastPackets) / f.Packets
}

// The states of a flow with a penalty.
const (
	RateLimited = "rate-limited"
	Blocked     = "blocked"
)

// Filter is the state of the filter. False-positive rates are shares of the unlisted
// packets, 0 … 1.
type Filter struct {
	Entries     int    `json:"entries"` // of all lists
	Mode        string `json:"mode"`
	Generation  int    `json:"generation"` // from 1 at the start
	KernelBytes int    `json:"kernel_bytes"`
	Hot         int    `json:"hot_elements"` // elements of which more bits are tested than of the rest

	FalsePositives
	Predicted         float64  `json:"predicted_false_positive_rate"` // as if no element were hot
	WeightedPredicted *float64 `json:"weighted_false_positive_rate,omitempty"`

	Lists []ListRate `json:"lists"`
}

// FalsePositives are the unlisted packets that were dropped by mistake since the filter was built, counted, as
// a share with the bounds of its 95 % interval: nil where none could be counted yet, or in exact mode.
type FalsePositives struct {
	Rate    *float64 `json:"false_positive_rate,omitempty"`
	Low     *float64 `json:"false_positive_rate_low,omitempty"`
	High    *float64 `json:"false_positive_rate_high,omitempty"`
	Packets uint64   `json:"false_positive_packets,omitempty"` // unlisted ones, of which it is the share
}

// ListRate is the rate of the packets that a block list matches.
type ListRate struct {
	Name    string  `json:"name"`
	Packets float64 `json:"packets_per_second"`
	Total   uint64  `json:"total_packets"`
}

// ManualSuffix follows the name of a list where its manual entries are counted
// apart from those of its sources.
const ManualSuffix = " (manual)"

// DerivedSuffix follows the name of a list where the prefixes are counted apart that it has
// because of its addresses: its aggregates, and IPv6 addresses that are widened.
const DerivedSuffix = " (derived)"

// ListOf returns the name of a list, given that under which some of its entries are counted.
func ListOf(name string) string {
	return strings.TrimSuffix(strings.TrimSuffix(name, ManualSuffix), DerivedSuffix)
}

// Weights are the weights learned from the traffic: GET /v1/weights. False-positive
// rates are shares of the unlisted packets, 0 … 1.
type Weights struct {
	Base     int     `json:"base"`              // k, the number of bits of an element that is not hot
	HalfLife float64 `json:"half_life_seconds"` // of the rates by which elements compete for room

	FalsePositives
	Without   *float64 `json:"without,omitempty"` // what would have been counted without weights
	Predicted float64  `json:"predicted"`         // the rate with these weights
	Uniform   float64  `json:"uniform"`           // without weights: with k bits for all elements, or those of their network
	Equal     float64  `json:"equal"`             // with the same number of bits for all, in the same memory

	Spared  uint64 `json:"spared_packets"`  // unlisted packets that weights have saved from being dropped, since the start
	Dropped uint64 `json:"dropped_packets"` // unlisted packets that were dropped, since the start
	Refused uint64 `json:"refused_packets"` // of them, those of elements that had no room for a weight

	Networks []NetworkBits `json:"networks,omitempty"` // where networks differ in their bits
	Reverted *Reverted     `json:"reverted,omitempty"` // nil: they still do, or never did
	Elements []Weight      `json:"elements"`
}

// Reverted says that all networks got the same number of bits again, because with others more packets were
// dropped by mistake than predicted without.
type Reverted struct {
	Time    time.Time `json:"time"`
	Counted float64   `json:"counted"` // rate, with other numbers of bits
	Equal   float64   `json:"equal"`   // predicted rate, with the same number for all
}

// String returns a sentence.
func (r *Reverted) String() string {
	return fmt.Sprintf("since %s all networks have the same number of bits again: with others, %.3g were dropped by mistake, not %.3g",
		r.Time.Format(time.DateTime), r.Counted, r.Equal)
}

// NetworkBits describes the networks whose elements have one number of bits: those of which little
// is listed and that send much have more.
type NetworkBits struct {
	K        int     `json:"k"`        // the number of bits
	Classes  int     `json:"classes"`  // of networks /16 of IPv4 and /32 of IPv6, of which there are 2,048
	Listed   float64 `json:"listed"`   // share of the entries, 0 … 1
	Elements float64 `json:"elements"` // share of the unlisted elements, when the bits were chosen
}

// Weight is the weight of a hot element.
type Weight struct {
	Element string    `json:"element"` // in the format of lists
	K       int       `json:"k"`       // k_e, its bits
	Found   time.Time `json:"found"`   // when its first packet was dropped by mistake
	Dropped float64   `json:"dropped"` // packets that were dropped before it had these bits
}
