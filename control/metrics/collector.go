package metrics

import (
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"weir/control/api"
	"weir/control/feed"
	"weir/control/observe/traffic"
	"weir/control/stage"
	"weir/control/stages"
	"weir/filter/packet"
	"weir/loader"
	"weir/loader/netif"
)

// family is a metric family: all metrics with the same name.
type family struct {
	*prometheus.Desc
	kind prometheus.ValueType
}

var families []*prometheus.Desc

func describe(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(name, help, slices.Clone(labels), nil) // others append to them, too
	families = append(families, d)
	return d
}

func counter(name, help string, labels ...string) family {
	return family{describe(name, help, labels...), prometheus.CounterValue}
}

func gauge(name, help string, labels ...string) family {
	return family{describe(name, help, labels...), prometheus.GaugeValue}
}

// describeStages returns the families of stages.
func describeStages() map[*stage.Family]family {
	all := make(map[*stage.Family]family)
	for _, f := range stages.Families {
		labels, kind := interfaceLabels, prometheus.GaugeValue
		switch {
		case f.Directed:
			labels = trafficLabels
		case f.Host:
			labels = nil
		}
		if labels = append(labels, f.Labels...); f.Label != "" {
			labels = append(labels, f.Label)
		}
		if f.Counter {
			kind = prometheus.CounterValue
		}
		all[f] = family{describe(f.Name, f.Help, labels...), kind}
	}
	return all
}

// These come first: package variables are initialised in dependency order, and
// families lists the metrics in the order of the source.
var (
	feedLabels      = []string{"list", "source"}
	interfaceLabels = []string{"interface", "netns"}
	trafficLabels   = append(interfaceLabels, "direction")
)

var (
	build    = gauge("weir_build_info", "Always 1.", "version", "go_version")
	filter   = gauge("weir_filter_info", "Always 1. The mode is exact or approx.", "mode")
	monitor  = gauge("weir_monitor", "Whether weir is in monitor mode: listed packets are counted, none is dropped.")
	override = gauge("weir_monitor_override", "Whether monitor mode was switched on manually, whatever the configuration says.")

	policedRate  = gauge("weir_police_override_rate", "Packets or bytes a second, by unit, to which `weir police` limits what the interface receives, whatever the configuration says; absent otherwise.", append(interfaceLabels, "unit")...)
	policedUntil = gauge("weir_police_override_end_timestamp_seconds", "When that limit ends by itself; absent where it does not.", interfaceLabels...)

	attached  = gauge("weir_interface_attached", "Whether weir filters the interface; 0 while it is gone, detached or taken over. The direction of the packets is in or out.", trafficLabels...)
	unpinned  = gauge("weir_interface_unpinned", "Whether filtering ends with weir, because pins were lost and cannot be made again.", trafficLabels...)
	placed    = gauge("weir_interface_info", "Always 1, while attached. The XDP mode is native or generic; with attach: dispatcher it is dispatcher or dispatcher-generic; it is tc for outgoing packets and with hook: tc.", append(trafficLabels, "xdp")...)
	packets   = counter("weir_packets_total", "Packets received (direction in) or sent (out), by reason. The verdict is pass or drop.", append(trafficLabels, "reason", "verdict")...)
	octets    = counter("weir_bytes_total", "Bytes of these packets, from the Ethernet header on.", append(trafficLabels, "reason", "verdict")...)
	notIP     = counter("weir_not_ip_packets_total", "Packets with the reason not-ip, by EtherType as 0x88e7; 802.3 where a frame has a length instead, and other beyond the first types that an interface met.", append(trafficLabels, "ethertype")...)
	penalties = gauge("weir_penalties", "Heavy hitters that are rate-limited or blocked now.", interfaceLabels...)
	lost      = counter("weir_events_lost_total", "Events lost because the buffer was full.", trafficLabels...)
	ofStages  = describeStages()

	listPackets = counter("weir_list_packets_total", "Packets that matched a block list, also in monitor mode. In approximate mode the list is unknown: they count as \"unattributed\". The origin of the entry is sources, manual or derived.", "list", "origin")
	listBytes   = counter("weir_list_bytes_total", "Bytes of the packets that matched a block list.", "list", "origin")
	entries     = gauge("weir_list_entries", "Active entries. The action is block or allow, the origin sources, manual or derived.", "list", "action", "origin")
	listRefused = gauge("weir_list_refused", "Whether the current contents of the list's sources were refused; the previous ones stay active.", "list", "action")
	listLeftOut = gauge("weir_list_left_out", "Entries of the list's sources that are left out: they would cut off this host, or are flows of too many combinations of fields.", "list", "action")
	listPrivate = gauge("weir_list_private_entries", "Entries of the list's sources that are of private, loopback and similar networks.", "list", "action")
	listTalked  = gauge("weir_list_collateral_addresses", "Addresses of the list with which this host has conversed, as recorded by collateral in weir.yaml.", "list", "action")
	listTrial   = gauge("weir_list_trial", "Whether the block list is on trial: weir_list_packets_total counts meanwhile what it would block, and that passes.", "list")
	badLines    = gauge("weir_list_bad_lines", "Lines skipped because they are not valid entries.", "list", "action")

	generation = gauge("weir_generation", "Number of the active generation, from 1 at the start.")
	mapBytes   = gauge("weir_map_bytes", "Kernel memory of the filter maps.")
	loads      = describe("weir_load_duration_seconds", "Time from the start of reading the lists until they were active.")
	updates    = describe("weir_update_duration_seconds", "Time until changes made in place were active.")

	floods       = gauge("weir_flood", "Whether a flood of this kind is under way, by sampled packets: weir flood says what it is.", "kind")
	floodDropped = gauge("weir_flood_dropped_ratio", "Share of the flood's packets that weir drops; 1 while there is none.")

	longestTurn = gauge("weir_longest_turn_seconds", "Longest time for which commands had to wait for other work, in the last minute or two.")

	stateUnsaved = gauge("weir_state_unsaved", "Whether a restart would forget manual entries or modes, because state files cannot be written.")

	logFailed = counter("weir_log_failed_lines_total", "Lines of the log that could not be written, as to a pipe without a reader.")

	reloads        = counter("weir_reloads_total", "Reloads of all lists. The outcome is done, or refused: then the old lists stay.", "outcome")
	lastReload     = gauge("weir_last_reload_successful", "Whether the last reload, or the start, succeeded; otherwise the old lists stay.")
	lastReloadTime = gauge("weir_last_reload_timestamp_seconds", "When the lists were last reloaded, with either outcome.")
	lastDoneTime   = gauge("weir_last_reload_success_timestamp_seconds", "When the last successful reload was.")
	configReload   = gauge("weir_config_last_reload_successful", "Whether the configuration was valid when it was last read; otherwise the old one stays.")
	configDoneTime = gauge("weir_config_last_reload_success_timestamp_seconds", "When the active configuration was read.")

	predicted      = gauge("weir_false_positive_predicted_ratio", "Predicted share of unlisted packets that the filter takes for listed, if no element were hot.")
	weighted       = gauge("weir_false_positive_weighted_ratio", "Predicted share of unlisted packets that the cascade takes for listed, with the active weights. In exact mode the table clears them.")
	falsePositives = gauge("weir_false_positive_ratio", "Share of unlisted packets that were dropped by mistake since the filter was built, counted. Absent in exact mode, and before the first packet.")
	fewestFalse    = gauge("weir_false_positive_low_ratio", "Lower bound of the 95 % interval of weir_false_positive_ratio.")
	mostFalse      = gauge("weir_false_positive_high_ratio", "Upper bound of the 95 % interval of weir_false_positive_ratio.")
	falseOf        = gauge("weir_false_positive_packets", "Unlisted packets of which weir_false_positive_ratio is the share.")
	hot            = gauge("weir_hot_elements", "Hot elements, of which more bits are tested than of others.")

	feedEntries  = gauge("weir_feed_entries", "Active entries of a list's source.", feedLabels...)
	feedInterval = gauge("weir_feed_interval_seconds", "Interval at which the source is read.", feedLabels...)
	feedSuccess  = gauge("weir_feed_last_success_timestamp_seconds", "When the source was last known to contain the active entries; 0: never.", feedLabels...)
	feedAttempt  = gauge("weir_feed_last_attempt_timestamp_seconds", "When the last attempt to read the source ended; 0: never.", feedLabels...)
	feedFailures = gauge("weir_feed_failed_attempts", "Failed attempts since the last successful one.", feedLabels...)
	feedFailing  = gauge("weir_feed_failing", "Always 1, while the last attempt has failed; the label names the failure.", append(feedLabels, "failure")...)
	feedUnsaved  = gauge("weir_feed_unsaved", "Whether the active entries could not be saved: a restart would not find them.", feedLabels...)

	notifications  = counter("weir_notifications_total", "Events for a receiver of notifications, by outcome: delivered, failed (given up), or discarded, because too many were waiting.", "target", "outcome")
	notifyRetries  = counter("weir_notification_failed_attempts_total", "Attempts to deliver an event that failed.", "target")
	notifyWaiting  = gauge("weir_notifications_waiting", "Events that wait for a receiver.", "target")
	fleetConnected = gauge("weir_fleet_connected", "Whether this node is connected to the hub of its fleet.")
	fleetStale     = gauge("weir_fleet_stale", "Whether the hub has been silent for longer than the maximum age: filtering goes on with old lists.")
	fleetConfirmed = gauge("weir_fleet_last_confirmed_timestamp_seconds", "When the hub last said what this node is to have; 0 for never.")
	fleetRefused   = counter("weir_fleet_refused_messages_total", "Messages of the fleet that were refused: forged, replayed or damaged.")

	fleetRenewal = gauge("weir_fleet_renewal_failing", "Whether this node cannot renew its certificate: weir status says since when, and why.")

	exportRecords = counter("weir_export_records_total", "Records for a flow collector, by outcome: sent, or lost, because they could not be sent or too many were waiting.", "collector", "outcome")
	exportWaiting = gauge("weir_export_waiting_batches", "Intervals whose records wait for the collector.", "collector")
	exportFailing = gauge("weir_export_failing", "Whether the last attempt to send to the collector failed.", "collector")

	historyRecords = counter("weir_history_failed_records_total", "Records of the history, of ten seconds or a quarter of an hour, by what went wrong: unwritten (they are in memory only), lost (the disk was too slow), or damaged, when the daemon started.", "outcome")

	notifyFailing = gauge("weir_notification_failing", "Whether the last attempt to deliver an event failed.", "target")
)

// unattributed is the list label of hits whose list is unknown.
const unattributed = "unattributed"

// collector implements prometheus.Collector: each collection takes a snapshot.
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
		o := s.origin(name)
		if name == "" {
			o = Origin{unattributed, ""}
		}
		out.count(listPackets, listBytes, n, o.List, o.Entries)
	}
	for _, l := range s.Lists {
		action := "block"
		if l.Allow {
			action = "allow"
		}
		o := s.origin(l.Name)
		out.put(entries, float64(l.Entries), o.List, action, o.Entries)
		if o.List != l.Name {
			continue // the manual entries of a list with sources
		}
		out.put(listRefused, truth(l.Refused), l.Name, action)
		out.put(listLeftOut, float64(l.LeftOut), l.Name, action)
		out.put(listPrivate, float64(l.Private), l.Name, action)
		if l.Collateral != nil {
			out.put(listTalked, float64(*l.Collateral), l.Name, action)
		}
		if !l.Allow {
			out.put(listTrial, truth(l.Trial), l.Name)
		}
		out.put(badLines, float64(l.BadLines), l.Name, action)
	}
	for _, of := range s.Stages {
		out.stage(of, of.At)
	}
	for _, f := range s.Feeds {
		out.feed(f)
	}
	for _, n := range s.Notifications {
		out.put(notifications, float64(n.Delivered), n.Target, "delivered")
		out.put(notifications, float64(n.Failed), n.Target, "failed")
		out.put(notifications, float64(n.Discarded), n.Target, "discarded")
		out.put(notifyRetries, float64(n.Attempts), n.Target)
		out.put(notifyWaiting, float64(n.Waiting), n.Target)
		out.put(notifyFailing, truth(n.Failing), n.Target)
	}
	for _, c := range s.Exports {
		out.put(exportRecords, float64(c.Sent), c.Collector, "sent")
		out.put(exportRecords, float64(c.Lost), c.Collector, "lost")
		out.put(exportWaiting, float64(c.Waiting), c.Collector)
		out.put(exportFailing, truth(c.Failing), c.Collector)
	}
	out.put(historyRecords, float64(s.History.Errors), "unwritten")
	out.put(historyRecords, float64(s.History.Lost), "lost")
	out.put(historyRecords, float64(s.History.Damaged), "damaged")
	if f := s.Fleet; f != nil {
		out.put(fleetConnected, truth(f.Connected))
		out.put(fleetStale, truth(f.Stale))
		out.put(fleetConfirmed, seconds(f.Confirmed))
		out.put(fleetRefused, float64(f.Refused))
		out.put(fleetRenewal, truth(f.RenewalFails))
	}
}

// sink converts values to Prometheus metrics and sends them.
type sink chan<- prometheus.Metric

func (s sink) put(f family, value float64, labels ...string) {
	for i := range labels {
		labels[i] = printable(labels[i])
	}
	s <- prometheus.MustNewConstMetric(f.Desc, f.kind, value, labels...)
}

// printable returns a valid label value: names of files and interfaces need not be
// UTF-8, and one invalid value fails the whole scrape, as do two that are equal. What
// would give orders to a terminal is quoted as well.
func printable(s string) string {
	hidden := func(r rune) bool { return r == '\\' || r != '\n' && !unicode.IsPrint(r) }
	if utf8.ValidString(s) && strings.IndexFunc(s, hidden) < 0 {
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
	s.put(override, truth(of.MonitorOverride))
	for _, p := range of.Policed {
		unit := "packets"
		if p.Bytes {
			unit = "bytes"
		}
		s.put(policedRate, p.Rate, p.Interface, p.Netns, unit)
		if !p.Until.IsZero() {
			s.put(policedUntil, float64(p.Until.UnixMilli())/1e3, p.Interface, p.Netns)
		}
	}
	s.put(generation, float64(of.Generation))
	s.put(mapBytes, float64(of.MapBytes))
	s.put(hot, float64(of.Hot))
	s.put(predicted, of.Predicted)
	if of.Weighted != nil {
		s.put(weighted, *of.Weighted)
	}
	if c := of.Counted; c.Rate != nil {
		s.put(falsePositives, *c.Rate)
		s.put(fewestFalse, *c.Low)
		s.put(mostFalse, *c.High)
		s.put(falseOf, float64(c.Packets))
	}

	s.durations(loads, &of.Loads)
	s.durations(updates, &of.Updates)
	if of.Floods.Sampled {
		dropped := 1.0
		for _, kind := range []api.FloodKind{api.FloodRuled, api.FloodUsers, api.FloodNothing} {
			now := of.Floods.Now != nil && of.Floods.Now.Kind == kind
			s.put(floods, truth(now), string(kind))
			if now {
				dropped = of.Floods.Now.Dropped
			}
		}
		s.put(floodDropped, dropped)
	}
	s.put(longestTurn, of.LongestTurn.Seconds())
	s.put(stateUnsaved, truth(of.Unsaved))
	s.put(logFailed, float64(of.LogFailed))
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

func (s sink) iface(i traffic.Interface) {
	s.put(attached, truth(i.XDP != ""), i.Iface, i.Netns, i.Direction())
	s.put(unpinned, truth(i.Unpinned), i.Iface, i.Netns, i.Direction())
	if i.XDP != "" {
		s.put(placed, 1, i.Iface, i.Netns, i.Direction(), i.XDP)
	}
	for _, c := range i.Counts {
		verdict := "pass"
		if c.Drops {
			verdict = "drop"
		}
		s.count(packets, octets, c.Counter, i.Iface, i.Netns, i.Direction(), c.Reason, verdict)
	}
	for t, c := range i.NotIP.ByType {
		s.put(notIP, float64(c.Packets), i.Iface, i.Netns, i.Direction(), packet.FormatEtherType(t))
	}
	if n := i.NotIP.Others.Packets; n > 0 {
		s.put(notIP, float64(n), i.Iface, i.Netns, i.Direction(), packet.OtherEtherTypes)
	}
	s.put(lost, float64(i.Lost), i.Iface, i.Netns, i.Direction())
	for _, of := range i.Stages {
		s.stage(of, i.Target)
	}
	if i.Penalties != nil {
		s.put(penalties, float64(*i.Penalties), i.Iface, i.Netns)
	}
}

func (s sink) stage(of stage.Sample, at netif.Target) {
	var labels []string
	if !of.Host {
		labels = append(labels, at.Iface, at.Netns)
	}
	if of.Directed {
		labels = append(labels, at.Direction())
	}
	if labels = append(labels, of.Values...); of.Label != "" {
		labels = append(labels, of.Of)
	}
	s.put(ofStages[of.Family], of.Value, labels...)
}

func (s sink) feed(f Feed) {
	st := f.Status()
	for _, source := range st.Sources {
		labels := []string{st.Name, source.Source}
		s.put(feedEntries, float64(source.Entries), labels...)
		if st.Interval > 0 {
			s.put(feedInterval, st.Interval.Seconds(), labels...)
		}
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
