package metrics

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// HubSource is the data that a scrape of a hub reads. It is safe for concurrent use.
type HubSource interface {
	// Metrics returns a snapshot, which does not change afterwards.
	Metrics() HubSnapshot
}

// HubSnapshot is the state of a running hub. Its counters never decrease while it runs.
type HubSnapshot struct {
	Version string // of weir

	Connected bool      // to the broker
	Failing   bool      // the last attempt to publish failed
	Contested bool      // another hub with the same keys keeps it from acknowledging commands
	Catalog   time.Time // when the last one was issued; zero: none was
	Published HubPublished
	Failures  uint64 // attempts to publish

	Connections *int // to the server inside the hub; nil: there is none
	Misuse      *HubMisuse
	Expiring    int    // certificates that have expired, or expire soon
	StoreBytes  uint64 // on disk
	StreamBytes uint64 // at the broker
	DiskBytes   uint64 // of the state directory's file system
	DiskFree    uint64 // of these, what the hub may still write

	Nodes           map[string]int // by state
	Passed, Dropped float64        // packets, by the reports of all nodes since the hub started
	IgnoredReports  uint64
	NotEnforcing    int // nodes that report, and do not drop what their lists have

	Asking               int    // nodes whose answer is awaited
	Answered, Unanswered uint64 // questions to nodes
	RefusedQuestions     uint64 // of nodes

	Lists []HubList
	Feeds []Feed // of the lists that have sources
}

// HubMisuse counts what nodes may not do at the server inside the hub.
type HubMisuse struct {
	Violations uint64 // of their permissions
	Twice      int    // nodes that are connected twice
	Slow       uint64 // connections that were closed since they were not read
	Waiting    int    // TLS handshakes
	Late       uint64 // those that were given up while they waited
}

// HubPublished counts messages by kind.
type HubPublished struct{ Catalogs, Deltas, Snapshots uint64 }

// HubList is a list of a hub.
type HubList struct {
	Name, Action       string
	Entries, Manual    int
	Epoch              uint64
	Version, Published uint64 // numbers of the last one, and of the last one that was published in this epoch
	Lag                uint64 // versions that the node which lacks most is to have, and does not filter by
	Unrecorded         bool   // the last change is no version yet
	Refused            bool   // what its sources have covers too much, and the last version stays
	Trial              bool   // it drops nothing
	Overdue            bool   // its trial is over, and does not end
	Conversed          *int   // addresses that it would drop and with which the node with most has conversed; nil: no node says it
	Conversing         int    // nodes with any

	Rollout *HubRollout // the last one; nil: there was none
}

// HubRollout is the state of a rollout.
type HubRollout struct {
	State            string
	Wave, Waves      int     // from 1; Waves + 1: all nodes
	Nodes, Confirmed int     // of the wave
	Looked           uint64  // packets, in a rehearsal
	Waiting          float64 // seconds for which the wave has waited for what does not come by itself; 0: it does not
	WouldDrop        float64 // share of the packets that pass
	Conversed        *int    // addresses that would be dropped and with which the node with most has conversed; nil: no node says it
}

// hubFamilies are the families of a hub, beside build and the families of feeds.
var hubFamilies []*prometheus.Desc

func hubFamily(kind prometheus.ValueType, name, help string, labels ...string) family {
	d := prometheus.NewDesc(name, help, labels, nil)
	hubFamilies = append(hubFamilies, d)
	return family{d, kind}
}

func hubCounter(name, help string, labels ...string) family {
	return hubFamily(prometheus.CounterValue, name, help, labels...)
}

func hubGauge(name, help string, labels ...string) family {
	return hubFamily(prometheus.GaugeValue, name, help, labels...)
}

var (
	hubConnected   = hubGauge("weir_hub_connected", "Whether the hub is connected to the broker.")
	hubContested   = hubGauge("weir_hub_contested", "Whether the hub acknowledges no commands, since another hub with the same keys lives.")
	hubFailing     = hubGauge("weir_hub_publishing_failing", "Whether the last attempt to publish failed; the hub tries again every second.")
	hubCatalog     = hubGauge("weir_hub_last_catalog_timestamp_seconds", "When the hub last said what nodes are to have; 0: not since it started.")
	hubPublished   = hubCounter("weir_hub_published_messages_total", "Messages published, by kind: catalog, delta or snapshot.", "kind")
	hubFailures    = hubCounter("weir_hub_publishing_failures_total", "Attempts to publish that failed.")
	hubConnections = hubGauge("weir_hub_broker_connections", "Connections to the server inside the hub, the hub's own included; absent with a cluster.")
	hubViolations  = hubCounter("weir_hub_node_violations_total", "What nodes tried at the server inside the hub that they may not do; absent with a cluster.")
	hubTwice       = hubGauge("weir_hub_nodes_connected_twice", "Nodes that are connected from two addresses: two hosts have the same file.")
	hubSlow        = hubCounter("weir_hub_slow_connections_total", "Connections that the server inside the hub has closed since too much waited to be read.")
	hubWaiting     = hubGauge("weir_hub_handshakes_waiting", "TLS handshakes of nodes that wait for the server inside the hub, which has a few under way at a time.")
	hubLate        = hubCounter("weir_hub_handshakes_timed_out_total", "TLS handshakes of nodes that were given up while they waited: the hub has too little CPU.")
	hubExpiring    = hubGauge("weir_hub_certificates_expiring", "Certificates of nodes, of sites and of the fleet's authority that have expired, or expire soon: nodes should have renewed theirs.")
	hubStore       = hubGauge("weir_hub_store_bytes", "Disk space of the versions of all lists.")
	hubStream      = hubGauge("weir_hub_stream_bytes", "Size of the broker's stream.")
	hubDisk        = hubGauge("weir_hub_disk_bytes", "Size of the file system with the state directory.")
	hubDiskFree    = hubGauge("weir_hub_disk_free_bytes", "What the hub can still write to it.")

	hubNodes        = hubGauge("weir_hub_nodes", "Enrolled nodes by state, as in weir fleet status: current, behind, stale (by its own report), silent, unseen (since the hub started) or revoked.", "state")
	hubNotEnforcing = hubGauge("weir_hub_nodes_not_enforcing", "Nodes that report, and are in monitor mode or do not filter on all of their interfaces, whatever versions they have.")
	hubPackets      = hubCounter("weir_hub_node_packets_total", "Packets of all nodes together, by their reports since the hub started. The verdict is pass or drop.", "verdict")
	hubIgnored      = hubCounter("weir_hub_ignored_reports_total", "Reports of nodes that were ignored: too many, or not understood.")
	hubAsking       = hubGauge("weir_hub_questions", "Nodes that are being asked something.")
	hubAsked        = hubCounter("weir_hub_questions_total", "Questions to nodes, by outcome: answered or failed.", "outcome")
	hubDeclined     = hubCounter("weir_hub_refused_questions_total", "Questions of nodes that the hub has not answered: too many, or not understood.")

	hubEntries    = hubGauge("weir_hub_list_entries", "Entries of the last version. The action is block or allow.", "list", "action")
	hubManual     = hubGauge("weir_hub_list_manual_entries", "Manual entries of the list.", "list", "action")
	hubEpoch      = hubGauge("weir_hub_list_epoch", "Epoch of the last version.", "list")
	hubVersion    = hubGauge("weir_hub_list_version", "Number of the last version, which grows within an epoch.", "list")
	hubReached    = hubGauge("weir_hub_list_published_version", "Number of the last version that was published; 0: none of this epoch.", "list")
	hubLag        = hubGauge("weir_hub_list_lag_versions", "Versions that the slowest of the nodes that report is to have, and does not filter by yet.", "list")
	hubUnrecorded = hubGauge("weir_hub_list_unrecorded", "Whether the last change could not be written to the store: nodes do not get it.", "list")
	hubRefused    = hubGauge("weir_hub_list_refused", "Whether the list's sources cover more than max_coverage, so that their last contents stay.", "list")
	hubTrial      = hubGauge("weir_hub_list_trial", "Whether a block list is on trial, so that nodes drop nothing by it.", "list")
	hubOverdue    = hubGauge("weir_hub_list_trial_overdue", "Whether the trial of a block list is over and does not end, since nodes have conversed with addresses that it would drop.", "list")
	hubConversed  = hubGauge("weir_hub_list_collateral_addresses", "Addresses that a block list drops, or would drop, and with which the node with most of them has conversed in the last 24 hours; absent where no node says it.", "list")
	hubConversing = hubGauge("weir_hub_list_collateral_nodes", "Nodes that have conversed with any of them.", "list")
	hubRollout    = hubGauge("weir_hub_rollout_info", "Always 1, once there was a rollout. The state of the last one is running, paused, halted, done or rolled back.", "list", "state")
	hubWave       = hubGauge("weir_hub_rollout_wave", "Wave of the last rollout, from 1; one more than there are waves: all nodes.", "list")
	hubWaves      = hubGauge("weir_hub_rollout_waves", "Number of its waves.", "list")
	hubWaveNodes  = hubGauge("weir_hub_rollout_wave_nodes", "Nodes of the wave.", "list")
	hubConfirmed  = hubGauge("weir_hub_rollout_confirmed_nodes", "Nodes of the wave that have confirmed.", "list")
	hubWaveWaits  = hubGauge("weir_hub_rollout_waiting_seconds", "Time for which the wave has waited where no node with its label is enrolled, or reports, or longer than it lasts and three times max_age; 0 otherwise.", "list")
	hubRehearsed  = hubGauge("weir_hub_rollout_rehearsed_packets", "Packets that the wave's nodes have looked at in its rehearsal.", "list")
	hubAdded      = hubGauge("weir_hub_rollout_collateral_addresses", "Addresses that the version drops in addition, or would drop, and with which the wave's node with most of them has conversed in the last 24 hours; absent where no node says it.", "list")
	hubWouldDrop  = hubGauge("weir_hub_rollout_would_drop_ratio", "Share of the packets that pass which the rehearsed version would drop, on all nodes of the wave together.", "list")
)

// hubCollector implements prometheus.Collector: each collection takes a snapshot.
type hubCollector struct{ source HubSource }

func (c hubCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range hubFamilies {
		to <- d
	}
	for _, f := range []family{build, feedEntries, feedInterval, feedSuccess, feedAttempt, feedFailures, feedFailing, feedUnsaved} {
		to <- f.Desc
	}
}

func (c hubCollector) Collect(to chan<- prometheus.Metric) {
	s := c.source.Metrics()
	out := sink(to)
	out.put(build, 1, s.Version, runtime.Version())
	out.put(hubConnected, truth(s.Connected))
	out.put(hubFailing, truth(s.Failing))
	out.put(hubContested, truth(s.Contested))
	out.put(hubCatalog, seconds(s.Catalog))
	out.put(hubPublished, float64(s.Published.Catalogs), "catalog")
	out.put(hubPublished, float64(s.Published.Deltas), "delta")
	out.put(hubPublished, float64(s.Published.Snapshots), "snapshot")
	out.put(hubFailures, float64(s.Failures))
	if s.Connections != nil {
		out.put(hubConnections, float64(*s.Connections))
	}
	if m := s.Misuse; m != nil {
		out.put(hubViolations, float64(m.Violations))
		out.put(hubTwice, float64(m.Twice))
		out.put(hubSlow, float64(m.Slow))
		out.put(hubWaiting, float64(m.Waiting))
		out.put(hubLate, float64(m.Late))
	}
	out.put(hubExpiring, float64(s.Expiring))
	out.put(hubStore, float64(s.StoreBytes))
	out.put(hubStream, float64(s.StreamBytes))
	if s.DiskBytes > 0 {
		out.put(hubDisk, float64(s.DiskBytes))
		out.put(hubDiskFree, float64(s.DiskFree))
	}
	for state, n := range s.Nodes {
		out.put(hubNodes, float64(n), state)
	}
	out.put(hubNotEnforcing, float64(s.NotEnforcing))
	out.put(hubPackets, s.Passed, "pass")
	out.put(hubPackets, s.Dropped, "drop")
	out.put(hubIgnored, float64(s.IgnoredReports))
	out.put(hubAsking, float64(s.Asking))
	out.put(hubAsked, float64(s.Answered), "answered")
	out.put(hubAsked, float64(s.Unanswered), "failed")
	out.put(hubDeclined, float64(s.RefusedQuestions))
	for _, l := range s.Lists {
		out.hubList(l)
	}
	for _, f := range s.Feeds {
		out.feed(f)
	}
}

func (s sink) hubList(l HubList) {
	s.put(hubEntries, float64(l.Entries), l.Name, l.Action)
	s.put(hubManual, float64(l.Manual), l.Name, l.Action)
	s.put(hubEpoch, float64(l.Epoch), l.Name)
	s.put(hubVersion, float64(l.Version), l.Name)
	s.put(hubReached, float64(l.Published), l.Name)
	s.put(hubLag, float64(l.Lag), l.Name)
	s.put(hubUnrecorded, truth(l.Unrecorded), l.Name)
	s.put(hubRefused, truth(l.Refused), l.Name)
	if l.Action != "allow" {
		s.put(hubTrial, truth(l.Trial), l.Name)
		s.put(hubOverdue, truth(l.Overdue), l.Name)
	}
	if l.Conversed != nil {
		s.put(hubConversed, float64(*l.Conversed), l.Name)
		s.put(hubConversing, float64(l.Conversing), l.Name)
	}
	r := l.Rollout
	if r == nil {
		return
	}
	s.put(hubRollout, 1, l.Name, r.State)
	s.put(hubWave, float64(r.Wave), l.Name)
	s.put(hubWaves, float64(r.Waves), l.Name)
	s.put(hubWaveNodes, float64(r.Nodes), l.Name)
	s.put(hubConfirmed, float64(r.Confirmed), l.Name)
	s.put(hubWaveWaits, r.Waiting, l.Name)
	s.put(hubRehearsed, float64(r.Looked), l.Name)
	s.put(hubWouldDrop, r.WouldDrop, l.Name)
	if r.Conversed != nil {
		s.put(hubAdded, float64(*r.Conversed), l.Name)
	}
}
