package tracker

import (
	"log/slog"
	"time"

	"weir/control/api"
	"weir/control/explain"
	"weir/control/stage"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
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
		Packets: float64(r.Packets) / seconds, Bytes: float64(r.Bytes) / seconds, Denied: r.Denied, Full: r.Full,
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

// maxDepends bounds the flows of one kind that an answer names.
const maxDepends = 10

// Meeting returns the penalties that all packets of a question meet, and the first of those
// that some may, and the number of the others.
func (r *Runner) Meeting(q explain.Question) (kept []verdict.Penalty, more int) {
	return meeting(r.in.Penalties(loader.Monotonic()), q)
}

func meeting(all []verdict.Penalty, q explain.Question) (kept []verdict.Penalty, more int) {
	if q.Frame != nil {
		return all, 0 // a packet is of a flow, or it is not
	}
	some := 0
	for _, p := range all {
		switch {
		case !p.Meets(q.Known):
			continue
		case !p.Flow.Shape.Within(q.Known.Shape):
			if some++; some > maxDepends {
				continue
			}
		}
		kept = append(kept, p)
	}
	return kept, max(0, some-maxDepends)
}

// DescribeAnswer adds to an answer what is known of heavy hitters: how much of one exceeds its
// limit, how many penalties are left out, and which flows are spared.
func (r *Runner) DescribeAnswer(a *explain.Answer, more int) {
	if a.Direction == (netif.Target{Out: true}).Direction() || !a.Known.Src.IsValid() {
		return // outgoing packets have no penalties
	}
	a.PenaltiesMore = more
	if l := a.Limit; l != nil {
		spec, offered, known := r.in.Limited(l.Key, l.Rate)
		l.Tracker, l.Unit = string(spec.Key), "packets"
		if spec.Counts() == sketch.Bytes {
			l.Unit = "bytes"
		}
		if known {
			l.Offered = &offered
		}
	}
	for _, x := range r.in.Spared(loader.Monotonic()) {
		if len(a.Spared) < maxDepends && x.Flow.Overlaps(a.Known) {
			a.Spared = append(a.Spared, x.API().String())
		}
	}
}

// Log writes a line to the log.
func (e Event) Log(log *slog.Logger) {
	attrs := []any{"flow", stage.FlowName(e.Flow.Key), "tracker", string(e.Spec.Key), "action", e.Spec.Action.String()}
	began, ended := "heavy hitter", "no longer a heavy hitter"
	if e.Spec.Guard() {
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
		log.Warn("a penalty has ended, because of what it would cut off", attrs...)
	case e.CutsOff != "":
		log.Warn(began+", spared because of what a penalty would cut off", attrs...)
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
