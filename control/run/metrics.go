package run

import (
	"slices"
	"sync/atomic"
	"time"

	"weir/control/metrics"
	"weir/control/observe/heavy"
	"weir/filter/penalty"
	"weir/loader"
)

// record is what is kept for metrics, besides what the kernel counts.
type record struct {
	ledger   ledger
	loads    metrics.Durations
	updates  metrics.Durations
	reloads  metrics.Reloads
	trackers []metrics.Tracker
	refused  uint64 // penalties
	last     atomic.Pointer[metrics.Snapshot]
}

// loaded enters what came of reading the lists: at the start, or again.
func (r *record) loaded(again bool, began time.Time, err error) {
	now := time.Now()
	r.reloads.Last, r.reloads.Failed = now, err != nil
	switch {
	case err != nil:
		r.reloads.Refused++
		return
	case again:
		r.reloads.Done++
	}
	r.reloads.LastDone = now
	r.loads.Observe(now.Sub(began))
}

// watched enters what the trackers have found in the intervals that have ended;
// those from `learning` on are for learning.
func (r *record) watched(last, ended []*heavy.Report, events []heavy.Event, learning int) {
	for _, e := range events {
		if e.Unmet {
			r.refused++
		}
	}
	for i, report := range last {
		if report == nil || !slices.Contains(ended, report) {
			continue
		}
		t := r.tracker(i, report.Spec, learning)
		t.Packets += report.Packets
		t.Bytes += report.Bytes
		t.Denied += report.Denied
		t.Flows, t.Heavy = len(report.Flows), 0
		for _, f := range report.Flows {
			if f.Heavy {
				t.Heavy++
			}
		}
	}
}

// tracker finds what tracker i has counted so far, under its specification.
func (r *record) tracker(i int, s heavy.Spec, learning int) *metrics.Tracker {
	fresh := metrics.Tracker{Number: i + 1, Key: string(s.Key), Unit: s.Counts().String(), Action: s.Action.String()}
	if i >= learning {
		fresh.Action = "learn"
	}
	at := slices.IndexFunc(r.trackers, func(t metrics.Tracker) bool {
		return t.Number == fresh.Number && t.Key == fresh.Key && t.Unit == fresh.Unit && t.Action == fresh.Action
	})
	if at < 0 {
		at, r.trackers = len(r.trackers), append(r.trackers, fresh)
	}
	return &r.trackers[at]
}

// Metrics implements metrics.Source.
func (f *Filter) Metrics() metrics.Snapshot {
	var s metrics.Snapshot
	if last := f.record.last.Load(); last != nil {
		s = *last
	}
	s.Interfaces, s.Hits = f.record.ledger.read()
	return s
}

// note brings what Metrics gives up to date, but for what the kernel counts,
// which is read when it is asked for.
func (f *Filter) note() {
	r, w, d := &f.record, &f.watch, &f.description
	s := metrics.Snapshot{
		Version: d.Version, Mode: d.Mode, Monitor: d.Monitor,
		Generation: f.generations, MapBytes: d.KernelBytes, Predicted: d.FalsePositiveRate,
		Loads: r.loads, Updates: r.updates, Reloads: r.reloads, Refused: r.refused,
	}
	for _, l := range d.Lists {
		s.Lists = append(s.Lists, metrics.List{Name: l.Name, Allow: l.Allow, Entries: l.Entries, BadLines: l.BadLines})
	}
	for i, spec := range w.specs {
		s.Trackers = append(s.Trackers, *r.tracker(i, spec, len(f.o.Track)))
	}
	if f.recorder != nil {
		for _, c := range f.recorder.Counts() {
			s.Digests = append(s.Digests, metrics.Digests(c))
		}
		if n, ok := f.recorder.Archived(); ok {
			s.Archive = &metrics.Archive{Slices: n.Files, Bytes: n.Bytes, Errors: n.Errors}
		}
	}
	if w.weights.Uniform > 0 { // something was learned
		s.Weighted = new(w.weights.Predicted)
		s.Measured, s.MeasuredPackets = w.measured.rate(), w.measured.unlisted
	}
	for _, e := range w.weights.Elements {
		if e.K > w.weights.Base {
			s.Hot++
		}
	}
	s.Multicast = f.Forwarding()
	if f.o.Tell != nil {
		f.o.Tell(&s)
	}
	r.last.Store(&s)

	punishing := slices.ContainsFunc(f.o.Track, func(s heavy.Spec) bool { return s.Action != heavy.ReportOnly })
	var named []loader.Target
	for _, p := range f.o.Places {
		if !p.pattern() {
			named = append(named, p.Target)
		}
	}
	var there []found
	for _, h := range f.holds {
		if h.Attachment == nil || h.Replaced() {
			continue
		}
		n := found{Attachment: h.Attachment, gone: h.Severed()}
		if punishing && !n.gone {
			if c, err := f.generation.OpenTrackers(h.Stats()); err == nil {
				if t, err := penalty.NewTable(c.Penalties); err == nil {
					n.penalties = new(t.Len())
				}
				c.Close() // if it fails, the memory leaks
			}
		}
		there = append(there, n)
	}
	r.ledger.follow(there, named)
	f.listen()
}

// found is an interface that is filtered now, or was before it went: its counters
// go on when it is back.
type found struct {
	*loader.Attachment
	gone      bool
	penalties *int
}
