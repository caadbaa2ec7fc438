package metrics

import (
	"runtime"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"weir/control/feed"
	"weir/filter/icarus"
	"weir/loader"
)

// family is all metrics of a name.
type family struct {
	*prometheus.Desc
	kind prometheus.ValueType
}

var families []*prometheus.Desc

func describe(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(name, help, labels, nil)
	families = append(families, d)
	return d
}

func counter(name, help string, labels ...string) family {
	return family{describe(name, help, labels...), prometheus.CounterValue}
}

func gauge(name, help string, labels ...string) family {
	return family{describe(name, help, labels...), prometheus.GaugeValue}
}

// They stand first, so that metrics are made in the order in which they stand.
var (
	trackerLabels   = []string{"tracker", "key", "unit", "action"}
	feedLabels      = []string{"list", "source"}
	interfaceLabels = []string{"interface", "netns"}
)

var (
	build   = gauge("weir_build_info", "Always 1.", "version", "go_version")
	filter  = gauge("weir_filter_info", "Always 1. The mode is exact or approx.", "mode")
	monitor = gauge("weir_monitor", "Whether listed packets are only counted, and none is dropped.")

	attached  = gauge("weir_interface_attached", "Whether weir filters on the interface; 0 while it is gone, or another's.", interfaceLabels...)
	placed    = gauge("weir_interface_info", "Always 1, while attached. XDP runs native, generic or offload.", append(interfaceLabels, "xdp")...)
	packets   = counter("weir_packets_total", "Packets that came in, by the reason with which they left. The verdict is pass or drop.", append(interfaceLabels, "reason", "verdict")...)
	octets    = counter("weir_bytes_total", "Bytes of the packets that came in, from the Ethernet header on.", append(interfaceLabels, "reason", "verdict")...)
	penalties = gauge("weir_penalties", "Heavy flows that are limited or blocked.", interfaceLabels...)
	lost      = counter("weir_events_lost_total", "Events that found the buffer full.", interfaceLabels...)
	looping   = counter("weir_loop_packets_total", "Packets by what became of the filter by which loops are found; outcome looped are those in one.", append(interfaceLabels, "outcome")...)
	refused   = counter("weir_penalties_refused_total", "Heavy flows that were not limited or blocked, because there was no room for another penalty.")

	listPackets = counter("weir_list_packets_total", "Packets that a block list has caught, in monitor mode too; of the list \"unattributed\" where no table tells the list, as in approximate mode.", "list")
	listBytes   = counter("weir_list_bytes_total", "Bytes of the packets that a block list has caught.", "list")
	entries     = gauge("weir_list_entries", "Entries in force. The action is block or allow.", "list", "action")
	listRefused = gauge("weir_list_refused", "Whether what the list's sources hold now is refused: what they held before stays.", "list", "action")
	badLines    = gauge("weir_list_bad_lines", "Lines that were left out because they are no entries.", "list", "action")

	generation = gauge("weir_generation", "Number of the generation in force, 1 for the first since weir began.")
	mapBytes   = gauge("weir_map_bytes", "Kernel memory of the filter maps.")
	loads      = describe("weir_load_duration_seconds", "Time from beginning to read the lists until they were in force.")
	updates    = describe("weir_update_duration_seconds", "Time until changes to the lists were in force that were made in place.")

	reloads        = counter("weir_reloads_total", "Times that all lists were put in force anew. The outcome is done, or refused: then the old ones stay.", "outcome")
	lastReload     = gauge("weir_last_reload_successful", "Whether that succeeded last, or at the start; otherwise the old lists stay.")
	lastReloadTime = gauge("weir_last_reload_timestamp_seconds", "When that was tried last.")
	lastDoneTime   = gauge("weir_last_reload_success_timestamp_seconds", "When that succeeded last.")
	configReload   = gauge("weir_config_last_reload_successful", "Whether the configuration was taken when it was last read; otherwise the old one stays.")
	configDoneTime = gauge("weir_config_last_reload_success_timestamp_seconds", "When the configuration in force was read.")

	predicted       = gauge("weir_false_positive_predicted_ratio", "Share of unlisted packets that the filter takes for listed ones, as computed, if no element were hot.")
	weighted        = gauge("weir_false_positive_weighted_ratio", "Share of unlisted packets that the cascade takes for listed ones, as computed with the weights in force. In exact mode the table clears them.")
	measured        = gauge("weir_false_positive_measured_ratio", "Share of unlisted packets that the cascade takes for listed ones, as counted of late.")
	measuredPackets = gauge("weir_false_positive_measured_packets", "Unlisted packets of late, by which the measured ratio is told: it is uncertain while they are few.")
	hot             = gauge("weir_hot_elements", "Elements that have bits of their own.")

	groupsWanted  = gauge("weir_multicast_groups", "Groups that any interface wants, to which packets are forwarded.")
	groupsMax     = gauge("weir_multicast_max_groups", "Groups that the filters were planned for.")
	copiedPackets = counter("weir_multicast_copied_packets_total", "Packets to groups that an interface wants: copied to all of them, whose filters drop what they do not list.")
	copiedBytes   = counter("weir_multicast_copied_bytes_total", "Bytes of the packets that were copied.")
	leftPackets   = counter("weir_multicast_left_packets_total", "Packets to groups that no interface wants: left to the network stack.")
	leftBytes     = counter("weir_multicast_left_bytes_total", "Bytes of the packets to groups that no interface wants.")
	portThere     = gauge("weir_multicast_interface_present", "Whether the interface is there, and multicast can be forwarded to it.", interfaceLabels...)
	portGroups    = gauge("weir_multicast_interface_groups", "Groups that the interface wants.", interfaceLabels...)
	portRate      = gauge("weir_multicast_false_positive_ratio", "Share of the groups that the interface does not want which its filter lists all the same, by the bits that are set in the kernel now.", interfaceLabels...)
	portPlanned   = gauge("weir_multicast_false_positive_planned_ratio", "Share of the groups that an interface does not want which its filter would list all the same, as computed for one with all the groups that it was planned for.")
	portPackets   = counter("weir_multicast_packets_total", "Copies for the interface, by what its filter said: pass or drop.", append(interfaceLabels, "verdict")...)
	portBytes     = counter("weir_multicast_bytes_total", "Bytes of the copies for the interface.", append(interfaceLabels, "verdict")...)

	trackerPackets = counter("weir_tracker_packets_total", "Packets that a tracker has counted. The action on heavy flows is report, limit, block, or learn where weights come of it.", trackerLabels...)
	trackerBytes   = counter("weir_tracker_bytes_total", "Bytes of the packets that a tracker has counted.", trackerLabels...)
	trackerDenied  = counter("weir_tracker_denied_packets_total", "Packets that a tracker could not count exactly, because the flow memory was full.", trackerLabels...)
	trackerFlows   = gauge("weir_tracker_flows", "Flows in the flow memory, in the last interval.", trackerLabels...)
	trackerHeavy   = gauge("weir_tracker_heavy_flows", "Flows over the threshold, in the last interval.", trackerLabels...)

	digestPackets = counter("weir_digest_packets_total", "Packets that passed and whose digests were recorded.", interfaceLabels...)
	digestSkipped = counter("weir_digest_skipped_packets_total", "Packets that passed without a digest, because they are cut off or malformed.", interfaceLabels...)
	digestSlices  = gauge("weir_digest_slices", "Slices of time whose digests are in memory.", interfaceLabels...)
	digestBytes   = gauge("weir_digest_bytes", "Memory of digests, with that of the kernel.", interfaceLabels...)
	digestFill    = gauge("weir_digest_fill_ratio", "Share of the bits that are set in the last slice.", interfaceLabels...)
	digestChance  = gauge("weir_digest_false_positive_ratio", "Probability that the last slice matches a packet that did not pass.", interfaceLabels...)
	loops         = counter("weir_digest_loops_suspected_total", "Packets that came again and again with a lower TTL, as in a routing loop.", interfaceLabels...)
	archiveSlices = gauge("weir_digest_archive_slices", "Slices of digests on disk.")
	archiveBytes  = gauge("weir_digest_archive_bytes", "Disk that slices of digests take.")
	archiveErrors = counter("weir_digest_archive_errors_total", "Slices of digests that could not be written to disk.")

	feedEntries  = gauge("weir_feed_entries", "Entries of a list's source that are in force.", feedLabels...)
	feedInterval = gauge("weir_feed_interval_seconds", "How often the source is to be read.", feedLabels...)
	feedSuccess  = gauge("weir_feed_last_success_timestamp_seconds", "When the source was last known to hold what is in force; 0: never.", feedLabels...)
	feedAttempt  = gauge("weir_feed_last_attempt_timestamp_seconds", "When it was last tried to read the source; 0: never.", feedLabels...)
	feedFailures = gauge("weir_feed_failed_attempts", "Attempts that have failed since one succeeded.", feedLabels...)
	feedFailing  = gauge("weir_feed_failing", "Always 1, while the last attempt is one that has failed; the label says how.", append(feedLabels, "failure")...)
	feedUnsaved  = gauge("weir_feed_unsaved", "Whether what is in force could not be saved: a restart would not find it.", feedLabels...)
)

// unattributed names the hits of no list.
const unattributed = "unattributed"

// collector asks a source when it is asked itself.
type collector struct{ source Source }

func (c collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range families {
		to <- d
	}
}

func (c collector) Collect(to chan<- prometheus.Metric) {
	s := c.source.Metrics()
	out := sink(to)
	out.filter(&s)
	for _, i := range s.Interfaces {
		out.iface(i)
	}
	for name, n := range s.Hits {
		if name == "" {
			name = unattributed
		}
		out.count(listPackets, listBytes, n, name)
	}
	for _, l := range s.Lists {
		action := "block"
		if l.Allow {
			action = "allow"
		}
		out.put(entries, float64(l.Entries), l.Name, action)
		out.put(listRefused, truth(l.Refused), l.Name, action)
		out.put(badLines, float64(l.BadLines), l.Name, action)
	}
	for _, t := range s.Trackers {
		out.tracker(t)
	}
	for _, d := range s.Digests {
		out.digests(d)
	}
	if a := s.Archive; a != nil {
		out.put(archiveSlices, float64(a.Slices))
		out.put(archiveBytes, float64(a.Bytes))
		out.put(archiveErrors, float64(a.Errors))
	}
	for _, f := range s.Feeds {
		out.feed(f)
	}
	if s.Multicast != nil {
		out.multicast(s.Multicast)
	}
}

// sink takes metrics of which it makes those of Prometheus.
type sink chan<- prometheus.Metric

func (s sink) put(f family, value float64, labels ...string) {
	for i := range labels {
		labels[i] = printable(labels[i])
	}
	s <- prometheus.MustNewConstMetric(f.Desc, f.kind, value, labels...)
}

// printable is a label's value: names of files and interfaces may hold bytes
// that are no UTF-8, and one of them would cost the whole scrape.
func printable(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}

func (s sink) count(packets, bytes family, n loader.Counter, labels ...string) {
	s.put(packets, float64(n.Packets), labels...)
	s.put(bytes, float64(n.Bytes), labels...)
}

func (s sink) filter(of *Snapshot) {
	s.put(build, 1, of.Version, runtime.Version())
	s.put(filter, 1, of.Mode)
	s.put(monitor, truth(of.Monitor))
	s.put(generation, float64(of.Generation))
	s.put(mapBytes, float64(of.MapBytes))
	s.put(refused, float64(of.Refused))

	s.put(hot, float64(of.Hot))
	s.put(predicted, of.Predicted)
	if of.Weighted != nil {
		s.put(weighted, *of.Weighted)
	}
	if of.Measured != nil {
		s.put(measured, *of.Measured)
		s.put(measuredPackets, of.MeasuredPackets)
	}

	s.durations(loads, &of.Loads)
	s.durations(updates, &of.Updates)
	s.put(reloads, float64(of.Reloads.Done), "done")
	s.put(reloads, float64(of.Reloads.Refused), "refused")
	s.put(lastReload, truth(!of.Reloads.Failed))
	s.put(lastReloadTime, seconds(of.Reloads.Last))
	s.put(lastDoneTime, seconds(of.Reloads.LastDone))
	if of.Config != nil {
		s.put(configReload, truth(!of.Config.Failed))
		s.put(configDoneTime, seconds(of.Config.LastDone))
	}
}

func (s sink) durations(d *prometheus.Desc, of *Durations) {
	buckets := make(map[float64]uint64, len(bounds))
	for i, b := range bounds {
		buckets[b] = of.upTo[i]
	}
	s <- prometheus.MustNewConstHistogram(d, of.count, of.sum, buckets)
}

func (s sink) iface(i Interface) {
	s.put(attached, truth(i.XDP != ""), i.Iface, i.Netns)
	if i.XDP != "" {
		s.put(placed, 1, i.Iface, i.Netns, i.XDP)
	}
	for _, c := range i.Counts {
		verdict := "pass"
		if c.Drops {
			verdict = "drop"
		}
		s.count(packets, octets, c.Counter, i.Iface, i.Netns, c.Reason, verdict)
	}
	s.put(lost, float64(i.Lost), i.Iface, i.Netns)
	if i.Loops != nil {
		for n, packets := range i.Loops {
			if o := icarus.Outcome(n); o != icarus.Untouched {
				s.put(looping, float64(packets), i.Iface, i.Netns, o.String())
			}
		}
	}
	if i.Penalties != nil {
		s.put(penalties, float64(*i.Penalties), i.Iface, i.Netns)
	}
}

func (s sink) multicast(m *Multicast) {
	s.put(groupsWanted, float64(m.Groups))
	s.put(groupsMax, float64(m.MaxGroups))
	s.put(portPlanned, m.Planned)
	s.count(copiedPackets, copiedBytes, m.Copied)
	s.count(leftPackets, leftBytes, m.Left)
	for _, p := range m.Ports {
		s.put(portThere, truth(p.There), p.Iface, p.Netns)
		s.put(portGroups, float64(p.Groups), p.Iface, p.Netns)
		s.put(portRate, p.FalsePositiveRate, p.Iface, p.Netns)
		s.count(portPackets, portBytes, p.Sent, p.Iface, p.Netns, "pass")
		s.count(portPackets, portBytes, p.Dropped, p.Iface, p.Netns, "drop")
	}
}

func (s sink) tracker(t Tracker) {
	labels := []string{strconv.Itoa(t.Number), t.Key, t.Unit, t.Action}
	s.count(trackerPackets, trackerBytes, t.Counter, labels...)
	s.put(trackerDenied, float64(t.Denied), labels...)
	s.put(trackerFlows, float64(t.Flows), labels...)
	s.put(trackerHeavy, float64(t.Heavy), labels...)
}

func (s sink) digests(d Digests) {
	for family, value := range map[family]float64{
		digestPackets: float64(d.Packets), digestSkipped: float64(d.Skipped), loops: float64(d.Loops),
		digestSlices: float64(d.Slices), digestBytes: float64(d.Bytes), digestFill: d.Fill, digestChance: d.Chance,
	} {
		s.put(family, value, d.Iface, d.Netns)
	}
}

func (s sink) feed(f *feed.Feed) {
	st := f.Status()
	seen := make(map[string]int)
	for _, source := range st.Sources {
		name := source.Source
		if seen[name]++; seen[name] > 1 {
			name += "#" + strconv.Itoa(seen[name]) // a URL's query is not in its name
		}
		labels := []string{st.Name, name}
		s.put(feedEntries, float64(source.Entries), labels...)
		s.put(feedInterval, f.Interval.Seconds(), labels...)
		s.put(feedSuccess, seconds(source.Read), labels...)
		s.put(feedAttempt, seconds(source.Last.Ended), labels...)
		s.put(feedFailures, float64(source.Failures), labels...)
		s.put(feedUnsaved, truth(source.Unsaved), labels...)
		if source.Last.Result == feed.Failed {
			s.put(feedFailing, 1, append(labels, source.Last.Failure.String())...)
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// seconds is a time in seconds since 1970, 0 for none.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
