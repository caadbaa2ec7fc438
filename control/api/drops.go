package api

import "time"

// What dropped packets can be added up by.
const (
	BySource  = "source"
	ByEntry   = "entry"
	ByList    = "list"
	ByReason  = "reason"
	ByASN     = "asn"
	ByCountry = "country"
)

// DropsBy are these, in the order of documentation.
var DropsBy = []string{BySource, ByEntry, ByList, ByReason, ByASN, ByCountry}

// Defaults and limits of a question for drops.
const (
	DefaultDrops    = 20
	MaxDrops        = 10_000
	DefaultDropsFor = 10 * time.Minute
	MaxDropsFor     = time.Hour
)

// DropsQuestion asks who was dropped: GET /v1/drops.
type DropsQuestion struct {
	By    string        // one of DropsBy
	Last  time.Duration // how far back, at most MaxDropsFor
	Limit int           // rows, at most MaxDrops
}

// Drops says who was dropped: GET /v1/drops.
type Drops struct {
	By      string    `json:"by"`
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until"`
	Monitor bool      `json:"monitor"` // monitor mode is on now

	Packets uint64 `json:"packets"` // that were dropped in this time, or would have been
	Bytes   uint64 `json:"bytes"`
	Drops   []Drop `json:"drops"`         // the largest first
	More    int    `json:"more"`          // rows that the limit leaves out
	Other   uint64 `json:"other_packets"` // not in any row, nor in those left out: of sources, of rows too, that had few at the time

	// Of Packets and Bytes those that passed in monitor mode, and would have been dropped without it.
	MonitorPackets uint64 `json:"monitor_packets"`
	MonitorBytes   uint64 `json:"monitor_bytes"`

	// Of Packets and Bytes those that passed, since the list is on trial. In monitor mode they are these as
	// far as their sources are known.
	TrialPackets uint64 `json:"trial_packets"`
	TrialBytes   uint64 `json:"trial_bytes"`
}

// Drop counts the dropped packets of a source, of an entry, and so on.
type Drop struct {
	Key       string   `json:"key"`                // a source, an entry, a list, a reason, as in AS64496, or a country's ISO code; "": unknown
	Name      string   `json:"name,omitempty"`     // of an autonomous system or a country
	Direction string   `json:"direction"`          // of the packets: in or out, by their destination then
	Lists     []string `json:"lists"`              // that matched
	Reasons   []string `json:"reasons"`            // in monitor mode those without it
	Sources   int      `json:"sources"`            // how many, as far as they are known
	Packets   uint64   `json:"packets"`            // known apart from others; may be an estimate
	Least     uint64   `json:"min_packets"`        // a lower bound of it, equal where it is exact
	Bytes     uint64   `json:"bytes"`              // may be an estimate
	Rate      float64  `json:"packets_per_second"` // on average
	Share     float64  `json:"share"`              // of all packets that were dropped, or would have been: 0 … 1

	MonitorPackets uint64 `json:"monitor_packets"` // of Packets those that passed in monitor mode, as Drops has it
}
