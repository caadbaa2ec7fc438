// Package metrics tells Prometheus what weir does.
//
// It keeps nothing: each scrape asks a [Source] for a [Snapshot]. Names and
// labels are an interface to dashboards and alert rules, which outlive many
// versions: docs/observability.md lists them, and a test holds it to the code.
// No label has a value that traffic chooses, such as an address.
package metrics

import (
	"time"

	"weir/control/feed"
	"weir/loader"
)

// Source is a running weir, as a scrape asks it: at any time, and from several
// goroutines at once.
type Source interface {
	// Metrics gives what must not change afterwards.
	Metrics() Snapshot
}

// Snapshot is the state of a running weir. Counters never go back while it runs,
// whatever becomes of interfaces and lists.
type Snapshot struct {
	Version string // weir's

	Interfaces []Interface // those that are gone included
	Lists      []List
	Hits       map[string]loader.Counter // by block list, "" those that no table attributes
	Trackers   []Tracker
	Refused    uint64 // penalties that found no room
	Digests    []Digests
	Archive    *Archive     // of digests; nil: there is none
	Feeds      []*feed.Feed // none where lists are files that are read when weir is told to

	Mode       string // exact or approx
	Monitor    bool   // count, and drop nothing
	Generation int    // 1 for the first since weir began
	MapBytes   int    // of the generation's filter maps
	Hot        int    // elements that have bits of their own

	// Rates of false positives are shares of the unlisted packets, 0 … 1; nil
	// where they are not known.
	Predicted       float64  // of the filter, as if no element were hot
	Weighted        *float64 // of the cascade alone, with the weights that are in force
	Measured        *float64 // of the cascade alone
	MeasuredPackets float64  // that Measured was told by, of which old ones fade

	Loads   Durations // from reading the lists to having them in force
	Updates Durations // of changes in place
	Reloads Reloads   // of the lists
	Config  *Reloads  // of the configuration; nil: there is none

	Multicast *Multicast // nil: none is forwarded
}

// Multicast is what is forwarded to groups.
type Multicast struct {
	Groups    int            // that any port wants
	MaxGroups int            // that there may be
	Planned   float64        // rate of false positives of a filter that is full
	Copied    loader.Counter // to the ports
	Left      loader.Counter // to the network stack, since no port wants them
	Ports     []Port
}

// Port is an interface to which packets are copied.
type Port struct {
	loader.Target
	There             bool
	Groups            int     // that it wants
	FalsePositiveRate float64 // of its filter, by the bits that are set in its memory
	Sent, Dropped     loader.Counter
}

// Interface is what an interface has counted.
type Interface struct {
	loader.Target
	XDP       string // native, generic or offload; "" while the interface is gone, or another's
	Counts    []Count
	Penalties *int   // in force; nil: no tracker of the interface may punish
	Lost      uint64 // events that found the buffer full

	// Loops are the packets by what became of their loop filter, nil: nobody looks
	// for loops.
	Loops *[loader.LoopOutcomes]uint64
}

// Count is the packets that have left for a reason, with a verdict: that of some
// reasons depends on the configuration.
type Count struct {
	Reason string
	Drops  bool
	loader.Counter
}

// List is a list that is in force.
type List struct {
	Name     string
	Allow    bool // otherwise its entries are blocked
	Entries  int
	BadLines int  // that were left out
	Refused  bool // what its sources hold is not in force, and what they held before is
}

// Tracker is what a tracker has counted in all its intervals, and what it found
// in the last one.
type Tracker struct {
	Number int    // 1 for the first
	Key    string // what makes a flow: src, dst, flow, or a prefix as in src/24
	Unit   string // what is heavy by: packets or bytes
	Action string // on heavy flows: report, limit or block; "learn" where weights come of it

	loader.Counter
	Denied uint64 // packets whose flow found the flow memory full

	Flows int // in the flow memory
	Heavy int // over the threshold
}

// Digests is what is recorded of the packets that pass an interface.
type Digests struct {
	loader.Target
	Packets uint64  // recorded
	Skipped uint64  // cut off or malformed
	Loops   uint64  // packets that are suspected to run in a circle
	Slices  int     // of time, in memory
	Bytes   int     // of memory, with that of the kernel
	Fill    float64 // of the last slice: the share of its bits that are set
	Chance  float64 // that it matches a packet that did not pass
}

// Archive is what there is of digests on disk.
type Archive struct {
	Slices int
	Bytes  int64
	Errors uint64 // slices that could not be written
}

// Reloads is what came of putting all lists, or a configuration, in force anew.
type Reloads struct {
	Done, Refused  uint64
	Last, LastDone time.Time // of either; the start counts
	Failed         bool      // the last one was refused, and what was in force stays
}

// bounds are the upper limits of a histogram's buckets, in seconds: from changes
// of some entries in place to a hundred million on a small router.
var bounds = [...]float64{.001, .0025, .01, .025, .1, .25, 1, 2.5, 6, 10, 30, 60, 300}

// Durations is a histogram. A copy of it is a snapshot.
type Durations struct {
	count uint64
	sum   float64
	upTo  [len(bounds)]uint64 // as many as took no longer than the bound
}

// Observe adds a duration.
func (d *Durations) Observe(t time.Duration) {
	d.count++
	d.sum += t.Seconds()
	for i, b := range bounds {
		if t.Seconds() <= b {
			d.upTo[i]++
		}
	}
}
