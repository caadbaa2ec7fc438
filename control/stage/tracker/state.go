package tracker

import (
	"fmt"
	"log/slog"
	"time"

	"weir/control/api"
	"weir/control/stage"
	"weir/filter/sketch"
	"weir/loader"
)

// Hitters returns the last reports of the trackers of heavy hitters.
func (r *Runner) Hitters() (all []*Report) {
	for _, report := range r.in.Last() {
		if report != nil && report.Role != Drops {
			all = append(all, report)
		}
	}
	return all
}

// API returns a report for clients, at a time of both clocks.
func (r *Report) API(now time.Time, clock time.Duration) api.Tracker {
	seconds := max(r.Interval.Seconds(), 1e-3)
	t := api.Tracker{
		Key: string(r.Spec.Key), Unit: r.Spec.Counts().String(), Interval: r.Interval.Seconds(),
		Threshold: r.Spec.Limits(), Action: r.Spec.Action.String(),
		Packets: float64(r.Packets) / seconds, Bytes: float64(r.Bytes) / seconds, Denied: r.Denied, Full: r.Full, Spread: r.Spread,
	}
	for _, f := range r.Flows {
		if f.Heavy {
			t.Heavy++
		}
	}
	whole := r.Packets
	if r.Spec.Counts() == sketch.Bytes {
		whole = r.Bytes
	}
	for _, f := range r.Flows[:min(len(r.Flows), api.MaxTop)] {
		packets, bytes := f.Whole(r.Spec.Counts())
		flow := api.Flow{
			Key: stage.FlowName(f.Key), Packets: packets / seconds, Bytes: bytes / seconds, Estimate: f.Before > 0,
			LeastPackets: float64(f.Packets) / seconds, LeastBytes: float64(f.Bytes) / seconds,
			Share: min(1, float64(f.Estimate(r.Spec.Counts()))/max(1, float64(whole))), Heavy: f.Heavy,
		}
		if f.State != ReportOnly {
			flow.State = map[Action]string{Limit: api.RateLimited, Block: api.Blocked}[f.State]
			until := now.Add(f.Until - clock)
			flow.Until = &until
		}
		t.Flows = append(t.Flows, flow)
	}
	t.More = len(r.Flows) - len(t.Flows)
	return t
}

// API returns the flow for clients.
func (s Spared) API() api.Spared {
	return api.Spared{Flow: stage.FlowName(s.Flow), Tracker: string(s.Spec.Key), Action: s.Spec.Action.String(), CutsOff: s.CutsOff}
}

// DescribeStatus adds penalties to the status of a daemon.
func (r *Runner) DescribeStatus(to *api.Status) {
	to.PenaltiesRefused, to.PenaltiesReplaced = r.totals.refused, r.totals.replaced
	spared := r.in.Spared(loader.Monotonic())
	for _, x := range spared[:min(len(spared), api.MaxSpared)] {
		to.Spared = append(to.Spared, x.API())
	}
	to.SparedMore = len(spared) - len(to.Spared)
}

// String describes the event to operators.
func (e Event) String() string {
	flow := stage.FlowName(e.Flow.Key)
	done := map[Action]string{Limit: "rate-limited", Block: "blocked"}[e.Spec.Action]
	switch {
	case e.Released:
		text := flow + " " + e.Spec.ended()
		if done != "" {
			text = flow + " is no longer " + done
		}
		if e.Forgotten {
			text = flow + " is no longer watched: there are too many heavy hitters"
		}
		if e.CutsOff != "" {
			text += ": that would cut off " + e.CutsOff
		}
		return text
	case e.CutsOff != "" && e.Spec.Action == Limit:
		return fmt.Sprintf("%s %s, and is rate-limited to %s, since less would cut off %s", flow, e.Spec.began(), e.Spec.leastLimit(), e.CutsOff)
	case e.CutsOff != "":
		return fmt.Sprintf("%s %s, and would be blocked, but that would cut off %s", flow, e.Spec.began(), e.CutsOff)
	case e.Unmet:
		return fmt.Sprintf("%s %s, and is not %s: there is no room for another penalty", flow, e.Spec.began(), done)
	case done != "":
		return fmt.Sprintf("%s %s, and is %s", flow, e.Spec.began(), done)
	}
	return flow + " " + e.Spec.began()
}

// Log writes a line to the log.
func (e Event) Log(log *slog.Logger) {
	attrs := []any{"flow", stage.FlowName(e.Flow.Key), "tracker", string(e.Spec.Key), "action", e.Spec.Action.String()}
	began, ended := "heavy hitter", "no longer a heavy hitter"
	if e.Spec.CountsPairs() {
		began, ended = "scan", "no longer a scan"
		attrs = append(attrs, e.Spec.Counts().String(), e.Flow.Packets, "threshold", e.Spec.Limits())
	} else {
		attrs = append(attrs, "packets", e.Flow.Packets, "bytes", e.Flow.Bytes, "interval", e.Over.Round(time.Millisecond).String())
	}
	if e.CutsOff != "" {
		attrs = append(attrs, "would_cut_off", e.CutsOff)
	}
	switch {
	case e.Released && e.CutsOff != "":
		log.Warn("a penalty has ended, since it would cut off a protected address", attrs...)
	case e.CutsOff != "":
		log.Warn(began+", spared, since a penalty would cut off a protected address", attrs...)
	case e.Unmet:
		log.Error(began+", but there is no room for another penalty", attrs...)
	case e.Forgotten:
		log.Info("a heavy hitter is forgotten, since there are too many", attrs...)
	case e.Released:
		log.Info(ended, attrs...)
	default:
		log.Warn(began, attrs...)
	}
}
