// Package metrics exports what weir does to Prometheus.
//
// It keeps no state: each scrape asks a [Source] for a [Snapshot], or a [HubSource]. Names and
// labels are an interface to dashboards and alert rules, which outlive many
// versions: docs/observability.md lists them, and a test compares it with the
// code. Traffic does not choose the value of any label: no label is an address.
package metrics

import (
	"time"

	"weir/control/api"
	"weir/control/feed"
	"weir/control/observe/traffic"
	"weir/control/stage"
	"weir/loader"
)

// Source is the data that a scrape reads: a running daemon's. It is safe for concurrent use.
type Source interface {
	// Metrics returns a snapshot, which does not change afterwards.
	Metrics() Snapshot
}

// Policed is the limit of an interface that a command has set.
type Policed struct {
	Interface, Netns string
	Rate             float64   // packets a second, or bytes
	Bytes            bool      // which of them
	Until            time.Time // zero: it has no end
}

// Snapshot is the state of a running daemon. Its counters never decrease while the
// daemon runs, even if interfaces and lists go.
type Snapshot struct {
	Version string // of weir

	Interfaces []traffic.Interface // including those that are gone
	Lists      []List
	Hits       map[string]loader.Counter // by block list; "": the list is unknown
	Origins    map[string]Origin         // by the names in Lists and Hits
	Stages     []stage.Sample            // of stages, but for what programs count
	Feeds      []Feed                    // of the lists that have sources

	Mode            string // exact or approx
	Monitor         bool   // count listed packets, and drop none
	MonitorOverride bool   // manually, whatever the configuration says
	Policed         []Policed
	Generation      int // 1 for the first since weir began
	MapBytes        int // of the generation's filter maps
	Hot             int // elements of which more bits are tested than of the rest

	// False-positive rates are shares of the unlisted packets, 0 … 1; nil where
	// they are unknown.
	Predicted float64  // of the filter, as if no element were hot
	Weighted  *float64 // of the cascade alone, with the active weights
	Counted   api.FalsePositives

	Loads   Durations // from the start of reading the lists until they are active
	Updates Durations // of changes in place

	Floods api.Floods

	LongestTurn time.Duration // for which commands had to wait, in the last minute or two

	Unsaved bool // a restart would forget manual entries or modes

	LogFailed uint64 // lines of the log that could not be written

	Reloads Reloads  // of the lists
	Config  *Reloads // of the configuration; nil: there is none

	Notifications []Notifications

	Fleet *Fleet // nil: the host is in none

	History History
	Exports []Export
}

// Export is the records for a collector.
type Export struct {
	Collector string
	Sent      uint64
	Lost      uint64 // they could not be sent, or too many were waiting
	Waiting   int    // batches
	Failing   bool   // the last attempt failed
}

// History says how well the history could be recorded.
type History struct {
	Errors  uint64 // records that could not be written, and are in memory only
	Lost    uint64 // records, because the disk was too slow
	Damaged uint64 // slots that were damaged when the daemon started
}

// Fleet is the state of a node of a fleet.
type Fleet struct {
	Connected bool
	Stale     bool
	Confirmed time.Time // when the hub last said what the node is to have; zero: never
	Refused   uint64    // messages

	RenewalFails bool // of the node's certificate
}

// Feed is the sources of a list, of a host's own or of a fleet's.
type Feed interface{ Status() feed.Status }

// Notifications are the events for a receiver.
type Notifications struct {
	Target    string
	Delivered uint64
	Failed    uint64 // given up
	Discarded uint64 // because too many were waiting, or the receiver was removed
	Attempts  uint64 // to deliver one, that failed
	Waiting   int
	Failing   bool // the last attempt failed
}

// Origin says which entries of a list are counted under a name of their own.
type Origin struct {
	List    string
	Entries string // FromSources, Manual or Derived
}

// The origins of entries.
const (
	FromSources = "sources"
	Manual      = "manual"
	Derived     = "derived" // prefixes around addresses
)

// origin returns the origin of the entries with a name.
func (s *Snapshot) origin(name string) Origin {
	if o, ok := s.Origins[name]; ok {
		return o
	}
	return Origin{name, FromSources}
}

// List is an active list.
type List struct {
	Name     string
	Allow    bool // otherwise its entries are blocked
	Entries  int
	LeftOut  int  // entries that would cut off this host, or of too many shapes
	Private  int  // entries of private networks, in its sources
	BadLines int  // skipped
	Refused  bool // the current contents of its sources were refused, the previous ones are active
	Trial    bool // what it matches passes

	Collateral *int // addresses with which this host has conversed; nil: it is not recorded
}

// Reloads counts reloads of all lists, or of the configuration, by outcome.
type Reloads struct {
	Done, Refused  uint64
	Last, LastDone time.Time // of any outcome, and of success; the start counts
	Failed         bool      // the last one was refused, and the previous state stays active
}

// bounds are the upper limits of a histogram's buckets, in seconds: from changes
// of some entries in place to a hundred million on a small router.
var bounds = [...]float64{.001, .0025, .01, .025, .1, .25, 1, 2.5, 6, 10, 30, 60, 300}

// Durations is a histogram. The zero value is empty, and a copy is a snapshot.
type Durations struct {
	count uint64
	sum   float64
	upTo  [len(bounds)]uint64 // number of durations up to the bound
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
