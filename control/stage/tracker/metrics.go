package tracker

import (
	"slices"
	"strconv"

	"weir/control/stage"
	"weir/filter/sketch"
	"weir/loader"
)

var labels = []string{"tracker", "key", "unit", "action"}

var (
	refused  = &stage.Family{Name: "weir_penalties_refused_total", Help: "Heavy hitters that were not rate-limited or blocked at once, because there was no room for another penalty.", Counter: true, Host: true}
	replaced = &stage.Family{Name: "weir_penalties_replaced_total", Help: "Penalties that ended early, to make room for those of flows that exceed more.", Counter: true, Host: true}

	packetsOf = &stage.Family{Name: "weir_tracker_packets_total", Help: "Packets that a tracker has counted. The action on heavy hitters is report, limit or block; drops: only packets that are dropped are counted, for weir drops.", Labels: labels, Counter: true, Host: true}
	bytesOf   = &stage.Family{Name: "weir_tracker_bytes_total", Help: "Bytes of the packets that a tracker has counted.", Labels: labels, Counter: true, Host: true}
	fullOf    = &stage.Family{Name: "weir_tracker_full_windows_total", Help: "Windows of a scan detector that ended early, because its memory was full: a flood of new pairs.", Labels: labels, Counter: true, Host: true}
	deniedOf  = &stage.Family{Name: "weir_tracker_denied_packets_total", Help: "Packets that a tracker could not count exactly, because the flow memory was full.", Labels: labels, Counter: true, Host: true}
	flowsOf   = &stage.Family{Name: "weir_tracker_flows", Help: "Flows in the flow memory, in the last interval.", Labels: labels, Host: true}
	heavyOf   = &stage.Family{Name: "weir_tracker_heavy_hitters", Help: "Flows over the threshold, in the last interval.", Labels: labels, Host: true}
)

// Families are the metrics of trackers.
var Families = []*stage.Family{refused, replaced, packetsOf, bytesOf, fullOf, deniedOf, flowsOf, heavyOf}

// Samples returns what the trackers have counted since the daemon began.
func (r *Runner) Samples() (all []stage.Sample) {
	all = []stage.Sample{{Family: refused, Value: float64(r.totals.refused)}, {Family: replaced, Value: float64(r.totals.replaced)}}
	for i, w := range r.in.watched {
		all = append(all, r.totals.of(i, w).samples()...)
	}
	return all
}

// tally has a tracker's counts of all its intervals, and its findings in the last one.
type tally struct {
	number int    // 1 for the first
	key    string // what makes a flow: src, dst, flow, or a prefix as in src/24
	unit   sketch.Unit
	action string // on heavy hitters: report, limit or block; "drops" for that of dropped packets

	loader.Counter
	denied uint64 // packets not counted exactly, because the flow memory was full
	full   uint64 // windows of a scan detector that ended early, because its memory was full

	flows int // in the flow memory
	heavy int // over the threshold
}

func (t *tally) samples() (all []stage.Sample) {
	values := []string{strconv.Itoa(t.number), t.key, t.unit.String(), t.action}
	put := func(f *stage.Family, n float64) {
		all = append(all, stage.Sample{Family: f, Values: values, Value: n})
	}
	put(packetsOf, float64(t.Packets))
	put(bytesOf, float64(t.Bytes))
	put(deniedOf, float64(t.denied))
	if t.unit != sketch.Packets && t.unit != sketch.Bytes {
		put(fullOf, float64(t.full))
	}
	put(flowsOf, float64(t.flows))
	put(heavyOf, float64(t.heavy))
	return all
}

// totals are the counts of all trackers since the daemon began, and of penalties.
type totals struct {
	trackers []tally
	refused  uint64   // penalties for which there was no room
	replaced uint64   // penalties that made room for others
	by       *Watcher // that has replaced some
	before   uint64   // of these, already in replaced
}

// add adds what the trackers have found in the intervals that have ended.
func (a *totals) add(last, ended []*Report, happened []Event) {
	for _, e := range happened {
		if e.Unmet {
			a.refused++
		}
	}
	for i, report := range last {
		if report == nil || !slices.Contains(ended, report) {
			continue
		}
		t := a.of(i, Watched{Spec: report.Spec, Role: report.Role})
		t.Packets += report.Packets
		t.Bytes += report.Bytes
		t.denied += report.Denied
		if report.Full {
			t.full++
		}
		t.flows, t.heavy = len(report.Flows), 0
		for _, f := range report.Flows {
			if f.Heavy {
				t.heavy++
			}
		}
	}
}

// displaced adds how many penalties made room for others.
func (a *totals) displaced(w *Watcher) {
	if w != a.by {
		a.by, a.before = w, 0
	}
	n := w.Replaced()
	a.replaced, a.before = a.replaced+n-a.before, n
}

// of returns what tracker i has counted so far, under its specification.
func (a *totals) of(i int, w Watched) *tally {
	fresh := tally{number: i + 1, key: string(w.Key), unit: w.Counts(), action: w.Action.String()}
	if w.Role == Drops {
		fresh.action = "drops"
	}
	at := slices.IndexFunc(a.trackers, func(t tally) bool {
		return t.number == fresh.number && t.key == fresh.key && t.unit == fresh.unit && t.action == fresh.action
	})
	if at < 0 {
		at, a.trackers = len(a.trackers), append(a.trackers, fresh)
	}
	return &a.trackers[at]
}
